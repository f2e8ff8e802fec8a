//! Workers that listen at one port with a socket each (SO_REUSEPORT): the kernel sends each socket its share of the clients.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, children, eventually, family, folder, free_port, is_installed, kill};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A master with a socket that is bound and never listens, as granian's, and three workers, each with a socket of its own. It
/// starts no worker again, unless it is told to. On SIGUSR1 a worker ends by itself; on SIGUSR2 it closes its socket, and goes on.
const PROGRAM: &str = r#"
import os, signal, socket, socketserver, sys
port, again = int(sys.argv[1]), sys.argv[2] == "again"
def bound():
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); s.bind(("127.0.0.1", port)); return s
class H(socketserver.StreamRequestHandler):
    def handle(s):
        while s.rfile.readline():
            while s.rfile.readline().strip(): pass
            s.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
class T(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True; request_queue_size = 50
    def server_bind(s): s.socket.close(); s.socket = bound()
def worker():
    if os.fork(): return
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    server = T(("127.0.0.1", port), H)
    def close(*_): server.socket.close(); open(sys.argv[0] + ".closed", "w"); signal.pause()
    signal.signal(signal.SIGUSR2, close)
    server.serve_forever()
master = bound()
for _ in range(3): worker()
while True:
    try: os.wait()
    except ChildProcessError: signal.pause()
    if again: worker()
"#;

const CLIENTS: usize = 30;

/// The server, its port, and the folder that the test removes.
fn start(name: &str, again: bool) -> Option<(Server, u16, PathBuf)> {
    if !is_installed("/usr/bin/python3") {
        return None;
    }
    let (port, folder) = (free_port(), folder(name));
    let server = Server::start(&program(&folder, port, again), true);
    eventually("the workers do not begin", || (workers(&server).len() == 3).then_some(()));
    all_are_served(&server, port);
    Some((server, port, folder))
}

fn program(folder: &Path, port: u16, again: bool) -> Command {
    let file = folder.join("program.py");
    std::fs::write(&file, PROGRAM).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string()).arg(if again { "again" } else { "once" });
    command
}

fn workers(server: &Server) -> Vec<u32> {
    children(server.main())
}

fn all_are_served(server: &Server, port: u16) {
    for client in 0..CLIENTS {
        assert!(Client::connect(port).get("/"), "client {client}: {:?}", server.said(""));
    }
}

/// Clients that come while nobody serves wait for the next generation, all of them.
#[test]
fn who_binds_and_never_listens_gets_no_clients_after_a_crash() {
    let Some((server, port, folder)) = start("reuseport-master", true) else { return };
    for _ in 0..2 {
        let main = server.main();
        // As long as the holder needs to have heard of all.
        std::thread::sleep(Duration::from_millis(300));
        let old = workers(&server);
        kill(main, libc::SIGKILL);
        // Whom a worker accepts that is about to be killed is not served.
        eventually("the old workers are left", || {
            let all = family(server.pid());
            old.iter().all(|pid| !all.contains(pid)).then_some(())
        });
        all_are_served(&server, port);
        eventually("the next one is not there", || (server.main() != main).then_some(()));
        all_are_served(&server, port);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// As it is without a supervisor: the others have the clients.
#[test]
fn a_worker_that_has_ended_in_order_gets_no_more_clients() {
    let Some((server, port, folder)) = start("reuseport-ends", false) else { return };
    let worker = workers(&server)[1];
    kill(worker, libc::SIGUSR1);
    eventually("the worker does not end", || (!workers(&server).contains(&worker)).then_some(()));
    // Also those that come before the supervisor has heard of it, whom the kernel sends to that worker's socket.
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(port)).collect();
    assert!(clients.iter_mut().all(|client| client.get("/")), "{:?}", server.said(""));
    all_are_served(&server, port);
    std::fs::remove_dir_all(folder).unwrap();
}

/// The same: whoever closes its socket before it ends, to finish what it has begun, has no new clients.
#[test]
fn a_worker_that_closes_its_socket_and_goes_on_gets_no_more_clients() {
    let Some((server, port, folder)) = start("reuseport-closes", false) else { return };
    let worker = workers(&server)[1];
    kill(worker, libc::SIGUSR2);
    eventually("the worker does not close", || folder.join("program.py.closed").exists().then_some(()));
    let began = Instant::now();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(port)).collect();
    assert!(clients.iter_mut().all(|client| client.get("/")), "{:?}", server.said(""));
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    all_are_served(&server, port);
    assert!(workers(&server).contains(&worker));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_worker_that_has_crashed_and_is_not_started_again_gets_no_more_clients() {
    let Some((server, port, folder)) = start("reuseport-crashes", false) else { return };
    let worker = workers(&server)[1];
    kill(worker, libc::SIGKILL);
    eventually("the worker does not end", || (!workers(&server).contains(&worker)).then_some(()));
    let began = Instant::now();
    // Also those that wait at its socket until that is given up.
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(port)).collect();
    assert!(clients.iter_mut().all(|client| client.get("/")), "{:?}", server.said(""));
    std::thread::sleep(Duration::from_secs(2).saturating_sub(began.elapsed()));
    all_are_served(&server, port);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Nobody is refused, and nobody waits for long.
#[test]
fn a_worker_that_is_started_again_takes_over_who_waits() {
    let Some((server, port, folder)) = start("reuseport-again", true) else { return };
    for _ in 0..3 {
        let worker = workers(&server)[0];
        std::thread::sleep(Duration::from_millis(300));
        kill(worker, libc::SIGKILL);
        eventually("it does not end", || (!workers(&server).contains(&worker)).then_some(()));
        all_are_served(&server, port);
    }
    std::fs::remove_dir_all(folder).unwrap();
}
