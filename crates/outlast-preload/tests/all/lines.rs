//! A server that knows nothing of it, in whatever way it waits, keeps its clients over crashes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, PATIENCE, Server, eventually, folder, free_port, python, settle};
use outlast_restart::board::Backend;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const SIGNALS: [i32; 3] = [libc::SIGKILL, libc::SIGABRT, libc::SIGILL];

/// Clients that are idle, and others that come, over many crashes.
fn outlives(how: &str, crashes: usize) {
    let port = free_port();
    let server = Server::start(python("lines.py", &[how, &port.to_string()]));
    let mut idle: Vec<Client> = (0..10).map(|_| Client::of(port)).collect();
    // Half of them have been served before.
    for client in idle.iter_mut().step_by(2) {
        assert_eq!(client.ask("hello"), "HELLO");
    }
    let (over, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let newcomers = std::thread::spawn({
        let (over, came) = (Arc::clone(&over), Arc::clone(&came));
        move || {
            while !over.load(Ordering::Relaxed) {
                // Nobody is refused, whenever he comes.
                let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut client = Client(stream);
                client.say("newcomer\n");
                // He may be in the middle of it when the server dies: that has an end.
                if let Some(answer) = client.hear() {
                    assert_eq!(answer, "NEWCOMER");
                    came.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    for crash in 0..crashes {
        settle();
        server.crash(SIGNALS[crash % SIGNALS.len()]);
        let before = came.load(Ordering::Relaxed);
        for client in &mut idle {
            assert_eq!(client.ask("still there"), "STILL THERE", "crash {crash}");
        }
        eventually("nobody comes", || (came.load(Ordering::Relaxed) > before).then_some(()));
    }
    over.store(true, Ordering::Relaxed);
    newcomers.join().unwrap();
    assert_eq!(server.board.generation() as usize, crashes + 1);
}

#[test]
fn with_epoll() {
    outlives("epoll", 30);
}

#[test]
fn with_poll() {
    outlives("poll", 30);
}

#[test]
fn with_select() {
    outlives("select", 30);
}

#[test]
fn with_threads() {
    outlives("threads", 30);
}

#[test]
fn a_crash_before_clients_are_accepted_costs_none() {
    let port = free_port();
    let server = Server::start(python("lines.py", &["poll", &port.to_string()]));
    let mut idle: Vec<Client> = (0..10).map(|_| Client::of(port)).collect();
    idle.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "A"));
    settle();
    for round in 0..20 {
        // At once, wherever the next generation is: it may not even have its listener.
        let pid = eventually("no next generation", || {
            crate::common::children(server.keeper.id()).first().map(|&(pid, _)| pid)
        });
        crate::common::kill(pid, libc::SIGKILL);
        std::thread::sleep(std::time::Duration::from_millis(round * 2));
    }
    for client in &mut idle {
        assert_eq!(client.ask("b"), "B");
    }
}

#[test]
fn its_connections_are_counted() {
    for snapshot in [false, true] {
        let port = free_port();
        let mut command = python("lines.py", &["poll", &port.to_string()]);
        if snapshot {
            command.env("OUTLAST_SNAPSHOT", "1");
        }
        let server = Server::start(command);
        let held = |count| eventually("another count", || (server.board.held() == (count, 0)).then_some(()));
        let mut clients: Vec<Client> = (0..4).map(|_| Client::of(port)).collect();
        for count in (1..=4).rev() {
            clients.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "A"));
            held(count);
            settle();
            if count % 2 == 0 {
                server.crash(libc::SIGKILL);
                held(count);
            }
            clients.pop();
        }
        held(0);
    }
}

#[test]
fn at_a_path() {
    let path = folder("path").join("socket");
    let server = Server::start(python("lines.py", &["poll", path.to_str().unwrap()]));
    let connect = || {
        let stream = eventually("nobody listens", || UnixStream::connect(&path).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(stream)
    };
    let mut idle = connect();
    for crash in 0..10 {
        assert_eq!(idle.ask("hello"), "HELLO", "crash {crash}");
        settle();
        server.crash(libc::SIGKILL);
        assert_eq!(connect().ask("newcomer"), "NEWCOMER", "crash {crash}");
    }
    drop(server);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn what_was_asked_and_not_answered_has_an_end() {
    for how in ["epoll", "threads"] {
        let port = free_port();
        let server = Server::start(python("lines.py", &[how, &port.to_string()]));
        let (mut whole, mut half, mut idle) = (Client::of(port), Client::of(port), Client::of(port));
        assert_eq!((half.ask("a"), idle.ask("b")), ("A".to_owned(), "B".to_owned()));
        whole.say("work\n");
        half.say("hal");
        settle();
        server.crash(libc::SIGKILL);
        assert_eq!((whole.hear(), half.hear()), (None, None));
        assert_eq!(idle.ask("c"), "C");
    }
}

#[test]
fn what_was_not_read_is_read_by_the_next_generation() {
    let port = free_port();
    let server = Server::start(python("lines.py", &["poll", &port.to_string()]));
    let mut client = Client::of(port);
    assert_eq!(client.ask("a"), "A");
    settle();
    let pid = server.serving();
    // So that it cannot read it.
    outlast_lab::process::freeze(pid).unwrap();
    client.say("b\nc\n");
    // One who has connected, and was not accepted.
    let mut other = Client::of(port);
    other.say("d\n");
    server.crash(libc::SIGKILL);
    assert_eq!(client.hear().as_deref(), Some("B"));
    assert_eq!(client.hear().as_deref(), Some("C"));
    assert_eq!(other.hear().as_deref(), Some("D"));
}

#[test]
fn an_answer_in_parts_is_not_taken_for_a_whole_one() {
    let port = free_port();
    let server = Server::start(python("loop.py", &["asyncio", &port.to_string()]));
    let (mut slow, mut quick) = (Client::of(port), Client::of(port));
    assert_eq!(slow.ask("slow"), "first");
    assert_eq!(slow.hear().as_deref(), Some("second"));
    quick.ask("pid");
    settle();
    server.crash(libc::SIGKILL);
    // It is known from the first time that this one says more unasked.
    assert_eq!(slow.hear(), None);
    assert!(quick.ask("pid").parse::<u32>().is_ok());
}

#[test]
fn only_listeners_are_kept_if_that_is_asked_for() {
    let port = free_port();
    let mut command = python("lines.py", &["poll", &port.to_string()]);
    command.env("OUTLAST_KEEP", "listeners");
    let server = Server::start(command);
    let mut idle = Client::of(port);
    assert_eq!(idle.ask("a"), "A");
    settle();
    server.crash(libc::SIGKILL);
    let mut rest = Vec::new();
    assert!(idle.0.read_to_end(&mut rest).is_ok_and(|count| count == 0));
    assert_eq!(Client::of(port).ask("b"), "B");
}

#[test]
fn a_snapshot_goes_on_from_where_it_first_waited() {
    let port = free_port();
    let mut command = python("lines.py", &["epoll", &port.to_string()]);
    command.env("OUTLAST_SNAPSHOT", "1");
    let server = Server::start(command);
    let mut idle = Client::of(port);
    let mut pid = idle.ask("pid");
    for _ in 0..10 {
        settle();
        crate::common::kill(pid.parse().unwrap(), libc::SIGKILL);
        let next = idle.ask("pid");
        assert_ne!(next, pid);
        pid = next;
    }
    assert!(server.keeper.id().to_string() != pid);
    assert_eq!(server.board.backend(), Backend::Snapshot);
}

#[test]
fn a_program_with_threads_has_no_snapshot_and_is_kept_all_the_same() {
    let (port, said) = (free_port(), folder("said").join("said"));
    let mut command = python("lines.py", &["epoll", &port.to_string()]);
    command.env("OUTLAST_SNAPSHOT", "1").env("LINES_THREAD", "1");
    command.stderr(std::fs::File::create(&said).unwrap());
    let server = Server::start(command);
    let mut idle: Vec<Client> = (0..10).map(|_| Client::of(port)).collect();
    for crash in 0..10 {
        idle.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "A", "crash {crash}"));
        settle();
        server.crash(libc::SIGKILL);
    }
    assert_eq!((server.board.generation(), server.board.backend()), (11, Backend::Exec));
    let said = std::fs::read_to_string(said).unwrap();
    assert!(said.contains("no snapshot of the program: it has several threads"), "{said}");
    assert!(said.contains("idle connections") && said.lines().count() == 1, "{said}");
}

#[test]
fn checked_functions_and_cancelled_threads() {
    let (port, folder) = (free_port(), folder("guarded"));
    let binary = folder.join("guarded");
    let mut compiler = std::process::Command::new("cc");
    compiler
        .args(["-O2", "-D_FORTIFY_SOURCE=2", "-pthread", "-o"])
        .arg(&binary)
        .arg(crate::common::program("guarded.c"));
    assert!(compiler.status().unwrap().success());
    let mut command = std::process::Command::new(&binary);
    command.arg(port.to_string()).env("OUTLAST_TEST_CANCEL", "1");
    let server = Server::start(command);
    // Cancelled threads accept for a moment: only from then on it is known who does.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let mut client = Client::of(port);
    assert_eq!((client.ask("a"), client.ask("b")), ("line 1".to_owned(), "line 2".to_owned()));
    drop(server);
    // Without the one that would take what was left, over crashes.
    let mut command = std::process::Command::new(&binary);
    command.arg(port.to_string());
    let server = Server::start(command);
    let mut client = Client::of(port);
    for crash in 0..30 {
        assert_eq!(client.ask("a"), "line 1", "crash {crash}");
        settle();
        server.crash(SIGNALS[crash % SIGNALS.len()]);
    }
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}
