//! Which processes accept clients at a listening socket that another one has made, as workers do. Who serves a client, and has
//! such a socket open, and has never accepted anybody there is a session: its master has accepted its client.

use std::sync::atomic::{AtomicU32, Ordering};

/// More than any system has process numbers.
const PROCESSES: usize = 1 << 22;
const BITS: usize = u32::BITS as usize;

/// Somebody has accepted a client.
const SEEN: u32 = 1;
/// And somebody whose number is not known.
const UNKNOWN: u32 = 2;
/// Some did so at another one's socket.
const SHARED: u32 = 4;

/// A bit for each process. Of atomics alone.
#[derive(Debug)]
#[repr(C)]
pub struct Accepting {
    seen: AtomicU32,
    processes: [AtomicU32; PROCESSES / BITS],
}

impl Accepting {
    /// A process accepts clients at its own socket.
    pub fn note_any(&self) {
        self.see(SEEN);
    }

    /// This process accepts clients at another one's socket. Not above 0: its number is not known.
    pub fn note(&self, pid: i32) {
        match self.place(pid) {
            Some((word, bit)) => {
                word.fetch_or(bit, Ordering::SeqCst);
                self.see(SEEN | SHARED);
            }
            None => self.see(UNKNOWN | SHARED),
        }
    }

    /// This one has not: it was just forked, or has ended.
    pub fn forget(&self, pid: i32) {
        if let Some((word, bit)) = self.place(pid)
            && word.load(Ordering::SeqCst) & bit != 0
        {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Whether this one may accept clients there. One that has not yet may be about to, as long as none is known to have.
    pub(in crate::custody) fn may(&self, pid: i32) -> bool {
        let is_noted = || self.place(pid).is_none_or(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0);
        self.seen.load(Ordering::SeqCst) & (SEEN | UNKNOWN) != SEEN || is_noted()
    }

    /// Whether any process has ever accepted clients at a socket that another one has made.
    #[must_use]
    pub fn has_shared(&self) -> bool {
        self.seen.load(Ordering::SeqCst) & SHARED != 0
    }

    fn see(&self, what: u32) {
        if self.seen.load(Ordering::Relaxed) & what != what {
            self.seen.fetch_or(what, Ordering::SeqCst);
        }
    }

    fn place(&self, pid: i32) -> Option<(&AtomicU32, u32)> {
        let pid = usize::try_from(pid).ok().filter(|pid| *pid > 0)?;
        Some((self.processes.get(pid / BITS)?, 1 << (pid % BITS)))
    }
}

#[cfg(test)]
mod tests {
    use crate::custody::table::Table;

    #[test]
    fn a_process_is_known_not_to_accept_if_others_do_and_all_that_do_are_known() {
        let (_memory, table) = Table::create(false, "a test").unwrap();
        let all = &table.accepting;
        assert!(all.may(7) && all.may(0) && all.may(i32::MAX));
        all.note_any();
        assert!(!all.may(7) && !all.may(1 << 21) && !all.has_shared());
        // Whose number is none is never known.
        assert!(all.may(0) && all.may(-1) && all.may(i32::MAX));
        all.note(7);
        assert!(all.may(7) && !all.may(6) && !all.may(8) && all.has_shared());
        all.forget(7);
        all.forget(i32::MAX);
        assert!(!all.may(7));
        all.note(-1);
        assert!(all.may(7) && all.may(8));
    }
}
