//! The processes below one, and what they hold.

use super::{PATIENCE, Server};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A living child, or one that is not buried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    pub pid: u32,
    pub state: char,
}

pub fn children(of: u32) -> Vec<Child> {
    let listed = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    listed
        .split_ascii_whitespace()
        .filter_map(|pid| {
            let pid = pid.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
            Some(Child { pid, state })
        })
        .collect()
}

/// Who serves and who stands by, once there are these two, and the second one sleeps.
pub fn serving_and_standing_by(server: &Server) -> (u32, u32) {
    let mut found = (0, 0);
    eventually("one serves, and one stands by", || {
        let serving = server.serving();
        let (its, others): (Vec<_>, Vec<_>) =
            children(server.pid()).into_iter().partition(|child| child.pid == serving);
        found = (serving, others.first().map_or(0, |child| child.pid));
        let is_alive = its.iter().any(|child| child.state != 'Z');
        is_alive && others.len() == 1 && others.iter().all(|child| child.state == 'S')
    });
    found
}

/// How many descriptors are open.
pub fn descriptors(of: u32) -> usize {
    std::fs::read_dir(format!("/proc/{of}/fd")).map_or(0, Iterator::count)
}

/// Of /proc/PID/smaps_rollup or /proc/PID/status, in kilobytes.
pub fn memory_kb(of: u32, file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{of}/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not so: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal, by its number: without a program for that, which takes milliseconds.
pub fn send(pid: u32, signal: i32) {
    assert!(pid > 1, "that would be many");
    if signal == libc::SIGSTOP {
        return outlast_lab::process::freeze(pid).unwrap();
    }
    // SAFETY: takes integers.
    unsafe { libc::kill(libc::pid_t::try_from(pid).unwrap(), signal) };
}

/// At once, where it is TCP: whoever answers in many small pieces waits for it, and a kernel waits for more.
pub fn acknowledge(stream: &impl AsRawFd) {
    let (on, length) = (1i32, libc::socklen_t::try_from(size_of::<i32>()).unwrap());
    // SAFETY: reads a local.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_QUICKACK,
            (&raw const on).cast(),
            length,
        )
    };
}

/// To a group of processes, all at once, by the number of its first one.
pub fn send_to_group(group: u32, signal: i32) {
    assert!(group > 1, "that would be others");
    // SAFETY: takes integers.
    unsafe { libc::killpg(libc::pid_t::try_from(group).unwrap(), signal) };
}

/// To a thread of a process.
pub fn send_to_thread(pid: u32, thread: u32, signal: i32) {
    // SAFETY: takes integers.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, signal) };
}
