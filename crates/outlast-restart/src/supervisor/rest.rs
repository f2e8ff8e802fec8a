//! What the program leaves behind when it is over, or before it is started again: whatever it has started, and has not
//! waited for.

use super::left;
use crate::custody::Remains;
use crate::sys::process::{self, Pid};
use crate::sys::{clock, family};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Whoever is told late has so long nevertheless, unless the program itself had less.
const GRACE: Duration = Duration::from_secs(1);
/// Who was told to end by the program itself is on the way out, and not left behind.
pub(super) const BY_THEMSELVES: Duration = Duration::from_millis(700);
/// Nobody serves while the next start waits for who is left of the last one: they have so long at the most.
const BEFORE_START: Duration = Duration::from_secs(5);
/// Who cannot be killed, as it waits for a disk, is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between the first two looks at who is left, each of which goes through all processes.
const LOOK_MIN: Duration = Duration::from_millis(5);
/// And later.
const LOOK_MAX: Duration = Duration::from_millis(250);

/// Processes of this one's own, which look after the program from outside.
#[derive(Clone, Debug, Default)]
pub(super) struct Spared(Arc<Mutex<Vec<Pid>>>);

impl Spared {
    fn pids<T>(&self, of: impl FnOnce(&mut Vec<Pid>) -> T) -> T {
        of(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add(&self, pid: u32) {
        self.pids(|pids| pids.extend(Pid::try_from(pid)));
    }

    /// The next one of this number is somebody else.
    pub(super) fn on_buried(&self, pid: Pid) {
        self.pids(|pids| pids.retain(|spared| *spared != pid));
    }
}

/// Everybody below this process who was not there before the program.
#[derive(Debug)]
pub(super) struct Rest {
    /// With children of whatever this process was before it executed this program.
    spared: Spared,
    told: Vec<Pid>,
    killed: bool,
    /// The next start does not wait for those of [`Remains::finishing`] and [`Remains::sessions`], nor for what is below them.
    remains: Remains,
    /// Those that will end by themselves have so long.
    quiet_until_ms: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So many, this one among them, were told to end.
    Told { pid: Pid, count: usize },
    /// So many, this one among them, had not, and were killed.
    Killed { pid: Pid, count: usize },
    /// All that can be is done, and takes a moment.
    Wait,
    /// Nobody is left.
    Over,
}

/// By when whoever was told to end has to have done so, if the program was told at `told_ms`, or has ended by itself. None:
/// there is no limit.
pub(super) fn deadline_ms(told_ms: Option<u64>, limit: Option<Duration>) -> Option<u64> {
    let (now_ms, limit) = (clock::monotonic_ms(), limit?);
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let limit_ms = told_ms.unwrap_or(now_ms).saturating_add(ms(limit));
    Some(limit_ms.max(now_ms.saturating_add(ms(limit.min(GRACE)))))
}

/// How long to wait until the next look at who is left, after so long a time the last time: those whose parent lives tell
/// nobody here that they have ended.
pub(super) fn next_look(last: Option<Duration>, deadline_ms: Option<u64>) -> Duration {
    let pause = last.map_or(LOOK_MIN, |last| (last * 2).min(LOOK_MAX));
    let left_ms = deadline_ms.map(|at_ms| at_ms.saturating_sub(clock::monotonic_ms()));
    // Late, it is not long until it is over.
    let left = left_ms.filter(|left_ms| *left_ms > 0).map(Duration::from_millis);
    left.map_or(pause, |left| left.min(pause))
}

/// The same, before the next start.
pub(super) fn deadline_before_start_ms(limit: Option<Duration>) -> Option<u64> {
    deadline_ms(None, Some(time_before_start(limit)))
}

/// What is left of a program has at most so long to end before the next start.
pub(super) fn time_before_start(limit: Option<Duration>) -> Duration {
    limit.map_or(BEFORE_START, |limit| limit.min(BEFORE_START))
}

impl Rest {
    /// Before the program is started.
    pub(super) fn begin() -> Self {
        let spared = Spared(Arc::new(Mutex::new(family::children(process::pid()))));
        let remains = Remains::default();
        Self { spared, told: Vec::new(), killed: false, remains, quiet_until_ms: 0 }
    }

    /// For whoever starts some.
    pub(super) fn spared(&self) -> &Spared {
        &self.spared
    }

    /// Those that the program has not started.
    pub(super) fn of_others(&self) -> Vec<Pid> {
        self.spared.pids(|pids| pids.clone())
    }

    fn find(&self) -> Vec<Pid> {
        let us = process::pid();
        let mut roots = self.of_others();
        roots.extend(self.remains.finishing.iter().chain(&self.remains.sessions));
        let others = family::and_below_each(&roots);
        let is_rest = |pid: &Pid| *pid != us && !others.contains(pid) && left::outlives(*pid) != Some(true);
        family::and_below(us).into_iter().filter(is_rest).collect()
    }

    /// Whether somebody is left.
    pub(super) fn is_any(&self) -> bool {
        !self.find().is_empty()
    }

    /// Nobody was told anything yet: those of an earlier time, whose numbers others may have by now, are forgotten.
    pub(super) fn begin_end(&mut self) {
        (self.told, self.killed, self.remains) = (Vec::new(), false, Remains::default());
    }

    /// Before the next start, this is known of who is left.
    pub(super) fn know(&mut self, remains: Remains) {
        self.remains = remains;
        self.quiet_until_ms =
            clock::monotonic_ms().saturating_add(u64::try_from(BY_THEMSELVES.as_millis()).unwrap_or(0));
    }

    /// Those that go on with their clients while the program is started again.
    pub(super) fn sessions(&self) -> &[Pid] {
        &self.remains.sessions
    }

    /// Those that do, or do so for a moment.
    pub(super) fn of_earlier(&self) -> Vec<Pid> {
        [&self.remains.sessions[..], &self.remains.finishing].concat()
    }

    /// Whether a process is not told yet: it may be about to end by itself, or, unless it is late, nobody can say whether it
    /// is to end at all.
    fn waits(&self, pid: Pid, is_late: bool) -> bool {
        let may_end = self.remains.ending.contains(&pid) && clock::monotonic_ms() < self.quiet_until_ms;
        may_end || (!is_late && left::outlives(pid).is_none())
    }

    /// Tells whoever was not told, by this signal, and kills all when it is time. To be called until it is over.
    pub(super) fn end(&mut self, signal: i32, deadline_ms: Option<u64>) -> Step {
        let (mut rest, now_ms) = (self.find(), clock::monotonic_ms());
        let late_ms = deadline_ms.and_then(|at_ms| now_ms.checked_sub(at_ms));
        let is_late = late_ms.is_some();
        let lives = |pid: &Pid| family::parent_of_living(*pid).is_some();
        let all = rest.iter().chain(self.remains.sessions.iter().filter(|pid| lives(pid)));
        let waits = all.into_iter().any(|pid| self.waits(*pid, is_late));
        rest.retain(|pid| !self.waits(*pid, is_late));
        let (Some(&pid), count) = (rest.first(), rest.len()) else {
            return if waits { Step::Wait } else { Step::Over };
        };
        if let Some(late_ms) = late_ms {
            if u128::from(late_ms) > PATIENCE.as_millis() {
                return Step::Over;
            }
            // Once more each time: one that is killed may have forked just before.
            rest.iter().for_each(|pid| send(*pid, libc::SIGKILL));
            let again = std::mem::replace(&mut self.killed, true);
            return if again { Step::Wait } else { Step::Killed { pid, count } };
        }
        let first = self.told.is_empty();
        for pid in rest {
            if !self.told.contains(&pid) {
                self.told.push(pid);
                send(pid, signal);
                // One that was stopped would not hear it.
                send(pid, libc::SIGCONT);
            }
        }
        if first { Step::Told { pid, count } } else { Step::Wait }
    }
}

fn send(pid: Pid, signal: i32) {
    let _ = family::signal_below(pid, signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_long_is_looked_for_less_and_less_often() {
        let mut pauses = vec![next_look(None, None)];
        for _ in 0..8 {
            pauses.push(next_look(pauses.last().copied(), None));
        }
        let millis: Vec<u128> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [5, 10, 20, 40, 80, 160, 250, 250, 250]);
        let soon_ms = clock::monotonic_ms() + 20;
        assert!(next_look(Some(LOOK_MAX), Some(soon_ms)) <= Duration::from_millis(20));
        assert_eq!(next_look(None, Some(0)), LOOK_MIN);
    }

    #[test]
    fn who_is_spared_is_not_among_the_rest() {
        let rest = Rest::begin();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        assert!(rest.find().contains(&pid));
        rest.spared().add(child.id());
        assert!(!rest.find().contains(&pid));
        rest.spared().on_buried(pid);
        assert!(rest.find().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_outlives_the_program_is_not_told_in_its_first_moment_either() {
        let rest = Rest::begin();
        for _ in 0..50 {
            let mut keeper = std::process::Command::new("sleep");
            let mut keeper = keeper.arg("600").env(left::OUTLIVES_ENVIRONMENT, "1").spawn().unwrap();
            let pid = Pid::try_from(keeper.id()).unwrap();
            // Its environment can be read a moment after it was started.
            while rest.waits(pid, false) {
                assert!(!rest.waits(pid, true));
                std::thread::yield_now();
            }
            assert!(!rest.find().contains(&pid));
            keeper.kill().unwrap();
            keeper.wait().unwrap();
        }
    }
}
