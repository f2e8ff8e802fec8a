//! Urgent data (MSG_OOB) by every way into Outlast, and with every kind of security.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::bad_peers::securities;
use crate::common::restarts::{connect, listen, stopped};
use crate::common::{Outlast, PATIENCE, Pair, folder, nobody, pattern};
use crate::urgent::{MODES, check_out_of_band, opened, read_inline, send_urgent, send_with_urgent_bytes};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

#[test]
fn it_is_urgent_with_every_kind_of_security() {
    let folder = folder();
    for (security, server, client) in securities(folder.path()) {
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = service.local_addr().unwrap().to_string();
        let [server, client] =
            [&server, &client].map(|flags| flags.iter().map(String::as_str).collect::<Vec<_>>());
        let pair = Pair::start(folder.path(), &to, &server, &client);
        let (mut program, mut served) = opened(pair.address, &service);
        println!("{security}");
        check_out_of_band(&mut program, &mut served);
        check_out_of_band(&mut served, &mut program);
    }
}

/// In every mode: a middlebox, which all others tests of breaks have, leaves only one.
#[test]
fn it_keeps_its_place_through_one_listener_after_another() {
    for mode in MODES {
        let folder = folder();
        let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
        let to = service.local_addr().unwrap().to_string();
        let flags = ["--ack", mode];
        let mut server = listen(folder.path(), address, &to, &flags);
        let (_client, front) = connect(folder.path(), address, &flags);
        let (mut program, mut served) = opened(front, &service);
        read_inline(&program);
        read_inline(&served);
        let sent = pattern(200_000);
        let ends = [&program, &served].map(|end| end.try_clone().unwrap());
        std::thread::scope(|scope| {
            for mut end in ends {
                let (mut reader, sent) = (end.try_clone().unwrap(), &sent);
                scope.spawn(move || {
                    send_with_urgent_bytes(&mut end, sent, &[1, 999, 5, 4_000], Duration::from_millis(5));
                });
                scope.spawn(move || {
                    let mut received = vec![0; sent.len()];
                    reader.read_exact(&mut received).unwrap();
                    assert!(received == *sent, "{mode}: the bytes differ");
                });
            }
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(100));
                server.signal("TERM");
                stopped(&mut server, 1);
                server = listen(folder.path(), address, &to, &flags);
            }
        });
        for end in [&program, &served] {
            socket2::SockRef::from(end).set_out_of_band_inline(false).unwrap();
        }
        check_out_of_band(&mut program, &mut served);
        check_out_of_band(&mut served, &mut program);
    }
}

/// Reads until this has come.
fn read_until(stream: &mut TcpStream, end: &[u8]) {
    let mut heard = Vec::new();
    while !heard.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        heard.push(byte[0]);
    }
}

/// By the rules of RFC 1928, for an address of IPv4.
fn ask_socks5(stream: &mut TcpStream, to: SocketAddr) {
    let SocketAddr::V4(to) = to else { panic!("of IPv4") };
    stream.write_all(&[5, 1, 0]).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    let request = [&[5, 1, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes()].concat();
    stream.write_all(&request).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..2], [5, 0]);
}

fn ask_http(stream: &mut TcpStream, to: SocketAddr) {
    stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).unwrap();
    read_until(stream, b"\r\n\r\n");
}

#[test]
fn it_is_urgent_through_a_proxy_door() {
    let folder = folder();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = service.local_addr().unwrap();
    let listen = ["listen", "127.0.0.1:0", "--to-any", "--allow-to", &to.to_string()];
    let mut server = Outlast::start(folder.path(), &listen);
    let via = server.address().to_string();
    for (door, ask) in
        [("--socks5", ask_socks5 as fn(&mut TcpStream, SocketAddr)), ("--http-connect", ask_http)]
    {
        let mut client = Outlast::start(folder.path(), &["connect", door, "127.0.0.1:0", "--via", &via]);
        let mut program = TcpStream::connect(client.address()).unwrap();
        program.set_read_timeout(Some(PATIENCE)).unwrap();
        ask(&mut program, to);
        let (mut served, _) = service.accept().unwrap();
        served.set_read_timeout(Some(PATIENCE)).unwrap();
        // A byte through it each way: now both relays know what the other can do.
        program.write_all(b"x").unwrap();
        served.read_exact(&mut [0]).unwrap();
        served.write_all(b"y").unwrap();
        program.read_exact(&mut [0]).unwrap();
        println!("{door}");
        check_out_of_band(&mut program, &mut served);
        check_out_of_band(&mut served, &mut program);
    }
}

fn check_in_place(from: &mut (impl Write + AsFd), to: &mut UnixStream) {
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..3 {
        from.write_all(b"abc").unwrap();
        send_urgent(from, b'D');
        from.write_all(b"efg").unwrap();
        let mut received = [0; 7];
        to.read_exact(&mut received).unwrap();
        assert_eq!(received, *b"abcDefg");
    }
}

/// UNIX sockets have urgent data of their own since Linux 5.15: there the byte goes on as an ordinary one, in its place.
#[test]
fn at_unix_sockets_the_byte_keeps_its_place() {
    let folder = folder();
    let (front, behind) = (folder.path().join("front.sock"), folder.path().join("service.sock"));
    let service = UnixListener::bind(&behind).unwrap();
    let to = format!("unix:{}", behind.display());
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &to]);
    let (via, at) = (server.address().to_string(), format!("unix:{}", front.display()));
    let mut local = Outlast::start(folder.path(), &["connect", &at, "--via", &via]);
    local.wait_for("listening on");
    let mut remote = Outlast::start(folder.path(), &["connect", "127.0.0.1:0", "--via", &via]);
    let mut program = TcpStream::connect(remote.address()).unwrap();
    program.write_all(b"x").unwrap();
    let (mut served, _) = service.accept().unwrap();
    served.read_exact(&mut [0]).unwrap();
    check_in_place(&mut program, &mut served);
    let mut program = UnixStream::connect(&front).unwrap();
    program.write_all(b"x").unwrap();
    let (mut served, _) = service.accept().unwrap();
    served.read_exact(&mut [0]).unwrap();
    check_in_place(&mut program, &mut served);
    // And back.
    check_in_place(&mut served, &mut program);
}
