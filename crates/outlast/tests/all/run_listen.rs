//! `outlast run -- outlast listen`: the process that keeps the sessions of a stopped listener is nothing that it has left
//! behind by mistake.

use crate::common::restarts::{connect, ends, is_running, open, say};
use crate::common::{Outlast, echo, eventually, folder, nobody};
use std::net::TcpStream;

#[test]
fn sessions_go_on_when_a_listener_is_started_again_below_a_supervisor() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let at = address.to_string();
    let arguments = [
        "run",
        "--name",
        "relay",
        "--restart",
        "always",
        "--",
        env!("CARGO_BIN_EXE_outlast"),
        "listen",
        &at,
        "--to",
        &to,
    ];
    let mut supervisor = Outlast::start(runtime, &arguments);
    supervisor.address();
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    for _ in 0..3 {
        let relay = relay_below(supervisor.pid());
        assert!(std::process::Command::new("kill").arg(relay.to_string()).status().unwrap().success());
        supervisor.wait_for("going on with 1 session");
        say(&mut stream, b"still there");
        ends(relay);
    }
    // When the supervisor ends, too, the next one goes on.
    supervisor.signal("TERM");
    let line = supervisor.wait_for("detached: the next");
    let keeper: u32 = line.split("(process ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    supervisor.ended();
    assert!(is_running(keeper), "{}", supervisor.said());
    let mut supervisor = Outlast::start(runtime, &arguments);
    supervisor.wait_for("going on with 1 session");
    say(&mut stream, b"still there");
    ends(keeper);
    supervisor.signal("TERM");
    supervisor.ended();
    let said = supervisor.said();
    assert!(!said.contains("of an earlier"), "{said}");
    drop(stream);
    assert!(TcpStream::connect(address).is_err());
}

/// The listener that the supervisor has started.
fn relay_below(supervisor: u32) -> u32 {
    eventually("no listener", || {
        let children =
            std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"listen")
        })
    })
}
