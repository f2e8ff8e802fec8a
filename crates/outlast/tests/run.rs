//! Programs that know nothing of it are kept running.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

mod common;

use common::{Outlast, folder, output};
use std::time::{Duration, Instant};

/// Crashes so often, and then ends in order.
fn crashing(folder: &std::path::Path, times: usize) -> String {
    let count = folder.join("count").display().to_string();
    format!("echo x >> {count}; [ $(wc -l < {count}) -gt {times} ] || kill -SEGV $$; exit 0")
}

#[test]
fn a_program_that_crashes_is_started_again_and_its_end_is_ours() {
    let folder = folder();
    let ran = output(folder.path(), &["run", "--", "sh", "-c", &crashing(folder.path(), 3)]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert_eq!(said.matches("sh has been killed by SIGSEGV: it is started again").count(), 3, "{said}");
}

#[test]
fn one_that_crashes_too_often_is_given_up_loudly() {
    let folder = folder();
    let ran = output(folder.path(), &["run", "--intensity", "2", "--", "sh", "-c", "exit 7"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(7), "{said}");
    assert!(said.contains("exited with code 7, after 2 other crashes within 30"), "{said}");
}

#[test]
fn signals_are_passed_on_and_nothing_is_started_again_then() {
    let folder = folder();
    for (script, signal, code) in [
        ("trap 'exit 0' TERM; echo ready >&2; while :; do sleep 0.01; done", "TERM", 0),
        ("echo ready >&2; while :; do sleep 0.01; done", "TERM", 143),
        ("trap 'echo hup >&2' HUP; echo ready >&2; while :; do sleep 0.01; done", "HUP", 143),
    ] {
        let mut outlast = Outlast::start(folder.path(), &["run", "--", "sh", "-c", script]);
        outlast.wait_for("ready");
        outlast.signal(signal);
        if signal == "HUP" {
            outlast.wait_for("hup");
            outlast.signal("TERM");
        }
        assert_eq!(outlast.ended().code(), Some(code), "{script}");
        assert_eq!(outlast.said().matches("is started").count(), 1, "{script}");
    }
}

/// As the first process of a container has to.
#[test]
fn children_of_others_are_buried() {
    let folder = folder();
    let script = "for i in 1 2 3 4 5; do (sleep 0.05 & exec true); done; echo ready >&2; exec sleep 60";
    let arguments = ["run", "--", "sh", "-c", script];
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_outlast")]);
    command.args(arguments).env("XDG_RUNTIME_DIR", folder.path()).env("OUTLAST_LOG", "info");
    command.stderr(std::process::Stdio::piped());
    outlast_lab::require!("processes of its own");
    let mut outlast = Outlast::from(command);
    outlast.wait_for("ready");
    let deadline = Instant::now() + common::PATIENCE;
    let zombies = || {
        let listed = std::process::Command::new("ps").args(["-eo", "stat,comm"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout)
            .lines()
            .filter(|line| line.contains("Z") && line.contains("sleep"))
            .count()
    };
    std::thread::sleep(Duration::from_millis(200));
    while zombies() > 0 {
        assert!(Instant::now() < deadline, "zombies stay");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_cannot_be_run_is_said_with_the_documented_code() {
    let folder = folder();
    let ran = output(folder.path(), &["run", "--", "/no/such/program"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("cannot run /no/such/program: there is no such program"), "{said}");
    let ran = output(folder.path(), &["run", "--", folder.path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), said.contains("permission denied")), (Some(7), true), "{said}");
}
