//! Servers that have as many descriptors as they may have when they crash.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, free_port, kill, python, settle, state, workers};
use std::os::unix::process::CommandExt;
use std::process::Command;

const LIMIT: u64 = 64;

/// The command, with as many descriptors.
fn limited(mut command: Command, soft: u64, hard: u64) -> Command {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: a system call that reads a local.
    unsafe {
        command.pre_exec(move || {
            let result = libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        })
    };
    command
}

fn lines(port: u16) -> Command {
    python("lines.py", &["poll", &port.to_string()])
}

/// So many that some of them are not even accepted.
fn crowd(port: u16) -> (Vec<Client>, Vec<Client>) {
    let mut all: Vec<Client> = (0..LIMIT).map(|_| Client::of(port)).collect();
    let accepted = all.iter_mut().map(|client| {
        client.say("a\n");
        client.0.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
        let mut answer = [0; 2];
        let heard = std::io::Read::read_exact(&mut client.0, &mut answer).is_ok();
        client.0.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        heard
    });
    let count = accepted.take_while(|heard| *heard).count();
    let waiting = all.split_off(count);
    assert!(count > 40 && !waiting.is_empty(), "{count} accepted");
    (all, waiting)
}

#[test]
fn the_limit_gives_way_for_a_moment() {
    let port = free_port();
    let server = Server::start(limited(lines(port), LIMIT, 2 * LIMIT));
    let (mut accepted, mut waiting) = crowd(port);
    for crash in 0..5 {
        settle();
        server.crash(libc::SIGKILL);
        for client in &mut accepted {
            assert_eq!(client.ask("b"), "B", "crash {crash}");
        }
        assert_eq!(accepted[0].ask("limit"), LIMIT.to_string());
    }
    // There is room for them now.
    accepted.truncate(2);
    assert_eq!(waiting[0].hear().as_deref(), Some("A"));
    assert_eq!(accepted[0].ask("c"), "C");
}

#[test]
fn where_it_cannot_some_connections_do() {
    let port = free_port();
    let server = Server::start(limited(lines(port), LIMIT, LIMIT));
    let (accepted, _) = crowd(port);
    settle();
    server.crash(libc::SIGKILL);
    let answered = accepted.into_iter().filter_map(|mut client| {
        // What is closed may refuse it.
        let _ = std::io::Write::write_all(&mut client.0, b"b\n");
        let answer = client.hear()?;
        assert_eq!(answer, "B");
        Some(client)
    });
    let answered = answered.collect::<Vec<_>>();
    assert!(answered.len() > 10, "{} of them go on", answered.len());
}

#[test]
fn who_has_lost_count_of_descriptors_goes_on() {
    let port = free_port();
    let server = Server::start(limited(lines(port), LIMIT, LIMIT));
    let mut clients: Vec<Client> = (0..10).map(|_| Client::of(port)).collect();
    for crash in 0..5 {
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "A", "crash {crash}"));
        assert_eq!(clients[0].ask("fill"), "EMFILE");
        settle();
        server.crash(libc::SIGKILL);
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("b"), "B"));
}

#[test]
fn and_so_does_a_process_that_was_forked() {
    let port = free_port();
    let command = python("forks.py", &["together", &port.to_string()]);
    let server = Server::start(limited(command, LIMIT, LIMIT));
    let mut clients: Vec<Client> = (0..10).map(|_| Client::of(port)).collect();
    for crash in 0..5 {
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "A", "crash {crash}"));
        // Now that nobody waits to be accepted.
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("fill"), "EMFILE"));
        settle();
        let dead = eventually("no workers", || Some(workers(server.serving())).filter(|all| all.len() == 2));
        dead.iter().for_each(|&pid| kill(pid, libc::SIGKILL));
        eventually("they live", || dead.iter().all(|&pid| state(pid).is_none()).then_some(()));
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("b"), "B"));
}
