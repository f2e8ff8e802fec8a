//! Connections that a server closes end at once, by whatever way it closes them: a client must not send its next request
//! on one that nobody has any more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, folder, free_port, holds, is_installed, kill};
use std::io::Read;
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
        let own = [client.0.local_addr().unwrap().port()];
        eventually("there is no copy of it", || holds(server.pid(), port, &own).then_some(()));
        let began = Instant::now();
        kill(server.main(), libc::SIGUSR2);
        assert_eq!(client.0.read(&mut [0]).unwrap_or(0), 0);
        began.elapsed() < AT_ONCE
    });
    assert!(ends_at_once);
    drop(server);
    let _ = std::fs::remove_dir_all(folder);
}
