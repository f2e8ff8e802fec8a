//! A start that ends before the program listens at all of its addresses takes no time away from the next one.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, PYTHON, Server, eventually, folder, free_port, has_ended, holds, is_installed, kill, python,
};
use std::io::Write;
use std::time::{Duration, Instant};

/// Listens at its first port when there is a file "N-first", in its start number N, and at its second at "N-second".
const SERVER: &str = r#"
import os, socket, sys, threading, time
folder, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
start = len([name for name in os.listdir(folder) if name.startswith("start")])
open(folder + "/start%d" % start, "w").close()
def serve(s):
    while True:
        c = s.accept()[0]; c.recv(1000)
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"); c.close()
def listen(port, when):
    while not os.path.exists("%s/%d-%s" % (folder, start, when)): time.sleep(0.01)
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port)); s.listen(100)
    threading.Thread(target=serve, args=(s,)).start()
listen(ports[0], "first")
listen(ports[1], "second")
"#;

#[test]
fn a_listening_socket_has_as_much_time_in_each_start() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, ports) = (folder("slow-starts"), [free_port(), free_port()]);
    let may = |what: &str| std::fs::write(folder.join(what), "").unwrap();
    let has_begun = |start: u32| {
        let file = folder.join(format!("start{start}"));
        eventually("it is not started again", || file.exists().then_some(()));
    };
    let command = python(&folder, SERVER, &ports);
    ["0-first", "0-second", "1-first"].into_iter().for_each(may);
    let server = Server::start(&command, true);
    assert!(Client::connect(ports[0]).get("/") && Client::connect(ports[1]).get("/"));
    kill(server.main(), libc::SIGKILL);
    // The supervisor sees that it does not listen at the second one yet.
    has_begun(1);
    assert!(Client::connect(ports[0]).get("/"));
    std::thread::sleep(Duration::from_secs(2));
    kill(server.main(), libc::SIGKILL);
    has_begun(2);
    // More than it has for that, from there on.
    std::thread::sleep(Duration::from_secs(5));
    may("2-first");
    let began = Instant::now();
    assert!(Client::connect(ports[0]).get("/"));
    std::thread::sleep(Duration::from_millis(1500));
    let waits = Client::try_connect(ports[1]);
    // Of six seconds, on a machine that has stood still.
    if began.elapsed() < Duration::from_secs(5) {
        let mut waits = waits.unwrap();
        may("2-second");
        assert!(waits.get("/"));
    }
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Stopped, or short of processor time: the program does without it meanwhile, and not for ever.
#[test]
fn a_supervisor_that_stands_still_while_the_program_begins_holds_its_sockets_later() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, ports) = (folder("stands-still"), [free_port(), free_port()]);
    // A connection stays open here.
    let text = SERVER.replace("Connection: close\\r\\n", "").replace(
        "c = s.accept()[0]; c.recv(1000)\n        c.sendall",
        "threading.Thread(target=answer, args=(s.accept()[0],)).start()\ndef answer(c):\n    while c.recv(1000): c.sendall",
    );
    let text = text.replace("ok\"); c.close()", "ok\")");
    let may = |what: &str| std::fs::write(folder.join(what), "").unwrap();
    let command = python(&folder, &text, &ports);
    let server = Server::start(&command, true);
    eventually("it does not begin", || folder.join("start0").exists().then_some(()));
    kill(server.pid(), libc::SIGSTOP);
    ["0-first", "0-second", "1-first", "1-second"].into_iter().for_each(may);
    assert!(Client::connect(ports[0]).get("/") && Client::connect(ports[1]).get("/"));
    std::thread::sleep(Duration::from_millis(500));
    kill(server.pid(), libc::SIGCONT);
    // It is asked again before long.
    let mut idle = eventually("there is no copy", || {
        let mut client = Client::connect(ports[0]);
        assert!(client.get("/"));
        std::thread::sleep(Duration::from_millis(100));
        let own = [client.0.local_addr().unwrap().port()];
        holds(server.pid(), ports[0], &own).then_some(client)
    });
    let main = server.main();
    kill(main, libc::SIGKILL);
    // It accepts nobody more.
    eventually("its threads do not end", || has_ended(main).then_some(()));
    let refused = |port: &&u16| !Client::try_connect(**port).is_ok_and(|mut client| client.get("/"));
    assert_eq!(ports.iter().filter(refused).collect::<Vec<_>>(), Vec::<&u16>::new());
    assert!(idle.get("/"));
    let strange = ["Untold", "NotKept"].map(|what| server.said(what));
    assert_eq!(strange, [const { Vec::<String>::new() }; 2]);
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

/// The address is in use meanwhile, by the supervisor alone: without an answer that is the end of most programs.
#[test]
fn a_supervisor_that_stands_still_while_the_program_binds_again_is_waited_for() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, ports) = (folder("binds-again"), [free_port(), free_port()]);
    let may = |what: &str| std::fs::write(folder.join(what), "").unwrap();
    let command = python(&folder, SERVER, &ports);
    ["0-first", "0-second"].into_iter().for_each(may);
    let server = Server::start(&command, true);
    assert!(Client::connect(ports[0]).get("/") && Client::connect(ports[1]).get("/"));
    kill(server.main(), libc::SIGKILL);
    eventually("it is not started again", || folder.join("start1").exists().then_some(()));
    kill(server.pid(), libc::SIGSTOP);
    ["1-first", "1-second"].into_iter().for_each(may);
    // Longer than it waits for other answers.
    std::thread::sleep(Duration::from_secs(5));
    kill(server.pid(), libc::SIGCONT);
    assert!(Client::connect(ports[0]).get("/") && Client::connect(ports[1]).get("/"));
    assert!(!folder.join("start2").exists(), "it has ended");
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Its worker answers the first client in two halves; in its next start it listens only when there is a file "listen".
const WITH_WORKER: &str = r#"
import os, socket, sys, time
folder, port = sys.argv[1], int(sys.argv[2])
if os.path.exists(folder + "/begun"):
    while not os.path.exists(folder + "/listen"): time.sleep(0.01)
open(folder + "/begun", "w").close()
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port)); s.listen(100)
if os.fork():
    while True: time.sleep(99)
slow = s.accept()[0]; slow.recv(1000)
slow.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
s.settimeout(0.01)
while not os.path.exists(folder + "/answer"):
    try: c = s.accept()[0]
    except OSError: continue
    c.settimeout(None)
    c.recv(1000); c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nleft"); c.close()
slow.sendall(b"67890")
while True: time.sleep(99)
"#;

/// A worker that is left, and answers a client, accepts others meanwhile: the program that is being started does not serve for that.
#[test]
fn a_start_does_not_serve_because_a_worker_that_is_left_accepts() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("left-accepts"), free_port());
    let server = Server::start(&python(&folder, WITH_WORKER, &[port]), true);
    let mut slow = Client::connect(port);
    slow.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("no half answer", || (slow.0.peek(&mut [0; 60]).unwrap() >= 40).then_some(()));
    assert!(Client::connect(port).get("/"));
    let main = server.main();
    kill(main, libc::SIGKILL);
    eventually("it goes on", || server.main_now().filter(|now| *now != main && *now != 0));
    // By the worker.
    for _ in 0..3 {
        assert!(Client::connect(port).get("/"));
        std::thread::sleep(Duration::from_millis(150));
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(server.said("Generation { number: 2 }").is_empty(), "{:?}", server.said(""));
    std::fs::write(folder.join("listen"), "").unwrap();
    eventually("it serves", || (!server.said("Generation { number: 2 }").is_empty()).then_some(()));
    std::fs::write(folder.join("answer"), "").unwrap();
    assert!(slow.answered().is_some());
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
