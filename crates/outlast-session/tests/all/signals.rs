//! Signals that a program gets while it opens a session.
// A failed expectation is the message.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code, reason = "sends signals to a thread of its own")]

use crate::common::within;
use outlast_session::{Config, Error, Targets, blocking};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

extern "C" fn nothing(_: libc::c_int) {}

/// A server whose queue is full: SYNs are lost.
fn silent_server() -> (TcpListener, Vec<TcpStream>) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        queued.push(stream);
    }
    (listener, queued)
}

#[test]
fn a_connection_that_signals_disturb_is_not_taken_for_made() {
    within(|| {
        let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing.
        let before = unsafe { libc::signal(libc::SIGUSR2, handler) };
        assert_ne!(before, libc::SIG_ERR);
        let (listener, _queued) = silent_server();
        // SAFETY: always succeeds.
        let this = unsafe { libc::pthread_self() };
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let disturbing = std::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                // SAFETY: that thread lives: it waits for this one.
                unsafe { libc::pthread_kill(this, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let config = Config { handshake_timeout: Duration::from_millis(1500), ..Config::default() };
        let opened = blocking::Session::connect_with(
            &Targets::from(listener.local_addr().unwrap()),
            &Arc::new(config),
        );
        is_over.store(true, Ordering::SeqCst);
        disturbing.join().unwrap();
        assert!(matches!(opened, Err(Error::Connect { .. })), "{opened:?}");
    });
}
