//! Programs that listen, and do not say so: linked statically, or with system calls of their own (Go).

use super::listeners;
use crate::sys::process::Pid;
use std::time::{Duration, Instant};

/// Between two looks, each of which goes through all sockets of the program.
const LOOK: Duration = Duration::from_secs(1);
/// What is about to be said is no secret.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who has not begun to listen by then hardly will.
const UNTIL: Duration = Duration::from_secs(60);

/// What was found of one program.
#[derive(Debug)]
pub(super) struct Untold {
    began: Instant,
    looked: Instant,
    since: Option<Instant>,
    is_told: bool,
}

impl Untold {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, looked: now, since: None, is_told: false }
    }

    /// It is started.
    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self { is_told: self.is_told, ..Self::new(now) };
    }

    /// A process that listens for some time, of those that have not said so. Once.
    pub(super) fn look(&mut self, processes: &[Pid], now: Instant) -> Option<Pid> {
        let is_over = now.duration_since(self.began) >= UNTIL;
        if self.is_told || is_over || now.duration_since(self.looked) < LOOK {
            return None;
        }
        self.looked = now;
        let found = processes.iter().copied().find(|pid| listeners::does_listen(*pid))?;
        let since = *self.since.get_or_insert(now);
        self.is_told = now.duration_since(since) >= PATIENCE;
        self.is_told.then_some(found)
    }
}
