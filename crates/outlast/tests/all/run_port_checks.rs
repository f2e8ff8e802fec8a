//! `outlast run` with servers that look whether somebody listens at their port before they do, without connecting to it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, eventually, folder};
use crate::run_preload::{Client, free_port, library};
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What it does where somebody listens at its port is an argument, and as start scripts do with `ss`.
const LOOKS: &str = "
import http.server, os, signal, sys, time
port, how = int(sys.argv[1]), sys.argv[2]
is_open = lambda line: line.split()[1].endswith(':%04X' % port) and line.split()[3] == '0A'
looks = lambda: any(is_open(line) for line in open('/proc/net/tcp').readlines()[1:])
signal.alarm(120)
while looks():
    if how == 'waits': time.sleep(0.1)
    elif how == 'ends': sys.exit(0)
    else: sys.exit('port %d is in use' % port)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = str(os.getpid()).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()
";

/// Listens with SO_REUSEPORT, as others may. A later start than the first one takes its time.
const SHARES: &str = "
import os, signal, socket, sys, time
port, first = int(sys.argv[1]), sys.argv[2]
signal.alarm(120)
if os.path.exists(first): time.sleep(5)
elif len(sys.argv) > 3: os.fork()
open(first, 'w').close()
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(('127.0.0.1', port)); s.listen(64)
while True:
    c, _ = s.accept()
    c.recv(4096)
    body = str(os.getpid())
    c.sendall(('HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n%s' % (len(body), body)).encode())
    c.close()
";

/// Listens at a UNIX socket, unless somebody does already, as `ss -lx` tells.
const LOOKS_AT_PATH: &str = "
import os, signal, socket, sys
path = sys.argv[1]
signal.alarm(120)
entries = [line.split() for line in open('/proc/net/unix').readlines()[1:]]
if any(len(entry) == 8 and entry[7] == path and entry[3] == '00010000' for entry in entries): sys.exit('in use')
s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(8)
while True:
    c, _ = s.accept()
    c.sendall(str(os.getpid()).encode())
    c.close()
";

struct Server {
    outlast: Outlast,
    port: u16,
    _folder: tempfile::TempDir,
}

fn start(program: &str, how: &str, options: &[&str], more: &[&str]) -> Server {
    let (folder, port, library) = (folder(), free_port(), library());
    let file = folder.path().join("program.py");
    std::fs::write(&file, program).unwrap();
    let (port_text, file, library) =
        (port.to_string(), file.to_str().unwrap().to_owned(), library.to_str().unwrap().to_owned());
    let always = ["run", "--name", "web", "--preload", "always", "--preload-library", &library];
    let program = ["--", "/usr/bin/python3", &file, &port_text, how];
    let mut outlast = Outlast::start(folder.path(), &[&always[..], options, &program[..], more].concat());
    outlast.wait_for("is ready");
    Server { outlast, port, _folder: folder }
}

impl Server {
    /// Who answers a new client, if somebody does.
    fn try_get(&self) -> Option<String> {
        let client = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Client(client).try_get().ok()
    }

    fn stop(&mut self) {
        self.outlast.signal("TERM");
        self.outlast.ended();
    }

    /// Kills the process that serves. Which one serves then.
    fn kill(&self, old: &str) -> String {
        // The copies of idle connections are there by then.
        std::thread::sleep(Duration::from_millis(300));
        assert!(Command::new("kill").args(["-KILL", old]).status().unwrap().success());
        eventually("it does not come back", || self.try_get().filter(|next| next != old))
    }
}

#[test]
fn a_server_that_does_not_start_while_its_port_is_in_use_comes_back_and_idle_clients_stay() {
    let mut server = start(LOOKS, "fails", &["--intensity", "3", "--window", "600s"], &[]);
    let mut idle = Client::connect(server.port);
    let mut serves = idle.get();
    // What has failed for that does not count, only the crashes do.
    for _ in 0..3 {
        serves = server.kill(&serves);
        assert_eq!(idle.get(), serves, "{}", server.outlast.said_so_far());
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(Command::new("kill").args(["-KILL", &serves]).status().unwrap().success());
    server.outlast.ended();
    let said = server.outlast.said();
    assert!(said.contains("seems not to start while its port is in use"), "{said}");
    assert!(said.contains("after 3 other crashes within 10 min 0 s: it is not started again"), "{said}");
}

#[test]
fn a_server_that_ends_in_order_as_its_port_is_in_use_is_started_once_more_without_the_sockets() {
    let mut server = start(LOOKS, "ends", &[], &[]);
    let mut idle = Client::connect(server.port);
    let old = idle.get();
    let next = server.kill(&old);
    assert_eq!(idle.get(), next, "{}", server.outlast.said_so_far());
    server.stop();
}

#[test]
fn a_server_that_waits_until_nobody_listens_at_its_port_comes_back() {
    let mut server = start(LOOKS, "waits", &[], &[]);
    let mut idle = Client::connect(server.port);
    let old = idle.get();
    let next = server.kill(&old);
    assert_eq!(idle.get(), next, "{}", server.outlast.said_so_far());
    assert!(server.outlast.said_so_far().contains("runs and does not listen"));
    server.stop();
}

#[test]
fn where_another_program_listens_at_the_same_port_it_gets_all_new_clients_while_the_crashed_one_is_down() {
    let other_folder = folder();
    let first = other_folder.path().join("first");
    let mut server = start(SHARES, first.to_str().unwrap(), &[], &[]);
    let own = eventually("it does not serve", || server.try_get());
    let (program, others) = (other_folder.path().join("other.py"), other_folder.path().join("others"));
    std::fs::write(&program, SHARES).unwrap();
    let mut other = Command::new("/usr/bin/python3");
    let mut other = other.arg(&program).arg(server.port.to_string()).arg(&others).spawn().unwrap();
    let name = other.id().to_string();
    eventually("the other one does not serve", || server.try_get().filter(|pid| *pid == name));
    assert!(Command::new("kill").args(["-KILL", &own]).status().unwrap().success());
    server.outlast.wait_for("another program listens at the same port");
    let answers: Vec<Option<String>> = (0..40).map(|_| server.try_get()).collect();
    let is_back = |answer: &Option<String>| answer.as_ref().is_some_and(|pid| *pid != name);
    assert!(answers.iter().all(|answer| answer.as_ref() == Some(&name)), "{answers:?}");
    eventually("it does not come back", || Some(server.try_get()).filter(is_back));
    other.kill().unwrap();
    other.wait().unwrap();
    server.stop();
}

#[test]
fn workers_that_listen_at_one_port_with_a_socket_each_are_no_other_program() {
    let first_folder = folder();
    let first = first_folder.path().join("first");
    let mut server = start(SHARES, first.to_str().unwrap(), &[], &["forks"]);
    let mut workers = std::collections::BTreeSet::new();
    eventually("they do not serve", || {
        workers.extend(server.try_get());
        (workers.len() == 2).then_some(())
    });
    // The one that was started, and then both; the second may be ended before.
    for pid in &workers {
        let _ = Command::new("kill").args(["-KILL", pid]).stderr(Stdio::null()).status().unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    eventually("it does not come back", || server.try_get().filter(|pid| !workers.contains(pid)));
    let said = server.outlast.said_so_far();
    assert!(!said.contains("another program listens"), "{said}");
    server.stop();
}

#[test]
fn a_server_that_does_not_start_while_its_unix_socket_is_in_use_comes_back() {
    let (folder, library) = (folder(), library());
    let (file, path) = (folder.path().join("program.py"), folder.path().join("s"));
    std::fs::write(&file, LOOKS_AT_PATH).unwrap();
    let always = ["run", "--name", "path", "--preload", "always", "--preload-library"];
    let program = ["--", "/usr/bin/python3", file.to_str().unwrap(), path.to_str().unwrap()];
    let mut outlast =
        Outlast::start(folder.path(), &[&always[..], &[library.to_str().unwrap()], &program[..]].concat());
    outlast.wait_for("is ready");
    let who = || {
        let mut client = UnixStream::connect(&path).ok()?;
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).ok().filter(|_| !said.is_empty())?;
        Some(said)
    };
    let old = eventually("nobody answers", who);
    assert!(Command::new("kill").args(["-KILL", &old]).status().unwrap().success());
    eventually("it does not come back", || who().filter(|next| *next != old));
    assert!(outlast.said_so_far().contains("seems not to start"), "{}", outlast.said_so_far());
    outlast.signal("TERM");
    outlast.ended();
}
