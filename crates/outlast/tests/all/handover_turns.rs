//! Two listeners are started at one address at once, with sessions to take over.

use crate::common::restarts::{connect, ends, listen, open, say, stop};
use crate::common::{Outlast, echo, folder, nobody};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The process that keeps the sessions is held up, so that both are there when it answers.
#[test]
fn one_that_is_told_to_stop_while_it_takes_over_leaves_nothing_behind() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    let keeper = stop(&mut server, 1);
    signal(keeper, "STOP");
    let start = || Outlast::start(runtime, &["listen", &address.to_string(), "--to", &to]);
    let mut first = start();
    std::thread::sleep(Duration::from_millis(500));
    let mut second = start();
    std::thread::sleep(Duration::from_millis(500));
    // Whoever has nothing yet ends at once.
    first.signal("TERM");
    signal(keeper, "CONT");
    assert!(first.ended().success());
    second.wait_for("going on with 1 session");
    say(&mut stream, b"still there");
    ends(keeper);
    let last = stop(&mut second, 1);
    signal(last, "TERM");
    ends(last);
}

/// The second finds the address in use, and the keeper's sessions are where they belong.
#[test]
fn of_two_that_start_at_once_one_goes_on() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    let keeper = stop(&mut server, 1);
    signal(keeper, "STOP");
    let start = || Outlast::start(runtime, &["listen", &address.to_string(), "--to", &to]);
    let mut first = start();
    std::thread::sleep(Duration::from_millis(500));
    let mut second = start();
    std::thread::sleep(Duration::from_millis(500));
    signal(keeper, "CONT");
    first.wait_for("going on with 1 session");
    second.wait_for("another program listens there");
    assert!(!second.ended().success());
    say(&mut stream, b"still there");
}

/// The turn is a name that every user of the machine can bind.
#[test]
fn a_stranger_who_binds_the_name_of_the_turn_keeps_no_listener_from_starting() {
    let folder = folder();
    let address = nobody();
    let user = rustix::process::geteuid().as_raw();
    let name = format!("outlast/listen/{user}/{}", address.port());
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let squatter = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&squatter, &name).unwrap();
    let _server = listen(folder.path(), address, &echo().to_string(), &[]);
    let (_client, front) = connect(folder.path(), address, &[]);
    say(&mut open(front), b"served");
}

/// A process that listens and takes no connection cannot be asked whose it is.
#[test]
fn nor_does_one_whose_queue_is_full() {
    outlast_lab::require!("starts a process of another user");
    const SQUATTER: &str = "
import os, socket, sys
os.setuid(65534)
name = b'\\0outlast/listen/' + sys.argv[1].encode()
squatter = socket.socket(socket.AF_UNIX)
squatter.bind(name)
squatter.listen(0)
held = []
try:
    while True:
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].setblocking(False)
        held[-1].connect(name)
except BlockingIOError:
    print('full', flush=True)
sys.stdin.read()
";
    let folder = folder();
    let address = nobody();
    let user = rustix::process::geteuid().as_raw();
    let mut squatter = Command::new("/usr/bin/python3")
        .args(["-c", SQUATTER, &format!("{user}/{}", address.port())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    squatter.stdout.take().unwrap().read_exact(&mut [0; 4]).unwrap();
    let _server = listen(folder.path(), address, &echo().to_string(), &[]);
    drop(squatter.stdin.take());
    squatter.wait().unwrap();
}

fn signal(pid: u32, name: &str) {
    let kill = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(kill.unwrap().success());
}
