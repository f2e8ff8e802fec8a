//! A NAT hides the client, and what it forgets cuts connections off.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is the message"
)]

use std::io::Write;

use crate::common::{Pair, assert_silent, read_error};
use outlast_lab::{Fault, Host, Lab, Nat, Target, WireSpec, require};

struct Home {
    client: Host,
    home: Host,
    server: Host,
    target: Target,
    _lab: Lab,
}

fn home() -> Home {
    let lab = Lab::new("nat").unwrap();
    let (client, home, server) =
        (lab.host("client").unwrap(), lab.router("home").unwrap(), lab.host("server").unwrap());
    let inside = lab.connect(&client, &home).unwrap();
    let outside = lab.wire(&home, &server, WireSpec::delay_ms(1)).unwrap();
    client.route_default(&inside).unwrap();
    let nat = Nat::masquerade(&home, &outside).unwrap();
    let target = Target::between(&client, &server, &inside).with_nat(&nat);
    Home { client, home, server, target, _lab: lab }
}

fn pairs(h: &Home) -> [Pair; 2] {
    [Pair::v4(&h.client, &h.server), Pair::v6(&h.client, &h.server)]
}

#[test]
fn the_server_sees_the_address_of_the_nat() {
    require!();
    let h = home();
    let outside = h.target.link().host(outlast_lab::Side::Server);
    assert_eq!(outside, &h.home);
    for pair in pairs(&h) {
        pair.assert_works();
        let (seen, own) = (pair.server.peer_addr().unwrap(), pair.client.local_addr().unwrap());
        assert_ne!(seen.ip(), own.ip());
        assert!((20_000..60_000).contains(&seen.port()), "{seen}");
    }
}

#[test]
fn a_rebound_nat_makes_the_server_reset_the_client() {
    require!();
    let h = home();
    for round in 0..5 {
        for make in [Pair::v4, Pair::v6] {
            let pair = make(&h.client, &h.server);
            pair.assert_works();
            Fault::NatRebind.inject(&h.target).unwrap().heal().unwrap();
            (&pair.client).write_all(b"x").unwrap();
            assert_eq!(read_error(&pair.client), libc::ECONNRESET, "round {round}");
            assert_silent(&pair.server);
        }
    }
    pairs(&h).iter().for_each(Pair::assert_works);
}

#[test]
fn a_forgetful_nat_keeps_silent_and_serves_new_connections() {
    require!();
    let h = home();
    for make in [Pair::v4, Pair::v6] {
        let pair = make(&h.client, &h.server);
        pair.assert_works();
        Fault::NatForget.inject(&h.target).unwrap().heal().unwrap();
        (&pair.client).write_all(b"x").unwrap();
        (&pair.server).write_all(b"y").unwrap();
        assert_silent(&pair.server);
        assert_silent(&pair.client);
        make(&h.client, &h.server).assert_works();
    }
}
