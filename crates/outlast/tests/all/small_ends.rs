//! Ends of `connect --stdio` and `kill` at which a process or a descriptor is missing already.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::supervised::until;
use crate::common::{Pair, command, echo, folder, nobody, speaking};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;

/// A program that was started without a standard output cannot give away what it is sent: an error, as `cat` has.
#[test]
fn a_closed_standard_output_is_an_error() {
    let folder = folder();
    let pair = Pair::start(folder.path(), &speaking(b"lost").to_string(), &[], &[]);
    let via = pair.server_address.to_string();
    let connect = command(folder.path(), &["connect", "--stdio", "--via", &via]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" >&-"]).arg(connect.get_program()).args(connect.get_args());
    for (name, value) in connect.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    let ended = shell.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(7), "{said}");
    assert!(said.contains("standard output is closed"), "{said}");
}

/// A relay that ends at once leaves its watcher nothing to do, and nothing to say.
#[test]
fn a_watcher_without_orders_says_nothing() {
    let folder = folder();
    let (ours, its) = UnixStream::pair().unwrap();
    let mut watcher = command(folder.path(), &["watch-relay", "1"]);
    let stdin = std::os::fd::OwnedFd::from(its);
    watcher.stdin(Stdio::from(stdin)).stdout(Stdio::null()).stderr(Stdio::piped());
    let watcher = watcher.spawn().unwrap();
    drop(ours);
    let ended = watcher.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert!(ended.status.success());
}

/// The other end of a session may be gone with it before it is asked to end it, too.
#[test]
fn kill_succeeds_where_the_second_end_is_gone_with_the_first() {
    let folder = folder();
    let pair = Pair::start(folder.path(), &echo().to_string(), &[], &[]);
    let mut program = TcpStream::connect(pair.address).unwrap();
    program.write_all(b"x").unwrap();
    program.read_exact(&mut [0]).unwrap();
    let status = until(folder.path(), "open", |status| status["sessions"][0]["id"].is_string());
    let id = status["sessions"][0]["id"].as_str().unwrap().to_owned();
    let admin = std::fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .find(|entry| entry.file_type().unwrap().is_dir())
        .map_or_else(|| folder.path().to_owned(), |entry| entry.path());
    let path = admin.join("zz-last.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = format!("{{\"pid\":1,\"serves\":[],\"sessions\":[{{\"id\":\"{id}\"}}]}}");
    let gone = std::thread::spawn(move || {
        let (mut asked, _) = listener.accept().unwrap();
        drop(listener);
        std::fs::remove_file(path).unwrap();
        let mut request = [0; 200];
        let _ = asked.read(&mut request).unwrap();
        asked.write_all(answer.as_bytes()).unwrap();
    });
    let killed = command(folder.path(), &["kill", &id]).output().unwrap();
    gone.join().unwrap();
    let said = String::from_utf8_lossy(&killed.stderr).into_owned();
    assert!(killed.status.success() && said.is_empty(), "{said}");
}

/// Whoever can connect can cause it: the log is for what is rare.
#[test]
fn a_service_that_is_down_is_warned_of_sparingly() {
    let folder = folder();
    let mut pair = Pair::start(folder.path(), &nobody().to_string(), &[], &[]);
    for _ in 0..40 {
        let mut program = TcpStream::connect(pair.address).unwrap();
        assert_eq!(program.read(&mut [0]).unwrap_or(0), 0);
    }
    pair.server.signal("TERM");
    pair.server.ended();
    let said = pair.server.said();
    let lines =
        said.lines().filter(|line| line.contains("WARN") && line.contains("cannot connect to")).count();
    assert!((10..20).contains(&lines), "{said}");
}
