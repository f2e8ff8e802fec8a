//! The holder as a program, and a server in Python that is killed all the time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, PATIENCE, ended, folder, output};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

struct Held {
    folder: tempfile::TempDir,
    path: PathBuf,
    holder: Outlast,
}

impl Held {
    fn start(arguments: &[&str]) -> Self {
        let folder = folder();
        let path = folder.path().join("holder");
        let holder = hold(folder.path(), &path, arguments);
        Self { folder, path, holder }
    }

    /// What the system would do: the next one at the same path.
    fn kill_and_start_again(&mut self) {
        self.holder.signal("KILL");
        self.holder.ended();
        self.holder = hold(self.folder.path(), &self.path, &[]);
    }
}

fn hold(folder: &Path, path: &Path, arguments: &[&str]) -> Outlast {
    let mut all = vec!["hold", path.to_str().unwrap()];
    all.extend(arguments);
    let mut holder = Outlast::start(folder, &all);
    holder.wait_for("holding descriptors at");
    holder
}

/// The example in Python. Killed when dropped.
struct Echo {
    child: Child,
    recovered: usize,
    port: u16,
}

impl Echo {
    fn start(holder: &Path) -> Self {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python/echo_held.py");
        let mut command = Command::new("python3");
        command.arg(example).env("OUTLAST_HOLDER", holder).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [_, recovered, port] = numbers[..] else { panic!("it says {line:?}") };
        Self { child, recovered: recovered.try_into().unwrap(), port: port.try_into().unwrap() }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(connection)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn ask(user: &mut BufReader<TcpStream>, line: &str) -> String {
    writeln!(user.get_mut(), "{line}").unwrap();
    let mut answer = String::new();
    user.read_line(&mut answer).unwrap();
    answer.trim_end().to_owned()
}

/// At any instant, and with many lines under way: none is lost, none is answered twice.
#[test]
fn a_server_in_python_that_is_killed_answers_every_line_exactly_once() {
    const LINES: usize = 4000;
    let held = Held::start(&[]);
    let mut echo = Echo::start(&held.path);
    let users: Vec<_> = (0..3).map(|_| echo.connect()).collect();
    let users: Vec<_> = users
        .into_iter()
        .map(|mut user| {
            // Accepted and held by now: one that was only accepted would die with its process.
            assert_eq!(ask(&mut user, "first"), "1 first");
            std::thread::spawn(move || {
                let mut writer = user.get_ref().try_clone().unwrap();
                let writing = std::thread::spawn(move || {
                    for n in 2..=LINES {
                        writeln!(writer, "line {n}").unwrap();
                        if n % 50 == 0 {
                            std::thread::sleep(std::time::Duration::from_millis(20));
                        }
                    }
                    writer.shutdown(std::net::Shutdown::Write).unwrap();
                });
                for n in 2..=LINES {
                    let mut answer = String::new();
                    user.read_line(&mut answer).unwrap();
                    assert_eq!(answer, format!("{n} line {n}\n"));
                }
                writing.join().unwrap();
                // The end arrives, though the holder had a duplicate.
                assert_eq!(user.read(&mut [0]).unwrap(), 0);
            })
        })
        .collect();
    let mut kills = 0;
    while users.iter().any(|user| !user.is_finished()) {
        // Different instants of whatever it does.
        std::thread::sleep(std::time::Duration::from_millis(30 + kills * 7 % 50));
        drop(echo);
        echo = Echo::start(&held.path);
        kills += 1;
    }
    assert!(kills >= 3, "{kills} kills only");
    users.into_iter().for_each(|user| user.join().unwrap());
}

#[test]
fn a_connection_survives_either_death_but_not_both() {
    let mut held = Held::start(&[]);
    let mut echo = Echo::start(&held.path);
    let (mut user, mut other) = (echo.connect(), echo.connect());
    assert_eq!((ask(&mut user, "a"), ask(&mut other, "a")), ("1 a".into(), "1 a".into()));
    held.kill_and_start_again();
    // The server gives everything to the new one as soon as it has something to say.
    assert_eq!(ask(&mut user, "b"), "2 b");
    held.holder.wait_for("echo has come");
    drop(echo);
    echo = Echo::start(&held.path);
    assert_eq!(echo.recovered, 2);
    assert_eq!((ask(&mut user, "c"), ask(&mut other, "b")), ("3 c".into(), "2 b".into()));
    drop(echo);
    held.holder.wait_for("echo has gone");
    held.holder.signal("TERM");
    assert_eq!(held.holder.ended().code(), Some(0));
    assert!(!held.path.exists());
    assert_eq!((user.read(&mut [0]).unwrap(), other.read(&mut [0]).unwrap()), (0, 0));
}

#[test]
fn a_second_server_takes_over_and_the_first_one_ends() {
    let held = Held::start(&[]);
    let mut first = Echo::start(&held.path);
    let mut user = first.connect();
    assert_eq!(ask(&mut user, "a"), "1 a");
    let second = Echo::start(&held.path);
    assert_eq!((second.recovered, second.port), (1, first.port));
    // Whichever of the two finds the line first: it is answered once, by one that still has a say.
    assert_eq!(ask(&mut user, "b"), "2 b");
    // Whoever is woken up by it, and ends of that or answers.
    let mut waker = first.connect();
    let _ = writeln!(waker.get_mut(), "wakes it up");
    let _ = waker.read_line(&mut String::new());
    drop(second);
    first.child.kill().ok();
    ended(&mut first.child);
}

#[test]
fn what_nobody_comes_back_for_is_closed_after_keep() {
    let mut held = Held::start(&["--keep", "300ms"]);
    let echo = Echo::start(&held.path);
    let mut user = echo.connect();
    assert_eq!(ask(&mut user, "a"), "1 a");
    drop(echo);
    assert_eq!(user.read(&mut [0]).unwrap(), 0);
    held.holder.wait_for("echo has not come back: what it had left is closed");
}

#[test]
fn what_cannot_be_is_said_with_the_documented_code() {
    let held = Held::start(&[]);
    let at = |path: &Path| path.to_str().unwrap().to_owned();
    let file = held.folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let long = at(&held.folder.path().join("x".repeat(100)));
    for (arguments, code, text) in [
        (vec![at(&held.path)], 7, "something is there already, perhaps a holder that runs"),
        (vec![at(&file)], 7, "something is there already"),
        (vec![long], 2, "at most 107 bytes"),
        (vec!["/no/such/folder/holder".into()], 2, "there is no such folder"),
        (vec![], 2, "<PATH>"),
        (vec!["/tmp/x".into(), "--keep".into(), "soon".into()], 2, "give a number with a unit"),
        (vec!["/tmp/x".into(), "--descriptors".into(), "99999999999".into()], 2, "ulimit -n"),
        (vec!["/tmp/x".into(), "--allow-uid".into(), "me".into()], 2, "--allow-uid"),
    ] {
        let mut all = vec!["hold".to_owned()];
        all.extend(arguments);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let ran = output(held.folder.path(), &all);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!((ran.status.code(), said.lines().count()), (Some(code), 1), "{all:?}: {said}");
        assert!(said.contains(text), "{all:?}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    // None of these has hurt the one that runs.
    assert_eq!(Echo::start(&held.path).recovered, 0);
}

/// The kernel says who it is, not the client.
#[test]
fn another_user_is_refused_unless_it_is_allowed() {
    const NOBODY: &str = "65534";
    if !Command::new("setpriv")
        .args(["--reuid", NOBODY, "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("SKIPPED: this user cannot become another one");
        return;
    }
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python");
    let library = std::fs::read_to_string(client.join("outlast_hold.py")).unwrap();
    let ask = |held: &Held| {
        // Whoever may not read the repository or the folder is given both.
        use std::os::unix::fs::PermissionsExt;
        for path in [held.folder.path(), held.path.as_path()] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let script = format!("{library}\nprint(Keeper('x').recover())");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--clear-groups", "/usr/bin/env", "python3", "-c", &script]);
        let ran = command.env("OUTLAST_HOLDER", &held.path).output().unwrap();
        String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned()
    };
    let said = ask(&Held::start(&[]));
    assert!(said.contains("user 65534 may not"), "{said}");
    let said = ask(&Held::start(&["--allow-uid", NOBODY]));
    assert!(said.starts_with("{}"), "{said}");
}
