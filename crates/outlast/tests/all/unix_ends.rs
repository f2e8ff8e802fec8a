//! UNIX sockets at both ends of a relay: a front whose file is another's by now, and a service whose queue is full.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, PATIENCE, eventually, folder, nobody};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

#[test]
fn a_front_that_ends_leaves_the_file_of_another_one() {
    let folder = folder();
    let path = folder.path().join("front");
    let (at, via) = (format!("unix:{}", path.display()), nobody().to_string());
    let start = || {
        let mut client = Outlast::start(folder.path(), &["connect", &at, "--via", &via]);
        client.wait_for("listening on");
        client
    };
    let mut first = start();
    std::fs::remove_file(&path).unwrap();
    let mut second = start();
    first.signal("TERM");
    first.ended();
    UnixStream::connect(&path).unwrap();
    second.signal("TERM");
    second.ended();
    assert!(!path.exists());
}

#[test]
fn a_service_whose_queue_is_full_is_waited_for() {
    let folder = folder();
    let path = folder.path().join("service");
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let service = UnixListener::from(std::os::fd::OwnedFd::from(socket));
    let (address, front) = (nobody().to_string(), nobody());
    let to = format!("unix:{}", path.display());
    let mut server = Outlast::start(folder.path(), &["listen", &address, "--to", &to]);
    server.wait_for("listening on");
    let mut client = Outlast::start(folder.path(), &["connect", &front.to_string(), "--via", &address]);
    client.wait_for("listening on");
    let mut programs: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(front).unwrap()).collect();
    for program in &mut programs {
        program.write_all(b"x").unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    let mut served = Vec::new();
    for _ in &programs {
        let (mut stream, _) = service.accept().unwrap();
        stream.write_all(b"y").unwrap();
        served.push(stream);
    }
    for mut program in programs {
        program.set_read_timeout(Some(PATIENCE)).unwrap();
        program.read_exact(&mut [0]).unwrap();
    }
    drop(served);
}

/// A service of TCP whose queue is full: a connection to it is tried for 10 s.
#[test]
fn a_connection_to_a_service_ends_with_its_session() {
    let folder = folder();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&nobody().into()).unwrap();
    socket.listen(0).unwrap();
    let service = socket.local_addr().unwrap().as_socket().unwrap();
    let limit = Duration::from_millis(200);
    let _queued: Vec<TcpStream> =
        std::iter::from_fn(|| TcpStream::connect_timeout(&service, limit).ok()).collect();
    let (address, front) = (nobody().to_string(), nobody());
    let mut server = Outlast::start(folder.path(), &["listen", &address, "--to", &service.to_string()]);
    server.wait_for("listening on");
    let mut client = Outlast::start(folder.path(), &["connect", &front.to_string(), "--via", &address]);
    client.wait_for("listening on");
    let descriptors = format!("/proc/{}/fd", server.pid());
    let count = || std::fs::read_dir(&descriptors).unwrap().count();
    let before = count();
    let program = TcpStream::connect(front).unwrap();
    (&program).write_all(b"x").unwrap();
    eventually("no session is served", || (count() >= before + 2).then_some(()));
    // Its connection is reset.
    socket2::SockRef::from(&program).set_linger(Some(Duration::ZERO)).unwrap();
    drop(program);
    let ended = Instant::now();
    eventually("its connection is left", || (count() <= before).then_some(()));
    assert!(ended.elapsed() < Duration::from_secs(5), "{:?}", ended.elapsed());
}
