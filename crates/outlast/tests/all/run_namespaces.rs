//! Namespaces of processes and of the network: what an `outlast run` in another one has started is not its business.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::restarts::{ends, is_running};
use crate::common::{Outlast, eventually, folder, output};
use crate::run_preload::{PROGRAM, free_port, library, signal};
use std::path::Path;
use std::process::{Command, Stdio};

/// As a container has it: a shell is the first process, and the next one has the number that is told.
const CONTAINER: &str = "echo $((NUMBER - 1)) > /proc/sys/kernel/ns_last_pid; \"$@\" & wait";

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root can make a namespace");
    }
    is_root
}

/// The only child of a process.
fn child(pid: u32) -> u32 {
    eventually("it has no child", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.trim().parse().ok()
    })
}

/// A number that no process has: that of one which has just ended.
fn nobodys_number() -> u32 {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    ended.id()
}

/// Their supervisors have numbers there that mean nothing here.
#[test]
fn a_program_of_another_pid_namespace_is_left_alone() {
    if !is_root() {
        return;
    }
    for flags in [&["--name", "contained"][..], &["--name", "contained", "--preload", "never"], &[]] {
        let folder = folder();
        // Both are called so without a --name, too.
        let shell = folder.path().join("contained");
        std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
        let shell = shell.to_str().unwrap();
        let number = nobodys_number();
        let mut inner = Command::new("unshare");
        inner.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CONTAINER, "sh"]);
        inner.args([env!("CARGO_BIN_EXE_outlast"), "run"]).args(flags);
        inner.args(["--", shell, "-c", "echo begun >&2; exec sleep 600"]);
        inner.env("NUMBER", number.to_string()).env("XDG_RUNTIME_DIR", folder.path()).stderr(Stdio::piped());
        let mut inner = Outlast::from(inner);
        inner.wait_for("begun");
        let supervisor = child(child(inner.pid()));
        let status = std::fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap();
        assert!(status.contains(&format!("\t{number}\nNSpgid")), "{status}");
        assert!(!Path::new(&format!("/proc/{number}")).exists());
        let program = child(supervisor);
        let next = output(folder.path(), &[&["run"], flags, &["--", shell, "-c", "true"]].concat());
        let said = String::from_utf8(next.stderr).unwrap();
        assert!(is_running(supervisor) && is_running(program), "it was ended: {said}");
        assert_eq!(said, "");
    }
}

/// At the same address, supervisor and server in a network of their own.
fn start(folder: &Path, flags: &[&str], port: &str) -> (Outlast, u32) {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.args([env!("CARGO_BIN_EXE_outlast"), "run"]).args(flags);
    command.args(["--preload", "always", "--preload-library"]).arg(library());
    command.args(["--", "/usr/bin/python3", "-c", PROGRAM, port]);
    command.env("XDG_RUNTIME_DIR", folder).env("OUTLAST_LOG", "info");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut outlast = Outlast::from(command);
    outlast.wait_for("is ready");
    let server = child(outlast.pid());
    (outlast, server)
}

/// Whether a server is the one that answers in its own network.
fn serves(server: u32, port: &str) -> bool {
    let ask = "import sys, urllib.request as u; print(u.urlopen('http://127.0.0.1:' + sys.argv[1]).read().decode())";
    let mut client = Command::new("nsenter");
    client.args(["--net", "--target", &server.to_string(), "/usr/bin/python3", "-c", ask, port]);
    String::from_utf8(client.output().unwrap().stdout).unwrap().trim() == server.to_string()
}

#[test]
fn a_listening_socket_of_another_network_is_not_taken_over() {
    if !is_root() {
        return;
    }
    for flags in [&[][..], &["--name", "apart"]] {
        let (folder, port) = (folder(), free_port().to_string());
        let (mut first, old) = start(folder.path(), flags, &port);
        first.signal("KILL");
        first.ended();
        let (mut next, new) = start(folder.path(), flags, &port);
        assert!(serves(new, &port), "{}", next.said_so_far());
        // That of the same name is ended nevertheless.
        if flags.is_empty() {
            assert!(serves(old, &port), "{}", next.said_so_far());
            signal(&old.to_string(), "KILL");
        }
        ends(old);
        next.signal("TERM");
        next.ended();
    }
}

/// It serves, as without Outlast; what cannot be kept is said, and why.
#[test]
fn a_program_in_a_network_of_its_own_is_named() {
    if !is_root() {
        return;
    }
    let (folder, port, library) = (folder(), free_port().to_string(), library());
    let preload = ["--preload", "always", "--preload-library", library.to_str().unwrap(), "--"];
    let network = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];
    let server = ["/usr/bin/python3", "-c", PROGRAM, &port];
    let mut outlast = Outlast::start(
        folder.path(),
        &[&["run", "--name", "apart"], &preload[..], &network, &server].concat(),
    );
    outlast.wait_for("is in another network namespace than `outlast run`");
    assert!(serves(child(outlast.pid()), &port));
    outlast.signal("TERM");
    outlast.ended();
}
