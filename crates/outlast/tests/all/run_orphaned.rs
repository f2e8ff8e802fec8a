//! The supervisor dies, and what it keeps running goes on, or ends in order; and programs that go into the background.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::restarts::{ends, is_running};
use crate::common::{Outlast, PATIENCE, command, eventually, folder, nobody, output};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

// What is left is found by its name, whoever has started it: no two tests here use the same one.

/// A server that uses the library, from the examples of that.
fn lines() -> Option<String> {
    let this = std::env::current_exe().unwrap();
    let example = this.parent().unwrap().parent().unwrap().join("examples/lines");
    if example.exists() {
        return Some(example.to_str().unwrap().to_owned());
    }
    let why = "there is no server with the library: cargo build -p outlast-restart --examples";
    assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{why}");
    eprintln!("SKIPPED: {why}");
    None
}

/// Starts what says which processes serve on its standard output.
fn start(runtime: &Path, arguments: &[&str]) -> (Outlast, PathBuf) {
    let said = runtime.join("said");
    let mut command = command(runtime, arguments);
    command.stdout(std::fs::File::create(&said).unwrap()).stderr(Stdio::piped()).env("OUTLAST_LOG", "info");
    (Outlast::from(command), said)
}

/// The process of a generation, from `generation 3 1234`.
fn generation(said: &Path, number: u32) -> u32 {
    eventually(&format!("no generation {number}"), || {
        let said = std::fs::read_to_string(said).unwrap();
        said.lines().find_map(|line| line.strip_prefix(&format!("generation {number} "))?.parse().ok())
    })
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = eventually("nobody listens", || TcpStream::connect(address).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn ask(&mut self, words: &str) {
        self.0.get_mut().write_all(format!("{words}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        let backwards: String = words.chars().rev().collect();
        assert_eq!(answer, format!("{}\n", backwards.repeat(words.len() % 20 + 1)));
    }

    fn ends(&mut self) {
        assert_eq!(self.0.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
    }
}

#[test]
fn a_server_with_the_library_survives_its_supervisor_and_crashes_after_that() {
    let Some(lines) = lines() else { return };
    let (folder, address) = (folder(), nobody());
    let text = address.to_string();
    let run = ["run", "--name", "survivor", "--", &lines, &text];
    let (mut outlast, said) = start(folder.path(), &run);
    let mut clients: Vec<Client> = (0..5).map(|_| Client::connect(address)).collect();
    clients.iter_mut().for_each(|client| client.ask("kept running"));
    let supervisor = outlast.pid();
    outlast.signal("KILL");
    outlast.ended();
    let line = outlast.wait_for("the server goes on without it");
    assert!(line.contains(&format!("the supervisor (process {supervisor}) is gone")), "{line}");
    let zygote: u32 = line.rsplit("kill ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
    for number in 1..=3 {
        clients.iter_mut().for_each(|client| client.ask(&format!("{number} without a supervisor")));
        clients.push(Client::connect(address));
        signal(generation(&said, number), "KILL");
    }
    clients.iter_mut().for_each(|client| client.ask("after three crashes"));
    // The same once more: it says what is there, and waits for that.
    let (again_folder, arguments) =
        (folder.path().join("again"), ["run", "--name", "survivor", "--", &lines, &text]);
    std::fs::create_dir(&again_folder).unwrap();
    let begin = || {
        let mut command = command(folder.path(), &arguments);
        let said = again_folder.join("said");
        command
            .stdout(std::fs::File::create(&said).unwrap())
            .stderr(Stdio::piped())
            .env("OUTLAST_LOG", "info");
        (Outlast::from(command), said)
    };
    let (mut again, again_said) = begin();
    again.wait_for(&format!(
        "process {zygote} of an earlier survivor still runs, without its supervisor (process {supervisor}), which is gone: \
         kill {zygote} ends it"
    ));
    again.wait_for("survivor is started when that has ended");
    clients.iter_mut().for_each(|client| client.ask("still there"));
    // Also while it crashes.
    signal(generation(&said, 4), "KILL");
    clients.iter_mut().for_each(|client| client.ask("still there"));
    signal(zygote, "TERM");
    clients.iter_mut().for_each(Client::ends);
    ends(zygote);
    ends(generation(&said, 5));
    generation(&again_said, 1);
    let mut client = Client::connect(address);
    client.ask("the next one");
    // The same again, and the one that waits is told to end.
    let supervisor = again.pid();
    again.signal("KILL");
    again.ended();
    again.wait_for("the server goes on without it");
    let (mut third, _) = begin();
    third.wait_for(&format!("without its supervisor (process {supervisor})"));
    third.wait_for("survivor is started when that has ended");
    client.ask("and the one after it");
    third.signal("TERM");
    assert_eq!(third.ended().code(), Some(143));
    client.ends();
    // Nothing is left to be told of.
    let after = output(folder.path(), &["run", "--name", "survivor", "--", "true"]);
    assert_eq!(String::from_utf8_lossy(&after.stderr), "");
}

#[test]
fn a_program_that_was_not_changed_is_told_to_end_when_its_supervisor_is_killed() {
    let folder = folder();
    for (name, flags) in [("TERM", &[][..]), ("USR1", &["--stop-signal", "USR1"])] {
        let script =
            format!("trap 'echo told >&2; exit' {name}; echo begun $$ >&2; while :; do sleep 0.02; done");
        let arguments = [&["run", "--name", "plain"], flags, &["--", "sh", "-c", &script]].concat();
        let mut outlast = Outlast::start(folder.path(), &arguments);
        let begun = outlast.wait_for("begun");
        outlast.signal("KILL");
        outlast.wait_for("told");
        ends(begun.trim_start_matches("begun ").parse().unwrap());
    }
}

/// A program of this name that does not end by SIGTERM. Its supervisor was killed.
fn left_by_killed_supervisor(folder: &Path, name: &str) -> u32 {
    let script = "trap '' TERM; echo begun $$ >&2; while :; do sleep 0.02; done";
    let mut outlast = Outlast::start(folder, &["run", "--name", name, "--", "sh", "-c", script]);
    let begun = outlast.wait_for("begun");
    outlast.signal("KILL");
    outlast.ended();
    begun.trim_start_matches("begun ").parse().unwrap()
}

#[test]
fn one_that_does_not_listen_to_that_is_told_of_or_ended_by_the_next_one() {
    let folder = folder();
    let deaf = left_by_killed_supervisor(folder.path(), "deaf");
    // Programs that are called by their files may be different ones of one name.
    let told_of = |name: &str| {
        let program = folder.path().join(name);
        let _ = std::os::unix::fs::symlink("/bin/true", &program);
        let next = output(folder.path(), &["run", "--", program.to_str().unwrap()]);
        String::from_utf8_lossy(&next.stderr)
            .contains(&format!("process {deaf} of an earlier {name} still runs"))
    };
    assert!(is_running(deaf) && told_of("deaf") && !told_of("other"));
    let ended_by = |name: &str| {
        let next = output(folder.path(), &["run", "--name", name, "--stop-timeout", "100ms", "--", "true"]);
        let said = String::from_utf8(next.stderr).unwrap();
        assert_eq!(next.status.code(), Some(0), "{said}");
        // None of it listens: nobody can be refused.
        assert!(!said.contains("refused"), "{said}");
        // What it runs just then may be among them.
        said.contains(&format!("{name} of before still runs without its supervisor (process {deaf}"))
    };
    assert!(!ended_by("other") && is_running(deaf));
    assert!(ended_by("deaf"));
    ends(deaf);
    assert!(!told_of("deaf"));
}

#[test]
fn one_that_still_serves_is_not_ended_for_a_start_that_cannot_be() {
    let folder = folder();
    let serving = left_by_killed_supervisor(folder.path(), "serving");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    for wrong in [
        &["--log-to", "/no/such/folder/log", "--", "true"][..],
        &["--metrics", &metrics, "--", "true"],
        &["--limit", "nofile=999999999999", "--", "true"],
        &["--", "no-such-program"],
    ] {
        let begin = ["run", "--name", "serving", "--stop-timeout", "100ms"];
        let next = output(folder.path(), &[&begin[..], wrong].concat());
        assert_ne!(next.status.code(), Some(0), "{wrong:?}");
        assert!(is_running(serving), "{wrong:?}: {}", String::from_utf8_lossy(&next.stderr));
    }
    signal(serving, "KILL");
}

/// It has a board of its own, as a server with the library has the board of its supervisor.
#[test]
fn another_supervisor_among_what_is_left_is_ended_with_the_rest() {
    let folder = folder();
    let script = "\"$@\" & exec sleep 600";
    let inner = [env!("CARGO_BIN_EXE_outlast"), "run", "--name", "below", "--", "sh", "-c"];
    let program = ["echo begun $PPID $$ >&2; exec sleep 600"];
    let run = ["run", "--name", "above", "--stop-timeout", "100ms", "--"];
    let mut above =
        Outlast::start(folder.path(), &[&run[..], &["sh", "-c", script, "sh"], &inner, &program].concat());
    let begun = above.wait_for("begun");
    let left: Vec<u32> = begun.split(' ').skip(1).map(|pid| pid.parse().unwrap()).collect();
    above.signal("KILL");
    above.ended();
    assert!(left.iter().all(|pid| is_running(*pid)), "{left:?}");
    let next = output(folder.path(), &[&run[..], &["true"]].concat());
    let said = String::from_utf8(next.stderr).unwrap();
    assert!(said.contains("above of before still runs without its supervisor"), "{said}");
    left.into_iter().for_each(ends);
}

/// Started, as many daemons are, by a parent that ends.
#[test]
fn a_program_that_goes_into_the_background_is_not_lost_without_a_word() {
    let folder = folder();
    // It is called as its parent is until it has become another program.
    let script = "sleep 600 2>/dev/null & until grep -q sleep /proc/$!/comm; do :; done; echo background $!";
    let (mut outlast, said) =
        start(folder.path(), &["run", "--name", "untidy", "--", "sh", "-c", &format!("{script}; exit 0")]);
    let line = outlast.wait_for("in the background, which is not kept running");
    assert_eq!(outlast.ended().code(), Some(0));
    let told = std::fs::read_to_string(said).unwrap();
    let left: u32 = told.trim().strip_prefix("background ").unwrap().parse().unwrap();
    assert!(line.contains(&format!("untidy has ended and left process {left} (sleep)")), "{line}");
    signal(left, "KILL");
    ends(left);
    // Nothing is said where nothing is left.
    let tidy =
        output(folder.path(), &["run", "--name", "tidy", "--", "sh", "-c", "sleep 0.01 & wait; exit 0"]);
    assert_eq!(String::from_utf8_lossy(&tidy.stderr), "");
}

#[test]
fn a_server_with_the_library_that_goes_into_the_background_is_kept_running() {
    let Some(lines) = lines() else { return };
    let (folder, address) = (folder(), nobody());
    // The parent ends when it sees that its child serves.
    let script = format!("'{lines}' {address} & read -r go; exit 0");
    let mut command = command(folder.path(), &["run", "--name", "lines", "--", "sh", "-c", &script]);
    let said = folder.path().join("said");
    command.stdout(std::fs::File::create(&said).unwrap()).stderr(Stdio::piped());
    command.env("OUTLAST_LOG", "info").stdin(Stdio::piped());
    let mut outlast = Outlast::from(command);
    let mut client = Client::connect(address);
    client.ask("in front");
    outlast.child().stdin.take().unwrap().write_all(b"go\n").unwrap();
    outlast.wait_for("has exited with code 0: its successor goes on");
    signal(generation(&said, 1), "KILL");
    client.ask("in the background");
    let last = generation(&said, 2);
    outlast.signal("TERM");
    outlast.ended();
    client.ends();
    ends(last);
}
