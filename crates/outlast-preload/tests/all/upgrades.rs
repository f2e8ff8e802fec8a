//! Another binary takes over the sockets; if it does not serve, the old one does again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, PATIENCE, Server, eventually, folder, free_port, kill, python, settle};
use outlast_restart::Death;
use outlast_restart::board::{Cause, UpgradeEnd, WhyNot};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn upgrade(server: &Server, path: &Path) -> bool {
    upgrade_within(server, path, PATIENCE)
}

fn upgrade_within(server: &Server, path: &Path, timeout: Duration) -> bool {
    let wish = server.board.want_upgrade(path, timeout);
    kill(server.keeper.id(), outlast_restart::supervisor::upgrade_signal());
    eventually("no outcome", || server.board.upgrade_outcome(wish))
}

#[test]
fn the_next_binary_goes_on_with_the_connections() {
    let port = free_port();
    let server = Server::start(python("lines.py", &["poll", &port.to_string()]));
    let mut client = Client::of(port);
    let mut before = client.ask("descriptors");
    for round in 0..5 {
        let pid = client.ask("pid");
        settle();
        assert!(upgrade(&server, Path::new("")), "round {round}");
        assert_ne!(client.ask("pid"), pid);
        // It outlives crashes like the one before.
        settle();
        server.crash(libc::SIGKILL);
        let after = client.ask("descriptors");
        assert_eq!(after, std::mem::replace(&mut before, after.clone()));
    }
}

fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("script");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// Of the last wish, which is over.
fn end(server: &Server) -> UpgradeEnd {
    (1..100).rev().find_map(|wish| server.board.upgrade_end(wish)).unwrap()
}

#[test]
fn a_binary_that_does_not_serve_is_undone() {
    let (port, folder) = (free_port(), folder("undone"));
    let server = Server::start(python("lines.py", &["poll", &port.to_string()]));
    let mut client = Client::of(port);
    let pid = client.ask("pid");
    settle();
    assert!(!upgrade(&server, &folder.join("missing")));
    let missing = WhyNot::CannotRun { code: libc::ENOENT };
    assert_eq!(end(&server), UpgradeEnd::untouched(missing));
    assert_eq!(client.ask("b"), "B");
    assert_eq!(client.ask("pid"), pid, "nothing was to be stopped");
    settle();
    // In order, which is no reason for all to end.
    assert!(!upgrade(&server, Path::new("/bin/true")));
    assert_eq!(client.ask("true"), "TRUE");
    settle();
    assert!(!upgrade(&server, Path::new("/bin/false")));
    assert_eq!(client.ask("c"), "C");
    settle();
    assert!(!upgrade(&server, &script(&folder, "exit 7")));
    assert_eq!(end(&server), UpgradeEnd::undone(WhyNot::Ended { death: Some(Death::Exited(7)) }));
    assert_eq!(client.ask("d"), "D");
    settle();
    server.crash(libc::SIGKILL);
    assert_eq!(client.ask("e"), "E");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn who_waits_for_an_answer_has_time_to_get_it() {
    let port = free_port();
    let server = Server::start(python("loop.py", &["asyncio", &port.to_string()]));
    let (mut slow, mut quick) = (Client::of(port), Client::of(port));
    let before = quick.ask("pid");
    settle();
    slow.say("slow\n");
    assert_eq!(slow.hear().as_deref(), Some("first"));
    assert!(upgrade(&server, Path::new("")));
    assert_ne!(quick.ask("pid"), before);
}

#[test]
fn a_binary_that_never_serves_is_given_up_in_time_or_when_nobody_wants_it_any_more() {
    let (port, folder) = (free_port(), folder("never"));
    let server = Server::start(python("lines.py", &["poll", &port.to_string()]));
    let mut client = Client::of(port);
    assert_eq!(client.ask("a"), "A");
    settle();
    let never = script(&folder, "sleep 1000 & wait");
    assert!(!upgrade_within(&server, &never, Duration::from_millis(500)));
    assert_eq!(end(&server), UpgradeEnd::undone(WhyNot::TooLate));
    assert_eq!(client.ask("b"), "B");
    settle();
    let wish = server.board.want_upgrade(&never, Duration::from_secs(1000));
    kill(server.keeper.id(), outlast_restart::supervisor::upgrade_signal());
    eventually("it has not begun", || (server.board.generations().last()?.ended_ms).map(|_| ()));
    server.board.cancel_upgrade(wish);
    eventually("it was not given up", || server.board.upgrade_end(wish));
    assert_eq!(end(&server), UpgradeEnd::undone(WhyNot::Cancelled));
    assert_eq!(client.ask("c"), "C");
    settle();
    // What was not begun stops nothing.
    let pid = client.ask("pid");
    settle();
    assert!(!upgrade_within(&server, &never, Duration::ZERO));
    assert_eq!(end(&server), UpgradeEnd::untouched(WhyNot::TooLate));
    assert_eq!(client.ask("pid"), pid);
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// It has another keeper then, and the one above has to go on with the old one all the same.
#[test]
fn a_binary_that_executes_another_one_and_does_not_serve_is_undone() {
    let (port, folder) = (free_port(), folder("executes"));
    let server = Server::start(python("lines.py", &["poll", &port.to_string()]));
    let mut client = Client::of(port);
    assert_eq!(client.ask("a"), "A");
    settle();
    for (text, timeout, why) in [
        ("exec sleep 1000", Duration::from_millis(500), WhyNot::TooLate),
        ("exec sh -c 'exit 7'", PATIENCE, WhyNot::Ended { death: Some(Death::Exited(7)) }),
    ] {
        assert!(!upgrade_within(&server, &script(&folder, text), timeout), "{text}");
        assert_eq!(end(&server), UpgradeEnd::undone(why), "{text}");
        assert_eq!(client.ask("b"), "B", "{text}");
        settle();
    }
    assert!(upgrade(&server, Path::new("")));
    assert_eq!(client.ask("c"), "C");
    assert!(server.board.generations().iter().all(|past| past.cause != Cause::Crash));
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Connects again and again, until it is told to stop: how often that was refused.
fn connecting(port: u16) -> impl FnOnce() -> usize {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let connecting = std::thread::spawn(move || {
        let mut refused = 0;
        while !stopped.load(Ordering::SeqCst) {
            refused += usize::from(TcpStream::connect(("127.0.0.1", port)).is_err());
            settle();
        }
        refused
    });
    move || {
        stop.store(true, Ordering::SeqCst);
        connecting.join().unwrap()
    }
}

/// As scripts do that begin a server; the shell neither uses nor closes what is for that.
#[test]
fn a_binary_that_executes_the_server_has_the_connections() {
    let (port, folder) = (free_port(), folder("wrapper"));
    let command = python("lines.py", &["poll", &port.to_string()]);
    let interpreter = command.get_program().to_str().unwrap().to_owned();
    let server = Server::start(command);
    let mut clients = [Client::of(port), Client::of(port)];
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "A"));
    let refused = connecting(port);
    let execute = format!("exec 7</dev/null; /bin/true; ls / >/dev/null; exec {interpreter} \"$@\"");
    for text in [execute.clone(), "exec sleep 1000".into(), format!("exec sh -c '{execute}' sh \"$@\"")] {
        let pid = clients[0].ask("pid");
        settle();
        let serves = !text.contains("sleep");
        let timeout = if serves { PATIENCE } else { Duration::from_millis(500) };
        assert_eq!(upgrade_within(&server, &script(&folder, &text), timeout), serves, "{text}");
        for client in &mut clients {
            assert_ne!(client.ask("pid"), pid, "{text}");
        }
        // It outlives crashes like the one before.
        settle();
        server.crash(libc::SIGKILL);
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("b"), "B", "{text}"));
        settle();
    }
    assert_eq!(refused(), 0);
    assert!(server.board.generations().iter().all(|past| past.cause != Cause::Crash));
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}
