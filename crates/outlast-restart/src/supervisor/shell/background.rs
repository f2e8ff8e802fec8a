//! In the supervisor's shell: programs that go into the background.

use super::{LOOK_SOON, Shell};
use crate::custody::Successor;
use crate::death::Death;
use crate::supervisor::copies::Copies;
use crate::supervisor::{Attempt, Event};
use crate::sys::family;
use crate::sys::mapping::Mapping;
use crate::sys::process::{self, Pid};
use std::process::Command;
use std::time::{Duration, Instant};

/// A program that has gone into the background begins to listen within this time, or is not looked after.
const BACKGROUND_WAIT: Duration = Duration::from_secs(1);
/// And leaves the session of the one that has started it within this time.
const SESSION_WAIT: Duration = Duration::from_millis(250);
/// Both, of one that has done so before: if it is not there, nobody serves.
const EXPECTED_WAIT: Duration = Duration::from_secs(5);

impl<M: FnMut(Attempt<'_>) -> Command, T: FnMut(Event)> Shell<M, T> {
    /// The process that goes on in the background, of a program that was not changed and has ended in order. Or certainty
    /// that there is none.
    pub(super) fn in_background(&self, ended: Pid, in_order: bool) -> Option<Successor> {
        let custody = self.supervisor.custody.as_ref().filter(|_| in_order)?;
        let successor = custody.who_goes_on(ended);
        if successor == Successor::Nobody {
            return Some(successor);
        }
        let copies = Copies::find(custody.mapping().map(std::slice::from_ref)?);
        let orphan = copies.without(&self.supervisor.rest.of_earlier()).orphan().map(Successor::Process);
        let Some(Successor::Process(pid)) = orphan.or(Some(successor)) else { return None };
        custody.started(pid.cast_unsigned());
        Some(Successor::Process(pid))
    }

    /// The same. Some begin to listen when they are in the background, and some fork twice: that takes a moment.
    pub(super) fn awaited_in_background(&self, ended: Pid, in_order: bool) -> Option<u32> {
        let began = Instant::now();
        let (session_wait, wait) = match self.machine.awaits_background() {
            true => (EXPECTED_WAIT, EXPECTED_WAIT),
            false => (SESSION_WAIT, BACKGROUND_WAIT),
        };
        loop {
            let found = self.in_background(ended, in_order);
            let may_come = in_order && self.supervisor.custody.is_some() && self.machine.told_ms().is_none();
            let waited = began.elapsed();
            // Its parent may have ended before it has done anything.
            let is_any = waited < wait && self.is_any_left(waited >= session_wait);
            match found {
                Some(Successor::Process(pid)) => return Some(pid.cast_unsigned()),
                Some(Successor::Nobody) => return None,
                _ if !may_come || !is_any => return None,
                _ => std::thread::sleep(LOOK_SOON),
            }
        }
    }

    /// How whoever was to go on in the background has ended, if it has failed.
    pub(super) fn death_in_background(&self) -> Option<Death> {
        let death = Death::from_status(process::ended()?.status);
        (!self.supervisor.settings.success.contains(&death)).then_some(death)
    }

    /// Whether it has left this process's session, and is not of a server that is written for this library.
    pub(super) fn is_daemon(&self, pid: Pid) -> bool {
        let own: Vec<Mapping> = Mapping::at(self.supervisor.board).into_iter().collect();
        family::session(pid) != family::session(0) && !Copies::find(&own).has(pid)
    }

    /// Whether somebody is below this process, of whom nobody knows yet what for; one that has left its session, perhaps.
    pub(super) fn is_any_left(&self, session_too: bool) -> bool {
        let (session, rest) = (family::session(0), &self.supervisor.rest);
        let known = [rest.of_earlier(), rest.of_others()].concat();
        let is_it = |pid: &Pid| !session_too || family::session(*pid) != session;
        family::below_this().iter().any(|pid| is_it(pid) && !known.contains(pid))
    }
}
