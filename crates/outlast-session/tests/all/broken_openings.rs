//! An opening whose connection was made and broke before the server's answer was read: another one carries on, as for any
//! other link. Both faces, every security.
// A failed expectation is the message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Case, Protection, within};
use outlast_session::{AckMode, Config, Error, LinkMode, Targets, blocking, tokio as async_face};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A relay that resets its first connections when so many bytes of the server's answer have passed.
struct Relay {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Relay {
    fn new(server: SocketAddr, broken: usize, answer_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let limit = (count.fetch_add(1, Ordering::SeqCst) < broken).then_some(answer_bytes);
                std::thread::spawn(move || carry(near, server, limit));
            }
        });
        Self { address, accepted }
    }
}

fn carry(mut near: TcpStream, server: SocketAddr, limit: Option<usize>) {
    // The test may be over.
    let Ok(mut far) = TcpStream::connect(server) else { return reset(&near) };
    if let Some(0) = limit {
        // Before the client can have sent anything.
        return reset(&near);
    }
    let (mut near_too, mut far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut near_too, &mut far_too);
        let _ = far_too.shutdown(Shutdown::Write);
    });
    let Some(limit) = limit else {
        let _ = std::io::copy(&mut far, &mut near);
        let _ = near.shutdown(Shutdown::Write);
        return;
    };
    let mut passed = 0;
    let mut buffer = [0; 4096];
    while passed < limit {
        let room = (limit - passed).min(buffer.len());
        let Ok(count @ 1..) = far.read(&mut buffer[..room]) else { break };
        if near.write_all(&buffer[..count]).is_err() {
            break;
        }
        passed += count;
    }
    reset(&far);
    reset(&near);
}

fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    let _ = stream.shutdown(Shutdown::Both);
}

/// Lengths at which an answer is cut: none of it, within its first message, and behind that.
const CUTS: [usize; 6] = [0, 1, 15, 40, 75, 100];

fn cases() -> Vec<Case> {
    let auto = AckMode::Auto;
    let mut cases: Vec<Case> = [Protection::Open, Protection::Psk, Protection::Tls]
        .map(|protection| Case { ack: auto, protection })
        .to_vec();
    let ack = AckMode::Fixed(LinkMode::Inband);
    cases.push(Case { ack, protection: Protection::Psk });
    cases
}

#[test]
fn threads_open_although_the_first_connections_are_reset() {
    within(|| {
        for case in cases() {
            let config = Arc::new(Config { watch_network: false, ..case.config() });
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
            for cut in CUTS {
                let began = Instant::now();
                let relay = Relay::new(listener.local_addr(), 2, cut);
                let targets = Targets::from(relay.address);
                let client = blocking::Session::connect_with(&targets, &config)
                    .unwrap_or_else(|error| panic!("{case}, {cut} bytes: {error}"));
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let server = listener.accept().unwrap();
                        let mut got = [0; 4];
                        (&server).read_exact(&mut got).unwrap();
                        (&server).write_all(&got).unwrap();
                        server.finish().unwrap();
                    });
                    (&client).write_all(b"ping").unwrap();
                    let mut got = Vec::new();
                    (&client).read_to_end(&mut got).unwrap();
                    assert_eq!(got, b"ping", "{case}, {cut} bytes");
                    client.finish().unwrap();
                });
                assert!(relay.accepted.load(Ordering::SeqCst) > 1, "{case}, {cut} bytes: nothing was broken");
                println!("{case}, {cut} bytes: {:?}", began.elapsed());
            }
        }
    });
}

#[test]
fn tasks_open_although_the_first_connections_are_reset() {
    within(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            for case in cases() {
                let config = Arc::new(Config { watch_network: false, ..case.config() });
                let listener = async_face::Listener::bind_with("127.0.0.1:0", &config).await.unwrap();
                for cut in CUTS {
                    let relay = Relay::new(listener.local_addr(), 2, cut);
                    let targets = Targets::from(relay.address);
                    let mut client = async_face::Session::connect_with(&targets, &config)
                        .await
                        .unwrap_or_else(|error| panic!("{case}, {cut} bytes: {error}"));
                    let serve = async {
                        let mut server = listener.accept().await.unwrap();
                        let mut got = [0; 4];
                        server.read_exact(&mut got).await.unwrap();
                        server.write_all(&got).await.unwrap();
                        server.finish().await.unwrap();
                    };
                    let ask = async {
                        client.write_all(b"ping").await.unwrap();
                        let mut got = Vec::new();
                        client.read_to_end(&mut got).await.unwrap();
                        assert_eq!(got, b"ping", "{case}, {cut} bytes");
                        client.finish().await.unwrap();
                    };
                    tokio::join!(serve, ask);
                }
            }
        });
    });
}

/// A peer that resets whatever comes is no server: the caller hears of it, and soon.
#[test]
fn an_address_that_resets_every_connection_is_an_error_in_the_end() {
    within(|| {
        let case = Case { ack: AckMode::Auto, protection: Protection::Psk };
        let config = Arc::new(Config { watch_network: false, ..case.config() });
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::new(nobody.local_addr().unwrap(), usize::MAX, 0);
        let began = Instant::now();
        let error = blocking::Session::connect_with(&Targets::from(relay.address), &config).unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(relay.accepted.load(Ordering::SeqCst) > 1, "it was tried once only");
    });
}
