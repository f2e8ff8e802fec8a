//! `outlast run` with servers that look whether somebody listens at their port before they do, without connecting to it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, eventually, folder};
use crate::run_preload::{Client, free_port, library};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

/// As start scripts do with `ss`.
const LOOKS: &str = "
import http.server, os, signal, sys
port = int(sys.argv[1])
is_open = lambda line: line.split()[1].endswith(':%04X' % port) and line.split()[3] == '0A'
signal.alarm(120)
if any(is_open(line) for line in open('/proc/net/tcp').readlines()[1:]):
    sys.exit('port %d is in use' % port)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = str(os.getpid()).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()
";

#[test]
fn a_server_that_does_not_start_while_its_port_is_in_use_comes_back_and_idle_clients_stay() {
    let (folder, port, library) = (folder(), free_port(), library());
    let file = folder.path().join("program.py");
    std::fs::write(&file, LOOKS).unwrap();
    let (port_text, file, library) =
        (port.to_string(), file.to_str().unwrap().to_owned(), library.to_str().unwrap().to_owned());
    let always = ["run", "--name", "web", "--preload", "always", "--preload-library", &library];
    let program = ["--intensity", "3", "--window", "600s", "--", "/usr/bin/python3", &file, &port_text];
    let mut outlast = Outlast::start(folder.path(), &[&always[..], &program[..]].concat());
    outlast.wait_for("is ready");
    let mut idle = Client::connect(port);
    let old = idle.get();
    // Its copy is there by then.
    std::thread::sleep(Duration::from_millis(300));
    let kill_and_come_back = |old: &str| {
        assert!(Command::new("kill").args(["-KILL", old]).status().unwrap().success());
        eventually("it does not come back", || {
            let client = TcpStream::connect(("127.0.0.1", port)).ok()?;
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            Client(client).try_get().ok().filter(|next| next != old)
        })
    };
    let next = kill_and_come_back(&old);
    assert_eq!(idle.get(), next, "{}", outlast.said_so_far());
    // From then on it is known, and what has failed for that before does not count: this crash, and the start after it, do.
    std::thread::sleep(Duration::from_millis(300));
    let last = kill_and_come_back(&next);
    assert_eq!(idle.get(), last, "{}", outlast.said_so_far());
    assert!(
        outlast.said_so_far().contains("seems not to start while its port is in use"),
        "{}",
        outlast.said_so_far()
    );
    std::thread::sleep(Duration::from_millis(300));
    // A program that crashes again and again is given up all the same.
    assert!(Command::new("kill").args(["-KILL", &last]).status().unwrap().success());
    outlast.wait_for("not started again");
    outlast.ended();
}
