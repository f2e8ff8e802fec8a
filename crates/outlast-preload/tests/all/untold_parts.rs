//! A part of a program that serves its clients, and into which the system has loaded no library, is named with the reason.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, PYTHON, Server, eventually, folder, free_port, is_installed, is_root, script};
use std::process::Command;

/// Listens, and has others serve, as Apache Traffic Server's manager does: one that is executed with another effective user than
/// its real one, or without the environment. Another one has the socket, and serves nobody.
const SERVER: &str = r#"
import os, socket, sys, threading
if sys.argv[1] == "serves":
    s = socket.socket(fileno=int(sys.argv[2]))
    def serve(c):
        while c.recv(1000): c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[2]))); s.listen(100); s.set_inheritable(True)
if not os.fork(): os.execve("/bin/sleep", ["sleep", "600"], {})
if not os.fork():
    environment = dict(os.environ) if sys.argv[1] == "user" else {}
    if sys.argv[1] == "user": os.setresuid(65534, 0, 0)
    os.execve("/usr/bin/python3", ["python3", sys.argv[0], "serves", str(s.fileno())], environment)
s.close()
os.wait()
"#;

#[test]
fn a_part_without_the_library_that_serves_clients_is_named() {
    if !is_installed(PYTHON) || !is_root() {
        return;
    }
    for (how, why) in [("user", "Secure"), ("environment", "NotLoaded")] {
        let (folder, port) = (folder("untold-parts"), free_port());
        let mut command = Command::new(PYTHON);
        command.arg(script(&folder, "server.py", SERVER)).arg(how).arg(port.to_string());
        let server = Server::start(&command, true);
        let mut client = Client::connect(port);
        assert!(client.get("/"));
        let line = eventually("it is not said", || server.said("HoldsNoConnections").pop());
        let pid: u32 = line.split("pid: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(line.contains(why) && words.contains("serves"), "{line}: {words}");
        assert_eq!(server.said("HoldsNothing"), Vec::<String>::new());
        assert!(client.get("/"));
        server.stop();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
