//! Another binary takes over while clients talk to the server: nothing is lost, counted twice or not at all; and where it
//! does not begin, the old one goes on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::forbid;

use crate::common::family::{children, eventually};
use crate::common::{PATIENCE, Random, Server};
use outlast_restart::board::{Board, UpgradeEnd, WhyNot};
use outlast_restart::policy::Policy;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const UPGRADES: u32 = 20;

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

/// Counts under a name of its own, several at a time, and checks what it hears.
fn count(address: SocketAddr, name: u64, stop: &AtomicBool) -> u64 {
    let (mut stream, mut random, mut counted) = (connect(address), Random(name), 0);
    while !stop.load(Ordering::Relaxed) {
        let several = 1 + random.below(20);
        let questions = format!("add {name}\n").repeat(usize::try_from(several).unwrap());
        stream.get_mut().write_all(questions.as_bytes()).unwrap();
        for _ in 0..several {
            counted += 1;
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            assert_eq!(line, format!("{counted}\n"), "client {name}");
        }
    }
    counted
}

fn ask(board: &Board, server: &Server, path: &Path, timeout: Duration) -> u32 {
    let wish = board.want_upgrade(path, timeout);
    let main = match board.main_pid() {
        0 => server.id(),
        pid => pid,
    };
    crate::common::signal(main, &outlast_restart::supervisor::upgrade_signal().to_string());
    wish
}

fn upgrade(board: &Board, server: &Server, path: &Path, timeout: Duration) -> UpgradeEnd {
    let wish = ask(board, server, path, timeout);
    let begin = Instant::now();
    loop {
        if let Some(end) = board.upgrade_end(wish) {
            return end;
        }
        assert!(begin.elapsed() < timeout + PATIENCE, "an upgrade has no end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn another_binary_takes_over_and_nobody_notices() {
    let policy = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let (memory, board) = Board::create(&policy).unwrap();
    let server = Server::start_below(&memory, "tally", &["127.0.0.1:0"]);
    let again = std::env::temp_dir().join(format!("outlast-tally-{}", std::process::id()));
    std::fs::copy(crate::common::example("tally"), &again).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|name| {
                let (address, stop) = (server.address, &stop);
                scope.spawn(move || count(address, name, stop))
            })
            .collect();
        // It listens before its first generation is counted.
        let begin = Instant::now();
        while board.generation() == 0 {
            assert!(begin.elapsed() < PATIENCE, "no generation");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut before = board.generation();
        for number in 0..UPGRADES {
            std::thread::sleep(Duration::from_millis(20));
            // Another file, or what the last one was started from.
            let path = if number % 2 == 0 { again.as_path() } else { Path::new("") };
            assert_eq!(upgrade(board, &server, path, PATIENCE), UpgradeEnd::Done, "upgrade {number}");
            assert_eq!(board.generation(), before + 1, "upgrade {number}");
            // Crashes go on to be survived.
            crate::common::signal(board.serving_pid(), "KILL");
            let begin = Instant::now();
            while board.generation() == before + 1 {
                assert!(begin.elapsed() < PATIENCE, "no generation after upgrade {number}");
                std::thread::sleep(Duration::from_millis(1));
            }
            before = board.generation();
        }
        let serving = board.serving_pid();
        for (path, code) in [("/no/such/program", libc::ENOENT), ("/etc/passwd", libc::EACCES)] {
            let end = upgrade(board, &server, Path::new(path), PATIENCE);
            assert_eq!(end, UpgradeEnd::untouched(WhyNot::CannotRun { code }), "{path}");
        }
        assert_eq!(upgrade(board, &server, &again, Duration::ZERO), UpgradeEnd::untouched(WhyNot::TooLate));
        assert_eq!(board.serving_pid(), serving, "nothing was to be stopped");
        let garbage = again.with_extension("garbage");
        std::fs::write(&garbage, "\x7fELF, but not really").unwrap();
        std::fs::set_permissions(&garbage, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let end = upgrade(board, &server, &garbage, PATIENCE);
        assert_eq!(end, UpgradeEnd::undone(WhyNot::CannotRun { code: libc::ENOEXEC }));
        std::fs::remove_file(garbage).unwrap();
        let end = upgrade(board, &server, Path::new("/bin/false"), PATIENCE);
        assert_eq!(end, UpgradeEnd::undone(WhyNot::Ended { death: None }));
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        for (name, client) in clients.into_iter().enumerate() {
            let counted = client.join().unwrap();
            let mut last = connect(server.address);
            last.get_mut().write_all(format!("add {name}\n").as_bytes()).unwrap();
            let mut line = String::new();
            last.read_line(&mut line).unwrap();
            assert_eq!(line, format!("{}\n", counted + 1));
        }
    });
    std::fs::remove_file(again).unwrap();
    // The old program is another process by now.
    crate::common::signal(board.main_pid(), "TERM");
}

/// Clients wait, and are answered by the old one: also what they have asked meanwhile.
#[test]
fn a_binary_that_never_serves_is_given_up_in_time_or_when_nobody_wants_it_any_more() {
    let (memory, board) = Board::create(&Policy::default()).unwrap();
    let server = Server::start_below(&memory, "tally", &["127.0.0.1:0"]);
    let folder = tempfile::tempdir().unwrap();
    // What it starts has the sockets, too.
    let sleeper = sleeper(folder.path());
    let mut client = connect(server.address);
    let mut add = || {
        client.get_mut().write_all(b"add one\n").unwrap();
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        line.trim_end().parse::<u64>().unwrap()
    };
    let mut counted = 0;
    let mut one_more = || {
        counted += 1;
        assert_eq!(add(), counted);
    };
    one_more();
    std::thread::scope(|scope| {
        let upgraded = scope.spawn(|| upgrade(board, &server, &sleeper, Duration::from_secs(1)));
        while !upgraded.is_finished() {
            one_more();
        }
        assert_eq!(upgraded.join().unwrap(), UpgradeEnd::undone(WhyNot::TooLate));
    });
    one_more();
    let generation = board.generation();
    let wish = ask(board, &server, &sleeper, Duration::from_secs(1000));
    let begin = Instant::now();
    while !board.generations().iter().any(|past| past.number == generation && past.ended_ms.is_some()) {
        assert!(begin.elapsed() < PATIENCE, "the old one is not stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(board.upgrade_end(wish), None);
    board.cancel_upgrade(wish);
    // Within its patience.
    one_more();
    assert_eq!(board.upgrade_end(wish), Some(UpgradeEnd::undone(WhyNot::Cancelled)));
    // The old program goes on in another process, and survives crashes as before.
    let serving = board.serving_pid();
    crate::common::signal(serving, "KILL");
    one_more();
    assert_ne!(board.serving_pid(), serving);
    eventually("one serves and one stands by, and no more", || children(board.main_pid()).len() == 2);
    crate::common::signal(board.main_pid(), "TERM");
    // Nobody else has the connection any more.
    let mut rest = String::new();
    assert_eq!(client.read_line(&mut rest).unwrap(), 0, "{rest}");
}

/// A program that starts another one and never serves.
fn sleeper(folder: &Path) -> std::path::PathBuf {
    let sleeper = folder.join("sleeper");
    std::fs::write(&sleeper, "#!/bin/sh\nsleep 1000 & wait\n").unwrap();
    std::fs::set_permissions(&sleeper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    sleeper
}

#[test]
fn what_the_old_program_has_started_outlives_a_binary_that_never_serves() {
    let (memory, board) = Board::create(&Policy::default()).unwrap();
    let server = Server::start_below(&memory, "tally", &["127.0.0.1:0", "exec sleep 1000"]);
    let runs = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    eventually("it serves", || board.generation() != 0);
    let helpers = || children(server.id()).into_iter().map(|child| child.pid);
    let helper = || helpers().find(|pid| runs(*pid).starts_with("sleep"));
    eventually("the helper runs", || helper().is_some());
    let helper = helper().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ended = upgrade(board, &server, &sleeper(folder.path()), Duration::from_secs(1));
    assert_eq!(ended, UpgradeEnd::undone(WhyNot::TooLate));
    assert!(runs(helper).starts_with("sleep"), "the helper was killed");
    crate::common::signal(helper, "KILL");
}

/// What a process gives to programs that it executes.
fn given_to_others(pid: u32) -> BTreeSet<u32> {
    const CLOSED: u32 = 0o2_000_000;
    let folder = std::path::PathBuf::from(format!("/proc/{pid}/fdinfo"));
    let open = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let is_given = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        u32::from_str_radix(flags.trim(), 8).unwrap() & CLOSED == 0
    };
    open.filter(is_given).map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

fn say(client: &mut BufReader<TcpStream>, words: &str) -> String {
    client.get_mut().write_all(format!("{words}\n").as_bytes()).unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// A client that was accepted, and not held.
fn accepted_only(server: &Server, first: &mut BufReader<TcpStream>) -> BufReader<TcpStream> {
    first.get_mut().write_all(b"!accept\n").unwrap();
    first.get_ref().set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (mut clients, mut accepted) = (Vec::new(), String::new());
    // The others are accepted by whoever serves.
    while !accepted.ends_with('\n') {
        assert!(clients.len() < 100, "none is left to whoever has asked for it");
        clients.push(connect(server.address));
        let _ = first.read_line(&mut accepted);
    }
    first.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    let is_it = |client: &BufReader<TcpStream>| client.get_ref().local_addr().unwrap();
    clients.into_iter().find(|client| is_it(client).to_string() == accepted.trim_end()).unwrap()
}

#[test]
fn what_generations_have_opened_is_left_to_generations_and_nothing_to_other_programs() {
    let policy = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let (memory, board) = Board::create(&policy).unwrap();
    let server = Server::start_below(&memory, "trouble", &["127.0.0.1:0"]);
    let mut client = connect(server.address);
    assert_eq!(say(&mut client, "first"), "first");
    let descriptors = || crate::common::family::descriptors(board.serving_pid());
    let (given, open) = (given_to_others(board.serving_pid()), descriptors());
    for round in 0..3 {
        let mut left = accepted_only(&server, &mut client);
        assert_eq!(upgrade(board, &server, Path::new(""), PATIENCE), UpgradeEnd::Done);
        // It was never held.
        assert_eq!(say(&mut left, "accepted"), "accepted", "round {round}");
        assert_eq!(say(&mut client, "held"), "held");
        assert_eq!(given_to_others(board.serving_pid()), given, "after an upgrade");
        // It serves by itself, and has not taken over anything.
        assert_eq!(say(&mut client, "!child"), "generation 1");
        let end = upgrade(board, &server, Path::new("/bin/false"), PATIENCE);
        assert_eq!(end, UpgradeEnd::undone(WhyNot::Ended { death: None }));
        assert_eq!(say(&mut client, "held"), "held");
        assert_eq!(given_to_others(board.serving_pid()), given, "after one that was undone");
        assert_eq!(say(&mut client, "!child"), "generation 1");
    }
    assert_eq!(upgrade(board, &server, Path::new(""), PATIENCE), UpgradeEnd::Done);
    assert_eq!(say(&mut client, "held"), "held");
    crate::common::family::eventually("nothing is left for ever", || descriptors() == open);
    crate::common::signal(board.main_pid(), "TERM");
}

#[test]
fn state_that_another_binary_would_not_have_is_not_given_up() {
    let (memory, board) = Board::create(&Policy::default()).unwrap();
    let sandbox = forbid::without("memfd_create", libc::SYS_memfd_create);
    let server = Server::start_below_with(&memory, "tally", &["127.0.0.1:0"], |command| {
        forbid::forbid(command, sandbox, libc::EPERM);
    });
    let mut client = connect(server.address);
    assert_eq!(say(&mut client, "add one"), "1");
    let end = upgrade(board, &server, Path::new(""), PATIENCE);
    assert_eq!(end, UpgradeEnd::untouched(WhyNot::Unable));
    assert_eq!(say(&mut client, "add one"), "2");
    crate::common::signal(board.serving_pid(), "KILL");
    assert_eq!(say(&mut client, "add one"), "3");
}
