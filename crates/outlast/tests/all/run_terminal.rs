//! `outlast run` in a terminal that is closed: what it runs ends, or goes on, as it does without a supervisor.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::is_running;
use crate::common::{eventually, folder};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A terminal with a program in it, for as long as this process lives.
const TERMINAL: &str = "
import os, pty, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(master, b'\\x03'))
pid, master = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execvp('sh', ['sh', '-c', sys.argv[1]])
try:
    while os.read(master, 4096): pass
except OSError:
    pass
";

/// Writes down its parent and itself, and that it was told that its terminal is gone.
const SERVER: &str = "
import os, signal, sys, time
def note(*words):
    with open(os.environ['NOTES'], 'a') as notes: print(*words, file=notes)
def hang_up(*_):
    note('told')
    if 'leaves' in sys.argv: sys.exit(3)
signal.alarm(120)
if 'departs' in sys.argv: os.setsid()
if len(sys.argv) > 1: signal.signal(signal.SIGHUP, hang_up)
note('begun', os.getppid(), os.getpid())
# Not pause(): a signal that comes just before that has its handler run only after the next one.
while True: time.sleep(0.05)
";

struct Scene {
    _folder: tempfile::TempDir,
    notes: PathBuf,
    terminal: Child,
    supervisor: u32,
    program: u32,
}

impl Scene {
    /// `outlast run`, as a shell in a terminal has started it.
    fn start(shell: &str, reaction: &str) -> Self {
        let folder = folder();
        let notes = folder.path().join("notes");
        let run = format!(
            "'{}' run --preload never --name server -- python3 -c \"$SERVER\" {reaction}",
            env!("CARGO_BIN_EXE_outlast")
        );
        let terminal = Command::new("python3")
            .args(["-c", TERMINAL, &shell.replace("RUN", &run)])
            .envs([("SERVER", SERVER), ("NOTES", notes.to_str().unwrap())])
            .env("XDG_RUNTIME_DIR", folder.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let begun = eventually("no server", || {
            let line = lines(&notes).into_iter().next()?;
            let pids: Vec<u32> = line.split(' ').skip(1).map(|pid| pid.parse().unwrap()).collect();
            (pids.len() == 2).then_some(pids)
        });
        Self { _folder: folder, notes, terminal, supervisor: begun[0], program: begun[1] }
    }

    fn close_terminal(&mut self) {
        self.terminal.kill().unwrap();
        self.terminal.wait().unwrap();
    }

    fn said(&self) -> Vec<String> {
        lines(&self.notes)
    }
}

/// Those that are complete.
fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
}

/// As a login's first program, and below a shell.
const SHELLS: [&str; 2] = ["exec RUN", "RUN; true"];

#[test]
fn what_ends_with_its_terminal_is_not_started_again() {
    for shell in SHELLS {
        for (reaction, told) in [("", 0), ("leaves", 1)] {
            let mut scene = Scene::start(shell, reaction);
            scene.close_terminal();
            for pid in [scene.program, scene.supervisor] {
                eventually(&format!("{shell:?} {reaction:?}: it goes on"), || {
                    (!is_running(pid)).then_some(())
                });
            }
            let said = scene.said();
            assert_eq!(said.iter().filter(|line| line.starts_with("begun")).count(), 1, "{said:?}");
            assert!(said.len() > told, "{said:?}");
        }
    }
}

#[test]
fn what_goes_on_without_its_terminal_is_kept_running() {
    for shell in SHELLS {
        let mut scene = Scene::start(shell, "reloads");
        scene.close_terminal();
        eventually("not told", || scene.said().contains(&"told".to_owned()).then_some(()));
        let kill = |signal: &str, pid: u32| {
            assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
        };
        kill("-SEGV", scene.program);
        let begun = |scene: &Scene| scene.said().iter().filter(|line| line.starts_with("begun")).count();
        eventually("not started again", || (begun(&scene) == 2).then_some(()));
        kill("-TERM", scene.supervisor);
        eventually("it does not end", || (!is_running(scene.supervisor)).then_some(()));
    }
}

/// Below a shell it would be a group's first process, which cannot leave its session: it would hear what the terminal says.
#[test]
fn what_has_left_its_terminal_is_interrupted_there_as_well() {
    for shell in SHELLS {
        for reaction in ["stays", "departs"] {
            let mut scene = Scene::start(shell, reaction);
            let terminal = scene.terminal.id().to_string();
            assert!(Command::new("kill").args(["-USR1", &terminal]).status().unwrap().success());
            for pid in [scene.program, scene.supervisor] {
                eventually(&format!("{shell:?} {reaction:?}: it goes on"), || {
                    (!is_running(pid)).then_some(())
                });
            }
            scene.close_terminal();
            let said = scene.said();
            assert_eq!(said.len(), 1, "{said:?}");
        }
    }
}
