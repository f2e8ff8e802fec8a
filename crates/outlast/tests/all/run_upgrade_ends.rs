//! Upgrades that take a way of their own to their end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::supervised;

use crate::common::{Outlast, folder, output, restarts::is_running};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use supervised::{lines, pid, status, until};

fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// It waits for the new binary to serve, and nobody else could say what becomes of that.
#[test]
fn an_upgrade_whose_old_program_is_killed_meanwhile_has_an_end_all_the_same() {
    let Some(lines) = lines() else { return };
    let folder = folder();
    let port = outlast_lab::free_port().unwrap();
    let address = format!("127.0.0.1:{port}");
    let run = ["run", "--preload", "never", "--", &lines, &address];
    let mut command = crate::common::command(folder.path(), &run);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut outlast = Outlast::from(command);
    let until_ready =
        || until(folder.path(), "serving", |now| now["ready"] == true && now["upgrade"] == Value::Null);
    let connect = || {
        let connect = || std::net::TcpStream::connect(&address).ok();
        let client = crate::common::eventually("nobody listens", connect);
        client.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        client
    };
    let go = folder.path().join("go");
    let waits = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
    for (name, text, timeout, serves) in [
        ("serves", format!("{waits}; exec {lines} \"$@\""), "1000s", true),
        ("ends", format!("{waits}; exit 0"), "1000s", false),
        ("hangs", "exec sleep 1000".to_owned(), "2s", false),
    ] {
        let main = pid(&until_ready(), "main_pid");
        let mut client = connect();
        assert_eq!(ask(&mut client), Some("cba".repeat(4)));
        let script = script(folder.path(), name, &text);
        let arguments = ["upgrade", "--program", script.to_str().unwrap(), "--timeout", timeout];
        let mut command = crate::common::command(folder.path(), &arguments);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
        let mut upgrading = Outlast::from(command);
        let old = crate::common::eventually("the new binary does not begin", || {
            let is = |pid: u32, name: &str| name_of(pid).is_some_and(|is| is == name);
            // Beside it there may be who served, dying or dead: nobody reaps that meanwhile.
            let mut old = children(main);
            old.retain(|child| is(*child, "lines") && is_running(*child));
            let [old] = old[..] else { return None };
            (is(main, name) || is(main, "sleep")).then_some(old)
        });
        assert!(Command::new("kill").args(["-KILL", &old.to_string()]).status().unwrap().success());
        crate::common::eventually("the old program is not killed", || (!is_running(old)).then_some(()));
        std::fs::write(&go, "").unwrap();
        let code = upgrading.ended().code();
        let said = upgrading.said();
        if serves {
            assert_eq!(code, Some(0), "{said}");
            assert_eq!(ask(&mut client), Some("cba".repeat(4)));
            assert_eq!(pid(&until_ready(), "main_pid"), main);
            std::fs::remove_file(&go).unwrap();
            continue;
        }
        assert_eq!(code, Some(8), "{said}");
        let part = "did not serve, and the old one was killed meanwhile; it is started again: its state and connections";
        assert!(said.contains(part), "{said}");
        outlast.wait_for("killed meanwhile; its state and connections are lost");
        assert_eq!(ask(&mut client), None);
        let now =
            until(folder.path(), "started again", |now| now["ready"] == true && pid(now, "main_pid") != main);
        assert!(!is_running(main), "{now:#}");
        // What is started again is a script by now.
        connect();
        std::fs::remove_file(&go).unwrap();
    }
    outlast.signal("TERM");
    outlast.ended();
    let said = outlast.said();
    assert!(!said.contains("restart 1 of"), "no crash: {said}");
}

/// Its own time does not count for the new binary, and nobody says that it serves.
#[test]
fn an_old_program_that_takes_its_time_to_end_is_waited_for() {
    let folder = folder();
    let go = folder.path().join("go");
    let drains = format!("until [ -e {} ]; do sleep 0.02; done; exit 0", go.display());
    let text = format!("trap '{drains}' TERM; echo \"$0 serves\" >&2; while :; do sleep 0.02; done");
    let [old, new] =
        ["old", "new"].map(|name| script(folder.path(), name, &text).to_str().unwrap().to_owned());
    let run = ["run", "--preload", "never", "--stop-timeout", "1000s", "--name", "server", "--", &old];
    let mut outlast = Outlast::start(folder.path(), &run);
    let mut serves = |name: &str, count: usize| {
        let line = format!("{name} serves");
        crate::common::eventually(&line, || {
            (outlast.said_so_far().matches(&line).count() == count).then_some(())
        });
    };
    let begin = |program: &str| {
        let arguments = ["upgrade", "--force", "--timeout", "2s", "--program", program];
        let mut command = crate::common::command(folder.path(), &arguments);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
        let upgrading = Outlast::from(command);
        let now = until(folder.path(), "replaced", |now| now["replacing"] == true);
        assert_eq!((&now["ready"], &now["upgrade"]["old_ends"]), (&Value::from(false), &Value::from(true)));
        let page = output(folder.path(), &["status"]);
        let page = String::from_utf8_lossy(&page.stdout).into_owned();
        assert!(page.contains("is ending; then it is started again; new clients wait"), "{page}");
        assert!(page.contains("as soon as the old one has ended"), "{page}");
        upgrading
    };
    // Withdrawn, when it is told to end already.
    serves(&old, 1);
    let mut upgrading = begin(&new);
    let second = output(folder.path(), &["upgrade"]);
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(
        said.contains("another upgrade is under way, to ") && said.contains("old one has ended"),
        "{said}"
    );
    upgrading.signal("INT");
    assert_eq!(upgrading.ended().code(), Some(130));
    let said = upgrading.said();
    assert!(said.contains("told to end already, and is started again when it has"), "{said}");
    std::fs::write(&go, "").unwrap();
    serves(&old, 2);
    // The new one is started, however late that is.
    std::fs::remove_file(&go).unwrap();
    let mut upgrading = begin(&new);
    upgrading.wait_for("server: the old one has not ended yet; the new one is started when it has");
    std::fs::write(&go, "").unwrap();
    serves(&new, 1);
    assert_eq!(upgrading.ended().code(), Some(0), "{}", upgrading.said());
    // None of the two.
    std::fs::remove_file(&go).unwrap();
    let mut upgrading = begin(&old);
    outlast.signal("TERM");
    outlast.wait_for("server is not upgraded: it was stopped meanwhile");
    assert_eq!(upgrading.ended().code(), Some(8));
    assert!(upgrading.said().contains("it is being stopped"), "{}", upgrading.said());
    std::fs::write(&go, "").unwrap();
    assert_eq!(outlast.ended().code(), Some(0));
    let said = outlast.said();
    assert!(said.contains("withdrawn; the old one was told to end already"), "{said}");
    assert!(!said.contains("keeps serving"), "{said}");
}

fn ask(client: &mut std::net::TcpStream) -> Option<String> {
    client.write_all(b"abc\n").ok()?;
    let (mut line, mut byte) = (String::new(), [0]);
    loop {
        match client.read(&mut byte) {
            Ok(1) if byte == *b"\n" => return Some(line),
            Ok(1) => line.push(char::from(byte[0])),
            Ok(_) => return None,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "no answer, and no end");
                return None;
            }
        }
    }
}

fn name_of(pid: u32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

fn children(pid: u32) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The library was loaded into it unasked, and has nothing to say: only time tells.
#[test]
fn a_preloaded_program_that_never_listens_is_replaced_once_and_soon() {
    let folder = folder();
    let starts = folder.path().join("starts");
    let program = script(folder.path(), "waits", &format!("echo >> {}; exec sleep 1000", starts.display()));
    let program = program.to_str().unwrap();
    let mut command = crate::common::command(folder.path(), &["run", "--preload", "auto", "--", program]);
    // It lives on without its supervisor, where this fails.
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .env("OUTLAST_LOG", "info");
    let mut outlast = Outlast::from(command);
    outlast.wait_for("is started");
    let started = || std::fs::read_to_string(&starts).map_or(0, |lines| lines.len());
    crate::common::eventually("it is not started", || (started() == 1).then_some(()));
    let main = pid(&status(folder.path()), "main_pid");
    let done = output(folder.path(), &["upgrade", "--force"]);
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert_eq!((done.status.code(), said.contains("was stopped and started")), (Some(0), true), "{said}");
    // Whoever has something to say has ten times as long.
    outlast.wait_for("is upgraded");
    assert!(!outlast.said_so_far().contains("waits is ready"), "{}", outlast.said_so_far());
    assert_ne!(pid(&status(folder.path()), "main_pid"), main);
    // The wish was the supervisor's to carry out, and nobody else's.
    outlast.wait_for("waits is ready");
    assert_eq!(started(), 2);
    outlast.signal("TERM");
    outlast.ended();
    let said = outlast.said();
    assert!(!said.contains("back to the old one"), "{said}");
}
