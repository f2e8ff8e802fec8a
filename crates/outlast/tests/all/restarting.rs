//! A listener is restarted as service managers and people do it: nobody waits for longer than the new one takes to start.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{both_ends, connect, listen, open, say};
use crate::common::{Outlast, PATIENCE, echo, eventually, folder, nobody, output};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Far less than the 30 s that a drain takes, and more than a busy machine needs.
const NO_DRAIN: Duration = Duration::from_secs(15);
const RESTARTS: usize = 4;

#[test]
fn nobody_waits_for_a_drain_that_nobody_has_asked_for() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    let ending = AtomicBool::new(false);
    let come = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // New clients come all the time, and every one of them is served.
        let newcomers = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !ending.load(Ordering::Relaxed) {
                let started = Instant::now();
                let mut stream = TcpStream::connect(front).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                say(&mut stream, b"hello");
                longest = longest.max(started.elapsed());
                come.fetch_add(1, Ordering::Relaxed);
                // Some stay, and are handed over.
                if come.load(Ordering::Relaxed).is_multiple_of(2) {
                    std::mem::forget(stream);
                }
            }
            longest
        });
        let mut longest = Duration::ZERO;
        for _ in 0..RESTARTS {
            let before = come.load(Ordering::Relaxed);
            eventually("nobody comes", || (come.load(Ordering::Relaxed) > before + 5).then_some(()));
            let started = Instant::now();
            server.signal("TERM");
            assert!(server.ended().success());
            server = listen(runtime, address, &to, &[]);
            say(&mut stream, b"still there");
            longest = longest.max(started.elapsed());
        }
        ending.store(true, Ordering::Relaxed);
        let newcomer = newcomers.join().unwrap();
        println!("longest outage {longest:?}, longest wait of a new client {newcomer:?}");
        assert!(longest < NO_DRAIN, "a session had no link for {longest:?}");
        assert!(newcomer < NO_DRAIN, "a new client waited for {newcomer:?}");
    });
}

#[test]
fn a_listener_that_drains_hands_over_to_the_next_one() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let metrics = nobody().to_string();
    let mut server = listen(runtime, address, &to, &["--drain-timeout", "1h", "--metrics", &metrics]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    server.signal("TERM");
    server.wait_for("draining");
    say(&mut stream, b"as long as nobody else is there");
    let mut next = listen(runtime, address, &to, &["--metrics", &metrics]);
    assert!(server.ended().success());
    assert!(server.said().contains("the next listener is there: handing over"));
    next.wait_for("going on with 1 session");
    say(&mut stream, b"still there");
}

/// The port is free before its sessions can be had: whoever is too early must not tell clients that there are none.
#[test]
fn the_next_listener_may_be_started_at_any_moment() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let metrics = nobody().to_string();
    let mut server = listen(runtime, address, &to, &["--metrics", &metrics]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut streams: Vec<TcpStream> = (0..8).map(|_| open(front)).collect();
    for delay_ms in [0, 2, 5, 10, 20, 40] {
        server.signal("TERM");
        std::thread::sleep(Duration::from_millis(delay_ms));
        let mut next = listen(runtime, address, &to, &["--metrics", &metrics]);
        for stream in &mut streams {
            say(stream, b"still there");
        }
        next.wait_for("going on with 8 sessions");
        assert!(server.ended().success());
        server = next;
    }
}

/// One has the session, and the other one says that it does not know it.
#[test]
fn a_session_waits_for_the_server_that_has_it() {
    let folder = folder();
    let runtime = folder.path();
    let (first, second, to) = (nobody(), nobody(), echo().to_string());
    let mut server = listen(runtime, first, &to, &[]);
    let mut other = listen(runtime, second, &to, &["--log", "debug"]);
    let front = nobody();
    let via = format!("{first},{second}");
    let mut client = Outlast::start(runtime, &["connect", &front.to_string(), "--via", &via]);
    client.wait_for("listening on");
    let mut stream = open(front);
    say(&mut stream, b"hello");
    server.signal("TERM");
    assert!(server.ended().success());
    other.wait_for("unknown");
    let _next = listen(runtime, first, &to, &[]);
    say(&mut stream, b"still there");
}

/// The server that has the session hears that it was given up, also when the client asks another one first.
#[test]
fn a_session_that_is_ended_at_its_client_ends_at_the_server_that_has_it() {
    // `kill` finds the client only: ending it at the server needs no word from there.
    let (folder, of_client) = (folder(), folder());
    let runtime = folder.path();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let (first, second, to) = (nobody(), nobody(), service.local_addr().unwrap().to_string());
    // The first one is not there when the session is opened.
    let _server = listen(runtime, second, &to, &[]);
    let via = format!("{first},{second}");
    let mut client = Outlast::start(of_client.path(), &["connect", "127.0.0.1:0", "--via", &via]);
    let front = client.address();
    let (_program, mut served) = both_ends(front, &service);
    let _other = listen(runtime, first, &to, &[]);
    let status = output(of_client.path(), &["status", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let id = status[0]["sessions"][0]["id"].as_str().unwrap();
    let ended = output(of_client.path(), &["kill", id]);
    assert!(ended.status.success(), "{ended:?}");
    served.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(served.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn an_address_that_somebody_else_has_is_in_use() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let _server = listen(runtime, address, &to, &[]);
    let next = output(runtime, &["listen", &address.to_string(), "--to", &to]);
    assert_eq!(next.status.code(), Some(7));
    let said = String::from_utf8_lossy(&next.stderr);
    assert!(said.contains("address already in use") && said.lines().count() == 1, "{said}");
}

/// Sessions of `connect` cannot be handed over. In a process that has both, listeners serve on until these have ended.
#[test]
fn sessions_that_cannot_be_handed_over_are_waited_for_while_listeners_serve() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let (other, local) = (nobody(), nobody());
    let _far = listen(runtime, other, &to, &[]);
    let file = runtime.join("outlast.toml");
    let text = format!(
        "[[listen]]\naddress = '{address}'\nto = '{to}'\n\n[[connect]]\naddress = '{local}'\nvia = ['{other}']\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut both = Outlast::start(runtime, &["--config", file.to_str().unwrap()]);
    both.wait_for(&format!("listening on {local}"));
    let (_client, front) = connect(runtime, address, &[]);
    let mut served = open(front);
    let mut opened = open(local);
    both.signal("TERM");
    both.wait_for("draining: waiting for 1 session to end");
    say(&mut served, b"still there");
    let mut newcomer = open(front);
    say(&mut opened, b"still there");
    drop(opened);
    both.wait_for("2 sessions were detached");
    assert!(both.ended().success());
    let _next = listen(runtime, address, &to, &[]);
    say(&mut served, b"still there");
    say(&mut newcomer, b"still there");
}

#[test]
fn on_a_terminal_all_lines_look_alike() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let typed = runtime.join("pid");
    let command = format!(
        "echo $$ > {}; exec {} listen {address} --to {to}",
        typed.display(),
        env!("CARGO_BIN_EXE_outlast")
    );
    let mut terminal = terminal(runtime, &command);
    let listens = eventually("no listener", || TcpStream::connect(address).ok());
    drop(listens);
    let (_client, front) = connect(runtime, address, &[]);
    let _ends = both_ends(front, &service);
    // Ctrl-C.
    terminal.stdin.take().unwrap().write_all(&[3]).unwrap();
    let said = terminal.wait_with_output().unwrap();
    // The terminal shows it wherever it happens to be.
    let said = String::from_utf8_lossy(&said.stdout).replace("^C", "");
    let lines: Vec<&str> = said.lines().map(str::trim_end).filter(|line| line.contains(' ')).collect();
    assert!(lines.iter().any(|line| line.contains("1 session was detached")), "{said}");
    for line in &lines {
        let mut clock = line.chars();
        let is_clock = clock.by_ref().take(8).all(|c| c.is_ascii_digit() || c == ':');
        assert!(is_clock && clock.next() == Some(' '), "{line:?} in {said}");
        assert!(!line.contains("WARN") && !line.contains("INFO"), "{line:?} in {said}");
    }
}

/// A shell's command at a terminal of its own.
fn terminal(runtime: &Path, command: &str) -> std::process::Child {
    Command::new("script")
        .args(["--quiet", "--return", "--command", command, "/dev/null"])
        .env("XDG_RUNTIME_DIR", runtime)
        .env_remove("OUTLAST_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
