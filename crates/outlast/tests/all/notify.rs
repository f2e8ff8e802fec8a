//! What `listen` and `connect` tell a service manager, and its journal.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{connect, listen, open};
use crate::common::{Outlast, PATIENCE, command, echo, eventually, folder, nobody};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;

/// A service manager that listens.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// Waits for this line, and returns all that were said before.
    fn hears(&self, wanted: &str) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            let mut message = [0; 4096];
            let count = self.0.recv(&mut message).unwrap_or_else(|error| panic!("{error}: {heard:?}"));
            let message = String::from_utf8_lossy(&message[..count]).into_owned();
            for line in message.lines() {
                if line.starts_with(wanted) {
                    return heard;
                }
                heard.push(line.to_owned());
            }
        }
    }
}

/// As a service manager starts it: nobody watches, and nothing is asked of the log.
fn service(runtime: &Path, notify: &Path, watchdog: bool, arguments: &[&str]) -> Outlast {
    let mut command = command(runtime, arguments);
    command.env("NOTIFY_SOCKET", notify).stderr(Stdio::piped());
    if watchdog {
        command.env("WATCHDOG_USEC", "40000");
    }
    Outlast::from(command)
}

#[test]
fn a_service_manager_is_told_what_its_protocol_has() {
    let folder = folder();
    let runtime = folder.path();
    let path = runtime.join("notify");
    let manager = Manager::at(&path);
    let (address, to) = (nobody(), echo().to_string());
    let at = address.to_string();
    let flags = ["listen", &at, "--to", &to, "--drain-timeout", "2h"];
    let mut server = service(runtime, &path, true, &flags);
    let before = manager.hears("READY=1");
    assert!(before.iter().any(|line| line.starts_with("STATUS=listening on 127.0.0.1:")), "{before:?}");
    // It is there when it says so.
    let (mut client, front) = connect(runtime, address, &[]);
    let _stream = open(front);
    for _ in 0..3 {
        manager.hears("WATCHDOG=1");
    }
    server.signal("TERM");
    manager.hears("STOPPING=1");
    manager.hears("EXTEND_TIMEOUT_USEC=7220000000");
    manager.hears("WATCHDOG=1");
    // The process that keeps its sessions has nothing to say to it.
    server.signal("TERM");
    assert!(server.ended().success());
    client.signal("INT");
    client.ended();

    let _server = listen(runtime, address, &to, &[]);
    let mut client = service(runtime, &path, false, &["connect", "127.0.0.1:0", "--via", &at]);
    manager.hears("READY=1");
    client.signal("TERM");
    let before = manager.hears("STOPPING=1");
    assert!(!before.iter().any(|line| line == "WATCHDOG=1"), "{before:?}");
    assert!(client.ended().success());
}

#[test]
fn a_journal_says_where_a_service_listens_and_with_which_security() {
    let folder = folder();
    let runtime = folder.path();
    let nowhere = runtime.join("nowhere");
    let key = runtime.join("key");
    std::fs::write(&key, "8e1fb6d03c52a7794410dfa9ee3c65b2").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let key = key.to_str().unwrap();
    let to = echo().to_string();
    let start = |arguments: &[&str]| service(runtime, &nowhere, false, arguments);

    let mut server = start(&["listen", "127.0.0.1:0", "--to", &to]);
    let line = server.wait_for("listening on 127.0.0.1:");
    assert!(
        line.contains("INFO") && line.contains(&format!("for sessions to {to}, security open")),
        "{line}"
    );
    let mut server = start(&["listen", "127.0.0.1:0", "--to", &to, "--psk-file", key]);
    assert!(server.wait_for("listening on").contains(", security psk (a shared key"));

    let mut client = start(&["connect", "127.0.0.1:0", "--via", "127.0.0.1:9", "--psk-file", key]);
    let line = client.wait_for("listening on 127.0.0.1:");
    assert!(line.contains(", via 127.0.0.1:9, security psk (a shared key"), "{line}");

    // Who asks for warnings only, or for quiet, has that.
    for flags in [["--log", "warn"], ["--quiet", "--log-format=text"]] {
        let address = nobody();
        let mut server = start(&[&["listen", &address.to_string(), "--to", &to], &flags[..]].concat());
        eventually("nobody listens", || TcpStream::connect(address).ok());
        server.signal("TERM");
        server.ended();
        assert_eq!(server.said(), "", "{flags:?}");
    }
}
