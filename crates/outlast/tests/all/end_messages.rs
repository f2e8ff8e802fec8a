//! What each end says, and exits with, when a session does not end in order: the right end is named at both.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{both_ends, listen};
use crate::common::{
    KEY, Outlast, PATIENCE, Pair, command, echo, eventually, folder, nobody, output, secret_file,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
}

fn stdio(runtime: &Path, via: SocketAddr, flags: &[&str]) -> Outlast {
    let via = via.to_string();
    let mut command = command(runtime, &[&["connect", "--stdio", "--via", &via], flags].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Outlast::from(command);
    client.child().stdin.as_mut().unwrap().write_all(b"x").unwrap();
    client.child().stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    client
}

/// It does not answer the server, which has proved that its key is another one: this is all that the server hears.
#[test]
fn a_client_with_another_key_is_in_the_log_of_both_ends() {
    let folder = folder();
    let runtime = folder.path();
    let ours = secret_file(runtime, "ours", KEY);
    let other = "0d4c9bb1e2f7733c58a6e05d91fa8c4470be12d69c35e8a7f1402b6d8e97c53a";
    let other = secret_file(runtime, "other", other);
    let address = nobody();
    let mut server = listen(runtime, address, &echo().to_string(), &["--psk-file", &ours]);
    let via = address.to_string();
    let refused = output(runtime, &["connect", "--stdio", "--via", &via, "--psk-file", &other]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && said.contains("key"), "{said}");
    let line = server.wait_for("handshake failed");
    assert!(line.contains("WARN") && line.contains("its key (--psk-file) is another one"), "{line}");
}

#[test]
fn a_connect_that_is_stopped_is_named_at_both_ends() {
    for mode in ["kernel", "inband"] {
        let folder = folder();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = service.local_addr().unwrap().to_string();
        let flags = ["--ack", mode, "--drain-timeout", "0s"];
        let mut pair = Pair::start(folder.path(), &to, &flags, &flags);
        let (_program, _served) = both_ends(pair.address, &service);
        pair.client.signal("TERM");
        pair.client.ended();
        let said = pair.client.said();
        assert!(said.contains("outlast connect was stopped") && !said.contains("other end"), "{said}");
        let line = pair.server.wait_for("was reset by the peer");
        assert!(line.contains("outlast connect was stopped"), "{line}");
    }
}

#[test]
fn a_reset_is_blamed_on_the_program_that_made_it() {
    for mode in ["kernel", "inband"] {
        let folder = folder();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = service.local_addr().unwrap().to_string();
        let mut pair = Pair::start(folder.path(), &to, &["--ack", mode], &["--ack", mode]);
        let (program, _served) = both_ends(pair.address, &service);
        reset(program);
        let line = pair.client.wait_for("the local program ended it");
        assert!(line.contains("INFO"), "{line}");
        let line = pair.server.wait_for("was reset by the peer");
        assert!(line.contains("the program at outlast connect reset its connection"), "{line}");
        let said = pair.client.said_so_far();
        assert!(!said.contains("WARN") && !said.contains("other end"), "{said}");
    }
}

#[test]
fn a_service_that_resets_a_stream_it_only_read_is_no_warning() {
    // As iperf3 does with the streams of a test that is over.
    let folder = folder();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut pair = Pair::start(folder.path(), &service.local_addr().unwrap().to_string(), &[], &[]);
    let (mut program, served) = both_ends(pair.address, &service);
    reset(served);
    assert!(program.read(&mut [0]).is_err());
    let line = pair.client.wait_for("the service behind outlast listen reset its connection");
    assert!(line.contains("INFO"), "{line}");
    pair.client.signal("TERM");
    pair.client.ended();
    let said = pair.client.said();
    assert!(!said.contains("WARN"), "{said}");
}

#[test]
fn a_service_that_cannot_be_reached_still_is_one() {
    let folder = folder();
    let mut pair = Pair::start(folder.path(), &nobody().to_string(), &[], &[]);
    let mut program = TcpStream::connect(pair.address).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"x").ok();
    assert!(program.read(&mut [0]).is_err());
    let line = pair.client.wait_for("WARN");
    assert!(line.contains("connection refused"), "{line}");
}

#[test]
fn a_killed_session_is_exit_code_6_at_both_ends() {
    for mode in ["kernel", "inband"] {
        for killer in ["listen", "connect"] {
            let folder = folder();
            let (here, there) = (folder.path().join("here"), folder.path().join("there"));
            std::fs::create_dir(&here).unwrap();
            std::fs::create_dir(&there).unwrap();
            let address = nobody();
            let mut server = listen(&there, address, &echo().to_string(), &["--ack", mode]);
            let socket = folder.path().join("client.sock");
            let asked = ["--admin-socket", socket.to_str().unwrap()];
            let mut client = stdio(&here, address, &[&["--ack", mode], &asked[..]].concat());
            let (runtime, asked) = if killer == "listen" { (&there, &[][..]) } else { (&here, &asked[..]) };
            let id = eventually("no session", || {
                let status = output(runtime, &[&["status", "--json"], asked].concat());
                let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
                status[0]["sessions"][0]["id"].as_str().map(str::to_owned)
            });
            assert!(output(runtime, &[&["kill", &id], asked].concat()).status.success());
            assert_eq!(client.ended().code(), Some(6), "{mode}, killed at {killer}: {}", client.said());
            let said = client.said();
            let there = killer == "listen";
            let killed =
                if there { "killed by an administrator at outlast listen" } else { "was ended: killed by" };
            assert!(said.contains(killed), "{said}");
            if killer == "connect" {
                let line = server.wait_for("was reset by the peer");
                assert!(line.contains("killed by an administrator at outlast connect"), "{line}");
            }
        }
    }
}
