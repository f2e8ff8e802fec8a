//! A program that listens at another address of the same port than before: what the holder has must not be in its way.

use crate::common::{Client, PATIENCE, Server, eventually, folder, free_port, is_installed, kill};
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
    std::thread::sleep(std::time::Duration::from_millis(150));
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
