//! In the holder: idle connections that the program closes just after one of its processes has crashed.
//!
//! A master that notices the crash of a worker may end by itself, and have its other workers end before, which close what they have.
//! For their clients that is the same crash: their connections stay open for the next start. Nobody knows at that time whether the
//! master is about to end: so they stay open for a moment, and are closed if it does not. A client that sends its next request
//! meanwhile is served by the process that accepts it.

use super::{Ending, Holder};
use crate::custody::Report;
use crate::sys::process::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What is closed for so long after a crash may be for it.
const FOLLOWS: Duration = Duration::from_secs(2);
/// So long the master has to end, once one of its processes has closed a connection.
const UNDECIDED: Duration = Duration::from_secs(1);

/// A connection that a process has closed, and that is open at the holder alone.
#[derive(Debug)]
pub(super) struct Postponed {
    owner: Pid,
    /// Its slot and its cookie.
    which: (u32, u64),
    since: Instant,
    /// The main process had ended by then: it is kept.
    is_kept: bool,
}

impl Holder {
    /// Whether what is closed now may be so for a crash of another process.
    pub(super) fn follows_crash(&self, now: Instant) -> bool {
        let is_new = |at: Instant| now.duration_since(at) < FOLLOWS;
        self.ending == Ending::No && self.crashed_at.is_some_and(is_new)
    }

    /// Keeps what a process closes, or has when it ends in order, for a moment. Untouched ones are as good as new: they are closed.
    pub(super) fn postpone(&mut self, owner: Pid, which: (u32, u64), now: Instant) {
        if self.connections.keep_idle(owner, which, &self.epoll) {
            let is_kept = self.is_main_down();
            self.postponed.push(Postponed { owner, which, since: now, is_kept });
        } else {
            self.connections.release((owner, false), which, &self.epoll, |_| Vec::new());
        }
    }

    /// The same, of all that a process has which has ended in order.
    pub(super) fn postpone_all_of(&mut self, owner: Pid, now: Instant) {
        for which in self.connections.served_by(owner) {
            self.postpone(owner, which, now);
        }
    }

    /// Closes those whose program goes on.
    pub(super) fn close_postponed(&mut self, now: Instant) {
        if self.postponed.is_empty() || self.is_main_down() {
            return;
        }
        let (kept, mut undecided): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.postponed).into_iter().partition(|one| one.is_kept);
        self.report_kept(kept);
        undecided.retain(|one| {
            let is_undecided = now.duration_since(one.since) < UNDECIDED;
            if !is_undecided {
                self.connections.let_go_of_resting(one.which);
            }
            is_undecided
        });
        self.postponed = undecided;
    }

    /// The main process has ended, and now this one as well: how many of its connections are kept for that.
    pub(super) fn take_postponed_of(&mut self, owner: Pid) -> u32 {
        let before = self.postponed.len();
        self.postponed.retain(|one| one.owner != owner);
        u32::try_from(before - self.postponed.len()).unwrap_or(u32::MAX)
    }

    /// The main process has ended: they are kept, as what its other processes had is.
    pub(super) fn keep_postponed(&mut self) {
        let kept = std::mem::take(&mut self.postponed);
        self.report_kept(kept);
    }

    fn report_kept(&mut self, postponed: Vec<Postponed>) {
        let mut kept: BTreeMap<Pid, u32> = BTreeMap::new();
        for one in postponed {
            *kept.entry(one.owner).or_default() += 1;
        }
        for (pid, kept) in kept {
            self.report(Report::Finished { pid, kept, closed: 0 });
        }
    }
}
