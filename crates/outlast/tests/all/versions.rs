//! The program on disk is newer or older than an instance that runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{folder, output};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// An instance that answers every question so.
fn instance(runtime: &Path, pid: u32, answer: &'static str) {
    let folder = runtime.join("outlast");
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder).unwrap();
    let listener = UnixListener::bind(folder.join(format!("{pid}.sock"))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            assert!(line.starts_with("{\"do\":"), "{line}");
            writeln!(&stream, " {answer}").ok();
        }
    });
}

#[test]
fn instances_of_other_versions_are_shown_as_far_as_they_are_known() {
    let folder = folder();
    // As 0.1.0 answered, before there was a format.
    instance(
        folder.path(),
        1_000_001,
        r#"{"pid":1000001,"version":"0.1.0","serves":["listen 127.0.0.1:7000 to 127.0.0.1:22"],"draining":false,"up_ms":65000,"sessions":[
           {"id":"00112233445566778899aabbccddeeff","role":"server","state":"connected","mode":"kernel","epoch":1,"security":"open",
            "written_bytes":1,"read_bytes":2,"unacked_bytes":0,"outages":3,"pause_now_ms":null,"pause_longest_ms":1500,"peer_addr":"10.0.0.1:9","age_ms":5000}]}"#
            .replace('\n', " ")
            .leak(),
    );
    instance(
        folder.path(),
        1_000_002,
        r#"{"format":7,"version":"9.0.0","pid":1000002,"kind":"balance","up_ms":1,"view":{"number":3}}"#,
    );
    instance(
        folder.path(),
        1_000_003,
        r#"{"format":7,"version":"9.0.0","pid":1000003,"kind":"program","runs":"db","main_pid":77,"ready":true,"mood":"fine","program":["db"],"up_ms":1}"#,
    );
    // Something else that listens there.
    instance(folder.path(), 1_000_004, r#"{"error":"what?"}"#);

    let shown = output(folder.path(), &["status"]);
    let page = String::from_utf8_lossy(&shown.stdout).into_owned();
    let said = String::from_utf8_lossy(&shown.stderr).into_owned();
    for part in [
        "process 1000001, up 1 min 5 s",
        "0011223344",
        "process 1000002, of version 9.0.0, does what this version cannot show: see --json",
        "process 1000003, up",
        "keeps db running: process 77, ready",
    ] {
        assert!(page.contains(part), "no {part:?} in\n{page}");
    }
    assert!(said.contains("1000004.sock answers, but not as outlast does"), "{said}");

    let json = output(folder.path(), &["status", "--json", "1000002"]);
    let all: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    // Nothing of it is left out.
    assert_eq!((&all[0]["view"]["number"], &all[0]["format"]), (&3.into(), &7.into()), "{all}");

    // A session of an earlier version is found by its name, but that instance answers `kill` with something else.
    let killed = output(folder.path(), &["kill", "0011"]);
    assert!(!killed.status.success(), "{killed:?}");
}
