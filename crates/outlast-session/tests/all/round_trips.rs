//! How many times a message has to cross the path before there is an answer: over a path so long that nothing else counts.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

use outlast_lab::{Host, Lab, WireSpec};
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So long that what a busy machine adds is a small part of it.
const ONE_WAY_MS: u64 = 250;
const ROUND_TRIP: Duration = Duration::from_millis(2 * ONE_WAY_MS);
/// The quickest of at most so many counts: a machine under load only ever adds time.
const ATTEMPTS: usize = 4;
/// Two were needed, and nothing else was worth mentioning.
const TWO: f64 = 2.2;

fn answer(mut stream: impl Read + Write) {
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    stream.write_all(&byte).unwrap();
    stream.flush().unwrap();
    // Until the client is through.
    let _ = stream.read(&mut byte);
}

fn ask(mut stream: impl Read + Write) {
    stream.write_all(b"?").unwrap();
    stream.flush().unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// The time from nothing to an answer, in round trips: of the first attempt that needed no more than two, or of the quickest.
fn round_trips(client: &Host, exchange: impl Fn() + Sync) -> f64 {
    let mut quickest = f64::INFINITY;
    for _ in 0..ATTEMPTS {
        let start = Instant::now();
        client.enter(&exchange).unwrap();
        quickest = quickest.min(start.elapsed().as_secs_f64() / ROUND_TRIP.as_secs_f64());
        if quickest < TWO {
            break;
        }
    }
    quickest
}

/// PROTOCOL 3.2: the Hello rides with the first bytes, the Welcome with the first answer.
#[test]
fn opening_a_session_costs_no_round_trip_of_its_own() {
    outlast_lab::require!("long paths");
    let lab = Lab::new("trips").unwrap();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    lab.wire(&client, &server, WireSpec::delay_ms(ONE_WAY_MS)).unwrap();
    let free: SocketAddr = server.socket_addr(0);

    let listener = server.enter(|| TcpListener::bind(free).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap())));
    let raw = round_trips(&client, || ask(TcpStream::connect(address).unwrap()));
    println!("plain TCP: {raw:.2} round trips");
    assert!((1.9..2.8).contains(&raw), "the path is not as long as it should be: {raw:.2} round trips");

    for ack in [AckMode::Auto, AckMode::Fixed(LinkMode::Kernel), AckMode::Fixed(LinkMode::Inband)] {
        let config = Arc::new(Config { ack, ..Config::default() });
        let listener = server.enter(|| blocking::Listener::bind_with(free, &config).unwrap()).unwrap();
        let targets = Targets::from(listener.local_addr());
        std::thread::spawn(move || listener.incoming().for_each(|session| answer(session.unwrap())));
        let session = round_trips(&client, || {
            ask(blocking::Session::connect_with(&targets, &config).unwrap());
        });
        println!("session, {ack:?}: {session:.2} round trips");
        assert!(session < raw.max(2.0) + 0.5, "{ack:?}: {session:.2} round trips, plain TCP {raw:.2}");
    }
}
