//! What can come between two steps of an engine: each test makes it come, at its worst instant.

mod attempts;
mod by_hand;
mod ends;
mod races;
mod room;

use crate::blocking::{Listener, Session};
use crate::config::{AckMode, Config};
use crate::proto::LinkMode;
use crate::targets::Targets;
use std::io::{Read, Write};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A test that runs longer than this hangs.
const HANG: Duration = Duration::from_secs(60);

fn quick(mode: LinkMode) -> Config {
    Config {
        ack: AckMode::Fixed(mode),
        backoff_base: Duration::from_millis(5),
        backoff_max: Duration::from_millis(50),
        seed: Some(1),
        watch_network: false,
        ..Config::default()
    }
}

/// Both ends with threads.
struct Pair {
    client: Session,
    server: Session,
    listener: Listener,
}

impl Pair {
    fn new(config: Config) -> Self {
        let config = Arc::new(config);
        let listener = Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let client = Session::connect_with(&Targets::from(listener.local_addr()), &config).unwrap();
        client.established().unwrap();
        let server = listener.accept().unwrap();
        Self { client, server, listener }
    }

    /// Has the client lose its link.
    fn cut(&self) {
        let engine = self.client.engine();
        engine.lost(&engine.link().unwrap(), "cut");
    }

    fn round_trip(&mut self, byte: u8) {
        round_trip(&mut self.client, &mut self.server, byte);
    }
}

fn round_trip(client: &mut Session, server: &mut Session, byte: u8) {
    client.write_all(&[byte]).unwrap();
    let mut got = [0];
    server.read_exact(&mut got).unwrap();
    assert_eq!(got, [byte]);
    server.write_all(&got).unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(got, [byte]);
}

/// Fails if `test` never ends.
fn within(test: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match finished.recv_timeout(HANG) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("fails"),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
    }
}

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let deadline = Instant::now() + HANG;
    while !reached() {
        assert!(Instant::now() < deadline, "never {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
