//! A server that has no room for another session: local programs wait until it has.

use crate::common::restarts::{connect, listen, open};
use crate::common::{KEY, PATIENCE, command, echo, folder, nobody, secret_file};
use std::io::{Read, Write};
use std::net::TcpStream;

#[test]
fn programs_wait_while_the_server_is_full() {
    let folder = folder();
    let runtime = folder.path();
    let key = secret_file(runtime, "key", KEY);
    for flags in [&[][..], &["--ack", "inband"], &["--psk-file", &key]] {
        let address = nobody();
        let limited = [&["--max-sessions", "1"], flags].concat();
        let mut server = listen(runtime, address, &echo().to_string(), &limited);
        let (mut client, front) = connect(runtime, address, flags);
        let first = open(front);
        let mut second = TcpStream::connect(front).unwrap();
        second.set_read_timeout(Some(PATIENCE)).unwrap();
        second.write_all(b"later").unwrap();
        // It has been told, and was not reset.
        second.set_nonblocking(true).unwrap();
        client.wait_for("no room for more sessions");
        let line = server.wait_for("no new session");
        assert!(line.contains("WARN") && line.contains("(--max-sessions)"), "{line}");
        assert_eq!(second.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        second.set_nonblocking(false).unwrap();
        drop(first);
        let mut answer = [0; 5];
        second.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"later");
    }
}

/// Its neighbours behind one address have left none for it, for the moment.
#[test]
fn programs_wait_while_their_address_has_all_sessions_that_it_may_have() {
    let (folder, address) = (folder(), nobody());
    let runtime = folder.path();
    let _server = listen(runtime, address, &echo().to_string(), &["--max-sessions-per-address", "1"]);
    let (mut client, front) = connect(runtime, address, &[]);
    let first = open(front);
    let mut second = TcpStream::connect(front).unwrap();
    second.set_read_timeout(Some(PATIENCE)).unwrap();
    second.write_all(b"later").unwrap();
    client.wait_for("this address has as many sessions as the server allows");
    drop(first);
    let mut answer = [0; 5];
    second.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"later");
}

#[test]
fn standard_streams_without_a_patience_are_told_at_once() {
    let folder = folder();
    let runtime = folder.path();
    let address = nobody();
    let _server = listen(runtime, address, &echo().to_string(), &["--max-sessions", "1"]);
    let (_client, front) = connect(runtime, address, &[]);
    let _first = open(front);
    let via = address.to_string();
    let output = command(runtime, &["connect", "--stdio", "--via", &via]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no room for more sessions"), "{output:?}");
}
