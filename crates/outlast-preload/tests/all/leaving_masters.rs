//! Masters that end by themselves when one of their workers has crashed, and have the others end before.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, PYTHON, Server, eventually, folder, free_port, is_installed, kill, python_at, wait_until_held,
};
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What became of connections is in the log by then.
const SAID_WITHIN: Duration = Duration::from_secs(5);

/// Passes the clients that it accepts to two workers in turn. When one has ended it closes what it speaks to the others by, at
/// which these close their connections and end, in order; then it exits with a code, or has new ones.
const SERVER: &str = r#"
import os, signal, socket, sys, threading
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
leaves = sys.argv[3] == "leaves"
def serve(c):
    while c.recv(1000):
        name = b"%d" % os.getpid()
        c.sendall(b"HTTP/1.1 200 OK\r\nX-Worker: %s\r\nContent-Length: 2\r\n\r\nok" % name)
def work(tasks):
    kept = []
    while True:
        message, files, _, _ = socket.recv_fds(tasks, 9, 1)
        if not message: break
        kept.append(socket.socket(fileno=files[0]))
        threading.Thread(target=serve, args=(kept[-1],), daemon=True).start()
    for c in kept: os.close(c.fileno())
    os._exit(0)
ways = []
def begin():
    for number in range(2):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in [s, ours] + ways: other.close()
            work(theirs)
        theirs.close(); ways.append(ours)
def has_ended(*_):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for way in ways: way.close()
    for worker in range(2): os.wait()
    if leaves: os._exit(1)
    ways.clear(); begin()
begin()
signal.signal(signal.SIGCHLD, has_ended)
count = 0
while True:
    c = s.accept()[0]
    socket.send_fds(ways[count % 2], [b"1"], [c.fileno()]); c.close(); count += 1
"#;

/// Six idle clients of two workers, of which one was killed, and the folder that the test removes.
fn crashed(way: &str) -> (Server, Vec<Client>, PathBuf) {
    let (folder, port) = (folder(&format!("leaving-{way}")), free_port());
    let mut command = python_at(port, &folder, SERVER);
    command.arg(way);
    let server = Server::start(&command, true);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(port)).collect();
    assert!(clients.iter_mut().all(|client| client.get("/")));
    wait_until_held(&server, &clients);
    let worker = eventually("it has no workers", || crate::common::children(server.main()).first().copied());
    kill(worker, libc::SIGKILL);
    (server, clients, folder)
}

#[test]
fn what_other_workers_close_before_their_master_ends_is_kept_as_if_it_had_crashed_and_that_is_said() {
    if !is_installed(PYTHON) {
        return;
    }
    let (server, mut clients, folder) = crashed("leaves");
    eventually("it is not started again", || (server.said("Generation").len() == 2).then_some(()));
    assert!(clients.iter_mut().all(|client| client.get("/")), "{:?}", server.said(""));
    // Of a worker whose last words come behind its master's end some are said later.
    let kept = || -> u32 {
        let said = server.said("closed: 0 }");
        let counts = said
            .iter()
            .filter_map(|line| line.split_once("kept: ")?.1.split(',').next()?.parse::<u32>().ok());
        counts.sum()
    };
    let deadline = Instant::now() + SAID_WITHIN;
    while kept() != 6 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(kept(), 6, "{:?}", server.said(""));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_workers_close_is_closed_where_their_master_goes_on() {
    if !is_installed(PYTHON) {
        return;
    }
    let (server, mut clients, folder) = crashed("goes on");
    // Those of the worker that was not killed: every second one.
    for client in clients.iter_mut().skip(1).step_by(2) {
        assert_eq!(client.0.read(&mut [0; 10]).unwrap(), 0);
    }
    assert!(clients.iter_mut().step_by(2).all(|client| client.get("/")), "{:?}", server.said(""));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}
