//! What is not kept is said once, however a server serves its sessions.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, PYTHON, Server, eventually, folder, free_port, is_installed, python_at};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Serves each client in the way that the last argument names:
/// - cloned: a child that was made past the C library has the connection as its standard input alone, and greets it (vsftpd);
/// - duplicated: a child reads from a duplicate first (exim);
/// - executed: another program is executed for it (sshd, inetd);
/// - greeted: the server greets it, and reads nothing;
/// - web: a child answers a request of HTTP by a duplicate;
/// - late: the server ends connections without a request by an answer of HTTP.
const SERVER: &str = r#"
import ctypes, os, socket, sys
SYS_clone, SIGCHLD = 56, 17
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
way, kept, syscall = sys.argv[3], [], ctypes.CDLL(None).syscall
def begun(c):
    child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) if way == "cloned" else os.fork()
    if child == 0: os.dup2(c.fileno(), 0); os.dup2(c.fileno(), 1); c.close()
    return child == 0
while True:
    c = s.accept()[0]
    if way == "greeted": c.sendall(b"hello\n"); kept.append(c)
    elif way == "late": c.sendall(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"); kept.append(c)
    elif begun(c):
        if way == "executed": os.execv("/bin/cat", ["cat"])
        if way == "cloned": os.write(0, b"hello\n")
        if os.read(0, 1000) and way == "web": os.write(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        else: os.write(1, b"what?\n")
        os._exit(0)
    else: c.close()
"#;

/// The server, its port, and the folder that the test removes.
fn start(way: &str) -> (Server, u16, PathBuf) {
    let (folder, port) = (folder(&format!("unkept-{way}")), free_port());
    let mut command = python_at(port, &folder, SERVER);
    command.arg(way);
    (Server::start(&command, true), port, folder)
}

/// A client says this, and hears something.
fn talk(port: u16, says: &[u8]) {
    let mut client = Client::connect(port);
    client.0.write_all(says).unwrap();
    client.0.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn sessions_that_are_not_kept_are_warned_of_however_they_are_served() {
    if !is_installed(PYTHON) {
        return;
    }
    for (way, says, kind) in [
        ("cloned", "", "Other"),
        ("duplicated", "hello\n", "Other"),
        ("executed", "hello\n", "Executed"),
        ("greeted", "", "Other"),
    ] {
        if way == "cloned" && !cfg!(target_arch = "x86_64") {
            continue;
        }
        let (server, port, folder) = start(way);
        talk(port, says.as_bytes());
        let words = format!("kind: {kind}");
        eventually(&format!("{way}: it is not said"), || (!server.said(&words).is_empty()).then_some(()));
        talk(port, says.as_bytes());
        std::thread::sleep(Duration::from_millis(1_500));
        server.says("NotKept", 1);
        assert_eq!(server.stop(), 128 + libc::SIGTERM);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn servers_of_http_that_duplicate_connections_or_give_up_waiting_are_not_warned_of() {
    if !is_installed(PYTHON) {
        return;
    }
    for (way, says) in [("web", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), ("late", "")] {
        let (server, port, folder) = start(way);
        talk(port, says.as_bytes());
        std::thread::sleep(Duration::from_millis(1_500));
        assert_eq!(server.said("NotKept"), Vec::<String>::new(), "{way}");
        assert_eq!(server.stop(), 128 + libc::SIGTERM);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
