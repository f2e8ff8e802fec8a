//! `outlast run` with a server that was not changed: its clients keep their connections over its crashes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::restarts::ends;
use crate::common::{Outlast, PATIENCE, command, eventually, folder, output};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CRASHES: usize = 10;

/// Says which process it is, to whoever asks.
const PROGRAM: &str = "
import http.server, os, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = str(os.getpid()).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(*_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()
";

fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("liboutlast_preload.so")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// One connection, from the beginning to the end.
struct Client(TcpStream);

impl Client {
    fn connect(port: u16) -> Self {
        let stream = eventually("nobody listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// The body of the answer, whose end tells that of the head.
    fn get(&mut self) -> String {
        self.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut heard = String::new();
        loop {
            if let Some((head, body)) = heard.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
                if body.len() == length.parse::<usize>().unwrap() {
                    return body.to_owned();
                }
            }
            let mut room = [0; 1024];
            let count = self.0.read(&mut room).unwrap();
            assert!(count > 0, "the connection has ended: {heard}");
            heard.push_str(std::str::from_utf8(&room[..count]).unwrap());
        }
    }
}

/// Until the answer that was just given is the end of what goes on there, and a copy of the connection is held.
fn await_idle() {
    std::thread::sleep(std::time::Duration::from_millis(150));
}

#[test]
fn a_server_that_is_killed_keeps_its_idle_clients() {
    let (folder, port) = (folder(), free_port());
    let file = folder.path().join("program.py");
    std::fs::write(&file, PROGRAM).unwrap();
    let (library, port_text) = (library(), port.to_string());
    let run = ["run", "--name", "web", "--intensity", "20", "--window", "20ms", "--preload", "always"];
    let preload = ["--preload-library", library.to_str().unwrap(), "--"];
    let program = ["/usr/bin/python3", file.to_str().unwrap(), &port_text];
    let mut command = command(folder.path(), &[&run[..], &preload, &program].concat());
    command.env("OUTLAST_LOG", "info").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut outlast = Outlast::from(command);
    let (mut client, mut idle) = (Client::connect(port), Client::connect(port));
    idle.get();
    for _ in 0..CRASHES {
        let killed = client.get();
        await_idle();
        signal(&killed, "KILL");
        assert_ne!(client.get(), killed);
    }
    idle.get();
    let status = String::from_utf8(output(folder.path(), &["status", "--json"]).stdout).unwrap();
    assert!(status.contains("\"backend\": \"exec\"") && status.contains("\"generation\": 11"), "{status}");
    assert!(status.contains("\"kept\": 2"), "the crashes are in the status: {status}");
    eventually("the connections are not counted", || {
        let status = String::from_utf8(output(folder.path(), &["status"]).stdout).unwrap();
        status.contains("2 connections held").then_some(())
    });
    // Two of one name would fight for the port.
    let mut second = crate::common::command(folder.path(), &[&run[..], &preload, &program].concat());
    let second = second.output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    let first = format!("another `outlast run` (process {}) keeps web running", outlast.pid());
    assert_eq!((second.status.code(), said.contains(&first)), (Some(2), true), "{said}");
    // Killed, it would leave the server behind.
    outlast.signal("TERM");
    assert!(outlast.ended().code().is_some());
    assert!(outlast.said().contains("2 idle ones are kept, 0 closed"), "{}", outlast.said());
}

fn signal(pid: &str, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), pid]).status().unwrap().success());
}

/// Nobody is refused meanwhile, and nobody is left over.
#[test]
fn what_a_killed_supervisor_has_left_is_taken_over_by_the_next_one_of_its_name() {
    if !Path::new("/usr/sbin/nginx").exists() {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "there is no nginx");
        eprintln!("SKIPPED: there is no nginx");
        return;
    }
    let (folder, port, library) = (folder(), free_port(), library());
    let (at, file) = (folder.path().display(), folder.path().join("nginx.conf"));
    let settings = format!(
        "daemon off; worker_processes 2; pid {at}/pid; error_log stderr; events {{ worker_connections 64; }}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:{port}; return 200 'served'; }} }}"
    );
    std::fs::write(&file, settings).unwrap();
    let preload = ["--preload", "always", "--preload-library", library.to_str().unwrap()];
    let run = [&["run", "--name", "orphaned nginx"], &preload[..]].concat();
    let nginx = ["--", "/usr/sbin/nginx", "-e", "stderr", "-c", file.to_str().unwrap()];
    let mut outlast = Outlast::start(folder.path(), &[&run[..], &nginx].concat());
    outlast.wait_for("is ready");
    outlast.signal("KILL");
    outlast.ended();
    let master = std::fs::read_to_string(folder.path().join("pid")).unwrap().trim().to_owned();
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let comes = std::thread::spawn({
        let over = std::sync::Arc::clone(&over);
        move || {
            let mut refused = 0;
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                let came = TcpStream::connect(("127.0.0.1", port));
                refused += u32::from(came.is_err());
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            refused
        }
    });
    let mut next = Outlast::start(folder.path(), &[&run[..], &nginx].concat());
    let line = next.wait_for("of before still ran without its supervisor");
    assert!(line.contains(&master) && line.contains(": 1 of its listening sockets"), "{line}");
    ends(master.parse().unwrap());
    next.wait_for("is ready");
    Client::connect(port).0.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    over.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(comes.join().unwrap(), 0, "some were refused");
    next.signal("TERM");
    next.ended();
}
