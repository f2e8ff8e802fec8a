//! A request that takes all time, or all memory: its generation is killed, it is refused, and the others see nothing.
#![cfg(feature = "outlast")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::{Client, Server, Stop, Stops, request};
use outlast_lab::MemoryGroup;
use outlast_restart::board::{Board, Cause, ENVIRONMENT};
use outlast_restart::policy::Policy;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::process::Command;

/// How often a request is dealt with that crashes everybody, before it is refused.
const TRIES: usize = 3;
/// How often it is tried whether the kernel kills only whoever takes the memory.
const ATTEMPTS: usize = 5;

/// As below a supervisor, which says what it wants on a board.
fn supervised(board: OwnedFd, arguments: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast-kv"));
    command.stdin(board).env(ENVIRONMENT, "0");
    Server::start_by(command, arguments)
}

/// Well beyond what a busy machine may keep a process from its processor: that would look like a hang, too.
const HANG_TIMEOUT_MS: u64 = 800;

/// As many crashes in quick succession as one likes.
fn patient(hang_timeout_ms: u64) -> Policy {
    Policy { intensity: 20, intensity_window_ms: 20, hang_timeout_ms, ..Policy::default() }
}

/// Nobody survives the request, which is refused in the end; the others are answered all the time.
fn crash(server: &Server, how: &str) {
    let stop = Stop::default();
    std::thread::scope(|scope| {
        for number in 0..8usize {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut client = Client::new(server.addresses[number % 2]);
                let path = format!("/counter/{how}-{number}");
                for count in 1.. {
                    assert_eq!(client.ask("POST", &path, b"").number(), count, "bystander {number}");
                    if stop.is_said() {
                        return;
                    }
                }
            });
        }
        let _stops = Stops(&stop);
        let mut client = Client::new(server.addresses[0]);
        client.say(&request("GET", &format!("/crash?how={how}"), b""));
        assert_eq!(client.hear().status, 500, "{how}");
        client.ends();
    });
}

fn causes(board: &Board) -> Vec<Cause> {
    board.generations().into_iter().filter(|past| past.ended_ms.is_some()).map(|past| past.cause).collect()
}

#[test]
fn a_hang_is_noticed_in_the_time_that_the_service_gives_itself() {
    let (memory, board) = Board::create(&patient(0)).unwrap();
    // As a supervisor that was not told any.
    board.leave_hang_timeout();
    let server = supervised(memory, &["--crashes", "--hang-timeout-ms", &HANG_TIMEOUT_MS.to_string()]);
    crash(&server, "hang");
    assert_eq!(causes(board), [Cause::Hang; TRIES]);
}

#[test]
fn and_in_the_time_that_its_operator_gives_it() {
    let (memory, board) = Board::create(&patient(HANG_TIMEOUT_MS)).unwrap();
    let server = supervised(memory, &["--crashes", "--hang-timeout-ms", "0"]);
    crash(&server, "hang");
    assert_eq!(causes(board), [Cause::Hang; TRIES]);
}

#[test]
fn who_takes_all_memory_is_killed_by_the_kernel_and_refused() {
    for _ in 0..ATTEMPTS {
        let Ok(group) = MemoryGroup::new(256 << 20) else {
            let why = "no group of processes with a limit of memory can be made here (root, cgroups)";
            assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{why}");
            eprintln!("SKIPPED: who_takes_all_memory_is_killed_by_the_kernel_and_refused: {why}");
            return;
        };
        let (memory, board) = Board::create(&patient(0)).unwrap();
        let mut command = group.command(env!("CARGO_BIN_EXE_outlast-kv"));
        command.stdin(memory).env(ENVIRONMENT, "0");
        let server = Server::start_by(command, &["--crashes", "--memory-mib", "64"]);
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| crash(&server, "oom")));
        // The first one's memory was not free yet when another process needed a page: the kernel killed that one as well, and
        // may have left nobody. Whoever had not begun to serve is no generation.
        let generations = causes(board).len().min(TRIES);
        if group.killed().is_some_and(|killed| killed > generations as u64) {
            continue;
        }
        if let Err(failure) = outcome {
            std::panic::resume_unwind(failure);
        }
        assert_eq!(causes(board), [Cause::OutOfMemory; TRIES], "{:#?}", board.generations());
        return;
    }
    panic!("the kernel has killed others as well, {ATTEMPTS} times");
}
