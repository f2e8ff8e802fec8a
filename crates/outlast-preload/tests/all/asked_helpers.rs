//! Processes that workers ask, over a UNIX socket, for what they answer: they are there as long as workers finish answers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, children, eventually, family, folder, free_port, is_installed, kill, wait_until_held,
};
use std::io::{Read, Write};
use std::process::Command;

/// A master, two workers, and two processes that the workers ask, at a socket whose name is another one at each start. What
/// is asked for as `/slow` is answered when the file "go" is there, or "more" for `/more`.
const WORKERS: &str = r#"
import os, socket, sys, threading, time
folder = sys.argv[2]
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
path = "%s/%d.sock" % (folder, os.getpid())
u = socket.socket(socket.AF_UNIX); u.bind(path); u.listen(100)
def waited(path):
    while path != b"/" and not os.path.exists(folder + {b"/slow": "/go", b"/more": "/more"}[path]): time.sleep(0.01)
def tell(c):
    waited(c.recv(100)); c.sendall(b"hello\n"); c.close()
def serve(c):
    while True:
        said = c.recv(4096)
        if not said: c.close(); return
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(path); asked.sendall(said.split()[1]); answer = asked.recv(100)
        if not answer: answer = b"none!\n"
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" + answer)
def work(l, what):
    while True: threading.Thread(target=what, args=(l.accept()[0],), daemon=True).start()
for n in range(4):
    if os.fork() == 0:
        if n < 2: s.close(); work(u, tell)
        else: u.close(); work(s, serve)
while True: time.sleep(99)
"#;

fn ask(client: &mut Client, path: &str) {
    client.0.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
}

/// The whole answer's body.
fn answer(client: &mut Client) -> String {
    let (mut bytes, mut room) = (Vec::new(), [0; 100]);
    while !bytes.ends_with(b"\n") || bytes.len() < 43 {
        match client.0.read(&mut room) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&room[..count]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&bytes).lines().last().unwrap_or("the end").to_owned()
}

#[test]
fn helpers_that_workers_ask_are_there_until_the_workers_have_finished() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("asked-helpers"));
    let file = folder.join("program.py");
    std::fs::write(&file, WORKERS).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string()).arg(&folder);
    let server = Server::start(&command, true);
    let mut idle: Vec<Client> = (0..6).map(|_| Client::connect(port)).collect();
    assert!(idle.iter_mut().all(|client| client.get("/")));
    wait_until_held(&server, &idle);
    let mut slow: Vec<Client> = (0..4).map(|_| Client::connect(port)).collect();
    slow.iter_mut().for_each(|client| ask(client, "/slow"));
    std::thread::sleep(std::time::Duration::from_millis(200));
    let master = server.main();
    let old = family(master);
    assert_eq!(old.len(), 4);
    kill(master, libc::SIGKILL);
    let is_new = |pid: &u32| *pid != master && !old.contains(pid);
    let next = eventually("it is not started again", || children(server.pid()).into_iter().find(is_new));
    // It serves while answers of the last one are under way, some of which are asked for only now.
    eventually("it has no workers", || (children(next).len() == 4).then_some(()));
    let mut newcomers: Vec<Client> = (0..8).map(|_| Client::connect(port)).collect();
    newcomers.iter_mut().for_each(|client| ask(client, "/more"));
    std::thread::sleep(std::time::Duration::from_millis(200));
    std::fs::write(folder.join("more"), "").unwrap();
    let answers: Vec<String> = newcomers.iter_mut().map(answer).collect();
    assert_eq!(answers, vec!["hello"; 8], "of newcomers; {:?}", server.said(""));
    std::fs::write(folder.join("go"), "").unwrap();
    let answers: Vec<String> = slow.iter_mut().map(answer).collect();
    assert_eq!(answers, vec!["hello"; 4], "{:?}", server.said(""));
    eventually("old processes are left", || {
        let all = family(server.pid());
        old.iter().all(|pid| !all.contains(pid)).then_some(())
    });
    let lost = idle.iter_mut().map(|client| client.get("/")).filter(|is_kept| !is_kept).count();
    assert_eq!(lost, 0, "idle connections are lost: {:?}", server.said(""));
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// A master, two workers, and a program to which they write a line before each answer. What is asked for as `/slow` is
/// answered when the file "go" is there.
const WRITERS: &str = r#"
import os, socket, subprocess, sys, threading, time
folder = sys.argv[2]
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
reads, writes = os.pipe()
log = open(folder + "/log", "ab")
subprocess.Popen(["cat"], stdin=reads, stdout=log); os.close(reads)
def serve(c):
    while True:
        said = c.recv(4096)
        if not said: c.close(); return
        while said.startswith(b"GET /slow") and not os.path.exists(folder + "/go"): time.sleep(0.01)
        os.write(writes, said.split()[1] + b"\n")
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
for n in range(2):
    if os.fork() == 0:
        while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
while True: time.sleep(99)
"#;

#[test]
fn what_workers_write_into_a_pipe_is_read_until_they_have_finished() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("pipes"));
    let file = folder.join("program.py");
    std::fs::write(&file, WRITERS).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string()).arg(&folder);
    let server = Server::start(&command, true);
    let mut slow: Vec<Client> = (0..4).map(|_| Client::connect(port)).collect();
    slow.iter_mut().for_each(|client| ask(client, "/slow"));
    std::thread::sleep(std::time::Duration::from_millis(200));
    let master = server.main();
    let old = family(master);
    kill(master, libc::SIGKILL);
    let is_new = |pid: &u32| *pid != master && !old.contains(pid);
    let next = eventually("it is not started again", || children(server.pid()).into_iter().find(is_new));
    eventually("it has no workers", || (children(next).len() == 3).then_some(()));
    std::fs::write(folder.join("go"), "").unwrap();
    let answers: Vec<String> = slow.iter_mut().map(answer).collect();
    assert_eq!(answers, vec!["hello"; 4], "{:?}", server.said(""));
    eventually("old processes are left", || {
        let all = family(server.pid());
        old.iter().all(|pid| !all.contains(pid)).then_some(())
    });
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    assert_eq!(log, "/slow\n".repeat(4));
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
