//! Listeners that are stopped and started again.

use super::{Outlast, PATIENCE};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a client that is told to stop does not wait for.
pub const AT_ONCE: [&str; 2] = ["--drain-timeout", "0s"];
const SMALL_BUFFER_BYTES: usize = 256 << 10;

pub fn listen(runtime: &Path, address: SocketAddr, service: &str, flags: &[&str]) -> Outlast {
    let address = address.to_string();
    let mut server = Outlast::start(runtime, &[&["listen", &address, "--to", service], flags].concat());
    server.address();
    server
}

pub fn connect(runtime: &Path, via: SocketAddr, flags: &[&str]) -> (Outlast, SocketAddr) {
    let via = via.to_string();
    let mut client = Outlast::start(runtime, &[&["connect", "127.0.0.1:0", "--via", &via], flags].concat());
    let address = client.address();
    (client, address)
}

pub fn open(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    say(&mut stream, b"x");
    stream
}

/// As [`open`], for a program whose kernel takes in little that it has not read: by default a receive buffer grows to
/// tens of MiB (tcp_rmem), and a whole transfer may have left the relays while the program still reads.
pub fn open_with_small_buffer(address: SocketAddr) -> TcpStream {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None).unwrap();
    // Before it connects: the window's scale follows it.
    socket.set_recv_buffer_size(SMALL_BUFFER_BYTES).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    say(&mut stream, b"x");
    stream
}

/// A stream from the program at `front` to the service, with a byte through it.
pub fn both_ends(front: SocketAddr, service: &TcpListener) -> (TcpStream, TcpStream) {
    let mut program = TcpStream::connect(front).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"x").unwrap();
    let (mut served, _) = service.accept().unwrap();
    served.set_read_timeout(Some(PATIENCE)).unwrap();
    served.read_exact(&mut [0]).unwrap();
    (program, served)
}

/// Through the echo and back.
pub fn say(stream: &mut TcpStream, words: &[u8]) {
    stream.write_all(words).unwrap();
    let mut answer = vec![0; words.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, words);
}

/// Tells a listener to go, and waits until it has left `count` sessions behind.
pub fn stop(server: &mut Outlast, count: usize) -> u32 {
    server.signal("TERM");
    stopped(server, count)
}

pub fn stopped(server: &mut Outlast, count: usize) -> u32 {
    let line = server.wait_for("detached: the next");
    let counted = if count == 1 { "1 session was".to_owned() } else { format!("{count} sessions were") };
    let success = server.ended().success();
    assert!(line.contains(&counted) && success, "{line}: {}", server.said_so_far());
    line.split("(process ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

pub fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

pub fn ends(pid: u32) {
    let deadline = Instant::now() + PATIENCE;
    while is_running(pid) {
        assert!(Instant::now() < deadline, "the keeper {pid} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}
