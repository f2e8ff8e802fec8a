//! Connections that a server closes end at once, by whatever way it closes them: a client must not send its next request
//! on one that nobody has any more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, folder, free_port, is_installed, kill, wait_until_held};
use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

/// Less than the supervisor needs to find out by itself, which takes two looks with a second between them.
const AT_ONCE: Duration = Duration::from_millis(900);

/// Node closes by system calls of its own.
#[test]
fn a_connection_that_node_closes_ends_at_once() {
    if !is_installed("node") {
        return;
    }
    let (port, folder) = (free_port(), folder("node-closes"));
    let file = folder.join("program.js");
    let text = format!(
        "const s=require('http').createServer((q,r)=>r.end('hello')); const all=new Set();
        s.on('connection',c=>{{all.add(c); c.on('close',()=>all.delete(c));}});
        process.on('SIGUSR2',()=>all.forEach(c=>c.destroy())); s.listen({port},'127.0.0.1');"
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("node");
    command.arg(&file);
    let server = Server::start(&command, true);
    // Once is enough: the machine may be busy.
    let ends_at_once = (0..5).any(|_| {
        let mut client = Client::connect(port);
        assert!(client.get("/"));
        wait_until_held(&server, [&client]);
        let began = Instant::now();
        kill(server.main(), libc::SIGUSR2);
        assert_eq!(client.0.read(&mut [0]).unwrap_or(0), 0);
        began.elapsed() < AT_ONCE
    });
    assert!(ends_at_once);
    drop(server);
    let _ = std::fs::remove_dir_all(folder);
}

/// Closes its listening socket and listens there again; between two times a child of its may do so, as well. Says how often
/// that has failed, and serves.
const AGAIN: &str = r#"
import os, socket, sys
port, failed = int(sys.argv[1]), 0
def listens():
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port)); s.listen(10)
    return s
for n in range(20):
    try: listens().close()
    except OSError: failed += 1
    if n % 2 == 0:
        child = os.fork()
        if child == 0:
            try: listens()
            except OSError: os._exit(1)
            os._exit(0)
        failed += os.waitpid(child, 0)[1] != 0
s = listens()
while True:
    c = s.accept()[0]; c.recv(4096); c.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n%02d" % failed); c.close()
"#;

#[test]
fn a_program_that_listens_again_and_again_can() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("listens-again"));
    let file = folder.join("program.py");
    std::fs::write(&file, AGAIN).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string());
    let server = Server::start(&command, true);
    let mut said = String::new();
    eventually("it does not serve", || {
        let mut client = Client::try_connect(port).ok()?;
        client.0.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        said.clear();
        client.0.read_to_string(&mut said).ok().filter(|_| said.len() > 2)
    });
    assert_eq!(&said[said.len() - 2..], "00", "times that it could not listen");
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}
