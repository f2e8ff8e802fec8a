//! Sandboxes that forbid a system call (seccomp(2)): a server outlives its crashes without it, or says at once that it does not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::forbid;

use forbid::{Call, cannot, forbid, forbid_here, without};
use outlast_restart::board::Board;
use outlast_restart::policy::Policy;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
const SIGNALS: [i32; 3] = [libc::SIGKILL, libc::SIGABRT, libc::SIGILL];

/// Threads are made by it, too.
const SPLIT: Call = Call {
    name: "clone",
    number: libc::SYS_clone,
    argument: 0,
    mask: (libc::CLONE_FILES | libc::CLONE_VM).cast_unsigned(),
    value: libc::CLONE_FILES.cast_unsigned(),
    says: Some("make a process for the next generation"),
};

const CALLS: [Call; 19] = [
    without("memfd_create", libc::SYS_memfd_create),
    without("kcmp", libc::SYS_kcmp),
    without("get_robust_list", libc::SYS_get_robust_list),
    cannot("set_robust_list", libc::SYS_set_robust_list, "register robust locks"),
    SPLIT,
    without("madvise", libc::SYS_madvise),
    without("sigaltstack", libc::SYS_sigaltstack),
    without("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    without("tgkill", libc::SYS_tgkill),
    without("getdents64", libc::SYS_getdents64),
    without("waitid", libc::SYS_waitid),
    cannot("rt_sigtimedwait", libc::SYS_rt_sigtimedwait, "wait for signals"),
    without("sched_getscheduler", libc::SYS_sched_getscheduler),
    without("prctl", libc::SYS_prctl),
    without("splice", libc::SYS_splice),
    without("close_range", libc::SYS_close_range),
    without("readlink", libc::SYS_readlink),
    without("statx", libc::SYS_statx),
    without("getppid", libc::SYS_getppid),
];

struct Server {
    child: Child,
    said: Receiver<String>,
    /// All that nobody has waited for: the two outputs come in any order.
    heard: RefCell<String>,
    address: SocketAddr,
}

impl Server {
    /// None if it has said so much instead.
    fn start(call: Call, error: i32) -> Result<Self, String> {
        let this = std::env::current_exe().unwrap();
        let example = this.parent().unwrap().parent().unwrap().join("examples/lines");
        let mut command = Command::new(example);
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        forbid(&mut command, call, error);
        let mut child = command.spawn().unwrap();
        let (sender, said) = channel();
        let complaints = BufReader::new(child.stderr.take().unwrap());
        let words = BufReader::new(child.stdout.take().unwrap());
        let other = sender.clone();
        std::thread::spawn(move || {
            complaints.lines().map_while(Result::ok).all(|line| other.send(line).is_ok())
        });
        std::thread::spawn(move || words.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
        let mut server =
            Self { child, said, heard: RefCell::default(), address: SocketAddr::from(([0; 4], 0)) };
        server.address = server.wait_for("listening on ")?.parse().unwrap();
        Ok(server)
    }

    /// What is behind this at the beginning of a line; all that was said, if it ends without.
    fn wait_for(&self, begin: &str) -> Result<String, String> {
        loop {
            match self.said.recv_timeout(PATIENCE) {
                Ok(line) => match line.strip_prefix(begin) {
                    Some(rest) => return Ok(rest.to_owned()),
                    None => *self.heard.borrow_mut() += &format!("{line}\n"),
                },
                Err(_) => return Err(self.heard.borrow().clone()),
            }
        }
    }

    /// The process of a generation.
    fn generation(&self, number: usize) -> Result<i32, String> {
        self.wait_for(&format!("generation {number} ")).map(|pid| pid.parse().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: numbers.
        unsafe { libc::kill(-self.child.id().cast_signed(), libc::SIGKILL) };
        self.child.wait().unwrap();
    }
}

fn hear(client: &mut TcpStream, words: &str) -> std::io::Result<()> {
    let backwards: String = words.chars().rev().collect();
    let wanted = format!("{}\n", backwards.repeat(words.len() % 20 + 1));
    let mut answer = vec![0; wanted.len()];
    client.read_exact(&mut answer)?;
    assert_eq!(String::from_utf8_lossy(&answer), wanted);
    Ok(())
}

/// What was said, if it has not outlived the crashes.
fn outlives(call: Call, error: i32) -> Result<(), String> {
    let server = Server::start(call, error)?;
    let mut pid = server.generation(1)?;
    let connect = || {
        let client = TcpStream::connect_timeout(&server.address, PATIENCE).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    };
    let mut clients: Vec<TcpStream> = (0..4).map(|_| connect()).collect();
    for (crash, signal) in SIGNALS.into_iter().cycle().take(6).enumerate() {
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(format!("{crash} of client {number}\n").as_bytes()).unwrap();
        }
        // SAFETY: numbers.
        unsafe { libc::kill(pid, signal) };
        pid = server.generation(crash + 2)?;
        for (number, client) in clients.iter_mut().enumerate() {
            hear(client, &format!("{crash} of client {number}")).unwrap_or_else(|error| {
                panic!("{}: {error}: {:?}", call.name, server.said.try_iter().collect::<Vec<_>>())
            });
        }
    }
    Ok(())
}

/// What is wrong about it.
fn fault(call: Call) -> Option<String> {
    [libc::EPERM, libc::ENOSYS].into_iter().find_map(|error| {
        let outcome = std::panic::catch_unwind(|| outlives(call, error));
        let right = match (&outcome, call.says) {
            (Ok(Ok(())), None) => true,
            (Ok(Err(said)), Some(part)) => said.contains(part),
            _ => false,
        };
        (!right).then(|| format!("{} ({error}): {outcome:?}, and not {:?}", call.name, call.says))
    })
}

#[test]
fn none_is_needed_or_its_want_is_told() {
    let tried = CALLS.map(|call| std::thread::spawn(move || fault(call)));
    let wrong: Vec<String> = tried.into_iter().filter_map(|one| one.join().unwrap()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_board_needs_no_memory_without_a_file() {
    let call = without("memfd_create", libc::SYS_memfd_create);
    // SAFETY: the child has a copy of this process, and ends without its handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let made = forbid_here(call, libc::EPERM).and_then(|()| Board::create(&Policy::default()));
        let kept = made.is_ok_and(|(_, board)| board.note_begin(7, Duration::ZERO) == 1);
        // SAFETY: does not return.
        unsafe { libc::_exit(i32::from(!kept)) };
    }
    let mut status = 0;
    // SAFETY: fills a local; the child is ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}
