//! Acknowledgement modes of two ends that were not set up alike.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{connect, listen, open, say, stop};
use crate::common::{KEY, Outlast, PATIENCE, Pair, check_echo, echo, folder, nobody, secret_file};
use std::io::Read;
use std::net::TcpStream;

#[test]
fn a_client_in_auto_uses_what_the_server_offers() {
    let folder = folder();
    let key = secret_file(folder.path(), "key", KEY);
    for security in [&[][..], &["--psk-file", &key]] {
        for mode in ["kernel", "window", "udp", "inband"] {
            let server = [&["--ack", mode], security].concat();
            let pair = Pair::start(folder.path(), &echo().to_string(), &server, security);
            check_echo(pair.address, 200_000);
        }
    }
}

/// PROTOCOL 3.9: the mode belongs to the link.
#[test]
fn sessions_go_on_whatever_modes_the_next_listeners_offer() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    for mode in ["inband", "kernel", "udp", "auto", "window", "inband"] {
        stop(&mut server, 1);
        server = listen(runtime, address, &to, &["--ack", mode]);
        server.wait_for("going on with 1 session");
        say(&mut stream, mode.as_bytes());
    }
}

#[test]
fn modes_that_were_asked_for_and_do_not_match_are_an_error_at_both_ends() {
    let folder = folder();
    let mut server =
        Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--ack", "inband"]);
    let via = server.address();
    let (mut client, front) = connect(folder.path(), via, &["--ack", "kernel"]);
    let mut stream = TcpStream::connect(front).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Write::write_all(&mut stream, b"x").ok();
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
    let said = server.wait_for("insists on the acknowledgement mode kernel");
    assert!(said.contains("--ack here allows inband"), "{said}");
    let said = client.wait_for("does not offer the acknowledgement mode");
    assert!(said.contains("allows inband only (--ack kernel here)"), "{said}");
}
