//! A relay that terminates TCP, and a path behind it that is gone: neither kernel is told.

use crate::common::{pattern, quick, within};
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Carries bytes both ways; while `hole` is set it takes them from existing connections and passes nothing on.
fn relay(server: SocketAddr, hole: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hole = hole.clone();
    thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            let far = TcpStream::connect(server).unwrap();
            // What begins after the hole opened finds another way.
            let swallows = (!hole.load(Ordering::Relaxed)).then(|| hole.clone());
            for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                let swallows = swallows.clone();
                thread::spawn(move || {
                    let mut buffer = [0; 16 << 10];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        let gone = swallows.as_ref().is_some_and(|hole| hole.load(Ordering::Relaxed));
                        if !gone && to.write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    address
}

struct Pair {
    client: blocking::Session,
    server: blocking::Session,
    _listener: blocking::Listener,
    hole: Arc<AtomicBool>,
}

fn pair(detect: Duration) -> Pair {
    let config =
        Arc::new(Config { ack: AckMode::Fixed(LinkMode::Inband), detect_timeout: detect, ..quick() });
    let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
    let hole = Arc::new(AtomicBool::new(false));
    let targets = Targets::from(relay(listener.local_addr(), &hole));
    let client = blocking::Session::connect_with(&targets, &config).unwrap();
    client.established().unwrap();
    let server = listener.accept().unwrap();
    Pair { client, server, _listener: listener, hole }
}

#[test]
fn what_was_written_into_a_hole_behind_a_relay_arrives() {
    within(|| {
        let mut pair = pair(Duration::from_millis(400));
        pair.hole.store(true, Ordering::Relaxed);
        let sent = pattern(50_000);
        pair.client.write_all(&sent).unwrap();
        let mut got = vec![0; sent.len()];
        pair.server.read_exact(&mut got).unwrap();
        assert!(got == sent);
        assert_eq!(pair.client.info().outages, 1);
    });
}

/// Only the server has something to say: the client, which waits for it, has to notice.
#[test]
fn a_client_that_only_waits_notices_a_hole() {
    within(|| {
        let mut pair = pair(Duration::from_millis(400));
        pair.hole.store(true, Ordering::Relaxed);
        pair.server.write_all(b"late").unwrap();
        let mut got = [0; 4];
        pair.client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"late");
    });
}

/// Neither an idle session nor an application that looks away is taken for a hole.
#[test]
fn silence_of_the_applications_is_no_hole() {
    within(|| {
        let mut pair = pair(Duration::from_millis(800));
        thread::sleep(Duration::from_millis(1800));
        assert_eq!(pair.client.info().outages + pair.server.info().outages, 0, "idle");
        let sent = pattern(1 << 20);
        thread::scope(|scope| {
            scope.spawn(|| pair.client.write_all(&sent).unwrap());
            // Buffers fill, and a Ping would lie behind all of it.
            thread::sleep(Duration::from_millis(2400));
            assert_eq!(pair.server.info().outages, 0, "an application that does not read");
            let mut got = vec![0; sent.len()];
            pair.server.read_exact(&mut got).unwrap();
            assert!(got == sent);
        });
        assert_eq!(pair.client.info().outages + pair.server.info().outages, 0, "at the end");
    });
}
