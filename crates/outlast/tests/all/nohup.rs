//! The two relays and SIGHUP: it drains them, unless it was ignored when they were started.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, command, echo, folder};
use crate::run_hangup::set_hang_up;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

fn start(runtime: &Path, ignored: bool, arguments: &[&str]) -> Outlast {
    let mut command = command(runtime, arguments);
    command.env("OUTLAST_LOG", "info").stderr(Stdio::piped());
    set_hang_up(&mut command, ignored);
    Outlast::from(command)
}

fn pair(runtime: &Path, ignored: bool) -> (Outlast, Outlast, TcpStream) {
    let mut server = start(runtime, ignored, &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let via = server.address().to_string();
    let mut client = start(runtime, ignored, &["connect", "127.0.0.1:0", "--via", &via]);
    let mut stream = TcpStream::connect(client.address()).unwrap();
    asked(&mut stream);
    (server, client, stream)
}

fn asked(stream: &mut TcpStream) {
    let mut answer = [0; 5];
    stream.write_all(b"there").unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"there");
}

#[test]
fn with_nohup_both_relays_go_on() {
    let folder = folder();
    let (mut server, mut client, mut stream) = pair(folder.path(), true);
    let address = stream.peer_addr().unwrap();
    for relay in [&server, &client] {
        relay.signal("HUP");
    }
    asked(&mut stream);
    asked(&mut TcpStream::connect(address).unwrap());
    drop(stream);
    for relay in [&mut client, &mut server] {
        // Signals of a lower number come first.
        relay.signal("TERM");
        relay.ended();
        assert_eq!(relay.said().matches("draining open=").count(), 1, "{}", relay.said());
    }
}

#[test]
fn without_it_they_drain() {
    let folder = folder();
    let (mut server, mut client, _stream) = pair(folder.path(), false);
    for relay in [&mut client, &mut server] {
        relay.signal("HUP");
        relay.wait_for("draining");
    }
}
