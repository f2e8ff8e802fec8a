//! The next start listens elsewhere: connections that were kept for it end.

use crate::common::{Client, Server, eventually, folder, free_port, is_installed, kill, wait_until_held};
use std::process::Command;

/// Listens at the ports that a file tells.
const PROGRAM: &str = r#"
import http.server, sys, threading
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
servers = [http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), H) for port in open(sys.argv[1]).read().split()]
for server in servers: threading.Thread(target=server.serve_forever).start()
"#;

#[test]
fn connections_end_that_have_come_where_the_next_start_does_not_listen() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (folder, stays, old, new) = (folder("strays"), free_port(), free_port(), free_port());
    let (program, ports) = (folder.join("program.py"), folder.join("ports"));
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::write(&ports, format!("{stays} {old}")).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(program).arg(&ports);
    let server = Server::start(&command, true);
    let clients = |port: u16| -> Vec<Client> {
        let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(port)).collect();
        clients.iter_mut().for_each(|client| assert!(client.get("/")));
        clients
    };
    let (mut kept, mut ended) = (clients(stays), clients(old));
    wait_until_held(&server, kept.iter().chain(&ended));
    std::fs::write(&ports, format!("{stays} {new}")).unwrap();
    kill(server.main(), libc::SIGKILL);
    assert!(Client::connect(new).get("/"));
    // With a request and without one.
    let mut asks = ended.pop().unwrap();
    assert!(!asks.get("/"));
    for client in &mut ended {
        assert_eq!(client.answered(), None);
    }
    let told = eventually("nobody says so", || {
        Some(server.said("ListensElsewhere")).filter(|said| !said.is_empty())
    });
    assert_eq!(told, ["ListensElsewhere { closed: 3 }"]);
    for client in &mut kept {
        assert!(client.get("/"));
    }
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}
