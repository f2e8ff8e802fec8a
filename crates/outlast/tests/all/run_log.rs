//! What the log of `outlast run` says of a server with the library.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::{Outlast, PATIENCE, command, eventually, folder, nobody};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A server that uses the library, from the examples of that.
fn example(name: &str) -> Option<String> {
    let this = std::env::current_exe().unwrap();
    let example = this.parent().unwrap().parent().unwrap().join("examples").join(name);
    if example.exists() {
        return Some(example.to_str().unwrap().to_owned());
    }
    let why = "there is no server with the library: cargo build -p outlast-restart --examples";
    assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{why}");
    eprintln!("SKIPPED: {why}");
    None
}

/// In a process group of its own, as in front of a terminal.
fn start(folder: &Path, arguments: &[&str]) -> (Outlast, PathBuf) {
    let said = folder.join("said");
    let mut command = command(folder, arguments);
    command.stdout(std::fs::File::create(&said).unwrap()).stderr(Stdio::piped()).env("OUTLAST_LOG", "info");
    command.process_group(0);
    (Outlast::from(command), said)
}

/// The process of a generation, from `generation 3 1234`.
fn generation(said: &Path, number: u32) -> u32 {
    eventually(&format!("no generation {number}"), || {
        let said = std::fs::read_to_string(said).unwrap();
        said.lines().find_map(|line| line.strip_prefix(&format!("generation {number} "))?.parse().ok())
    })
}

fn signal(whom: &str, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), "--", whom]).status().unwrap().success());
}

#[test]
fn why_the_last_generation_has_ended_is_known_when_it_is_said() {
    let Some(lines) = example("lines") else { return };
    let folder = folder();
    let address = nobody().to_string();
    // A core dump takes longer than is waited for.
    let run = ["run", "--name", "server", "--intensity", "20", "--limit", "core=0", "--", &lines, &address];
    let (mut outlast, said) = start(folder.path(), &run);
    for number in 1..=8 {
        signal(&generation(&said, number).to_string(), "SEGV");
        let line = outlast.wait_for(&format!("generation {} serves", number + 1));
        assert!(line.ends_with("after the last one's end (crash)"), "{line}");
    }
    outlast.signal("TERM");
    outlast.ended();
}

#[test]
fn a_process_group_that_is_told_to_end_has_not_crashed() {
    let Some(lines) = example("lines") else { return };
    for name in ["TERM", "INT"].repeat(10) {
        let folder = folder();
        let address = nobody().to_string();
        let (mut outlast, said) = start(folder.path(), &["run", "--name", "server", "--", &lines, &address]);
        generation(&said, 1);
        signal(&format!("-{}", outlast.pid()), name);
        outlast.ended();
        let said = outlast.said();
        assert!(!said.contains("generation 2 serves"), "{name}: {said}");
    }
}

#[test]
fn a_request_that_is_refused_is_said_with_whose_it_is_and_how_it_begins() {
    let Some(trouble) = example("trouble") else { return };
    let folder = folder();
    let address = nobody();
    let text = address.to_string();
    let run = ["run", "--name", "server", "--intensity", "20", "--", &trouble, &text, "policy"];
    let (mut outlast, _) = start(folder.path(), &run);
    let mut client = eventually("nobody listens", || TcpStream::connect(address).ok());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"!abort\n\x1b[2J").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "refused\n");
    let line = outlast.wait_for("is refused");
    let peer = client.local_addr().unwrap();
    let expected = format!(
        "WARN server: a request from {peer} was in flight in too many crashes, and is refused (11 bytes): \
         \"!abort\\n\\x1b[2J\""
    );
    assert!(line.ends_with(&expected), "{line}");
    outlast.signal("TERM");
    outlast.ended();
}
