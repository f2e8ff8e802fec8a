//! SIGHUP and a program below `outlast run`: as it is without a supervisor, with `nohup` and without.

use crate::common::restarts::is_running;
use crate::common::{Outlast, command, folder};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Says what becomes of SIGHUP, and each time that it comes. Ends by itself.
const SERVER: &str = "
import os, signal, sys, time
before = signal.getsignal(signal.SIGHUP)
signal.alarm(120)
if 'reloads' in sys.argv:
    signal.signal(signal.SIGHUP, lambda *_: print('reloaded', file=sys.stderr, flush=True))
ignored = before == signal.SIG_IGN
print('begun', os.getpid(), 'ignores' if ignored else 'ends', file=sys.stderr, flush=True)
while True:
    # Not pause(): a signal that comes just before that has its handler run only after the next one.
    time.sleep(0.05)
";

/// Whether `signal` is ignored when the program begins.
pub fn set_signal(command: &mut Command, signal: i32, ignored: bool) {
    let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: a system call with two numbers, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::signal(signal, action);
            Ok(())
        });
    }
}

/// The supervisor, with SIGHUP ignored as `nohup` has it, or not; its program's process; and what that is told.
fn start(runtime: &Path, ignored: bool, arguments: &[&str]) -> (Outlast, u32, String) {
    let run = ["run", "--name", "server", "--", "python3", "-c", SERVER];
    let mut command = command(runtime, &[&run, arguments].concat());
    command.env("OUTLAST_LOG", "info").stderr(Stdio::piped());
    set_signal(&mut command, libc::SIGHUP, ignored);
    let mut outlast = Outlast::from(command);
    let line = outlast.wait_for("begun");
    let mut words = line.split(' ').skip(1);
    (outlast, words.next().unwrap().parse().unwrap(), words.next().unwrap().to_owned())
}

fn hang_up(pid: u32) {
    let sent = std::process::Command::new("kill").args(["-HUP", &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn with_nohup_neither_the_program_nor_its_supervisor_ends() {
    let folder = folder();
    let (mut outlast, program, told) = start(folder.path(), true, &[]);
    assert_eq!(told, "ignores");
    hang_up(outlast.pid());
    hang_up(program);
    // What comes after shows that it has come: signals of a lower number come first.
    outlast.signal("TERM");
    outlast.ended();
    let said = outlast.said();
    assert!(!said.contains("signal 1") && !said.contains("started again"), "{said}");
    assert!(said.contains("15") || said.contains("TERM"), "{said}");
}

#[test]
fn a_program_that_reloads_by_it_does_so_with_nohup_and_without() {
    for ignored in [true, false] {
        let folder = folder();
        let (mut outlast, program, _) = start(folder.path(), ignored, &["reloads"]);
        for pid in [outlast.pid(), program] {
            hang_up(pid);
            outlast.wait_for("reloaded");
        }
        assert!(is_running(outlast.pid()) && is_running(program));
        outlast.signal("TERM");
        outlast.ended();
        let said = outlast.said();
        assert!(!said.contains("started again"), "{said}");
    }
}

#[test]
fn without_nohup_it_ends_the_program_and_not_its_supervisor() {
    let folder = folder();
    let (mut outlast, program, told) = start(folder.path(), false, &[]);
    assert_eq!(told, "ends");
    hang_up(program);
    let line = outlast.wait_for("begun");
    assert_ne!(line.split(' ').nth(1), Some(&*program.to_string()), "{line}");
    outlast.signal("TERM");
    outlast.ended();
}
