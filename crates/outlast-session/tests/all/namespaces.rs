//! A process with threads in several network namespaces: every session stays in the one it was opened in.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

use crate::common::within;
use outlast_lab::{Fault, Lab, Target};
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

fn config(mode: LinkMode) -> Arc<Config> {
    Arc::new(Config {
        ack: AckMode::Fixed(mode),
        backoff_base: Duration::from_millis(5),
        backoff_max: Duration::from_millis(50),
        ..Config::default()
    })
}

fn round_trip(client: &mut blocking::Session, server: &mut blocking::Session, byte: u8) {
    client.write_all(&[byte]).unwrap();
    let mut got = [0];
    server.read_exact(&mut got).unwrap();
    server.write_all(&got).unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(got, [byte]);
}

#[test]
fn links_are_made_where_the_session_was_opened() {
    outlast_lab::require!("resets connections");
    within(stay_where_they_were_opened);
}

fn stay_where_they_were_opened() {
    // Here, so that the helper thread and this one are in another namespace than the session.
    let listener = blocking::Listener::bind_with("127.0.0.1:0", &config(LinkMode::Inband)).unwrap();
    let targets = Targets::from(listener.local_addr());
    let mut home = blocking::Session::connect_with(&targets, &config(LinkMode::Inband)).unwrap();
    let mut home_server = listener.accept().unwrap();
    round_trip(&mut home, &mut home_server, 1);

    let lab = Lab::new("netns").unwrap();
    let (client_host, server_host) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let link = lab.connect(&client_host, &server_host).unwrap();
    for mode in [LinkMode::Kernel, LinkMode::Inband] {
        let config = config(mode);
        let address = server_host.socket_addr(0);
        let listener =
            server_host.enter(|| blocking::Listener::bind_with(address, &config).unwrap()).unwrap();
        let targets = Targets::from(listener.local_addr());
        let mut away =
            client_host.enter(|| blocking::Session::connect_with(&targets, &config).unwrap()).unwrap();
        let mut away_server = listener.accept().unwrap();
        for round in 1..=4 {
            round_trip(&mut away, &mut away_server, round);
            "reset both".parse::<Fault>().unwrap().inject(&Target::new(&link)).unwrap().heal().unwrap();
        }
        round_trip(&mut away, &mut away_server, 5);
        assert_eq!(away.info().outages, 4, "{mode}");
        // And a thread of that place may be the one that notices a loss of this place's session.
        client_host
            .enter(|| {
                home.passivate().unwrap();
                round_trip(&mut home, &mut home_server, 6);
            })
            .unwrap();
        away.kill();
        assert!(away.kill_told(Duration::from_secs(10)), "{mode}: the server hears of it");
    }
}
