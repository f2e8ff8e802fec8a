//! Connections that end with an answer are not kept: their clients wait for the end, not for another answer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, folder, free_port, is_installed, kill, wait_until_held};
use crate::connections::program;
use std::io::{Read, Write};

/// The last request of a connection.
const LAST: [&str; 4] = [
    "GET / HTTP/1.0\r\n\r\n",
    "GET / HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: TE, Close\r\nTE: trailers\r\n\r\n",
];

/// There is another one to come.
const NOT_LAST: [&str; 3] = [
    "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
];

#[test]
fn a_connection_ends_with_the_answer_to_its_last_request() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("last-answers"));
    let server = Server::start(&program(&folder, port), true);
    let asked = |request: &&'static str| {
        let mut client = Client::connect(port);
        client.0.write_all(request.as_bytes()).unwrap();
        assert!(client.answered().is_some(), "{request:?}");
        (client, *request)
    };
    let last: Vec<_> = LAST.iter().map(asked).collect();
    // Another one before it does not change that.
    let mut second = asked(&NOT_LAST[1]);
    second.0.0.write_all(LAST[0].as_bytes()).unwrap();
    assert!(second.0.answered().is_some());
    let mut kept: Vec<_> = NOT_LAST.iter().map(asked).collect();
    wait_until_held(&server, kept.iter().map(|(client, _)| client));
    // It ends without closing any of them.
    kill(server.main(), libc::SIGKILL);
    for (mut client, request) in last.into_iter().chain([second]) {
        // As nobody answers, one that is kept would stay open.
        match client.0.read(&mut [0]) {
            Ok(count) => assert_eq!(count, 0, "{request:?}"),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{request:?}: {error}");
            }
        }
    }
    for (client, request) in &mut kept {
        assert!(client.get("/"), "{request:?}");
    }
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}
