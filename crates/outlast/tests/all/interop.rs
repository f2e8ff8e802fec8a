//! A peer in Python that was written from PROTOCOL.md alone, against the real binary: what the document says is enough,
//! and what we do is what it says. In both roles, while the peer breaks links.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed expectation is the message of a test"
)]

use crate::common::{KEY, Outlast, command, echo, ended, folder, pattern, secret_file};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const BYTES: usize = 300_000;
const BREAKS: &str = "3";

/// Each mode that the peer speaks, with and without a key. Freezing a connection, as `kernel` needs it, takes a right.
fn kinds() -> Vec<(&'static str, bool)> {
    let mut kinds = vec![("inband", false), ("inband", true)];
    if rustix::process::geteuid().is_root() {
        kinds.extend([("kernel", false), ("kernel", true)]);
    } else {
        eprintln!("SKIPPED: mode kernel without root");
    }
    kinds
}

fn peer(role: &str, address: &str, mode: &str, with_key: bool) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/interop/peer.py");
    let mut command = Command::new("python3");
    command.arg(script).args([role, address, "--mode", mode, "--bytes", &BYTES.to_string()]);
    command.args(["--breaks", BREAKS]).stdout(Stdio::piped());
    if with_key {
        command.args(["--psk", KEY]);
    }
    command.spawn().unwrap()
}

/// The links that the peer counts in its last line.
fn links(said: &str) -> u32 {
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with(&format!("done: {BYTES} bytes, ")), "{said}");
    last.split_whitespace().rev().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_client_written_from_the_document_has_its_session() {
    let folder = folder();
    let (to, key) = (echo().to_string(), secret_file(folder.path(), "key", KEY));
    for (mode, with_key) in kinds() {
        let guard: &[&str] = if with_key { &["--psk-file", &key] } else { &[] };
        let arguments = [&["listen", "127.0.0.1:0", "--to", &to][..], guard].concat();
        let mut server = Outlast::start(folder.path(), &arguments);
        let mut peer = peer("client", &server.address().to_string(), mode, with_key);
        assert!(ended(&mut peer).success(), "{mode}, key: {with_key}: {}", server.said_so_far());
        let mut said = String::new();
        peer.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(links(&said) > 1, "nothing was broken: {said}");
        server.wait_for("completed");
    }
}

#[test]
fn a_server_written_from_the_document_serves_a_session() {
    let folder = folder();
    let key = secret_file(folder.path(), "key", KEY);
    for (mode, with_key) in kinds() {
        let mut peer = peer("server", "127.0.0.1:0", mode, with_key);
        let mut said = BufReader::new(peer.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let port = line.strip_prefix("listening on ").unwrap().trim();
        let via = format!("127.0.0.1:{port}");
        let guard: &[&str] = if with_key { &["--psk-file", &key] } else { &[] };
        let arguments = [&["connect", "--stdio", "--via", &via, "--ack", mode][..], guard].concat();
        let mut client = command(folder.path(), &arguments);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = client.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(&pattern(BYTES)));
        let mut echoed = Vec::new();
        client.stdout.take().unwrap().read_to_end(&mut echoed).unwrap();
        writer.join().unwrap().unwrap();
        assert!(ended(&mut client).success(), "{mode}, key: {with_key}");
        assert!(echoed == pattern(BYTES), "{} bytes came back", echoed.len());
        assert!(ended(&mut peer).success(), "{mode}, key: {with_key}");
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(links(&rest) > 1, "nothing was broken: {rest}");
    }
}
