//! An upgrade that is asked for while the program is being started, for the first time or again after a crash.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, command, eventually, folder, output};
use crate::run_preload::{free_port, library};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// From its second start on it takes a while to listen, or for ever.
const PROGRAM: &str = r#"
import http.server, os, sys, time
again, port = sys.argv[1], int(sys.argv[2])
if os.path.exists(again):
    time.sleep(float(sys.argv[3]))
open(again, "w").close()
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
http.server.ThreadingHTTPServer(("127.0.0.1", port), H).serve_forever()
"#;

fn is_answered(client: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    let mut room = [0; 512];
    if client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_err() {
        return false;
    }
    while !bytes.ends_with(b"\r\n\r\nok") {
        match client.read(&mut room) {
            Ok(0) | Err(_) => return false,
            Ok(count) => bytes.extend_from_slice(&room[..count]),
        }
    }
    true
}

fn main_of(runtime: &Path) -> u64 {
    let said = output(runtime, &["status", "--json"]);
    let all: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
    all[0]["main_pid"].as_u64().unwrap_or(0)
}

/// Crashes it, and asks for the upgrade as soon as it is started again: how that ends, and whether a client is kept.
fn upgraded(takes: &str) -> (Option<i32>, String, bool) {
    let (folder, port, library) = (folder(), free_port(), library());
    let again = folder.path().join("again");
    let preload = ["--name", "slow", "--preload-library", library.to_str().unwrap()];
    let port_text = port.to_string();
    let program = ["--", "/usr/bin/python3", "-c", PROGRAM, again.to_str().unwrap(), &port_text, takes];
    let mut outlast = Outlast::start(folder.path(), &[&["run"], &preload[..], &program].concat());
    let mut client = eventually("nobody listens", || TcpStream::connect(("127.0.0.1", port)).ok());
    client.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    assert!(is_answered(&mut client));
    std::thread::sleep(std::time::Duration::from_millis(200));
    let main = eventually("nobody runs", || Some(main_of(folder.path())).filter(|main| *main > 1));
    assert!(Command::new("kill").args(["-KILL", &main.to_string()]).status().unwrap().success());
    eventually("it is not started again", || {
        Some(main_of(folder.path())).filter(|next| *next > 1 && *next != main)
    });
    let done = output(folder.path(), &["upgrade", "slow"]);
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    let is_kept = done.status.success() && is_answered(&mut client);
    outlast.signal("TERM");
    outlast.ended();
    (done.status.code(), said, is_kept)
}

#[test]
fn it_waits_until_the_program_serves_again() {
    let (code, said, is_kept) = upgraded("1");
    assert!(code == Some(0) && is_kept, "{code:?} {said}");
}

#[test]
fn it_says_so_if_the_program_does_not_serve_soon() {
    let (code, said, _) = upgraded("600");
    assert_eq!(code, Some(8), "{said}");
    assert!(said.contains("is being started again after a crash"), "{said}");
}

/// Listens when a file is there.
const LISTENS_LATE: &str = r#"
import os, socket, sys, time
while not os.path.exists(sys.argv[1]): time.sleep(.01)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[2]))); s.listen(50)
while True: s.accept()[0].close()
"#;

/// Who asks may have seen it listen before its supervisor has heard of that, and was answered that it does not.
#[test]
fn it_waits_until_the_supervisor_knows_that_the_program_listens() {
    let (folder, port, library) = (folder(), free_port().to_string(), library());
    let go = folder.path().join("go");
    let preload = ["--name", "late", "--preload-library", library.to_str().unwrap()];
    let program = ["--", "/usr/bin/python3", "-c", LISTENS_LATE, go.to_str().unwrap(), &port];
    let mut outlast = Outlast::start(folder.path(), &[&["run"], &preload[..], &program].concat());
    eventually("nobody runs", || Some(main_of(folder.path())).filter(|main| *main > 1));
    let mut upgrade = command(folder.path(), &["upgrade", "late"]);
    let upgrade = upgrade.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    std::fs::write(&go, "").unwrap();
    let done = upgrade.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    outlast.signal("TERM");
    outlast.ended();
}
