//! Parts of a program that connect to each other at a UNIX socket, once for each request, do so without the supervisor.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, PYTHON, Server, eventually, folder, free_port, is_installed, script};
use std::process::Command;

/// Asks another part of the program at its UNIX socket 1,000 times before it answers, as Apache asks the daemons of mod_wsgi.
const SERVER: &str = r#"
import os, socket, sys
path = sys.argv[2]
inner = socket.socket(socket.AF_UNIX); inner.bind(path); inner.listen(100)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
if not os.fork():
    s.close()
    while True: inner.accept()[0].close()
inner.close()
while True:
    c = s.accept()[0]
    while c.recv(1000):
        for _ in range(1000):
            asked = socket.socket(socket.AF_UNIX); asked.connect(path); asked.recv(1); asked.close()
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
"#;

/// How often the threads of a process have slept.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let count = |status: String| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
    };
    statuses.filter_map(count).sum()
}

#[test]
fn connections_between_parts_of_a_program_are_no_matter_of_its_supervisor() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("inner-connections"), free_port());
    let mut command = Command::new(PYTHON);
    command.arg(script(&folder, "server.py", SERVER)).arg(port.to_string()).arg(folder.join("inner"));
    let server = Server::start(&command, true);
    let mut client = Client::connect(port);
    // At first it asks whether somebody is there but the supervisor.
    eventually("the supervisor is asked at every connection", || {
        let before = sleeps(server.pid());
        assert!(client.get("/"));
        (sleeps(server.pid()) - before < 30).then_some(())
    });
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
