//! A link that is full from its first moment on, and whose peer vanishes without a word. The server is made by hand, so
//! that it reads nothing.
// A failed expectation is the message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use outlast_lab::Lab;
use outlast_session::proto::{Demand, ServerHandshake, ServerStep, Welcome};
use outlast_session::{AckMode, Config, LinkMode, SessionState, Targets, blocking};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DETECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// More than both kernels and both ends hold.
const PIECES: usize = 4000;
const PIECE: [u8; 10_000] = [7; 10_000];

/// Answers the Hello of the next connection, after a while.
fn welcome(listener: &TcpListener, after: Duration) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut handshake = ServerHandshake::new(Demand::Open, [0; 32]);
    let (mut input, mut buffer) = (Vec::new(), [0; 512]);
    let hello = loop {
        let count = stream.read(&mut buffer).unwrap();
        input.extend_from_slice(&buffer[..count]);
        match handshake.feed(&input) {
            ServerStep::NeedMore => {}
            ServerStep::Greeted(greeted) => break greeted.hello,
            other => panic!("{other:?}"),
        }
    };
    std::thread::sleep(after);
    let welcome = Welcome { next_offset: hello.retained_offset, ..Welcome::to_new(&hello) };
    stream.write_all(&handshake.accept(welcome)).unwrap();
    stream
}

#[test]
fn a_link_that_is_full_at_once_is_watched_over() {
    outlast_lab::require!("drops everything that a host receives");
    let lab = Lab::new("detection").unwrap();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    lab.connect(&client, &server).unwrap();
    let address = server.socket_addr(7000);
    let listener = server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let config = Arc::new(Config {
        ack: AckMode::Fixed(LinkMode::Kernel),
        detect_timeout: Duration::from_secs(1),
        watch_network: false,
        ..Config::default()
    });
    let session =
        client.enter(|| blocking::Session::connect_with(&Targets::from(address), &config)).unwrap().unwrap();
    let mut writer = session.try_clone().unwrap();
    // More than two sockets and the ring hold: it ends with the session.
    let writing = std::thread::spawn(move || while writer.write_all(&[7; 100_000]).is_ok() {});
    let first = welcome(&listener, Duration::ZERO);
    std::thread::sleep(Duration::from_millis(300));
    socket2::SockRef::from(&first).set_linger(Some(Duration::ZERO)).unwrap();
    drop(first);
    // Long enough for the helper to find a session without a link, of which nothing can be learned.
    let second = welcome(&listener, Duration::from_millis(1500));
    let resumed = |session: &blocking::Session| session.info().state == SessionState::Connected;
    wait_until("resumed", || resumed(&session));
    // Its window is closed for a while, and the peer's kernel says so.
    let epoch = session.info().epoch;
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((session.info().epoch, session.info().state), (epoch, SessionState::Connected));
    let rule = ["-A", "INPUT", "-j", "DROP"];
    assert!(server.command("iptables-legacy").args(rule).status().unwrap().success());
    wait_until("lost", || !resumed(&session));
    session.kill();
    writing.join().unwrap();
    drop(second);
}

/// In every mode: an application that reads nothing for longer than the detection time-out, and its kernel, which takes in
/// nothing more, are no lost link.
#[test]
fn who_reads_nothing_for_a_long_time_is_not_gone() {
    std::thread::scope(|scope| {
        for mode in [LinkMode::Kernel, LinkMode::Window, LinkMode::Inband] {
            scope.spawn(move || reads_late(mode));
        }
    });
}

fn reads_late(mode: LinkMode) {
    let config = Arc::new(Config {
        ack: AckMode::Fixed(mode),
        detect_timeout: DETECT_TIMEOUT,
        watch_network: false,
        ..Config::default()
    });
    let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
    let targets = Targets::from(listener.local_addr());
    let mut client = blocking::Session::connect_with(&targets, &config).unwrap();
    client.write_all(b"?").unwrap();
    let mut server = listener.accept().unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
    let mut writer = server.try_clone().unwrap();
    let writing = std::thread::spawn(move || (0..PIECES).for_each(|_| writer.write_all(&PIECE).unwrap()));
    // Also after it has gone on for a moment.
    let mut left_bytes = PIECES * PIECE.len();
    for read_bytes in [left_bytes / 4, left_bytes / 4, left_bytes / 2] {
        std::thread::sleep(DETECT_TIMEOUT * 4);
        let mut got = vec![0; read_bytes];
        client.read_exact(&mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == PIECE[0]));
        left_bytes -= read_bytes;
    }
    assert_eq!(left_bytes, 0);
    writing.join().unwrap();
    assert_eq!((client.info().outages, server.info().outages), (0, 0), "{mode:?}");
}

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !reached() {
        assert!(Instant::now() < deadline, "never {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
