//! A process that is killed before there are copies of its connections: what is said of those.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, PYTHON, Server, children, eventually, folder, free_port, is_installed, kill, python_at,
};
use std::time::{Duration, Instant};

const CLIENTS: usize = 20;
/// What became of processes and connections is in the log by then.
const SAID_WITHIN: Duration = Duration::from_secs(5);

/// A master, and a worker that accepts clients of HTTP.
const SERVER: &str = r#"
import os, signal, socket, sys, threading
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
def serve(c):
    while c.recv(1000):
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
if os.fork() == 0:
    while True:
        threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
while True: signal.pause()
"#;

/// What is said in its time, or what is said by then.
fn said_in_time(server: &Server, what: &str, is_enough: impl Fn(&[String]) -> bool) -> Vec<String> {
    let deadline = Instant::now() + SAID_WITHIN;
    loop {
        let said = server.said(what);
        if is_enough(&said) || Instant::now() >= deadline {
            return said;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The kernel closes them with the process. As a rule some are kept, and some are too young.
#[test]
fn connections_that_are_too_young_to_be_kept_count_as_closed() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("killed-young"), free_port());
    let server = Server::start(&python_at(port, &folder, SERVER), true);
    assert!(Client::connect(port).get("/"));
    let worker = eventually("it has no worker", || children(server.main()).first().copied());
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(port)).collect();
    assert!(clients.iter_mut().all(|client| client.get("/")));
    kill(worker, libc::SIGKILL);
    let counts = |said: &[String]| -> [u32; 2] {
        let count = |line: &String, name: &str| -> Option<u32> {
            let rest = line.split_once(name)?.1;
            rest.split([',', ' ']).next()?.parse().ok()
        };
        ["kept: ", "closed: "].map(|name| said.iter().filter_map(|line| count(line, name)).sum())
    };
    let said = said_in_time(&server, "PartEnded", |said| counts(said) != [0, 0]);
    let [kept, closed] = counts(&said);
    println!("{kept} kept, {closed} closed");
    // The first one may have gone by then, or not.
    let all = u32::try_from(CLIENTS).unwrap();
    assert!((all..=all + 1).contains(&(kept + closed)), "{:?}", server.said(""));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}
