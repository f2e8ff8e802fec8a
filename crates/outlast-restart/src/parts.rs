//! What this crate and `outlast-preload` have in common, and nobody else needs.

use crate::death::Death;
use crate::supervisor::Watch;
use crate::sys::process::Side;
use crate::sys::robust::RobustList;
use crate::sys::{descriptors, family, process, signals, tcp};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

/// Splits this process, which has one thread, in two that share the table of descriptors, and nothing else. Gives the
/// child's id, and nothing in the child.
///
/// # Errors
/// The system has no more processes for us.
pub fn split() -> io::Result<Option<libc::pid_t>> {
    let list = RobustList::of_this_thread();
    match process::split(list.thread_word())? {
        Side::Parent(pid) => Ok(Some(pid)),
        Side::Child => {
            // The C library counts on it for its robust mutexes.
            list.register()?;
            Ok(None)
        }
    }
}

/// How many threads this process has.
///
/// # Errors
/// There is no /proc.
pub fn thread_count() -> io::Result<u32> {
    process::thread_count(process::pid())
}

/// Whether this process can wait for signals, as far as a sandbox lets it.
///
/// # Errors
/// It does not.
pub fn can_wait_for_signals() -> io::Result<()> {
    signals::can_wait()
}

/// Kills a process below this one, and all that is below that.
pub fn kill_all(root: libc::pid_t) {
    for pid in family::and_below(root) {
        let _ = family::signal_below(pid, libc::SIGKILL);
    }
}

/// The open descriptors, also where there is none left to look for them with.
///
/// # Errors
/// There is no /proc.
pub fn descriptors() -> io::Result<BTreeSet<RawFd>> {
    Ok(descriptors::open()?.into_iter().collect())
}

/// How many bytes were read from, and written to, a TCP socket that nobody uses now: from the kernel's own counters. One
/// that was connected from this side has one more written.
///
/// # Errors
/// It is no TCP socket.
pub fn positions(socket: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    tcp::positions(socket).map(|positions| (positions.read_bytes, positions.written_bytes))
}

/// From what `waitpid` gives.
#[must_use]
pub fn death(status: i32) -> Death {
    Death::from_status(status)
}

/// Whether the supervisor of a process that lives on by itself still does.
#[derive(Debug)]
pub struct Supervised(Option<Watch>);

impl Supervised {
    /// To be begun by a process whose parent lives.
    #[must_use]
    pub fn begin() -> Self {
        Self(Watch::of_this_process())
    }

    /// Says so once, if the supervisor is gone.
    pub fn tell_once(&mut self, say: impl FnOnce(&str)) {
        Watch::tell_once(&mut self.0, say);
    }
}
