//! `outlast run` with programs that tell their whole process group something, which the supervisor is in.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, command, eventually, folder};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

/// Writes down each signal. At SIGUSR1 it tells its group by the signal of this number to end, and goes on.
const PROGRAM: &str = "
import os, signal, sys, time
def note(what):
    with open(sys.argv[2], 'a') as notes: notes.write(f'{os.getpid()} {what}\\n')
def heard(number, _):
    note(signal.Signals(number).name)
    if number == signal.SIGUSR1: os.killpg(0, int(sys.argv[1]))
    if number == signal.SIGHUP: signal.signal(signal.SIGTERM, signal.SIG_DFL); os.killpg(0, signal.SIGTERM)
signal.alarm(120)
for number in (1, 2, 3, 10, 15, 28): signal.signal(number, heard)
note('begun')
while True: time.sleep(0.02)
";

/// What its processes have noted: which of them, and what.
fn notes(file: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| line.split_once(' ').map(|(pid, what)| (pid.to_owned(), what.to_owned()));
    text.split_inclusive('\n').filter_map(|text| line(text.strip_suffix('\n')?)).collect()
}

/// As lighttpd does with workers at SIGUSR1, to begin again: it tells them, and itself, and goes on.
#[test]
fn what_a_program_tells_its_own_group_is_not_told_to_it_again() {
    for (number, name) in [("2", "SIGINT"), ("3", "SIGQUIT"), ("15", "SIGTERM")] {
        let folder = folder();
        let file = folder.path().join("notes");
        let run = ["run", "--preload", "never", "--name", "server", "--", "python3", "-c", PROGRAM, number];
        let arguments = [&run[..], &[file.to_str().unwrap()]].concat();
        let mut command = command(folder.path(), &arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut outlast = Outlast::from(command);
        let await_count = |what: &str, count: usize| {
            eventually(&format!("signal {number}: not {what} {count} times"), || {
                let found = notes(&file).into_iter().filter(|(_, noted)| noted == what).count();
                (found == count).then_some(())
            });
        };
        await_count("begun", 1);
        for round in 1..=3 {
            outlast.signal("USR1");
            await_count(name, round);
            // Signals of lower numbers are passed on before this one.
            outlast.signal("WINCH");
            await_count("SIGWINCH", round);
            assert_eq!(notes(&file).iter().filter(|(_, what)| what == name).count(), round, "{number}");
        }
        // A later crash is one.
        let program = notes(&file)[0].0.clone();
        assert!(std::process::Command::new("kill").args(["-KILL", &program]).status().unwrap().success());
        await_count("begun", 2);
        // It ends itself so, as well as all others.
        outlast.signal("HUP");
        let ended = outlast.ended();
        let said = outlast.said();
        assert_eq!(ended.code(), Some(143), "{said}");
        assert_eq!(notes(&file).iter().filter(|(_, what)| what == "begun").count(), 2, "{said}");
    }
}

/// Tells its group to end when it is to end itself, and is gone at once, as lighttpd does with workers. It waits a moment before
/// that.
const LAST_WORD: &str = "
import os, signal, sys, time
def note(what):
    with open(sys.argv[1], 'a') as notes: notes.write(f'{os.getpid()} {what}\\n')
def end(number, _):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note('told')
    time.sleep(0.5)
    os.killpg(0, signal.SIGTERM)
    os._exit(0)
signal.alarm(120)
signal.signal(signal.SIGTERM, end)
note('begun')
while True: time.sleep(0.02)
";

/// The supervisor hears of it when the program has ended already: an upgrade is no stop.
#[test]
fn what_a_program_has_told_its_group_before_it_ended_is_told_to_nobody() {
    let folder = folder();
    let file = folder.path().join("notes");
    let run = ["run", "--preload", "never", "--name", "server", "--", "python3", "-c", LAST_WORD];
    let arguments = [&run[..], &[file.to_str().unwrap()]].concat();
    let mut command = command(folder.path(), &arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut outlast = Outlast::from(command);
    let noted = |what: &str, count: usize| {
        eventually(&format!("not {what} {count} times"), || {
            let found: Vec<_> = notes(&file).into_iter().filter(|(_, noted)| noted == what).collect();
            (found.len() == count).then_some(found)
        })
    };
    let (program, _) = noted("begun", 1).remove(0);
    let mut upgrading = Outlast::start(folder.path(), &["upgrade", "--force"]);
    noted("told", 1);
    outlast.signal("STOP");
    eventually("it has not ended", || {
        let stat = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap();
        stat.rsplit_once(')')?.1.trim_start().starts_with('Z').then_some(())
    });
    outlast.signal("CONT");
    noted("begun", 2);
    assert_eq!(upgrading.ended().code(), Some(0), "{}", upgrading.said());
    outlast.signal("TERM");
    assert_eq!(outlast.ended().code(), Some(0), "{}", outlast.said());
}
