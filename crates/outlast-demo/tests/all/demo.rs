//! The demonstration itself, with little data: what it prints is what happened, and it leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message")]

use std::process::{Command, Stdio};
use std::time::Duration;

/// What fits on most terminals.
const COLUMNS_MAX: usize = 100;

fn demo(folder: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast-demo"));
    command.arg("--outlast").arg(crate::common::outlast()).arg("--folder").arg(folder).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Runs it to its end, which must be a good one, and returns what it said.
fn run(arguments: &[&str]) -> String {
    let (said, left) = run_in_a_folder(arguments);
    assert_eq!(left, ["files"], "only the data to move is kept for the next time");
    said
}

/// What it said, and the files that it left.
fn run_in_a_folder(arguments: &[&str]) -> (String, Vec<std::ffi::OsString>) {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    if let Some(line) = said.lines().find(|line| line.chars().count() > COLUMNS_MAX) {
        panic!("a line is too long for a terminal: {line}");
    }
    let left = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(processes_of(folder.path()), 0, "it left programs behind");
    (said, left)
}

/// How many programs have something to do with a folder.
fn processes_of(folder: &std::path::Path) -> usize {
    let pattern = folder.to_string_lossy().into_owned();
    let here = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        // Some have another name than the one they were started by.
        let works_in = std::fs::read_link(process.path().join("cwd")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&pattern) || works_in.starts_with(folder)
    });
    here.count()
}

/// The words of the row of a table that begins so.
fn row<'a>(said: &'a str, begins: &str) -> Vec<&'a str> {
    let is_it = |line: &&str| line.trim_start_matches(['│', ' ']).starts_with(begins);
    let line = said.lines().rfind(is_it).unwrap_or_else(|| panic!("no row {begins:?} in:\n{said}"));
    line.split_whitespace().filter(|word| *word != "│").collect()
}

#[test]
fn in_a_lab_everything_arrives_and_outages_are_counted() {
    outlast_lab::require!();
    let said = run(&["--scene", "links", "--size", "4M", "--breaks", "3", "--seed", "7"]);
    // One for plain TCP, three for each transfer.
    assert_eq!(said.matches("BREAK").count(), 10, "{said}");
    assert!(said.contains("curl without Outlast failed, with "), "{said}");
    assert!(row(&said, "curl, plain").ends_with(&["FAILED"]), "{said}");
    for flags in ["--to 127.0.0.1:80 --detect 1s --quiet", "--via server:7000 --detect 1s --log info"] {
        assert!(said.contains(flags), "{flags:?} is not shown in:\n{said}");
    }
    for transfer in ["curl down", "scp up", "ssh up"] {
        let words = row(&said, transfer);
        assert!(words.ends_with(&["0", "0", "equal"]), "{words:?}");
    }
    assert_eq!(row(&said, "curl down")[6], "kernel");
    assert_eq!(row(&said, "ssh up")[6], "inband", "relays are found out");
    // Three breaks that no connection survives, and two relays killed.
    let outages: u32 = row(&said, "all")[2].parse().unwrap();
    assert!(outages >= 5, "{said}");
}

#[test]
fn without_a_lab_it_runs_on_loopback_and_says_what_is_left_out() {
    // What a limited rate owes after a pause comes in one go: there has to be more than that for the next break.
    let said = run(&["--scene", "links", "--size", "12M", "--breaks", "2", "--loopback"]);
    assert!(said.contains("Left out, because they need one: reset, both sides told;"), "{said}");
    assert_eq!(said.matches("BREAK").count(), 7, "{said}");
    assert!(said.contains("curl without Outlast failed, with "), "{said}");
    assert!(said.contains("Nothing lost, nothing twice."), "{said}");
}

#[test]
fn crashes_under_load_are_seen_by_nobody_but_under_a_plain_restart() {
    crate::common::build_servers();
    let (said, left) = run_in_a_folder(&["--scene", "restart", "--quick"]);
    assert_eq!(left.len(), 0, "{left:?}");
    assert!(said.contains("Nobody noticed a crash under Outlast."), "{said}");
    let lines: Vec<Vec<&str>> =
        said.lines().map(|line| line.split_whitespace().filter(|word| *word != "│").collect()).collect();
    let table = |begins: &[&str]| -> Vec<u64> {
        let line = lines.iter().find(|words| words.starts_with(begins));
        let line = line.unwrap_or_else(|| panic!("no row {begins:?} in:\n{said}"));
        line[begins.len()..].iter().map_while(|word| word.replace(',', "").parse().ok()).collect()
    };
    assert!(said.contains("outlast run --preload never --intensity 20 --window 1ms"), "its flags: {said}");
    for server in ["httpd", "kv", "tally", "trouble"] {
        assert!(table(&[&format!("{server},"), "Outlast"])[0] > 0, "{said}");
    }
    for (server, client) in [
        ("httpd,", "browsers"),
        ("httpd,", "curl"),
        ("kv,", "keepers"),
        ("kv,", "refused"),
        ("tally,", "counters"),
        ("trouble,", "others"),
    ] {
        let numbers = table(&[server, "Outlast", client]);
        assert!(numbers[0] > 0, "{said}");
        assert_eq!(numbers[1..3], [0, 0], "failed, wrong bytes: {said}");
    }
    for (server, client) in [("httpd,", "browsers"), ("kv,", "keepers")] {
        let plain = table(&[server, "plain", "restart", client]);
        assert!(plain[1] > 0, "without Outlast crashes are noticed: {said}");
    }
}

#[test]
fn machines_that_die_are_noticed_by_nobody() {
    outlast_lab::require!();
    let (said, left) = run_in_a_folder(&["--scene", "machines", "--quick", "--detect", "500ms"]);
    assert_eq!(left.len(), 0, "{left:?}");
    assert!(said.contains("Nobody noticed that a machine died"), "{said}");
    for (begins, kills, lost, replicas) in [
        (&["redis", "counters"][..], "4", "0", "3"),
        // It does not look at what it is answered.
        (&["redis", "redis-benchmark"], "4", "-", "3"),
        (&["mariadb", "a", "transaction"], "2", "0", "2"),
    ] {
        let rows =
            said.lines().map(|line| line.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>());
        let row = rows.into_iter().find(|words| words.starts_with(begins));
        let row = row.unwrap_or_else(|| panic!("no row {begins:?} in:\n{said}"));
        assert_eq!(row[begins.len()], kills, "{said}");
        // Failed, lost, duplicated; how many replicas were compared.
        assert!(row.ends_with(&["0", lost, lost, replicas, "equal"]), "{said}");
    }
    for way in ["power off", "cut off", "SIGKILL", "SIGSTOP"] {
        assert!(said.contains(&format!("the primary: {way}")), "{said}");
    }
}

#[test]
fn when_interrupted_machines_are_taken_down() {
    outlast_lab::require!();
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(folder.path(), &["--scene", "machines"]).stdout(Stdio::piped()).spawn().unwrap();
    // The demo, three nodes and their servers.
    assert!(crate::common::wait_until(|| processes_of(folder.path()) > 6), "it does not begin");
    std::thread::sleep(Duration::from_millis(1500));
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it left files behind");
    assert_eq!(processes_of(folder.path()), 0, "it left programs behind");
}

#[test]
fn when_interrupted_servers_that_crash_end_too() {
    crate::common::build_servers();
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--scene", "restart"];
    let mut child = demo(folder.path(), &arguments).stdout(Stdio::piped()).spawn().unwrap();
    // A supervisor, its zygote, and those that serve and stand by.
    assert!(crate::common::wait_until(|| processes_of(folder.path()) > 3), "it does not begin");
    std::thread::sleep(Duration::from_millis(1500));
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it left files behind");
    assert_eq!(processes_of(folder.path()), 0, "it left programs behind");
}

#[test]
fn when_interrupted_it_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(folder.path(), &["--scene", "links", "--size", "64M", "--loopback"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The working folder is made when the programs are started.
    let working = || std::fs::read_dir(folder.path()).unwrap().count() > 1;
    assert!(crate::common::wait_until(working), "it does not begin");
    std::thread::sleep(Duration::from_millis(1500));
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!working(), "it left files behind");
    assert_eq!(processes_of(folder.path()), 0, "it left programs behind");
}
