//! The two relays, SIGHUP and SIGINT: each does its work, unless it was ignored when they were started.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, command, echo, folder};
use crate::run_hangup::set_signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

/// A signal, and whether it is ignored when the relays are started.
#[derive(Clone, Copy)]
struct At {
    signal: i32,
    ignored: bool,
}

fn start(runtime: &Path, at: At, arguments: &[&str]) -> Outlast {
    let mut command = command(runtime, arguments);
    command.env("OUTLAST_LOG", "info").stderr(Stdio::piped());
    set_signal(&mut command, at.signal, at.ignored);
    Outlast::from(command)
}

fn pair(runtime: &Path, at: At) -> (Outlast, Outlast, TcpStream) {
    let mut server = start(runtime, at, &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let via = server.address().to_string();
    let mut client = start(runtime, at, &["connect", "127.0.0.1:0", "--via", &via]);
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

fn they_go_on(signal: i32, name: &str) {
    let folder = folder();
    let (mut server, mut client, mut stream) = pair(folder.path(), At { signal, ignored: true });
    let address = stream.peer_addr().unwrap();
    for relay in [&server, &client] {
        relay.signal(name);
    }
    asked(&mut stream);
    asked(&mut TcpStream::connect(address).unwrap());
    drop(stream);
    for relay in [&mut client, &mut server] {
        // Signals of a lower number come first.
        relay.signal("TERM");
        let status = relay.ended();
        assert_eq!(status.code(), Some(0), "{}", relay.said());
        assert_eq!(relay.said().matches("draining open=").count(), 1, "{}", relay.said());
    }
}

#[test]
fn with_nohup_both_relays_go_on() {
    they_go_on(libc::SIGHUP, "HUP");
}

/// Ctrl-C is for the program in the foreground: a shell script has it ignored by what it starts with `&`.
#[test]
fn in_the_background_of_a_script_both_relays_go_on() {
    they_go_on(libc::SIGINT, "INT");
}

#[test]
fn without_it_they_drain() {
    let folder = folder();
    let (mut server, mut client, _stream) = pair(folder.path(), At { signal: libc::SIGHUP, ignored: false });
    for relay in [&mut client, &mut server] {
        relay.signal("HUP");
        relay.wait_for("draining");
    }
}

#[test]
fn in_the_foreground_they_end() {
    let folder = folder();
    let (mut server, mut client, _stream) = pair(folder.path(), At { signal: libc::SIGINT, ignored: false });
    for relay in [&mut client, &mut server] {
        relay.signal("INT");
        assert_eq!(relay.ended().code(), Some(130), "{}", relay.said());
    }
}

/// A service manager has SIGPIPE ignored: a program has that with `outlast run` as without.
#[test]
fn a_program_that_is_run_has_sigpipe_as_we_had_it() {
    let folder = folder();
    for ignored in [true, false] {
        let mut command = command(folder.path(), &["run", "--", "/bin/grep", "SigIgn", "/proc/self/status"]);
        command.stdout(Stdio::piped());
        set_signal(&mut command, libc::SIGPIPE, ignored);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let mask = u64::from_str_radix(said.trim_start_matches("SigIgn:").trim(), 16).unwrap();
        assert_eq!(mask >> (libc::SIGPIPE - 1) & 1 == 1, ignored, "{said}");
    }
}
