//! A program that listens in several network namespaces: the same address is another one in each.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, folder, free_port, is_installed, is_root, kill, python};
use outlast_lab::Lab;
use std::path::Path;
use std::time::Duration;

/// Listens where it is started, and then in a network namespace of its own: whether it is reached there is said in a file.
const PROGRAM: &str = r#"
import ctypes, os, socket, subprocess, sys, threading
folder, port = sys.argv[1], int(sys.argv[2])
def listen():
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port)); s.listen(100)
    threading.Thread(target=accept, args=(s,)).start()
def accept(s):
    while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
def serve(c):
    while c.recv(4096): c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
def inner():
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000): raise OSError(ctypes.get_errno())
    subprocess.check_call(["ip", "link", "set", "lo", "up"])
    listen()
    try: socket.create_connection(("127.0.0.1", port), 5); said = "reached"
    except OSError as error: said = str(error)
    with open(f"{folder}/{os.getpid()}", "w") as file: file.write(said)
listen()
inner()
"#;

#[test]
fn who_listens_in_several_networks_is_reached_in_all_after_a_crash() {
    if !is_root() || !is_installed("/usr/bin/python3") {
        eprintln!("skipped: a network namespace needs root");
        return;
    }
    let (port, folder) = (free_port(), folder("other-networks"));
    let server = Server::start(&python(&folder, PROGRAM, &[port]), true);
    for _ in 0..3 {
        let main = server.main();
        let file = folder.join(main.to_string());
        let is_said = || std::fs::read_to_string(&file).ok().filter(|said| !said.is_empty());
        assert_eq!(eventually("it does not listen in its own network", is_said), "reached");
        assert!(Client::connect(port).get("/"), "{:?}", server.said(""));
        // As long as the holder needs to have heard of all.
        std::thread::sleep(Duration::from_millis(300));
        kill(main, libc::SIGKILL);
        eventually("it is not started again", || server.main_now().filter(|now| *now != main));
    }
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Listens where it is started, and at the same address in another network, which outlives it: what it answers tells where.
const TWO_NETWORKS: &str = r#"
import ctypes, os, socket, sys, threading
folder, port = sys.argv[1], int(sys.argv[2])
enter = lambda path: ctypes.CDLL(None).setns(os.open(path, os.O_RDONLY), 0x40000000)
def listen(says):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port)); s.listen(100)
    threading.Thread(target=accept, args=(s, says)).start()
def accept(s, says):
    while True: threading.Thread(target=serve, args=(s.accept()[0], says), daemon=True).start()
def serve(c, says):
    while c.recv(4096): c.sendall(b"HTTP/1.1 200 %s\r\nContent-Length: 6\r\n\r\nhello\n" % says)
own = f"{folder}/own"
if not os.path.exists(own): os.symlink(f"/proc/{os.getppid()}/ns/net", own)
listen(b"OUTER")
enter(open(f"{folder}/inner").read()); listen(b"INNER"); enter(own)
"#;

#[test]
fn a_client_in_one_network_is_never_served_by_the_listener_in_another() {
    outlast_lab::require!("a program in two networks");
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("two-networks"));
    let lab = Lab::new("two-networks").unwrap();
    let inner = lab.host("inner").unwrap();
    let path = Path::new("/run/netns").join(inner.namespace());
    std::fs::write(folder.join("inner"), path.to_str().unwrap()).unwrap();
    let server = Server::start(&python(&folder, TWO_NETWORKS, &[port]), true);
    let ask = |client: &mut Client| {
        use std::io::Write;
        let asked = client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        asked.ok().and_then(|()| client.answered())
    };
    let mut outside = Client::connect(port);
    assert_eq!(ask(&mut outside).unwrap(), "http/1.1 200 outer");
    let mut inside = inner.enter(|| Client::connect(port)).unwrap();
    assert_eq!(ask(&mut inside).unwrap(), "http/1.1 200 inner");
    // As long as the holder needs to have a copy.
    std::thread::sleep(Duration::from_millis(300));
    let main = server.main();
    kill(main, libc::SIGKILL);
    eventually("it is not started again", || server.main_now().filter(|now| *now != main));
    assert_eq!(ask(&mut outside).unwrap(), "http/1.1 200 outer");
    let answer = ask(&mut inside);
    assert!(answer.is_none(), "{answer:?}");
    let mut inside = inner.enter(|| Client::connect(port)).unwrap();
    assert_eq!(ask(&mut inside).unwrap(), "http/1.1 200 inner");
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
