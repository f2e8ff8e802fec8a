//! Programs that do not say what they do with their sockets: no library is in them, or they do not use the C library that
//! it stands before.

use super::listeners;
use crate::sys::family;
use crate::sys::process::Pid;
use std::time::{Duration, Instant};

/// Between two looks, each of which goes through all sockets of the program.
const LOOK: Duration = Duration::from_secs(1);
/// What is about to be said is no secret.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who has not begun to listen by then hardly will.
const UNTIL: Duration = Duration::from_secs(60);
/// In the names of the library's file.
const LIBRARY: &str = "outlast_preload";
/// In the auxiliary vector of a process (getauxval(3)): whether the loader ignores what its environment asks for.
const AT_SECURE: usize = 23;

/// Why a process of the program does not say what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untold {
    /// The library is in it: it calls the kernel by itself.
    WithoutC,
    /// It was executed with other rights than those of its real user, so that nothing may be loaded into it.
    Secure,
    /// It is in another network namespace: its library does not reach the supervisor's holder from there.
    OtherNetwork,
    /// It was executed without the variable that has it loaded, or is linked statically.
    NotLoaded,
}

impl Untold {
    /// Of a process. None: it says what it does, as far as that can be seen.
    fn of(pid: Pid, listens_unsaid: bool) -> Option<Self> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        if maps.contains(LIBRARY) {
            let why = if is_elsewhere(pid) { Self::OtherNetwork } else { Self::WithoutC };
            return listens_unsaid.then_some(why);
        }
        Some(if is_secure(pid) { Self::Secure } else { Self::NotLoaded })
    }
}

fn is_secure(pid: Pid) -> bool {
    let vector = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let (words, _) = vector.as_chunks::<{ size_of::<usize>() }>();
    let mut pairs = words.as_chunks::<2>().0.iter();
    pairs.any(|[what, value]| usize::from_ne_bytes(*what) == AT_SECURE && usize::from_ne_bytes(*value) != 0)
}

/// Whether a process is known to be in another network than this one.
fn is_elsewhere(pid: Pid) -> bool {
    let network = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
    match (network(&pid.to_string()), network("self")) {
        (Ok(its), Ok(ours)) => its != ours,
        _ => false,
    }
}

/// What was found of one program.
#[derive(Debug)]
pub(super) struct Watch {
    began: Instant,
    looked: Instant,
    since: Option<Instant>,
    /// What its main process executes, by where that is in its memory.
    image: Option<(Pid, u64)>,
    is_told: bool,
}

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, looked: now, since: None, image: None, is_told: false }
    }

    /// It is started.
    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self { is_told: self.is_told, ..Self::new(now) };
    }

    fn is_time(&mut self, now: Instant) -> bool {
        let is_time = !self.is_told && now.duration_since(self.looked) >= LOOK;
        if is_time {
            self.looked = now;
        }
        is_time
    }

    /// What was found is so for some time. Once.
    fn tell(&mut self, found: Option<(Pid, Untold)>, now: Instant) -> Option<(Pid, Untold)> {
        if found.is_none() {
            self.since = None;
        }
        let since = *found.map(|_| self.since.get_or_insert(now))?;
        self.is_told = now.duration_since(since) >= PATIENCE;
        found.filter(|_| self.is_told)
    }

    /// A process that listens for some time, of those that have not said so.
    pub(super) fn look(&mut self, processes: &[Pid], now: Instant) -> Option<(Pid, Untold)> {
        if now.duration_since(self.began) >= UNTIL || !self.is_time(now) {
            return None;
        }
        let found = processes.iter().copied().find(|pid| listeners::does_listen(*pid));
        self.tell(found.and_then(|pid| Some((pid, Untold::of(pid, true)?))), now)
    }

    /// The main process, which has said where it listens, if it has executed another program since that says nothing.
    pub(super) fn look_at_main(&mut self, main: Pid, now: Instant) -> Option<(Pid, Untold)> {
        if !self.is_time(now) {
            return None;
        }
        let image = family::image(main).map(|image| (main, image));
        if image == self.image && self.since.is_none() {
            return None;
        }
        self.image = image;
        let found = Untold::of(main, false).map(|why| (main, why));
        self.tell(found, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_have_no_library_and_may_load_what_they_like() {
        let us = crate::sys::process::pid();
        assert!(!is_secure(us) && !is_secure(Pid::MAX) && !is_elsewhere(us) && !is_elsewhere(Pid::MAX));
        assert_eq!((Untold::of(us, true), Untold::of(Pid::MAX, true)), (Some(Untold::NotLoaded), None));
    }
}
