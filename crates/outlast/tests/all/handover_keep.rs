//! `--keep` is counted from the loss of the link, through every process that has the session.

use crate::common::restarts::{both_ends, connect, ends, is_running, listen, open, say, stop, stopped};
use crate::common::{PATIENCE, echo, eventually, folder, nobody, output};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// Whether the service has seen its connection reset by now.
fn is_reset(served: &mut TcpStream) -> bool {
    match served.read(&mut [0]) {
        Ok(count) => panic!("the service was told that this is the end of the stream ({count} bytes)"),
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn the_process_between_two_listeners_gives_up_what_they_would_have() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    // Twice as long as this test would wait.
    let flags = ["--keep", "1s", "--hand-over-timeout", "2m"];
    let mut server = listen(runtime, address, &to, &flags);
    let (client, front) = connect(runtime, address, &[]);
    let (_program, mut served) = both_ends(front, &service);
    client.freeze();
    let keeper = stop(&mut server, 1);
    assert!(is_running(keeper));
    assert!(is_reset(&mut served));
    ends(keeper);
}

#[test]
fn restarts_do_not_prolong_the_time_of_a_client_that_is_gone() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let flags = ["--keep", "4s"];
    let mut server = listen(runtime, address, &to, &flags);
    let (client, front) = connect(runtime, address, &[]);
    let (_program, mut served) = both_ends(front, &service);
    served.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    client.freeze();
    let started = Instant::now();
    while !is_reset(&mut served) {
        assert!(started.elapsed() < PATIENCE, "the session outlives its --keep");
        server.signal("TERM");
        assert!(server.ended().success());
        server = listen(runtime, address, &to, &flags);
    }
}

/// Nobody reads its link while its program takes nothing: that the link is reset has to be noticed all the same.
#[test]
fn a_client_with_a_slow_program_does_not_say_that_it_is_connected() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let mut server = listen(runtime, address, &to, &[]);
    let (mut client, front) = connect(runtime, address, &[]);
    let (_program, mut served) = both_ends(front, &service);
    served.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    while served.write_all(&[7; 64 << 10]).is_ok() {}
    let keeper = stop(&mut server, 1);
    // Without being asked.
    client.wait_for("link lost");
    eventually("still connected", || {
        let status: serde_json::Value =
            serde_json::from_slice(&output(runtime, &["status", "--json"]).stdout).unwrap();
        let instances = status.as_array().unwrap();
        let client = instances.iter().find(|instance| instance["pid"] == client.pid())?;
        (client["sessions"][0]["state"] == "lost").then_some(())
    });
    assert!(std::process::Command::new("kill").arg(keeper.to_string()).status().unwrap().success());
    ends(keeper);
}

/// Told to stop while the process that kept its sessions before is still about to go.
#[test]
fn a_listener_that_is_stopped_at_once_hands_over_all_the_same() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    // It has done its part, and has not had the processor since.
    let link = std::fs::read_link("/proc/self/ns/net").unwrap();
    let namespace: String = link.to_str().unwrap().chars().filter(char::is_ascii_digit).collect();
    let place = runtime.join(format!("outlast/{address}-{namespace}.kept"));
    let before = UnixListener::bind(&place).unwrap();
    server.signal("TERM");
    // The next one looks for it.
    before.accept().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    std::fs::remove_file(&place).unwrap();
    drop(before);
    stopped(&mut server, 1);
    let mut next = listen(runtime, address, &to, &[]);
    say(&mut stream, b"still there");
    stop(&mut next, 1);
}
