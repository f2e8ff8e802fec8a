//! What `connect --stdio` exits with when its session ends before both streams have.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::listen;
use crate::common::{Outlast, command, echo, eventually, folder, nobody};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;

/// A session that has echoed a byte.
fn stdio(runtime: &Path, via: SocketAddr, flags: &[&str]) -> Outlast {
    let via = via.to_string();
    let mut command = command(runtime, &[&["connect", "--stdio", "--via", &via], flags].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Outlast::from(command);
    client.child().stdin.as_mut().unwrap().write_all(b"x").unwrap();
    client.child().stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    client
}

/// Carries the next connection to `server`. Whoever drops what is returned cuts it.
fn carry(middle: &TcpListener, server: SocketAddr) -> Carried {
    let (client, _) = middle.accept().unwrap();
    let server = TcpStream::connect(server).unwrap();
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    }
    Carried([client, server])
}

struct Carried([TcpStream; 2]);

impl Drop for Carried {
    fn drop(&mut self) {
        for stream in &self.0 {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn a_client_that_comes_back_too_late_is_told_and_exits_with_6() {
    let folder = folder();
    let runtime = folder.path();
    let address = nobody();
    let mut server = listen(runtime, address, &echo().to_string(), &["--keep", "1s"]);
    let middle = TcpListener::bind("127.0.0.1:0").unwrap();
    let via = middle.local_addr().unwrap();
    let carrying = std::thread::spawn(move || {
        // The first one finds that the path is not direct.
        let (first, second) = (carry(&middle, address), carry(&middle, address));
        (middle, [first, second])
    });
    let mut client = stdio(runtime, via, &[]);
    let (middle, carried) = carrying.join().unwrap();
    drop(carried);
    server.wait_for("expired");
    std::thread::spawn(move || {
        let mut carried = Vec::new();
        loop {
            carried.push(carry(&middle, address));
        }
    });
    assert_eq!(client.ended().code(), Some(6));
    let said = client.said();
    assert!(said.contains("had no link for longer") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_client_that_is_terminated_before_the_streams_have_ended_exits_with_4() {
    let folder = folder();
    let runtime = folder.path();
    let address = nobody();
    let _server = listen(runtime, address, &echo().to_string(), &[]);
    let mut client = stdio(runtime, address, &[]);
    client.signal("TERM");
    assert_eq!(client.ended().code(), Some(4));
    // Whoever ends it this way has what he wanted.
    assert_eq!(client.said(), "");
}

/// As without the signal: standard output has not taken it.
#[test]
fn what_standard_output_does_not_take_is_not_delivered_also_when_the_client_is_told_to_end() {
    let folder = folder();
    let runtime = folder.path();
    let address = nobody();
    let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _server = listen(runtime, address, &service.local_addr().unwrap().to_string(), &[]);
    let mut command = command(runtime, &["connect", "--stdio", "--via", &address.to_string()]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    command.stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
    let mut client = Outlast::from(command);
    let mut served = service.accept().unwrap().0;
    assert_eq!(served.read(&mut [0]).unwrap(), 0);
    client.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(200));
    served.write_all(&[7; 200_000]).unwrap();
    drop(served);
    assert_eq!(client.ended().code(), Some(7), "{}", client.said());
}

/// Twice is an order to end, whatever is delivered.
#[test]
fn a_client_that_is_terminated_twice_says_that_not_everything_was_delivered() {
    let folder = folder();
    let runtime = folder.path();
    let address = nobody();
    // It accepts by its queue, and reads nothing.
    let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listen(runtime, address, &service.local_addr().unwrap().to_string(), &[]);
    let mut command = command(runtime, &["connect", "--stdio", "--via", &address.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut client = Outlast::from(command);
    let mut input = client.child().stdin.take().unwrap();
    let writing = std::thread::spawn(move || while input.write_all(&[7; 1 << 16]).is_ok() {});
    eventually("nothing more is taken", || {
        let taken = || std::fs::read_to_string(format!("/proc/{}/io", client.pid())).ok();
        let before = taken()?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        (taken()? == before).then_some(())
    });
    // Nobody takes its last words.
    server.signal("STOP");
    client.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(300));
    client.signal("TERM");
    let code = client.ended().code();
    server.signal("CONT");
    assert_eq!(code, Some(4));
    writing.join().unwrap();
}

/// A socket that listens, and answers nobody: its queue is full.
fn silent() -> (rustix::fd::OwnedFd, SocketAddr, Vec<TcpStream>) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&socket, 0).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    let limit = std::time::Duration::from_millis(200);
    let queued = std::iter::from_fn(|| TcpStream::connect_timeout(&address, limit).ok()).collect();
    (socket, address, queued)
}

#[test]
fn who_leaves_before_there_is_a_session_is_told_that_nothing_was_delivered() {
    let folder = folder();
    let (_socket, address, _queued) = silent();
    let mut command = command(folder.path(), &["connect", "--stdio", "--via", &address.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Outlast::from(command);
    client.child().stdin.take().unwrap().write_all(b"x").unwrap();
    drop(client.child().stdout.take());
    assert_eq!(client.ended().code(), Some(7), "{}", client.said());
}

#[test]
fn an_empty_named_pipe_that_everybody_has_left_has_ended() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let via = server.address().to_string();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for words in ["", "words"] {
        let writer = {
            let pipe = pipe.clone();
            std::thread::spawn(move || std::fs::write(pipe, words).unwrap())
        };
        let input = std::fs::File::open(&pipe).unwrap();
        writer.join().unwrap();
        let mut command = command(folder.path(), &["connect", "--stdio", "--via", &via]);
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = Outlast::from(command);
        let mut said = String::new();
        client.child().stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((said.as_str(), client.ended().code()), (words, Some(0)));
    }
}
