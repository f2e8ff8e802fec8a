//! Keeping a program running that knows nothing of it: started again when it crashes, told what this process is told.

use crate::death::Death;
use crate::policy::{Decision, Inheritance, Policy, Restarts};
use crate::sys::process::{self, Pid};
use crate::sys::{clock, signals};
use crate::{Error, STOP_SIGNALS};
use std::io;
use std::process::Command;
use std::time::Duration;

/// Before the second restart in a row; the first one is at once.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What happens to the program, for whoever tells people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It runs.
    Started {
        /// Its process.
        pid: u32,
        /// Counts from 1.
        run: u32,
    },
    /// It has crashed, and is started again.
    Crashed {
        /// How.
        death: Death,
        /// After this pause.
        pause: Duration,
    },
}

/// How it ended for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with code 0.
    Finished,
    /// It was told to end by this signal, and did so.
    Stopped(Death),
    /// It crashed more often than the policy allows, the last time so.
    GaveUp(Death),
}

/// Runs `command`, again and again, until it ends in order, is told to end, or crashes too often. All signals that this
/// process gets are passed on to it, and children of others that were left to this process are buried, as the first
/// process of a container has to.
///
/// The calling thread should be the only one: signals go to any thread that does not hold them back.
///
/// # Errors
/// The program cannot be started: nothing is, and nothing is tried again.
pub fn supervise(
    command: &mut Command,
    policy: Policy,
    mut tell: impl FnMut(Event),
) -> Result<Outcome, Error> {
    let mask = signals::hold_all().map_err(|error| Error::system("hold signals back", error))?;
    mask.give_to(command);
    let outcome = keep_running(command, policy, &mut tell);
    let _ = mask.restore();
    outcome
}

fn keep_running(
    command: &mut Command,
    policy: Policy,
    tell: &mut impl FnMut(Event),
) -> Result<Outcome, Error> {
    let mut restarts = Restarts::new(policy);
    let mut in_a_row = 0u32;
    for run in 1.. {
        let began_ms = clock::monotonic_ms();
        // Dropped without being waited for: burying is done below, for all children alike.
        let child = command.spawn().map_err(|error| Error::system("start the program", error))?;
        let pid = Pid::try_from(child.id()).unwrap_or(Pid::MAX);
        tell(Event::Started { pid: child.id(), run });
        let (death, stopped_by) = until_dead(pid)?;
        match (death, stopped_by) {
            (Death::Exited(0), _) => return Ok(Outcome::Finished),
            // However it took it.
            (death, Some(_)) => return Ok(Outcome::Stopped(death)),
            _ => {}
        }
        let now_ms = clock::monotonic_ms();
        // There is nothing that less and less of could be taken over.
        if restarts.on_death(now_ms) != Decision::Succeed(Inheritance::Everything) {
            return Ok(Outcome::GaveUp(death));
        }
        in_a_row = if now_ms - began_ms > policy.transient_after_ms { 0 } else { in_a_row + 1 };
        let pause = pause_before(in_a_row);
        tell(Event::Crashed { death, pause });
        if let Some(signal) = signals::wait_for_any(&STOP_SIGNALS, pause) {
            return Ok(Outcome::Stopped(Death::Signal(signal)));
        }
    }
    Err(Error::system("count the restarts", io::Error::other("there were more than 4 billion")))
}

/// Doubles with every crash in a row.
fn pause_before(in_a_row: u32) -> Duration {
    match in_a_row {
        0 | 1 => Duration::ZERO,
        more => PAUSE_MIN.saturating_mul(1 << (more - 2).min(16)).min(PAUSE_MAX),
    }
}

/// How it died, and the signal that it was told to end by before that.
fn until_dead(pid: Pid) -> Result<(Death, Option<i32>), Error> {
    let mut stopped_by = None;
    loop {
        let arrived = match signals::wait() {
            Ok(arrived) => arrived,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::system("wait for signals", error)),
        };
        if arrived.number != libc::SIGCHLD {
            if STOP_SIGNALS.contains(&arrived.number) {
                stopped_by = Some(arrived.number);
            }
            // Those of a terminal it has got already.
            if arrived.by_process {
                let _ = process::kill(pid, arrived.number);
            }
            continue;
        }
        let mut ours = None;
        while let Some(ended) = process::reap() {
            if ended.pid == pid {
                ours = Some(Death::from_status(ended.status));
            }
        }
        if let Some(death) = ours {
            return Ok((death, stopped_by));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_at_once_and_later_ones_wait_longer_and_longer() {
        let pauses: Vec<u128> = (1..=12).map(|row| pause_before(row).as_millis()).collect();
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]);
        assert_eq!(pause_before(u32::MAX), PAUSE_MAX);
    }
}
