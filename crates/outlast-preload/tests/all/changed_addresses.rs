//! A program that listens at another address of the same port than before, and one that looks first whether somebody listens
//! there: what the holder has must not be in the way of either.

use crate::common::{
    Client, PATIENCE, Server, children, eventually, folder, free_port, is_installed, kill, wait_until_held,
};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

/// Before and after. All of them may follow each other without a supervisor.
const PAIRS: [(&str, &str); 11] = [
    ("0.0.0.0", "127.0.0.1"),
    ("127.0.0.1", "0.0.0.0"),
    ("::", "127.0.0.1"),
    ("::", "0.0.0.0"),
    ("0.0.0.0", "::"),
    ("127.0.0.1", "::"),
    ("::1", "::"),
    // One that takes IPv6 alone, and one for IPv4 beside it.
    ("::", "::6 0.0.0.0"),
    ("::6 0.0.0.0", "::"),
    // Two that do not touch each other.
    ("127.0.0.1", "127.0.0.2"),
    ("::6", "0.0.0.0"),
];

/// Listens at the addresses that a file tells: a line for each port. With `then` it closes all, and listens at those of the
/// second file. Before it listens it waits for a file, and what fails is written to another.
const LISTENS: &str = r#"
import http.server, os, socket, sys, threading, time
folder = sys.argv[1] + "/"
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
def bound(address, port):
    server = http.server.ThreadingHTTPServer(("", 0), H, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if ":" in address: server.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address == "::6")
    server.socket.bind(("::" if address == "::6" else address, port))
    server.server_name, server.server_port = "a", port
    server.server_activate()
    return server
def all_of(file):
    found = []
    for line in open(folder + file):
        port, *addresses = line.split()
        for address in addresses:
            try: found.append(bound(address, int(port)))
            except OSError as e: print(line.strip(), address, e, file=open(folder + "failed", "a"))
    return found
while not os.path.exists(folder + "go"): time.sleep(0.01)
servers = all_of("addresses")
if len(sys.argv) > 2:
    for pause in (0, 0.3):
        for server in servers: server.socket.close()
        time.sleep(pause)
        servers = all_of("then")
        for server in servers: server.socket.close()
        servers = all_of("addresses")
for server in servers: threading.Thread(target=server.serve_forever).start()
open(folder + "serves", "a").write("x")
"#;

fn listens(folder: &Path, then: bool) -> Command {
    std::fs::write(folder.join("program.py"), LISTENS).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(folder.join("program.py")).arg(folder);
    if then {
        command.arg("then");
    }
    command
}

fn write(file: &Path, ports: &[u16], addresses: impl Fn(usize) -> &'static str) {
    let lines = ports.iter().enumerate().map(|(at, port)| format!("{port} {}\n", addresses(at)));
    std::fs::write(file, lines.collect::<String>()).unwrap();
}

fn starts(folder: &Path) -> usize {
    std::fs::read(folder.join("serves")).map_or(0, |serves| serves.len())
}

fn failed(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("failed")).unwrap_or_default()
}

#[test]
fn a_socket_that_was_closed_is_not_in_the_way_of_one_at_another_address_of_its_port() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let folder = folder("changed-at-once");
    let ports = PAIRS.map(|_| free_port());
    write(&folder.join("addresses"), &ports, |at| PAIRS[at].0);
    write(&folder.join("then"), &ports, |at| PAIRS[at].1);
    std::fs::write(folder.join("go"), "").unwrap();
    let server = Server::start(&listens(&folder, true), true);
    eventually("it does not serve", || (starts(&folder) == 1).then_some(()));
    assert_eq!(failed(&folder), "");
    assert!(Client::connect(ports[0]).get("/"));
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// And who has come meanwhile waits, where the next start serves them.
#[test]
fn a_start_after_a_crash_listens_at_other_addresses_of_the_same_ports() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let folder = folder("changed-after-a-crash");
    let ports = PAIRS.map(|_| free_port());
    write(&folder.join("addresses"), &ports, |at| PAIRS[at].0);
    std::fs::write(folder.join("go"), "").unwrap();
    let server = Server::start(&listens(&folder, false), true);
    eventually("it does not serve", || (starts(&folder) == 1).then_some(()));
    let mut idle: Vec<Client> = [0, 1].map(|at| Client::connect(ports[at])).into();
    idle.iter_mut().for_each(|client| assert!(client.get("/")));
    wait_until_held(&server, &idle);
    std::fs::remove_file(folder.join("go")).unwrap();
    write(&folder.join("addresses"), &ports, |at| PAIRS[at].1);
    kill(server.main(), libc::SIGKILL);
    let mut waits: Vec<Client> = [0, 1].map(|at| Client::connect(ports[at])).into();
    for client in &mut waits {
        client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    std::fs::write(folder.join("go"), "").unwrap();
    eventually("it does not serve again", || (starts(&folder) == 2).then_some(()));
    assert_eq!(failed(&folder), "");
    for client in &mut waits {
        assert_eq!(client.answered().as_deref(), Some("http/1.1 200 ok"));
    }
    for client in &mut idle {
        assert!(client.get("/"));
    }
    for (at, port) in ports.into_iter().enumerate() {
        let address = match PAIRS[at].1 {
            "127.0.0.2" => "127.0.0.2",
            "::6" => "::1",
            _ => "127.0.0.1",
        };
        let stream = TcpStream::connect((address, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(Client(stream, true).get("/"), "{}", PAIRS[at].1);
    }
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Ends with 70 if somebody answers where it is about to listen, as CherryPy does. When it listens it reaches itself.
const LOOKS_FIRST: &str = r#"
import http.server, os, select, socket, sys
port, at, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3] + "/"
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 50
    address_family = socket.AF_INET6 if ":" in at else socket.AF_INET
def answers(address, blocks):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with s:
        s.setblocking(blocks)
        error = s.connect_ex((address, port))
        if error == 115:
            select.select([], [s], [], 5)
            error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error not in (0, 111): print("unexpected", error, file=open(folder + "failed", "a"))
        return error == 0
def look(expected):
    for address in {"0.0.0.0": ("127.0.0.1", "127.0.0.9", "0.0.0.0"), "::": ("::1", "127.0.0.1", "::ffff:127.0.0.1")}.get(at, (at,)):
        for blocks in (True, False):
            if answers(address, blocks) != expected:
                print(address, "answers" if not expected else "is refused", file=open(folder + "failed", "a"))
                os._exit(70)
look(False)
if os.path.exists(folder + "again"):
    # Once more, when it has listened before.
    server = Server((at, port), H)
    server.server_close()
    look(False)
server = Server((at, port), H)
look(True)
open(folder + "serves", "a").write("x")
server.serve_forever()
"#;

fn looks_first(folder: &Path, port: u16, at: &str) -> Vec<String> {
    std::fs::write(folder.join("program.py"), LOOKS_FIRST).unwrap();
    let program = folder.join("program.py").to_str().unwrap().to_owned();
    ["/usr/bin/python3", &program, &port.to_string(), at, folder.to_str().unwrap()].map(str::to_owned).into()
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// After a crash, at addresses of each kind.
#[test]
fn a_program_that_looks_first_whether_its_port_is_free_finds_it_free() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    for (at, name) in [("127.0.0.1", "one"), ("0.0.0.0", "all"), ("::", "both")] {
        let (folder, port) = (folder(&format!("looks-{name}")), free_port());
        let server = Server::start(&command(&looks_first(&folder, port, at)), true);
        eventually("it does not serve", || (starts(&folder) == 1).then_some(()));
        std::fs::write(folder.join("again"), "").unwrap();
        kill(server.main(), libc::SIGKILL);
        // Another process's look: its client waits.
        let mut client = Client::try_connect(port).unwrap();
        eventually("it does not serve again", || {
            (starts(&folder) + failed(&folder).len() >= 2).then_some(())
        });
        assert_eq!(failed(&folder), "", "{at}");
        // It has closed what that waited for.
        let _ = client.get("/");
        assert!(Client::connect(port).get("/"));
        server.stop();
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// The same where the program itself starts the server again.
#[test]
fn a_server_that_its_own_program_starts_again_finds_its_port_free() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (folder, port) = (folder("looks-below"), free_port());
    let words = looks_first(&folder, port, "127.0.0.1");
    let mut master = Command::new("/bin/sh");
    master.args(["-c", "while :; do \"$@\"; sleep 0.1; done", "sh"]).args(words);
    let server = Server::start(&master, true);
    for round in 1..3 {
        eventually("it does not serve", || (starts(&folder) == round).then_some(()));
        let below = eventually("nobody serves", || children(server.main()).first().copied());
        kill(below, libc::SIGKILL);
    }
    eventually("it does not serve again", || (starts(&folder) == 3).then_some(()));
    assert_eq!(failed(&folder), "");
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
