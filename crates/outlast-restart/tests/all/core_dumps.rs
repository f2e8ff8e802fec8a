//! Crashes with and without core dumps: clients notice neither, and a dump is whole although nobody waits for it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::family::serving_and_standing_by;
use crate::common::{PATIENCE, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often a request is dealt with that crashes everybody, before it is refused.
const TRIES: usize = 3;
const ELF: &[u8] = b"\x7fELF";
/// The type of a dump, in a file's header (elf(5)).
const ET_CORE: u8 = 4;
const PT_LOAD: u32 = 1;

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn say(&mut self, words: &str) {
        self.0.get_mut().write_all(format!("{words}\n").as_bytes()).unwrap();
    }

    fn ask(&mut self, words: &str) {
        self.say(words);
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        assert_eq!(answer, format!("{words}\n"));
    }
}

/// Whether dumps are files in the folder of who dies, each with a name of its own.
fn dumps_are_files_here() -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap();
    let pattern = read("core_pattern");
    let why = if pattern.starts_with('|') {
        "dumps go to a program here, which may keep them or not"
    } else if pattern.contains('/') || pattern.trim().is_empty() {
        "dumps do not go to the folder of who dies here"
    } else if !Command::new("sh").args(["-c", "ulimit -c unlimited"]).status().unwrap().success() {
        "dumps are not allowed here"
    } else {
        return true;
    };
    eprintln!("SKIPPED: {why} (kernel.core_pattern = {})", pattern.trim());
    false
}

/// Whether each dump has a name of its own: otherwise the last one stays.
fn names_differ() -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap();
    read("core_pattern").contains("%p") || read("core_uses_pid").trim() == "1"
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// A dump with everything that its header promises (elf(5), for 64 bits).
fn is_whole(file: &Path) -> bool {
    let length = std::fs::metadata(file).unwrap().len();
    let mut bytes = Vec::new();
    std::fs::File::open(file).unwrap().take(1 << 20).read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(ELF) && bytes[16] == ET_CORE, "{} is no dump", file.display());
    let (begin, count) = (usize::try_from(number(&bytes, 32, 8)).unwrap(), number(&bytes, 56, 2));
    let segments = (0..usize::try_from(count).unwrap()).map(|place| begin + place * 56);
    let loaded: Vec<usize> = segments.filter(|&at| number(&bytes, at, 4) == u64::from(PT_LOAD)).collect();
    assert!(!loaded.is_empty(), "{} has no memory", file.display());
    loaded.into_iter().all(|at| number(&bytes, at + 8, 8) + number(&bytes, at + 32, 8) <= length)
}

/// One request crashes three generations, while others are answered. What is in the folder after that.
fn crash(folder: &Path, limit: &str, how: &str) -> Vec<PathBuf> {
    let server = Server::start_dumping(folder, limit, "trouble", &["127.0.0.1:0"]);
    let mut bystanders: Vec<Client> = (0..20).map(|_| Client::connect(&server)).collect();
    bystanders.iter_mut().for_each(|client| client.ask("before"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mut busy, stop) = (Client::connect(&server), &stop);
        let asking = scope.spawn(move || {
            for count in 0.. {
                busy.ask(&format!("question {count}"));
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut poison = Client::connect(&server);
        poison.say(how);
        let mut told = String::new();
        poison.0.read_to_string(&mut told).unwrap();
        assert_eq!(told, "refused\n", "{how}");
        stop.store(true, Ordering::Relaxed);
        asking.join().unwrap();
    });
    bystanders.iter_mut().for_each(|client| client.ask("after"));
    // Nobody stands by before the last one is buried, and nobody is buried before his dump is written.
    serving_and_standing_by(&server);
    files(folder)
}

#[test]
fn crashes_are_survived_and_their_dumps_are_whole() {
    if !dumps_are_files_here() {
        return;
    }
    for how in ["!segv", "!abort"] {
        let folder = tempfile::tempdir().unwrap();
        let dumps = crash(folder.path(), "unlimited", how);
        let expected = if names_differ() { TRIES } else { 1 };
        assert_eq!(dumps.len(), expected, "{how}: {dumps:?}");
        for dump in dumps {
            assert!(is_whole(&dump), "{how}: {} is cut off", dump.display());
        }
    }
}

#[test]
fn and_without_dumps_none_is_left() {
    for how in ["!segv", "!abort"] {
        let folder = tempfile::tempdir().unwrap();
        let left = crash(folder.path(), "0", how);
        assert!(left.is_empty(), "{how}: {left:?}");
    }
}

/// Whether the dump of a process is being written now.
fn is_dumping(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line == "CoreDumping:\t1")
}

/// The first generation crashes in the middle of a change, so that it has the lock of the state. Whether the second one
/// has answered while the first was still being dumped.
fn answers_during_a_dump() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_dumping(folder.path(), "unlimited", "tally", &["127.0.0.1:0"]);
    let mut client = Client::connect(&server);
    let mut hear = |words: &str| {
        client.say(words);
        let mut answer = String::new();
        client.0.read_line(&mut answer).unwrap();
        answer
    };
    assert_eq!(hear("add x"), "1\n");
    let first = server.serving();
    assert_eq!(hear("crash"), "say: add NAME\n");
    let during = is_dumping(first);
    assert_eq!(hear("add x"), "2\n");
    during
}

#[test]
fn nobody_waits_for_the_dump_of_who_has_the_lock() {
    if dumps_are_files_here() {
        // A busy machine may be done with a dump before anybody is served.
        assert!((0..5).any(|_| answers_during_a_dump()), "each answer came after the dump");
    }
}
