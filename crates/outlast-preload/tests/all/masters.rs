//! Servers that fork the processes that serve: whichever of them die, and in whatever order, nobody is left hanging.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, eventually, folder, free_port, is_installed, kill, nginx, python, settle, state, workers,
};
use std::time::Duration;

/// Between the death of the one and that of the other, in milliseconds: at once, while the next master begins, and when
/// the old workers have seen that another one serves.
const PAUSES_MS: [u64; 4] = [0, 5, 60, 1200];

/// Kills the master and those who serve below it.
fn kill_both(server: &Server, master_first: bool, pause_ms: u64) {
    let master = server.serving();
    let serving = eventually("no workers", || Some(workers(master)).filter(|all| all.len() == 2));
    let generation = server.board.generation();
    let workers = || serving.iter().for_each(|&pid| kill(pid, libc::SIGKILL));
    if master_first {
        kill(master, libc::SIGKILL);
    } else {
        workers();
    }
    std::thread::sleep(Duration::from_millis(pause_ms));
    if master_first {
        workers();
    } else {
        kill(master, libc::SIGKILL);
    }
    eventually("no next master", || (server.board.generation() > generation).then_some(()));
    // Until then they may read what comes, which nobody would answer.
    eventually("they live", || serving.iter().all(|&pid| state(pid).is_none()).then_some(()));
}

#[test]
fn master_and_workers_of_nginx_die_together() {
    if !is_installed("nginx") {
        return;
    }
    for (round, pause_ms) in PAUSES_MS.into_iter().enumerate() {
        let (port, folder) = (free_port(), folder(&format!("both-{round}")));
        let server = Server::start(nginx(&folder, port, 2));
        let mut clients: Vec<Client> = (0..10).map(|_| Client::of(port)).collect();
        for master_first in [true, false] {
            clients.iter_mut().for_each(|client| assert_eq!(client.get("/file"), "from a file"));
            settle();
            kill_both(&server, master_first, pause_ms);
            for client in &mut clients {
                assert_eq!(client.get("/file"), "from a file", "{pause_ms} ms, master first: {master_first}");
            }
        }
        // Everybody comes to a new worker by and by.
        drop(clients);
        let mut newcomer = Client::of(port);
        assert_eq!(newcomer.get("/file"), "from a file");
        drop(server);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn parent_and_children_of_python_die_together() {
    for how in ["together", "one-after-the-other"] {
        for pause_ms in PAUSES_MS {
            let port = free_port();
            let server = Server::start(python("forks.py", &[how, &port.to_string()]));
            // One child serves one client at a time where they serve one after the other.
            let count = if how == "together" { 10 } else { 2 };
            let mut clients: Vec<Client> = (0..count).map(|_| Client::of(port)).collect();
            clients.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "A"));
            settle();
            kill_both(&server, true, pause_ms);
            for client in &mut clients {
                client.say("b\n");
                assert_eq!(client.hear().as_deref(), Some("B"), "{how}, {pause_ms} ms");
            }
            drop(clients);
            assert_eq!(Client::of(port).ask("c"), "C");
        }
    }
}
