//! A killed `connect` whose server cannot be reached: its watcher waits for the server, and says when it waits no more.

use crate::common::restarts::{both_ends, connect, ends, is_running, listen};
use crate::common::way::Way;
use crate::common::{PATIENCE, command, eventually, folder, nobody};
use crate::watcher::{both_ends_of_the_last, settled_watcher_of};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longer than one try of the watcher's takes. A shorter outage is a shorter test, which shows as little as less.
const AWAY: Duration = Duration::from_secs(11);

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn the_last_word_comes_through_when_the_network_is_back() {
    let folder = folder();
    let runtime = folder.path();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody();
    let _server = listen(runtime, address, &service.local_addr().unwrap().to_string(), &[]);
    let mut way = Way::to(address);
    let (mut client, front) = connect(runtime, way.address, &[]);
    let watcher = settled_watcher_of(client.pid());
    let (_program, mut served) = both_ends(front, &service);
    way.cut();
    client.signal("KILL");
    client.ended();
    served.set_read_timeout(Some(AWAY)).unwrap();
    let error = served.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "nobody could tell");
    assert!(is_running(watcher), "the watcher has given up");
    way.mend();
    served.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = served.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    ends(watcher);
}

#[test]
fn a_watcher_that_gives_up_says_so_in_the_log() {
    let folder = folder();
    let runtime = folder.path();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody();
    let mut server = listen(runtime, address, &service.local_addr().unwrap().to_string(), &[]);
    let log = runtime.join("connect.log");
    let front = nobody();
    let mut client = logging_to(runtime, &log, front, address);
    let watcher = settled_watcher_of(client.id());
    eventually("nobody listens", || TcpStream::connect(front).ok().map(drop));
    let (_program, _served) = both_ends_of_the_last(front, &service);
    server.signal("KILL");
    server.ended();
    client.kill().unwrap();
    client.wait().unwrap();
    // As a service manager does: it may have a moment more.
    signal("-TERM", watcher);
    ends(watcher);
    let said = std::fs::read_to_string(&log).unwrap();
    let line = said.lines().find(|line| line.contains("gave up")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("WARN") && line.contains(&format!("could not ask {address} to end ")), "{line}");
    assert!(line.contains(&format!("process {}", client.id())) && line.contains("--keep"), "{line}");
}

/// `connect`, with its standard error in a file.
fn logging_to(runtime: &Path, log: &Path, front: SocketAddr, via: SocketAddr) -> std::process::Child {
    let arguments = ["connect", &front.to_string(), "--via", &via.to_string()];
    let log = std::fs::File::create(log).unwrap();
    command(runtime, &arguments).stderr(Stdio::from(log)).spawn().unwrap()
}
