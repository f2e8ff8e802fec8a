//! A server that welcomes links, or something in front of it, and lets nothing pass: an MTU that is too small does so.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{quick, within};
use outlast_session::{AckMode, Config, LinkMode, Patience, Targets, blocking};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Lets everything pass, and once `is_narrow`, of each direction the first that comes alone: then it ends the connection after `pause`.
struct Path {
    address: SocketAddr,
    is_narrow: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

impl Path {
    fn to(server: SocketAddr, pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (is_narrow, connections) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let (narrow, count) = (is_narrow.clone(), connections.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                count.fetch_add(1, Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(server) else { return };
                let narrow = narrow.clone();
                std::thread::spawn(move || carry(&near, &far, &narrow, pause));
            }
        });
        Self { address, is_narrow, connections }
    }
}

fn carry(near: &TcpStream, far: &TcpStream, is_narrow: &Arc<AtomicBool>, pause: Duration) {
    let is_new = is_narrow.load(Ordering::SeqCst);
    let pass = |mut from: &TcpStream, mut to: &TcpStream| {
        let mut room = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut room) {
            if is_narrow.load(Ordering::SeqCst) && !is_new || to.write_all(&room[..count]).is_err() {
                break;
            }
            if is_new {
                std::thread::sleep(pause);
                break;
            }
        }
        for stream in [from, to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    };
    std::thread::scope(|scope| {
        if is_new {
            // The Hello goes one way, and its answer the other.
            let mut room = [0; 4096];
            let count = (&*near).read(&mut room).unwrap_or(0);
            let _ = (&*far).write_all(&room[..count]);
            return pass(far, near);
        }
        scope.spawn(|| pass(near, far));
        pass(far, near);
    });
}

fn patience_ends(pause: Duration) {
    within(move || {
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &Arc::new(quick())).unwrap();
        let path = Path::to(listener.local_addr(), pause);
        std::thread::spawn(move || {
            let mut session = listener.accept().unwrap();
            let mut room = [0; 100];
            while let Ok(count @ 1..) = session.read(&mut room) {
                if session.write_all(&room[..count]).is_err() {
                    return;
                }
            }
        });
        let config = Config {
            ack: AckMode::Fixed(LinkMode::Inband),
            backoff_base: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            patience: Patience::For(Duration::from_secs(3)),
            ..quick()
        };
        let mut session =
            blocking::Session::connect_with(&Targets::from(path.address), &Arc::new(config)).unwrap();
        let mut echo = [0; 5];
        session.write_all(b"hello").unwrap();
        session.read_exact(&mut echo).unwrap();
        path.is_narrow.store(true, Ordering::SeqCst);
        let began = Instant::now();
        session.write_all(b"never").unwrap();
        let error = session.read(&mut echo).unwrap_err().to_string();
        let took = began.elapsed();
        assert!(error.contains("within 3s: ") && error.contains("5 bytes are not known to be"), "{error}");
        assert!(took > Duration::from_secs(2) && took < Duration::from_secs(15), "{took:?}");
        // A hundred a second if nobody waited.
        let connections = path.connections.load(Ordering::SeqCst);
        assert!((3..60).contains(&connections), "{connections} in {took:?}");
    });
}

#[test]
fn patience_ends_where_links_are_welcomed_and_end_at_once() {
    patience_ends(Duration::ZERO);
}

#[test]
fn patience_ends_where_links_are_welcomed_and_end_soon() {
    patience_ends(Duration::from_millis(200));
}
