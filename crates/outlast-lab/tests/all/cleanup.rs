//! Nothing is left behind: not after a drop, not after a panic, not after SIGKILL and a sweep.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is the message"
)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::PATIENCE;
use outlast_lab::{Lab, WireSpec, require};

fn exists(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn await_gone(pid: u32) {
    let deadline = Instant::now() + PATIENCE;
    while exists(pid) {
        assert!(Instant::now() < deadline, "process {pid} still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn named(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

fn hosts_file(namespace: &str) -> bool {
    Path::new("/run/outlast-lab").join(format!("{namespace}.hosts")).exists()
}

/// Wires of this process; other tests of this file make none.
fn wire_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|c| c.trim() == "outlast-wire"))
        .count()
}

#[test]
fn a_dropped_lab_takes_everything_with_it() {
    require!();
    let lab = Lab::new("drop").unwrap();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    lab.wire(&client, &server, WireSpec::default()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while wire_threads() == 0 {
        assert!(Instant::now() < deadline, "a thread takes its name when it runs for the first time");
    }
    let process = client.command("sleep").arg("1000").spawn().unwrap();
    // One that escapes its process group.
    let mut escaped = server.command("setsid");
    let escaped = escaped.args(["--fork", "sh", "-c", "echo $$; exec sleep 1000"]).stdout(Stdio::piped());
    let escaped = escaped.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(escaped.take_stdout().unwrap()).read_line(&mut line).unwrap();
    let escaped_pid = line.trim().parse().unwrap();
    let names = [client.namespace().to_owned(), server.namespace().to_owned()];
    assert!(names.iter().all(|name| named(name) && hosts_file(name)));
    assert!(exists(process.id()) && exists(escaped_pid));

    drop(lab);
    assert!(!names.iter().any(|name| named(name) || hosts_file(name)));
    assert_eq!(wire_threads(), 0);
    await_gone(process.id());
    await_gone(escaped_pid);
}

#[test]
fn a_panic_takes_everything_with_it() {
    require!();
    let (sender, receiver) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let lab = Lab::new("panic").unwrap();
        let host = lab.host("host").unwrap();
        let process = host.command("sleep").arg("1000").spawn().unwrap();
        sender.send((host.namespace().to_owned(), process.id())).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    let (namespace, pid) = receiver.recv().unwrap();
    assert!(!named(&namespace) && !hosts_file(&namespace));
    await_gone(pid);
}

#[test]
fn a_process_guard_kills_its_group() {
    require!();
    let lab = Lab::new("guard").unwrap();
    let host = lab.host("host").unwrap();
    let mut command = host.command("sh");
    let process = command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.take_stdout().unwrap()).read_line(&mut line).unwrap();
    let child: u32 = line.trim().parse().unwrap();
    assert!(process.try_wait().unwrap().is_none() && exists(child));
    drop(process);
    await_gone(child);
}

#[test]
fn programs_outlive_the_thread_that_started_them() {
    require!();
    let lab = Lab::new("thread").unwrap();
    let host = lab.host("host").unwrap();
    let process = host.enter(|| host.command("sleep").arg("1000").spawn().unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(process.try_wait().unwrap().is_none());
}

/// Not a test by itself: the process that the next test kills.
#[test]
fn victim() {
    if std::env::var_os("OUTLAST_LAB_VICTIM").is_none() {
        return;
    }
    let lab = Lab::new("victim").unwrap();
    let host = lab.host("host").unwrap();
    let process = host.command("sleep").arg("1000").spawn().unwrap();
    let report = format!("\nvictim {} {}\n", host.namespace(), process.id());
    std::io::Write::write_all(&mut std::io::stderr(), report.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_secs(60));
    drop(lab);
}

#[test]
fn a_sweep_removes_what_a_killed_process_left_and_nothing_else() {
    require!();
    let living = Lab::new("living").unwrap();
    let bystander = living.host("host").unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cleanup::victim", "--nocapture"])
        .env("OUTLAST_LAB_VICTIM", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stderr.take().unwrap()).lines();
    let report = lines.map(Result::unwrap).find(|line| line.starts_with("victim ")).unwrap();
    let words: Vec<_> = report.split(' ').collect();
    let (namespace, pid) = (words[1].to_owned(), words[2].parse().unwrap());
    assert!(named(&namespace) && exists(pid));
    let swept = Lab::sweep().unwrap();
    assert!(!swept.contains(&namespace), "its owner lives");

    victim.kill().unwrap();
    victim.wait().unwrap();
    await_gone(pid);
    assert!(named(&namespace), "nobody was left to remove it");
    let swept = Lab::sweep().unwrap();
    assert!(swept.contains(&namespace), "{swept:?}");
    assert!(!named(&namespace) && !hosts_file(&namespace));
    assert!(named(bystander.namespace()));
    let mut rest = String::new();
    let output = bystander.command("echo").arg("alive").output().unwrap();
    output.stdout.as_slice().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "alive\n");
}
