//! A listener is told to stop: by which signal, and with what it needs in short supply.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{AT_ONCE, connect, listen, open, say};
use crate::common::{Outlast, PATIENCE, echo, folder, nobody};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// `listen` by way of a shell that sets limits first.
fn listen_limited(runtime: &Path, limits: &str, address: SocketAddr, service: &str) -> Outlast {
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", &format!("{limits} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_outlast"), "listen"])
        .args([&address.to_string(), "--to", service])
        .env("XDG_RUNTIME_DIR", runtime)
        .env("OUTLAST_LOG", "info")
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let mut server = Outlast::from(command);
    server.address();
    server
}

#[test]
fn sessions_are_detached_at_the_limit_of_descriptors_too() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen_limited(runtime, "ulimit -n 64", address, &to);
    let (mut client, front) = connect(runtime, address, &[]);
    let mut streams = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let refused = 'open: loop {
        let mut stream = TcpStream::connect(front).unwrap();
        stream.write_all(b"x").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        loop {
            assert!(Instant::now() < deadline, "no limit after {} streams", streams.len());
            match stream.read(&mut [0]) {
                Ok(1) => break,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    // The program waits then.
                    let full = client.said_so_far().contains("no room for more sessions");
                    if full || server.said_so_far().contains("open files") {
                        break 'open stream;
                    }
                }
                Ok(_) | Err(_) => break 'open stream,
            }
        }
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        streams.push(stream);
    };
    assert!(streams.len() > 4, "{} streams", streams.len());
    // More of them are refused, or wait for the first descriptor that is to be had.
    let waiting: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(front).unwrap()).collect();
    for mut stream in &waiting {
        let _ = stream.write_all(b"x");
    }
    server.signal("TERM");
    let line = server.wait_for("detached: the next");
    let said = line.split(" sessions were detached").next().unwrap();
    let kept: usize = said.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
    assert!(kept >= streams.len(), "{} streams: {line}", streams.len());
    assert!(server.ended().success());
    let _server = listen(runtime, address, &to, &[]);
    for stream in &mut streams {
        say(stream, b"still there");
    }
    drop((refused, waiting));
}

#[test]
fn ctrl_c_drains_and_a_second_signal_ends_the_wait_not_the_sessions() {
    for (first, second, code) in
        [("TERM", "TERM", 0), ("INT", "INT", 130), ("INT", "TERM", 130), ("TERM", "INT", 0)]
    {
        let folder = folder();
        let runtime = folder.path();
        let (address, to) = (nobody(), echo().to_string());
        let arguments = ["listen", &address.to_string(), "--to", &to, "--drain-timeout", "1h"];
        let mut server = Outlast::start(runtime, &arguments);
        server.address();
        let (_client, front) = connect(runtime, address, &[]);
        let mut stream = open(front);
        server.signal(first);
        server.wait_for("draining");
        say(&mut stream, b"still there");
        server.signal(second);
        server.wait_for("1 session was detached: the next");
        assert_eq!(server.ended().code(), Some(code), "{first}, {second}");
        let _server = listen(runtime, address, &to, &[]);
        say(&mut stream, b"still there");
    }
}

#[test]
fn a_failure_to_hand_over_is_told_and_shows_in_the_exit_code() {
    let folder = folder();
    let runtime = folder.path();
    // No keeper can have its socket there.
    std::fs::write(runtime.join("outlast"), "").unwrap();
    let address = nobody();
    let flags = [&["--admin-socket", "none"], &AT_ONCE[..]].concat();
    let mut server = listen(runtime, address, &echo().to_string(), &flags);
    let (_client, front) = connect(runtime, address, &["--admin-socket", "none"]);
    let _stream = open(front);
    server.signal("TERM");
    let line = server.wait_for("handing over has failed");
    assert!(line.contains("WARN") && line.contains(&*runtime.to_string_lossy()), "{line}");
    assert_eq!(server.ended().code(), Some(4));
}

#[test]
fn as_many_descriptors_are_used_as_the_system_allows() {
    let folder = folder();
    let server =
        listen_limited(folder.path(), "ulimit -Sn 64 && ulimit -Hn 640", nobody(), &nobody().to_string());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("640"), "{line}");
}
