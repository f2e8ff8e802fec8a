//! Processes that the program has forked, as far as they have not executed another one: parts of it, which are found after
//! its main process has died, too.

use crate::sys::mapping::Mapping;
use crate::sys::process::{self, Pid};
use crate::sys::{clock, family};
use std::time::Duration;

/// They are told to end, and killed after this time.
const GRACE: Duration = Duration::from_secs(1);
/// Between two looks at whether they have.
const LOOK: Duration = Duration::from_millis(5);
/// Who is killed may have forked just before. More often than this nobody has.
const ROUNDS: usize = 100;

/// Those that live below this process, which has made the memory that they all have.
#[derive(Debug)]
pub(super) struct Copies(Vec<Pid>);

impl Copies {
    /// Who has one of these mappings.
    pub(super) fn find(mappings: &[Mapping]) -> Self {
        let us = process::pid();
        let below = family::and_below(us).into_iter().filter(|&pid| pid != us);
        Self(below.filter(|&pid| mappings.iter().any(|mapping| mapping.is_in(pid))).collect())
    }

    /// But not these.
    pub(super) fn without(mut self, others: &[Pid]) -> Self {
        self.0.retain(|pid| !others.contains(pid));
        self
    }

    /// One that has lost its parent, and is this process's child now.
    pub(super) fn orphan(&self) -> Option<Pid> {
        self.0.iter().copied().find(|pid| family::parent_of_living(*pid) == Some(process::pid()))
    }

    pub(super) fn has(&self, pid: Pid) -> bool {
        self.0.contains(&pid)
    }

    /// One that has left this process's session, or any if that is enough: it has gone into the background.
    pub(super) fn in_background(&self, any: bool) -> Option<Pid> {
        let session = family::session(0);
        self.0.iter().copied().find(|&pid| any || family::session(pid) != session)
    }

    /// Tells those that nobody above them tells: their parent has died.
    pub(super) fn tell_orphans(&self, main: Pid, signal: i32) {
        let is_orphan = |pid: &&Pid| **pid != main && family::parent_of_living(**pid) == Some(process::pid());
        for pid in self.0.iter().filter(is_orphan) {
            let _ = family::signal_below(*pid, signal);
        }
    }

    fn signal_all(&self, signal: i32) {
        for pid in &self.0 {
            let _ = family::signal_below(*pid, signal);
        }
    }
}

/// Has all of them end.
pub(super) fn end(mappings: &[Mapping]) {
    let until_ms = clock::monotonic_ms() + u64::try_from(GRACE.as_millis()).unwrap_or(0);
    let copies = Copies::find(mappings);
    copies.signal_all(libc::SIGTERM);
    while !Copies::find(mappings).0.is_empty() && clock::monotonic_ms() < until_ms {
        std::thread::sleep(LOOK);
    }
    kill(mappings);
}

/// Kills all of them.
pub(super) fn kill(mappings: &[Mapping]) {
    for _ in 0..ROUNDS {
        let copies = Copies::find(mappings);
        if copies.0.is_empty() {
            return;
        }
        copies.signal_all(libc::SIGKILL);
        std::thread::sleep(LOOK);
    }
}
