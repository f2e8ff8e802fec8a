//! A connection that is held is given to whoever has accepted what stands for it, and to nobody else.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, PYTHON, Server, eventually, folder, free_port, has_ended, is_installed, is_root, kill, python,
    script, wait_until_held,
};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// Asks the holder for the connection that stands behind a port, as if it had accepted that.
const STRANGER: &str = r#"
import os, signal, socket, struct, sys, time
signal.alarm(60)
name, folder = sys.argv[1:]
while not os.path.exists(folder + "/port"): time.sleep(0.01)
port = int(open(folder + "/port").read())
k = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); k.connect("\0" + name)
listener = socket.create_server(("127.0.0.1", 0)); other = socket.create_connection(listener.getsockname())
accepted = listener.accept()[0]
address = struct.pack("=H", 2) + struct.pack("!H", port) + b"\x7f\0\0\x01" + b"\0" * 8
k.send(struct.pack("=IiIIQ", 5, accepted.fileno(), 0, len(address), 0) + address.ljust(128, b"\0"))
said, fds, _, _ = socket.recv_fds(k, 152, 1)
with open(folder + "/said.new", "w") as f: f.write("got it" if fds else "nothing")
os.rename(folder + "/said.new", folder + "/said")
"#;

/// Listens at two ports. The second start first accepts one at the second port, when it may.
const SERVER: &str = r#"
import os, socket, subprocess, sys, threading, time
folder, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
def listen(port):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port)); s.listen(100)
    return s
def talk(c):
    try:
        while c.recv(4096): c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    except OSError: pass
    c.close()
def serve(s):
    while True: threading.Thread(target=talk, args=(s.accept()[0],), daemon=True).start()
a, b = listen(ports[0]), listen(ports[1])
if os.path.exists(folder + "/first"):
    subprocess.Popen([sys.executable, folder + "/stranger.py", os.environ["OUTLAST_CUSTODY"], folder], user=65534,
                     group=65534, extra_groups=[], env={"PATH": "/usr/bin:/bin"}, start_new_session=True, cwd="/")
    open(folder + "/second", "w").close()
    while not os.path.exists(folder + "/go"): time.sleep(0.01)
    threading.Thread(target=talk, args=(b.accept()[0],), daemon=True).start()
else:
    open(folder + "/first", "w").close()
threading.Thread(target=serve, args=(b,), daemon=True).start()
serve(a)
"#;

/// The second start accepts with its last descriptor, once.
const FULL_SERVER: &str = r#"
import os, resource, socket, sys
folder, port = sys.argv[1], int(sys.argv[2])
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", port)); s.listen(9)
kept = []
if os.path.exists(folder + "/first"):
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    while True:
        try: kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError: break
    os.close(kept.pop())
else:
    os.close(os.open(folder + "/first", os.O_CREAT))
while True:
    c = s.accept()[0]
    while c.recv(4096): c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    while kept: os.close(kept.pop())
    c.close()
"#;

/// From another address, with the port that is told.
const CLIENT: &str = r#"
import socket, sys
s = socket.socket(); s.settimeout(20); s.bind(("127.0.0.2", int(sys.argv[2]))); s.connect(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
print(s.recv(1000).decode().splitlines()[0], flush=True)
"#;

/// The port of a connection that a supervisor has made to this one.
fn offered(supervisor: u32, server: u16) -> Option<u16> {
    let entries = std::fs::read_dir(format!("/proc/{supervisor}/fd")).unwrap().flatten();
    let has: Vec<PathBuf> = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let table = std::fs::read_to_string(format!("/proc/{supervisor}/net/tcp")).unwrap();
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (own, peer) = (port(words.get(1)?)?, port(words.get(2)?)?);
        let is_its = has.contains(&PathBuf::from(format!("socket:[{}]", words.get(9)?)));
        (is_its && peer == server).then_some(own)
    })
}

#[test]
fn a_held_connection_is_not_given_for_one_with_the_same_port_or_to_a_stranger() {
    if !is_installed(PYTHON) || !is_root() {
        return;
    }
    let (folder, ports) = (folder("swaps"), [free_port(), free_port()]);
    script(&folder, "stranger.py", STRANGER);
    let server = Server::start(&python(&folder, SERVER, &ports), true);
    let mut kept = Client::connect(ports[0]);
    assert!(kept.get("/"));
    wait_until_held(&server, [&kept]);
    kill(server.main(), libc::SIGKILL);
    eventually("it is not started again", || folder.join("second").exists().then_some(()));
    kept.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let port = eventually("it is not offered", || offered(server.pid(), ports[0]));
    std::fs::write(folder.join("port.new"), port.to_string()).unwrap();
    std::fs::rename(folder.join("port.new"), folder.join("port")).unwrap();
    let said = eventually("the stranger says nothing", || std::fs::read_to_string(folder.join("said")).ok());
    let other = Command::new(PYTHON)
        .args(["-c", CLIENT, &ports[1].to_string(), &port.to_string()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::fs::write(folder.join("go"), "").unwrap();
    let other = String::from_utf8(other.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!((said.as_str(), other.as_str()), ("nothing", "connected\nHTTP/1.1 200 OK\n"));
    assert!(kept.answered().is_some());
    assert!(kept.get("/"));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_held_connection_for_which_the_program_has_no_descriptor_is_given_later() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("full-server"), free_port());
    let server = Server::start(&python(&folder, FULL_SERVER, &[port]), true);
    let mut kept = Client::connect(port);
    assert!(kept.get("/"));
    wait_until_held(&server, [&kept]);
    let first = server.main();
    kill(first, libc::SIGKILL);
    eventually("it does not end", || has_ended(first).then_some(()));
    assert!(kept.get("/"));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}
