//! What the program leaves behind when it is over: whatever it has started, and has not waited for.

use crate::sys::process::{self, Pid};
use crate::sys::{clock, family};
use std::time::Duration;

/// Whoever is told late has so long nevertheless, unless the program itself had less.
const GRACE: Duration = Duration::from_secs(1);
/// Who cannot be killed, as it waits for a disk, is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Everybody below this process who was not there before the program.
#[derive(Debug)]
pub(super) struct Rest {
    /// Children of whatever this process was before it executed this program.
    others: Vec<Pid>,
    told: Vec<Pid>,
    killed: bool,
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

impl Rest {
    /// Before the program is started.
    pub(super) fn begin() -> Self {
        Self { others: family::children(process::pid()), told: Vec::new(), killed: false }
    }

    fn find(&self) -> Vec<Pid> {
        let us = process::pid();
        let others: Vec<Pid> = self.others.iter().flat_map(|&other| family::and_below(other)).collect();
        family::and_below(us).into_iter().filter(|pid| *pid != us && !others.contains(pid)).collect()
    }

    /// Tells whoever was not told, and kills all when it is time. To be called until it is over.
    pub(super) fn end(&mut self, deadline_ms: Option<u64>) -> Step {
        let (rest, now_ms) = (self.find(), clock::monotonic_ms());
        let (Some(&pid), count) = (rest.first(), rest.len()) else { return Step::Over };
        let late_ms = deadline_ms.and_then(|at_ms| now_ms.checked_sub(at_ms));
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
                send(pid, libc::SIGTERM);
                // One that was stopped would not hear it.
                send(pid, libc::SIGCONT);
            }
        }
        if first { Step::Told { pid, count } } else { Step::Wait }
    }
}

fn send(pid: Pid, signal: i32) {
    let _ = process::kill(pid, signal);
}
