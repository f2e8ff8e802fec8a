//! Programs that get their listening sockets from a service manager (sd_listen_fds(3)), below `outlast run`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, eventually, folder};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

/// What systemd does for a `.socket` unit with two sockets: they are 3 and 4 of the process that it executes.
const MANAGER: &str = "
import os, socket, sys
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
with open(os.environ['ADDRESSES'] + '.new', 'w') as file:
    for one in sockets: print('127.0.0.1:%d' % one.getsockname()[1], file=file)
os.rename(os.environ['ADDRESSES'] + '.new', os.environ['ADDRESSES'])
aside = [os.dup2(one.fileno(), 100 + place) for place, one in enumerate(sockets)]
for place, one in enumerate(aside): os.dup2(one, 3 + place); os.close(one)
os.environ.update(LISTEN_FDS='2', LISTEN_FDNAMES='web:admin', LISTEN_PID=str(os.getpid()), LISTEN_PIDFDID='1')
os.execvp(sys.argv[1], sys.argv[1:])
";

/// Does as sd_listen_fds_with_names does, and tells each client its process, the socket's name and what it has sent.
const SERVER: &str = "
import os, select, socket, sys
environment = os.environ
if environment.get('LISTEN_PID') != str(os.getpid()) or 'LISTEN_PIDFDID' in environment: sys.exit(0)
names = environment['LISTEN_FDNAMES'].split(':')
served = {}
for place in range(int(environment['LISTEN_FDS'])):
    os.set_inheritable(3 + place, False)
    one = socket.socket(fileno=3 + place)
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    served[one] = names[place]
while True:
    for one in select.select(list(served), [], [])[0]:
        client, _ = one.accept()
        client.sendall(b'%d %s' % (os.getpid(), served[one].encode()))
        client.close()
";

/// By whom, and at which socket.
fn ask(address: SocketAddr) -> (u32, String) {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    client.write_all(b"?").ok();
    let mut said = String::new();
    client.read_to_string(&mut said).ok();
    let (pid, name) = said.split_once(' ').unwrap_or_else(|| panic!("{said:?} is no answer"));
    (pid.parse().unwrap(), name.to_owned())
}

#[test]
fn sockets_of_a_service_manager_are_each_programs_own() {
    for preload in ["auto", "never"] {
        let folder = folder();
        let file = folder.path().join("addresses");
        let mut command = Command::new("python3");
        command.args(["-c", MANAGER, env!("CARGO_BIN_EXE_outlast"), "run", "--preload", preload, "--"]);
        command.args(["python3", "-c", SERVER]);
        command.env("XDG_RUNTIME_DIR", folder.path()).env("ADDRESSES", &file).env("OUTLAST_LOG", "info");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut outlast = Outlast::from(command);
        let addresses: Vec<SocketAddr> = eventually("no sockets", || {
            let said = std::fs::read_to_string(&file).ok()?;
            Some(said.lines().map(|line| line.parse().unwrap()).collect())
        });
        let mut last = None;
        for _ in 0..3 {
            let (web, admin) = (ask(addresses[0]), ask(addresses[1]));
            assert_eq!((web.1.as_str(), admin.1.as_str()), ("web", "admin"));
            assert_eq!(web.0, admin.0);
            assert_ne!(last, Some(web.0));
            last = Some(web.0);
            // No client is refused after this: the sockets are there, as they are without a program.
            assert!(Command::new("kill").args(["-KILL", &web.0.to_string()]).status().unwrap().success());
            crate::common::restarts::ends(web.0);
        }
        // The next one runs: what is told to end is not one that was killed.
        ask(addresses[0]);
        outlast.signal("TERM");
        let code = outlast.ended().code();
        assert!([Some(143), Some(0)].contains(&code), "{code:?}: {}", outlast.said());
    }
}

/// HTTP/1.1 at socket 3, whoever has passed it on. Never calls `listen`.
const HTTP_SERVER: &str = "
import os, socket, threading
from http.server import BaseHTTPRequestHandler
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = b'%d' % os.getpid()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
one = socket.socket(fileno=3)
def serve():
    while True:
        client, address = one.accept()
        threading.Thread(target=Handler, args=(client, address, None), daemon=True).start()
serve()
";

/// Sends a request, and gives the body of its answer.
fn get(client: &mut TcpStream) -> std::io::Result<String> {
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut room = [0; 1024];
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        let body = text.split_once("\r\n\r\n").map(|(head, body)| {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            (length.parse::<usize>().unwrap(), body)
        });
        if let Some((length, body)) = body
            && body.len() >= length
        {
            return Ok(body.to_owned());
        }
        match client.read(&mut room)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => answer.extend(&room[..count]),
        }
    }
}

/// Whether the server hears of its socket as the manager tells it, or in a way of its own.
fn keeps_idle_connections(is_told: bool) {
    let folder = folder();
    let file = folder.path().join("addresses");
    let mut command = Command::new("python3");
    let program = env!("CARGO_BIN_EXE_outlast");
    command.args(["-c", MANAGER, program, "run", "--"]);
    if !is_told {
        command.args(["env", "-u", "LISTEN_FDS", "-u", "LISTEN_PID"]);
    }
    command.args(["python3", "-c", HTTP_SERVER]);
    command.env("XDG_RUNTIME_DIR", folder.path()).env("ADDRESSES", &file).env("OUTLAST_LOG", "info");
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut outlast = Outlast::from(command);
    let address: SocketAddr = eventually("no sockets", || {
        let said = std::fs::read_to_string(&file).ok()?;
        said.lines().next().map(|line| line.parse().unwrap())
    });
    let connect = || {
        let client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        client
    };
    let mut idle: Vec<TcpStream> = (0..4).map(|_| connect()).collect();
    for generation in 2..5 {
        let pids: Vec<String> = idle.iter_mut().map(|client| get(client).unwrap()).collect();
        let pid: u32 = pids[0].parse().unwrap();
        assert!(pids.iter().all(|other| *other == pids[0]), "{pids:?}");
        // What was answered less than a moment ago is not known to be idle.
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(Command::new("kill").args(["-SEGV", &pid.to_string()]).status().unwrap().success());
        crate::common::restarts::ends(pid);
        if !is_told {
            // Nothing says that the next one serves before it has a client.
            get(&mut connect()).unwrap();
        }
        outlast.wait_for(&format!("generation {generation} serves"));
        for client in &mut idle {
            let next = get(client).unwrap_or_else(|error| panic!("{error}: {}", outlast.said()));
            assert_ne!(next, pids[0]);
        }
    }
    outlast.signal("TERM");
    outlast.ended();
}

/// A server need not call `listen` for a socket that listens already.
#[test]
fn idle_connections_of_activated_servers_are_kept() {
    keeps_idle_connections(true);
}

#[test]
fn idle_connections_of_servers_that_inherit_their_socket_are_kept() {
    keeps_idle_connections(false);
}
