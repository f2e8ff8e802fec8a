//! `outlast run` with a server that was not changed: its clients keep their connections over its crashes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::restarts::ends;
use crate::common::supervised::status;
use crate::common::{Outlast, PATIENCE, command, eventually, folder, output};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const CRASHES: usize = 10;

/// Says which process it is, to whoever asks.
pub const PROGRAM: &str = "
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

pub fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("liboutlast_preload.so")
}

/// A port where nobody listens, of those that the system gives to no client.
pub fn free_port() -> u16 {
    outlast_lab::free_port().unwrap()
}

/// One connection, from the beginning to the end.
pub struct Client(pub TcpStream);

impl Client {
    pub fn connect(port: u16) -> Self {
        let stream = eventually("nobody listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// The body of the answer, whose end tells that of the head.
    pub fn get(&mut self) -> String {
        self.try_get().unwrap_or_else(|heard| panic!("the connection has ended: {heard}"))
    }

    /// The same, or what was heard until the connection has ended.
    pub fn try_get(&mut self) -> Result<String, String> {
        if let Err(error) = self.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") {
            return Err(error.to_string());
        }
        let mut heard = String::new();
        loop {
            if let Some((head, body)) = heard.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
                if body.len() == length.parse::<usize>().unwrap() {
                    return Ok(body.to_owned());
                }
            }
            let mut room = [0; 1024];
            let count = self.0.read(&mut room).map_err(|error| format!("{heard}{error}"))?;
            if count == 0 {
                return Err(heard);
            }
            heard.push_str(std::str::from_utf8(&room[..count]).unwrap());
        }
    }
}

/// Until no thread of the process runs: the answer that was just given is the end of what goes on there, as far as it can
/// know. And until as many connections are held: of a new one a copy is taken in a moment.
pub fn await_idle(folder: &Path, pid: &str, held: u64) {
    let sleeps = |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'));
    eventually("the server does not come to rest", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let all = tasks.map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        all.into_iter().all(|stat| sleeps(&stat)).then_some(())
    });
    eventually("the connections are not held", || (status(folder)["connections"] == held).then_some(()));
}

#[test]
fn a_server_that_is_killed_keeps_its_idle_clients() {
    let (folder, port) = (folder(), free_port());
    let file = folder.path().join("program.py");
    std::fs::write(&file, PROGRAM).unwrap();
    let (library, port_text) = (library(), port.to_string());
    let run = ["run", "--name", "web", "--intensity", "20", "--backoff-max", "50ms", "--preload", "always"];
    let preload = ["--preload-library", library.to_str().unwrap(), "--"];
    let program = ["/usr/bin/python3", file.to_str().unwrap(), &port_text];
    let mut command = command(folder.path(), &[&run[..], &preload, &program].concat());
    command.env("OUTLAST_LOG", "info").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut outlast = Outlast::from(command);
    let (mut client, mut idle) = (Client::connect(port), Client::connect(port));
    idle.get();
    for crash in 0..CRASHES {
        let killed = client.get();
        await_idle(folder.path(), &killed, 2);
        signal(&killed, "KILL");
        // Until its last thread has ended it may take a request, which is lost with it.
        outlast.wait_for(&format!("process {killed} has been killed"));
        match client.try_get() {
            Ok(next) => assert_ne!(next, killed),
            Err(heard) => panic!("crash {crash}: {heard:?}\n{}", outlast.said_so_far()),
        }
    }
    idle.get();
    let now = status(folder.path());
    assert_eq!((now["backend"].as_str(), now["generation"].as_u64()), (Some("exec"), Some(11)), "{now:#}");
    let crashes = now["crashes"]["kept"].as_array().unwrap();
    // The idle one is nobody's from the first crash on.
    assert!(crashes.len() == CRASHES && crashes[0]["kept"] == 2, "{crashes:#?}");
    assert!(crashes.iter().all(|crash| crash["closed"] == 0 && crash["how"] == "SIGKILL"), "{crashes:#?}");
    // Each has its own time.
    assert!(
        crashes.windows(2).all(|two| two[0]["at_ms"].as_u64() < two[1]["at_ms"].as_u64()),
        "{crashes:#?}"
    );
    let page = String::from_utf8(output(folder.path(), &["status"]).stdout).unwrap();
    let last = page.lines().find(|line| line.trim_start().starts_with("10 ")).unwrap_or_default();
    assert!(page.contains("2 connections held") && page.contains("CONNECTIONS KEPT"), "{page}");
    assert!(last.contains("SIGKILL"), "{page}");
    // Two of one name would fight for the port.
    let mut second = crate::common::command(folder.path(), &[&run[..], &preload, &program].concat());
    let second = second.output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    let first = format!("another `outlast run` (process {}) keeps web running", outlast.pid());
    assert_eq!((second.status.code(), said.contains(&first)), (Some(2), true), "{said}");
    // Killed, it would leave the server behind.
    outlast.signal("TERM");
    assert!(outlast.ended().code().is_some());
    assert!(outlast.said().contains("2 idle ones are held open, 0 closed"), "{}", outlast.said());
}

/// As nghttpx: the master ends in order when its worker was killed.
const WITH_MASTER: &str = "
import http.server, os, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = str(os.getpid()).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(*_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H)
worker = os.fork()
if worker == 0: server.serve_forever()
os.waitpid(worker, 0)
os._exit(0)
";

/// What was held open for the next process is closed when there is none: the log says so.
#[test]
fn a_master_that_ends_when_its_worker_was_killed_closes_what_was_held_and_that_is_said() {
    let (folder, port) = (folder(), free_port());
    let (library, port_text) = (library(), port.to_string());
    let run = ["run", "--name", "web", "--preload", "always", "--preload-library", library.to_str().unwrap()];
    let program = ["--", "/usr/bin/python3", "-c", WITH_MASTER, &port_text];
    let mut outlast = Outlast::start(folder.path(), &[&run[..], &program].concat());
    let mut idle = [(); 3].map(|()| Client::connect(port));
    let workers = idle.each_mut().map(Client::get);
    await_idle(folder.path(), &workers[0], 3);
    signal(&workers[0], "KILL");
    assert!(outlast.ended().success());
    let said = outlast.said();
    assert!(said.contains("3 idle ones are held open, 0 closed"), "{said}");
    let end = "web has ended and is not started again: 3 idle connections that were held open are closed";
    assert!(said.contains(end), "{said}");
    let [mut one, ..] = idle;
    assert!(one.try_get().is_err());
}

pub fn signal(pid: &str, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), pid]).status().unwrap().success());
}

/// Clients that come all the time.
pub struct Comes {
    over: Arc<AtomicBool>,
    refused: JoinHandle<u32>,
}

impl Comes {
    pub fn begin(port: u16) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let refused = std::thread::spawn(move || {
            let mut refused = 0;
            while !is_over.load(Ordering::SeqCst) {
                refused += u32::from(TcpStream::connect(("127.0.0.1", port)).is_err());
                std::thread::sleep(Duration::from_millis(2));
            }
            refused
        });
        Self { over, refused }
    }

    /// How many of them were.
    pub fn refused(self) -> u32 {
        self.over.store(true, Ordering::SeqCst);
        self.refused.join().unwrap()
    }
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
    let comes = Comes::begin(port);
    let mut next = Outlast::start(folder.path(), &[&run[..], &nginx].concat());
    let line = next.wait_for("of before still runs without its supervisor");
    assert!(line.contains(&master) && line.contains(": 1 of its listening sockets"), "{line}");
    ends(master.parse().unwrap());
    next.wait_for("is ready");
    Client::connect(port).0.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(comes.refused(), 0, "some were refused");
    next.signal("TERM");
    next.ended();
}

/// Listens at a UNIX socket in a folder of its own, which it removes when it is told to end.
const OWN_FOLDER: &str = "
import os, signal, socket, sys, time
folder = sys.argv[1]
os.mkdir(folder)
s = socket.socket(socket.AF_UNIX); s.bind(folder + '/s'); s.listen(8)
def end(*_):
    os.unlink(folder + '/s')
    os.rmdir(folder)
    os._exit(0)
signal.signal(signal.SIGINT, end)
signal.alarm(120)
while True: time.sleep(1)
";

#[test]
fn a_server_that_removes_the_folder_of_its_socket_finds_it_empty() {
    let (folder, library) = (folder(), library());
    let file = folder.path().join("program.py");
    std::fs::write(&file, OWN_FOLDER).unwrap();
    let own = folder.path().join("own");
    let arguments = ["--preload", "always", "--preload-library", library.to_str().unwrap()];
    let program = ["--", "/usr/bin/python3", file.to_str().unwrap(), own.to_str().unwrap()];
    let mut outlast =
        Outlast::start(folder.path(), &[&["run", "--name", "own"], &arguments[..], &program[..]].concat());
    outlast.wait_for("is ready");
    let places = || std::fs::read_dir(folder.path().join("outlast")).into_iter().flatten().flatten();
    let files = || places().map(|place| place.path()).find(|path| path.is_dir());
    eventually("the file of the socket has no second name", || {
        std::fs::read_dir(files()?).ok()?.flatten().next()
    });
    outlast.signal("INT");
    assert!(outlast.ended().success(), "{}", outlast.said());
    assert!(!own.exists() && files().is_none());
}
