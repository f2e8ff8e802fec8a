//! Something on the path acknowledges a client's last words, and goes down with them: the server has to hear them all the
//! same, or it would keep a session that nobody comes back for (PROTOCOL 4.8). Both faces.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

use crate::common::{quick, within};
use outlast_session::proto::Frame;
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking, tokio as async_face};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ANSWER: &[u8] = b"that is all";

/// A relay in the middle: takes everything from both sides and passes it on, but on its first connection nothing that the
/// client says after it was told where the server's stream ends.
struct Middlebox {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Middlebox {
    fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let forgets = count.fetch_add(1, Ordering::SeqCst) == 0;
                let server = TcpStream::connect(server).unwrap();
                relay(client.unwrap(), server, forgets);
            }
        });
        Self { address, connections }
    }
}

fn relay(client: TcpStream, server: TcpStream, forgets: bool) {
    let ended = Arc::new(AtomicBool::new(false));
    let down = {
        let (from, to, ended) = (server.try_clone().unwrap(), client.try_clone().unwrap(), ended.clone());
        move || {
            let mut end = Vec::new();
            Frame::End { end_offset: ANSWER.len() as u64 }.encode(0, &mut end);
            // Kind and length; what follows is how much the server has read.
            let end = end.get(..8).unwrap();
            copy(from, to, |bytes| {
                if forgets && bytes.windows(end.len()).any(|window| window == end) {
                    ended.store(true, Ordering::SeqCst);
                }
                true
            });
        }
    };
    let up = move || {
        copy(client, server, |_| !ended.load(Ordering::SeqCst));
    };
    std::thread::spawn(down);
    std::thread::spawn(up);
}

/// Until one side closes, or `passes` says no: then both are closed, a moment later.
fn copy(mut from: TcpStream, mut to: TcpStream, mut passes: impl FnMut(&[u8]) -> bool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !passes(&buffer[..count]) {
            // What comes in this while was acknowledged, too.
            std::thread::sleep(Duration::from_millis(100));
            break;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn config() -> Arc<Config> {
    Arc::new(Config { ack: AckMode::Fixed(LinkMode::Inband), watch_network: false, ..quick() })
}

/// Reads the client's stream to its end before it says anything: what the client says last is that it has the answer.
fn serve(listener: &blocking::Listener) {
    let mut session = listener.accept().unwrap();
    let mut question = Vec::new();
    session.read_to_end(&mut question).unwrap();
    assert_eq!(question, b"is that all?");
    session.write_all(ANSWER).unwrap();
}

fn check(client: fn(&Targets, &Arc<Config>)) {
    within(move || {
        let config = config();
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let middlebox = Middlebox::before(listener.local_addr());
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&listener));
            client(&Targets::from(middlebox.address), &config);
        });
        // The client has come back to say it again.
        let started = Instant::now();
        while !listener.sessions().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(2), "kept for nobody: {:?}", listener.sessions());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(middlebox.connections.load(Ordering::SeqCst) > 1, "nothing was forgotten");
    });
}

/// Question and answer, both streams to their ends.
fn ask(targets: &Targets, config: &Arc<Config>) -> blocking::Session {
    let mut session = blocking::Session::connect_with(targets, config).unwrap();
    session.write_all(b"is that all?").unwrap();
    session.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    session.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, ANSWER);
    session
}

#[test]
fn threads_stay_until_their_last_words_were_heard() {
    check(|targets, config| {
        let session = ask(targets, config);
        // The process could exit behind this.
        session.finish().unwrap();
    });
}

#[test]
fn tasks_stay_until_their_last_words_were_heard() {
    check(|targets, config| {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut session = async_face::Session::connect_with(targets, config).await.unwrap();
            session.write_all(b"is that all?").await.unwrap();
            session.shutdown().await.unwrap();
            let mut answer = Vec::new();
            session.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, ANSWER);
            session.finish().await.unwrap();
        });
    });
}

/// A session that is let go of is seen to its end by the process, as long as that lives.
#[test]
fn a_session_that_is_dropped_is_seen_to_its_end() {
    check(|targets, config| drop(ask(targets, config)));
}

/// The environment variable that makes a client of this test.
const CLIENT_OF: &str = "OUTLAST_TEST_CLIENT_OF";

/// What the README's client does, in a process of its own that ends right behind it.
#[test]
fn child_program() {
    let Ok(address) = std::env::var(CLIENT_OF) else { return };
    let mut session = blocking::Session::connect(&address).unwrap();
    session.write_all(b"hello").unwrap();
    session.read_exact(&mut [0; 5]).unwrap();
    session.finish().unwrap();
    std::process::exit(0);
}

#[test]
fn a_process_that_exits_behind_finish_leaves_nothing() {
    within(|| {
        let config = Arc::new(Config { ack: AckMode::Auto, ..(*config()).clone() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["last_words::child_program", "--exact"])
            .env(CLIENT_OF, listener.local_addr().to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut session = listener.accept().unwrap();
        session.read_exact(&mut [0; 5]).unwrap();
        session.write_all(b"world").unwrap();
        assert!(child.wait().unwrap().success());
        // The client is gone, and has all there is.
        session.finish().unwrap();
        session.read_to_end(&mut Vec::new()).unwrap();
        drop(session);
        let started = Instant::now();
        while !listener.sessions().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(2), "kept for nobody: {:?}", listener.sessions());
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}
