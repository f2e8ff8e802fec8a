//! When there is no next generation, and what is left behind: nothing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, PATIENT, Server, children, eventually, free_port, kill, library, program, python, settle, state,
};
use outlast_restart::board::{Backend, Cause};
use outlast_restart::policy::Policy;
use std::process::{Command, Stdio};

fn lines() -> (Server, Client) {
    let port = free_port();
    (Server::start(python("lines.py", &["poll", &port.to_string()])), Client::of(port))
}

#[test]
fn an_end_in_order_ends_everything() {
    let (mut server, mut client) = lines();
    let serving = server.serving();
    client.say("exit\n");
    assert_eq!(client.hear(), None);
    assert_eq!(server.ended().code(), Some(0));
    assert_eq!(state(serving), None);
}

#[test]
fn so_does_a_signal_that_asks_for_it() {
    for to_keeper in [true, false] {
        let (mut server, mut client) = lines();
        assert_eq!(client.ask("a"), "A");
        let serving = server.serving();
        kill(if to_keeper { server.keeper.id() } else { serving }, libc::SIGTERM);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&server.ended()), Some(libc::SIGTERM));
        assert_eq!((client.hear(), state(serving)), (None, None));
    }
}

#[test]
fn and_a_kill_of_the_keeper() {
    let (mut server, mut client) = lines();
    assert_eq!(client.ask("a"), "A");
    let serving = server.serving();
    kill(server.keeper.id(), libc::SIGKILL);
    server.ended();
    // So that whoever starts it again finds its port free.
    assert_eq!(client.hear(), None);
    eventually("it goes on", || state(serving).is_none_or(|state| state == 'Z').then_some(()));
}

#[test]
fn a_program_that_does_not_come_as_far_as_to_listen_is_not_restarted() {
    let mut server = Server::start(python("lines.py", &["poll", "/nonsense/nowhere"]));
    assert_eq!(server.ended().code(), Some(1));
    assert_eq!((server.board.generation(), server.board.backend()), (0, Backend::None));
}

#[test]
fn a_program_that_crashes_all_the_time_is_given_up() {
    let port = free_port();
    let policy = Policy { intensity: 1, intensity_window_ms: 60_000, transient_after_ms: 60_000, ..PATIENT };
    let command = python("lines.py", &["poll", &port.to_string()]);
    let mut server = Server::start_with(command, &policy);
    for _ in 0..4 {
        let mut client = Client::of(port);
        client.say("fail\n");
        assert_eq!(client.hear(), None);
    }
    assert_eq!(server.ended().code(), Some(3));
}

#[test]
fn nothing_is_left_after_50_generations() {
    let (server, mut client) = lines();
    let before = client.ask("descriptors");
    for _ in 0..50 {
        settle();
        server.crash(libc::SIGKILL);
        client.ask("a");
    }
    settle();
    assert_eq!(client.ask("descriptors"), before);
    assert_eq!(children(server.keeper.id()).len(), 1);
    let last = server.board.generations();
    let (dead, serving) = (&last[last.len() - 2], &last[last.len() - 1]);
    assert_eq!((dead.cause, serving.number, serving.ended_ms), (Cause::Killed, 51, None));
    assert_eq!(dead.death, Some(outlast_restart::Death::Signal(libc::SIGKILL)));
    assert_eq!((serving.pid, server.board.backend()), (server.serving(), Backend::Exec));
}

#[test]
fn programs_that_it_executes_are_left_alone() {
    let (server, mut client) = lines();
    assert_eq!(client.ask("a"), "A");
    for _ in 0..3 {
        let answer = client.ask("child");
        let (parent, descriptors) = answer.trim().split_once(' ').unwrap();
        // Without a keeper in between, and with standard descriptors and that of the folder alone.
        assert_eq!((parent.parse(), descriptors.trim()), (Ok(server.serving()), "4"));
        assert_eq!(client.ask("still there"), "STILL THERE");
        settle();
        server.crash(libc::SIGKILL);
    }
}

#[test]
fn a_program_that_a_script_executes_is_the_one_that_counts() {
    let port = free_port();
    let mut command = Command::new("sh");
    let server = python("lines.py", &[]);
    command.args(["-c", "exec env \"$0\" \"$@\""]).arg(server.get_program()).arg(program("lines.py"));
    command.args(["poll", &port.to_string()]);
    let mut server = Server::start(command);
    let mut client = Client::of(port);
    for _ in 0..5 {
        assert_eq!(client.ask("a"), "A");
        settle();
        server.crash(libc::SIGKILL);
    }
    assert_eq!(client.ask("b"), "B");
    client.say("exit\n");
    assert_eq!(server.ended().code(), Some(0));
}

#[test]
fn without_the_mark_and_without_a_supervisor() {
    let said = |mark: Option<&str>| {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $PPID"]).env("LD_PRELOAD", library()).stdout(Stdio::piped());
        command.envs(mark.map(|mark| ("OUTLAST_PRELOAD", mark)));
        String::from_utf8(command.output().unwrap().stdout).unwrap().trim_end().to_owned()
    };
    let own = std::process::id().to_string();
    assert_eq!(said(None), own);
    assert_eq!(said(Some("1")), own);
    assert_ne!(said(Some("start")), own);
    // And a server.
    let port = free_port();
    let mut command = python("lines.py", &["poll", &port.to_string()]);
    let mut keeper = command.env("LD_PRELOAD", library()).env("OUTLAST_PRELOAD", "start").spawn().unwrap();
    let mut client = Client::of(port);
    for _ in 0..3 {
        let pid = client.ask("pid");
        settle();
        kill(pid.parse().unwrap(), libc::SIGKILL);
        assert_ne!(client.ask("pid"), pid);
    }
    client.say("exit\n");
    assert_eq!(keeper.wait().unwrap().code(), Some(0));
}

#[test]
fn a_program_that_hangs_is_killed_and_succeeded() {
    let port = free_port();
    let policy = Policy { hang_timeout_ms: 300, ..PATIENT };
    let server = Server::start_with(python("lines.py", &["poll", &port.to_string()]), &policy);
    let (mut idle, mut half, mut hangs) = (Client::of(port), Client::of(port), Client::of(port));
    assert_eq!(idle.ask("a"), "A");
    // Somebody who does not say all of it is no reason.
    half.say("hal");
    std::thread::sleep(std::time::Duration::from_millis(1000));
    assert_eq!((idle.ask("b"), server.board.generation()), ("B".to_owned(), 1));
    hangs.say("hang\n");
    assert_eq!(hangs.hear(), None);
    assert_eq!(idle.ask("c"), "C");
    eventually("it is not told", || (server.board.generations()[0].cause == Cause::Hang).then_some(()));
}
