//! A server that is killed in many ways goes on with the same connections, in the next generation.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{PATIENCE, signal};
use std::io::{BufRead, BufReader, PipeWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The example, in its own process.
struct Server {
    child: Child,
    address: SocketAddr,
}

fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.parent().unwrap().parent().unwrap().join("examples").join(name)
}

impl Server {
    fn start() -> Self {
        Self::start_with(&["127.0.0.1:0", "patient"])
    }

    fn start_with(arguments: &[&str]) -> Self {
        let mut command = Command::new(example("echo"));
        command.args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap().parse().unwrap();
        Self { child, address }
    }

    fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The zygote passes this on; whoever has lost it goes with its last connection.
        signal(self.child.id(), "TERM");
        self.ended();
    }
}

struct Client {
    lines: BufReader<TcpStream>,
}

impl Client {
    fn of(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { lines: BufReader::new(stream) }
    }

    fn say(&mut self, words: &str) {
        self.lines.get_mut().write_all(format!("{words}\n").as_bytes()).unwrap();
    }

    /// The answer, or nothing when the connection has ended.
    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.lines.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
    }

    fn ask(&mut self, words: &str) -> String {
        self.say(words);
        self.hear().unwrap_or_else(|| panic!("the connection has ended"))
    }

    /// The generation that serves, and its process.
    fn generation(&mut self) -> (u32, u32) {
        let answer = self.ask("!generation");
        let (number, pid) = answer.split_once(' ').unwrap();
        (number.parse().unwrap(), pid.parse().unwrap())
    }
}

fn children(pid: u32) -> Vec<(u32, char)> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let child = |child: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        (fields.next()? == pid.to_string()).then_some((child, state))
    };
    pids.filter_map(child).collect()
}

fn dies(pid: u32) {
    // The first thread may be gone while another one still reads.
    let is_dead = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        tasks < 2 && stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    };
    eventually("it does not die", is_dead);
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn every_kind_of_crash_is_followed_by_a_generation_with_the_same_connections() {
    let server = Server::start();
    let mut clients: Vec<Client> = (0..20).map(|_| Client::of(&server)).collect();
    let mut killer = Client::of(&server);
    for (expected, crash) in (1..).zip(["!segv", "!abort", "!exit 3", "kill", "!segv", "kill", "!exit 101"]) {
        for client in &mut clients {
            let (generation, pid) = client.generation();
            assert_eq!((generation, pid != server.child.id()), (expected, true));
        }
        let (_, pid) = killer.generation();
        match crash {
            "kill" => signal(pid, "KILL"),
            words => killer.say(words),
        }
        // What a generation has read when it dies is lost with it: this example holds nothing.
        dies(pid);
        for (number, client) in clients.iter_mut().enumerate() {
            let words = format!("client {number}, crash {expected}");
            assert_eq!(client.ask(&words), words);
        }
        // So is whoever comes meanwhile.
        clients.push(Client::of(&server));
        std::thread::sleep(Duration::from_millis(25));
    }
}

#[test]
fn nothing_is_left_of_many_generations() {
    let mut server = Server::start();
    let mut client = Client::of(&server);
    let descriptors = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let (_, pid) = client.generation();
    let before = descriptors(pid);
    for expected in 1..=300 {
        let (generation, pid) = client.generation();
        assert_eq!(generation, expected);
        // The policy of the example allows 20 within 20 ms.
        std::thread::sleep(Duration::from_millis(2));
        signal(pid, "KILL");
        dies(pid);
    }
    let (_, pid) = client.generation();
    assert_eq!(descriptors(pid), before);
    let zygote = server.child.id();
    eventually("one serves, one stands by, and the dead are buried", || {
        let children = children(zygote);
        children.len() == 2 && children.iter().all(|(_, state)| *state != 'Z')
    });
    client.say("!exit 0");
    assert!(server.ended().success());
    assert_eq!(client.hear(), None);
}

#[test]
fn whoever_is_told_to_end_is_not_succeeded() {
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let mut server = Server::start();
        let mut client = Client::of(&server);
        client.generation();
        signal(server.child.id(), name);
        assert_eq!(server.ended().code(), Some(code));
        assert_eq!(client.hear(), None, "the connection ends with its server");
        eventually("nobody is left", || children(server.child.id()).is_empty());
    }
}

/// A program of its own, without the threads of the tests: `run` has one, and ends it. What it says, and how it ended when it
/// has, with `signal` sent as soon as it says something.
fn program(run: fn(PipeWriter) -> i32, signal: i32) -> (String, i32) {
    let (mut hears, says) = std::io::pipe().unwrap();
    // SAFETY: the child calls nothing that needs what another thread may have held.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(hears);
        std::process::exit(run(says));
    }
    drop(says);
    let (mut said, mut status) = (vec![0], 0);
    hears.read_exact(&mut said).unwrap();
    // SAFETY: numbers, and a local.
    unsafe {
        libc::kill(pid, signal);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    hears.read_to_end(&mut said).unwrap();
    (String::from_utf8(said).unwrap(), status)
}

/// A set of signals with this one.
fn only(signal: i32) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: emptied first, which makes it whole.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// Whether this thread holds a signal back, after it holds `more` back, too.
fn holds(signal: i32, more: &libc::sigset_t) -> bool {
    let mut set = only(signal);
    // SAFETY: whole sets.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, more, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        libc::sigismember(&raw const set, signal) == 1
    }
}

#[test]
fn whoever_is_told_to_end_may_do_so_with_any_code() {
    fn run(mut says: PipeWriter) -> i32 {
        let (term, mut arrived) = (only(libc::SIGTERM), 0);
        assert!(holds(libc::SIGTERM, &term));
        let Ok(generation) = outlast_restart::register() else { return 99 };
        says.write_all(generation.number().to_string().as_bytes()).unwrap();
        // SAFETY: a whole set, and a local.
        unsafe { libc::sigwait(&raw const term, &raw mut arrived) };
        // As many do who catch it.
        128 + arrived
    }
    let (said, status) = program(run, libc::SIGTERM);
    assert_eq!((said.as_str(), libc::WEXITSTATUS(status)), ("1", 143));
}

#[test]
fn a_process_that_cannot_register_goes_on_as_it_was_and_may_try_again() {
    fn run(mut says: PipeWriter) -> i32 {
        // What was handed over to it is of another version.
        // SAFETY: a name that ends; gives a descriptor.
        let list = unsafe { libc::memfd_create(c"list".as_ptr(), 0) };
        let number = std::ffi::CString::new(list.to_string()).unwrap();
        let head = [&b"outlasth"[..], &99u32.to_le_bytes()].concat();
        // SAFETY: as long as is said, and texts that end; this process has one thread.
        unsafe {
            assert_eq!(libc::write(list, head.as_ptr().cast(), head.len()), 12);
            libc::setenv(c"OUTLAST_HANDOVER".as_ptr(), number.as_ptr(), 1);
        }
        if outlast_restart::register().is_ok() {
            return 98;
        }
        let is_deaf = holds(libc::SIGTERM, &only(libc::SIGUSR1));
        // SAFETY: as above.
        unsafe { libc::unsetenv(c"OUTLAST_HANDOVER".as_ptr()) };
        let Ok(generation) = outlast_restart::register() else { return 99 };
        says.write_all(format!("{} {is_deaf}", generation.number()).as_bytes()).unwrap();
        0
    }
    // No signal.
    assert_eq!(program(run, 0), ("1 false".to_owned(), 0));
}

#[test]
fn when_it_has_ended_its_address_is_free() {
    for _ in 0..5 {
        let mut server = Server::start();
        let mut clients: Vec<Client> = (0..300).map(|_| Client::of(&server)).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("here"), "here"));
        signal(server.child.id(), "TERM");
        assert_eq!(server.child.wait().unwrap().code(), Some(143));
        TcpListener::bind(server.address).unwrap();
    }
}

#[test]
fn who_stands_by_may_die_too() {
    let server = Server::start();
    let mut client = Client::of(&server);
    let zygote = server.child.id();
    for expected in 1..20 {
        let (generation, serving) = client.generation();
        assert_eq!(generation, expected);
        let stands_by = |but: u32| {
            children(zygote).into_iter().find(|(pid, state)| *pid != serving && *pid != but && *state != 'Z')
        };
        eventually("somebody stands by", || stands_by(0).is_some());
        let (first, _) = stands_by(0).unwrap();
        signal(first, "KILL");
        eventually("somebody else does", || stands_by(first).is_some());
        signal(serving, "KILL");
        dies(serving);
    }
}

#[test]
fn without_the_zygote_one_more_crash_is_survived() {
    let mut server = Server::start();
    let mut client = Client::of(&server);
    let (_, first) = client.generation();
    // The zygote forks the one that stands by when a generation already serves.
    eventually("nobody stands by", || children(server.child.id()).len() == 2);
    signal(server.child.id(), "KILL");
    server.ended();
    assert_eq!(client.generation(), (1, first));
    signal(first, "KILL");
    dies(first);
    let (number, second) = client.generation();
    assert_eq!(number, 2);
    signal(second, "KILL");
    assert_eq!(client.hear(), None, "the connection is closed, not forgotten");
}

#[test]
fn too_many_crashes_end_it_loudly() {
    let mut server = Server::start_with(&[]);
    let mut crashes = 0;
    while server.child.try_wait().unwrap().is_none() {
        if let Ok(mut stream) = TcpStream::connect(server.address) {
            let _ = stream.write_all(b"!segv\n");
            // Until it has died of it.
            let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
            let _ = std::io::Read::read(&mut stream, &mut [0]);
            crashes += 1;
        }
        assert!(crashes < 100, "it never gives up");
    }
    assert_eq!(server.ended().code(), Some(128 + 11));
    // Five on each of three rungs; and some that found nobody, perhaps.
    assert!(crashes >= 15, "{crashes}");
}
