//! Programs that do not say what they do with their sockets: no library is in them, or they do not use the C library that
//! it stands before.

use super::listeners;
use crate::sys::family;
use crate::sys::process::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two looks, each of which goes through all sockets of the program.
const LOOK: Duration = Duration::from_secs(1);
/// What is about to be said is no secret.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who has not begun to listen by then hardly will.
const UNTIL: Duration = Duration::from_secs(60);
/// Later, clients may come to a process that has served none before.
const LOOK_LATER: Duration = Duration::from_secs(30);
/// A new process may be about to execute another program: so often it is looked at.
const LOOKS: u8 = 2;
/// In the names of the library's file.
const LIBRARY: &str = "outlast_preload";
/// In the auxiliary vector of a process (getauxval(3)): whether the loader ignores what its environment asks for.
const AT_SECURE: usize = 23;
/// There, too: real and effective user, and group.
const AT_USERS: [[usize; 2]; 2] = [[11, 12], [13, 14]];

/// Why a process of the program does not say what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untold {
    /// The library is in it: it calls the kernel by itself.
    WithoutC,
    /// It was executed with another effective user or group than its real one, so that nothing may be loaded into it.
    Secure,
    /// The same, with capabilities of its file.
    Capable,
    /// It was executed with rights that this process does not have, so that nothing may be loaded into it, and cannot be
    /// looked at: nobody knows whether it listens.
    Hidden,
    /// The library is in it, and makes no calls: it listens only after it has forbidden itself system calls.
    Forbids,
    /// It is in another network namespace: its library does not reach the supervisor's holder from there.
    OtherNetwork,
    /// It was executed without the variable that has it loaded, or is linked statically.
    NotLoaded,
}

impl Untold {
    /// Of a process. None: it says what it does, as far as that can be seen.
    pub(super) fn of(pid: Pid, listens_unsaid: bool) -> Option<Self> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        if maps.contains(LIBRARY) {
            let why = if is_elsewhere(pid) {
                Self::OtherNetwork
            } else if forbids_more(pid) {
                Self::Forbids
            } else {
                Self::WithoutC
            };
            return listens_unsaid.then_some(why);
        }
        let vector = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
        Some(why_ignored(&vector).unwrap_or(Self::NotLoaded))
    }
}

/// Why the loader has ignored what the environment asks for, by the auxiliary vector. None: it has not.
fn why_ignored(vector: &[u8]) -> Option<Untold> {
    let (words, _) = vector.as_chunks::<{ size_of::<usize>() }>();
    let find = |wanted: usize| {
        let mut pairs = words.as_chunks::<2>().0.iter().map(|pair| pair.map(usize::from_ne_bytes));
        pairs.find_map(|[what, value]| (what == wanted).then_some(value))
    };
    find(AT_SECURE).filter(|secure| *secure != 0)?;
    let is_other = AT_USERS.iter().any(|[real, effective]| find(*real) != find(*effective));
    Some(if is_other { Untold::Secure } else { Untold::Capable })
}

/// Whether a process cannot be looked at, as it has more rights than this one.
fn is_hidden(pid: Pid) -> bool {
    let maps = std::fs::File::open(format!("/proc/{pid}/maps"));
    let is_denied = maps.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
    let status = |process: &str| std::fs::read_to_string(format!("/proc/{process}/status")).ok();
    match (status(&pid.to_string()), status("self")) {
        (Some(its), Some(ours)) => is_denied && has_more_rights(&its, &ours),
        _ => false,
    }
}

/// By what /proc tells of two processes: another effective user than the real one, or capabilities that the other one has not.
fn has_more_rights(its: &str, others: &str) -> bool {
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let permitted = |status: &str| {
        field(status, "CapPrm:").first().and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0)
    };
    let users = field(its, "Uid:");
    users.first() != users.get(1) || permitted(its) & !permitted(others) != 0
}

/// Whether a process has forbidden itself system calls that this one may make (seccomp).
fn forbids_more(pid: Pid) -> bool {
    let status = |process: &str| std::fs::read_to_string(format!("/proc/{process}/status")).ok();
    match (status(&pid.to_string()), status("self")) {
        (Some(its), Some(ours)) => forbidden(&its) > forbidden(&ours),
        _ => false,
    }
}

/// How much is forbidden by what /proc tells of a process: its mode, and how many filters it has.
fn forbidden(status: &str) -> [u32; 2] {
    ["Seccomp:", "Seccomp_filters:"].map(|name| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(0)
    })
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
    others: BTreeMap<Pid, Other>,
    others_looked: Instant,
    is_told: bool,
}

/// A process beside the main one.
#[derive(Debug)]
struct Other {
    looks: u8,
    why: Option<Untold>,
}

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            looked: now,
            since: None,
            image: None,
            others: BTreeMap::new(),
            others_looked: now,
            is_told: false,
        }
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
    /// Or the main one, if nobody can see whether it does.
    pub(super) fn look(
        &mut self,
        main: Option<Pid>,
        processes: &[Pid],
        now: Instant,
    ) -> Option<(Pid, Untold)> {
        if now.duration_since(self.began) >= UNTIL || !self.is_time(now) {
            return None;
        }
        let found = processes.iter().copied().find(|pid| listeners::does_listen(*pid));
        let found = found.and_then(|pid| Some((pid, Untold::of(pid, true)?)));
        let hidden = || main.filter(|main| is_hidden(*main)).map(|main| (main, Untold::Hidden));
        self.tell(found.or_else(hidden), now)
    }

    /// Of a program that has said where it listens: the main process, if it has executed another program since that says
    /// nothing; or another process that says nothing, and `serves` clients.
    pub(super) fn look_at_all(
        &mut self,
        main: Pid,
        all: &[Pid],
        serves: impl Fn(Pid) -> bool,
        now: Instant,
    ) -> Option<(Pid, Untold)> {
        if !self.is_time(now) {
            return None;
        }
        let found = self.look_at_main(main).map(|why| (main, why));
        let found = found.or_else(|| self.look_at_others(main, all, serves, now));
        self.tell(found, now)
    }

    fn look_at_main(&mut self, main: Pid) -> Option<Untold> {
        let image = family::image(main).map(|image| (main, image));
        if image == self.image && self.since.is_none() {
            return None;
        }
        self.image = image;
        Untold::of(main, false)
    }

    fn look_at_others(
        &mut self,
        main: Pid,
        all: &[Pid],
        serves: impl Fn(Pid) -> bool,
        now: Instant,
    ) -> Option<(Pid, Untold)> {
        self.others.retain(|pid, _| all.contains(pid));
        for pid in all.iter().copied().filter(|pid| *pid != main) {
            let other = self.others.entry(pid).or_insert(Other { looks: 0, why: None });
            if other.looks < LOOKS {
                (other.looks, other.why) = (other.looks + 1, Untold::of(pid, false));
            }
        }
        // Each look goes through all that they have open.
        let pause = if now.duration_since(self.began) < UNTIL { LOOK } else { LOOK_LATER };
        if self.since.is_none() && now.duration_since(self.others_looked) < pause {
            return None;
        }
        self.others_looked = now;
        self.others.iter().find_map(|(pid, other)| Some((*pid, other.why.filter(|_| serves(*pid))?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_have_no_library_and_may_load_what_they_like() {
        let us = crate::sys::process::pid();
        assert!(!is_elsewhere(us) && !is_elsewhere(Pid::MAX));
        let vector = |pairs: &[[usize; 2]]| -> Vec<u8> {
            pairs.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let users = [[11, 0], [12, 118], [13, 5], [14, 5]];
        let why = |secure: usize, users: &[[usize; 2]]| {
            why_ignored(&vector(&[&[[3, 64], [23, secure]], users, &[[0, 0]]].concat()))
        };
        assert_eq!((why(0, &users), why(1, &users)), (None, Some(Untold::Secure)));
        assert_eq!(why(1, &[[11, 5], [12, 5], [13, 0], [14, 7]]), Some(Untold::Secure));
        assert_eq!(why(1, &[[11, 5], [12, 5], [13, 5], [14, 5]]), Some(Untold::Capable));
        assert_eq!(why_ignored(&[]), None);
        assert_eq!(forbidden("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\n"), [2, 3]);
        assert_eq!((forbidden("Seccomp:\t0\n"), forbids_more(us)), ([0, 0], false));
        let status = |users: &str, permitted: &str| format!("Uid:\t{users}\nCapPrm:\t{permitted}\n");
        let ours = status("5\t5\t5\t5", "0000000000000400");
        for (users, permitted, expected) in [
            ("5\t5\t5\t5", "0000000000000400", false),
            ("5\t5\t5\t5", "0000000000000000", false),
            ("5\t5\t5\t5", "0000000000000401", true),
            ("5\t0\t0\t0", "0000000000000400", true),
        ] {
            assert_eq!(has_more_rights(&status(users, permitted), &ours), expected, "{users} {permitted}");
        }
        assert!(!is_hidden(us) && !is_hidden(Pid::MAX));
        assert_eq!((Untold::of(us, true), Untold::of(Pid::MAX, true)), (Some(Untold::NotLoaded), None));
    }
}
