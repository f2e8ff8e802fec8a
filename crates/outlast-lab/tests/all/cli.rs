//! `outlast lab` as users call it: programs, names, faults, exit codes, signals.
#![cfg(feature = "cli")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is the message"
)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use outlast_lab::cli::{LabArgs, run};
use outlast_lab::require;

const SEPARATOR: &str = "\u{1f}";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    lab: LabArgs,
}

/// Not a test by itself: `outlast lab` with the arguments that the tests below pass in the environment.
#[test]
fn program() {
    let Ok(arguments) = std::env::var("OUTLAST_LAB_ARGUMENTS") else { return };
    let code = match Cli::try_parse_from(arguments.split(SEPARATOR)) {
        Ok(cli) => run(cli.lab, false).unwrap_or_else(|error| {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            70
        }),
        Err(error) => {
            let _ = error.print();
            error.exit_code()
        }
    };
    std::process::exit(code);
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "cli::program", "--nocapture"])
        .env("OUTLAST_LAB_ARGUMENTS", [&["lab"], arguments].concat().join(SEPARATOR))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(block_signals) };
    command.spawn().unwrap()
}

/// The test harness has a thread of its own, which must not be found by signals that the real program has blocked.
fn block_signals() -> std::io::Result<()> {
    // SAFETY: all-zero bytes are a valid set, which outlives the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
    Ok(())
}

fn lab(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = start(arguments).wait_with_output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A server that greets whoever connects to port 7000, in one line of shell.
const GREET: &str = "exec python3 -c 'import socket\n\
    s=socket.create_server((\"\",7000))\nwhile 1: c,_=s.accept(); c.sendall(b\"hello \"+c.getpeername()[0].encode()); c.close()'";
/// A client that tells what it is greeted with.
const ASK: &str = "import socket; print(socket.create_connection(('server', 7000), 5).recv(99).decode())";

#[test]
fn the_client_reaches_the_server_by_name_and_gives_the_exit_code() {
    require!();
    let (code, out, err) = lab(&["--delay", "1ms", "--server", GREET, "--", "python3", "-c", ASK]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("hello 10."), "{out}");
    assert!(err.contains("client ~~~ server: ready"), "{err}");
    let (code, ..) = lab(&["--", "sh", "-c", "exit 7"]);
    assert_eq!(code, Some(7));
    let (code, ..) = lab(&["--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code, Some(128 + 9));
}

/// One of two servers accepts connections at once, the other after half a second of work.
#[test]
fn the_client_starts_when_all_of_the_server_is_ready() {
    require!();
    let slow = "python3 -c 'import socket,time\nwhile time.process_time()<.5: pass\n\
        s=socket.create_server((\"\",7001))\nwhile 1: s.accept()' & ";
    let ask = "import socket; socket.create_connection(('server', 7001), 5); print('both')";
    // However slow the machine is, half a second of work comes to an end.
    let wait = ["--server-wait", "60s", "--server"];
    let (code, out, err) =
        lab(&[&wait[..], &[&format!("{slow}{GREET}"), "--", "python3", "-c", ask]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("both"), "{out}");
}

#[test]
fn every_topology_connects() {
    require!();
    for options in [&["--nat"][..], &["--two-paths", "--cubic"], &["--relay", GREET]] {
        let (code, out, err) = lab(&[options, &["--server", GREET, "--", "python3", "-c", ASK]].concat());
        assert_eq!(code, Some(0), "{options:?}: {err}");
        assert!(out.contains("hello 10."), "{options:?}: {out}");
    }
}

#[test]
fn faults_come_as_scheduled_and_are_told() {
    require!();
    let (code, _, err) = lab(&[
        "--fault",
        "drop both every 300ms for 100ms",
        "--fault",
        "reset both at 200ms",
        "--",
        "sleep",
        "1",
    ]);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.matches("broken: drop both").count() >= 2, "{err}");
    assert!(err.matches("healed: drop both").count() >= 2, "{err}");
    assert_eq!(err.matches("broken: reset both").count(), 1, "{err}");
    let (code, _, err) = lab(&["--random", "--nat", "--seed", "5", "--", "sleep", "2.5"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("seed 5") && err.contains("step 0 broken: "), "{err}");
}

#[test]
fn the_client_can_be_frozen_and_put_to_sleep() {
    require!();
    let (code, _, err) = lab(&[
        "--fault",
        "freeze client at 100ms for 500ms",
        "--fault",
        "suspend at 800ms for 100ms",
        "--",
        "sleep",
        "0.3",
    ]);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("healed: freeze client"), "{err}");
}

#[test]
fn mistakes_are_explained_before_anything_runs() {
    require!();
    let (code, _, err) = lab(&["--fault", "explode", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("outlast lab faults"), "{err}");
    let (code, out, err) = lab(&["--fault", "nat rebind", "--", "echo", "has run"]);
    assert_eq!(code, Some(70));
    assert!(err.contains("--nat") && !out.contains("has run"), "{err}");
    let (code, _, err) = lab(&["--", "no-such-program"]);
    assert_eq!(code, Some(70));
    assert!(err.contains("no-such-program"), "{err}");
}

#[test]
fn all_faults_are_listed() {
    let (code, out, _) = lab(&["faults"]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("drop to-server") && out.contains("nat rebind") && out.lines().count() >= 20,
        "{out}"
    );
    let (_, help, _) = lab(&["--help"]);
    assert!(help.contains("Examples:") && help.contains("--two-paths"), "{help}");
}

#[test]
fn a_signal_ends_the_client_and_removes_the_lab() {
    require!();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // A client that does not listen, in a lab of its own.
        let mut child =
            start(&["--", "sh", "-c", "trap '' INT TERM; echo client is $$ >&2; while :; do sleep 1; done"]);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with("client is ")).unwrap();
        let client = line.trim_start_matches("client is ").to_owned();
        let prefix = format!("outlast-{}.", child.id());
        let namespaces = || {
            let names = std::fs::read_dir("/run/netns").unwrap().flatten();
            names.filter(|name| name.file_name().to_string_lossy().starts_with(&prefix)).count()
        };
        assert_eq!(namespaces(), 2);
        // SAFETY: kill takes integers only; the child has not been waited for.
        assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) }, 0);
        let start = Instant::now();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(128 + signal));
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(namespaces(), 0);
        assert!(!std::path::Path::new("/proc").join(client).exists());
    }
}

/// The thread of the fault reaps the client while another one waits for its end.
#[test]
fn a_client_that_is_killed_gives_its_exit_code() {
    require!();
    for _ in 0..3 {
        let (code, _, err) = lab(&["--fault", "kill client at 100ms", "--", "sleep", "60"]);
        assert_eq!(code, Some(128 + 9), "{err}");
        assert!(err.contains("the client has ended with exit code 137"), "{err}");
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_server_that_never_listens() {
    require!();
    let server = "echo server is $$ >&2; sleep 60";
    let mut child = start(&["--server-wait", "50s", "--server", server, "--", "echo", "has run"]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("server is ")));
    let start = Instant::now();
    // SAFETY: kill takes integers only; the child has not been waited for.
    assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(128 + libc::SIGINT));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(!String::from_utf8_lossy(&output.stdout).contains("has run"));
}
