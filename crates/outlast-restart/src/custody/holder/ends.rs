//! In the holder: processes of the program that have ended, and those that are left when the main one has.

use super::{Ending, Holder};
use crate::custody::left_over::{self, Remains, Was};
use crate::custody::listeners::open_of;
use crate::custody::{PartEnded, Report};
use crate::death::Death;
use crate::sys::process::Pid;
use crate::sys::{custody as sys, family};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A connection that a process has closed.
#[derive(Debug)]
pub(super) struct Released {
    pub(super) owner: Pid,
    /// Its slot and its cookie.
    pub(super) which: (u32, u64),
}

impl Holder {
    /// Keeps what was closed since the last look, as far as no other process has it. All processes are looked through once for all
    /// of these, after they were closed: with 64 workers that takes milliseconds.
    pub(super) fn keep_released(&mut self) {
        let released = std::mem::take(&mut self.released);
        let inodes = self.connections.untouched(released.iter().map(|released| released.which.0));
        let mut open = Vec::new();
        if !inodes.is_empty() {
            let mut processes = family::below_this();
            processes.retain(|pid| !sys::is_exiting(*pid));
            open.extend(processes.into_iter().map(|pid| (pid, open_of(&[pid], &inodes))));
        }
        for Released { owner, which } in released {
            let elsewhere = |inodes: &[u64]| {
                let others = open.iter().filter(|(pid, _)| *pid != owner);
                let theirs = others.flat_map(|(_, theirs)| theirs);
                theirs.copied().filter(|inode| inodes.contains(inode)).collect()
            };
            if self.connections.release((owner, true), which, &self.epoll, elsewhere) {
                self.closed.keep(owner);
            }
        }
    }

    /// The main process is gone: deals with who is left.
    pub(super) fn clear(&mut self, patience: Duration, may_be_in_the_way: bool) -> Remains {
        let now = Instant::now();
        // What is idle by now stays open.
        self.take(now);
        let living = family::below_this();
        living.iter().for_each(|pid| self.watch(*pid, false));
        self.leave_to_others(&living);
        let main = self.main.and_then(|main| Pid::try_from(main).ok());
        self.left_over.note_older(self.parts.keys().copied().filter(|pid| Some(*pid) != main));
        // Where a sandbox forbids that.
        let is_unknown =
            |pid: &Pid| !self.parts.contains_key(pid) && family::parent_of_living(*pid).is_some();
        let may_be_in_the_way = may_be_in_the_way || living.iter().any(is_unknown);
        let process = |pid: &Pid| {
            let part = self.parts.get(pid)?;
            Some(left_over::Process { pid: *pid, known: part.process.as_fd(), has_table: part.has_table })
        };
        let processes: Vec<left_over::Process<'_>> = living.iter().filter_map(process).collect();
        let (held, how) = ((&self.listeners, &mut self.connections), (patience, may_be_in_the_way));
        self.left_over.sort(&processes, main, held, how, now)
    }

    /// Whether the main process has ended, or is about to, and the next one is not started yet. Others may learn that before
    /// its descriptor tells it.
    pub(super) fn is_main_down(&self) -> bool {
        let main = self.main.and_then(|main| Pid::try_from(main).ok());
        main.filter(|main| self.parts.contains_key(main)).is_none_or(sys::is_exiting)
    }

    pub(super) fn on_end(&mut self, pid: u64) {
        let Ok(pid) = Pid::try_from(pid) else { return };
        let Some(part) = self.parts.remove(&pid) else { return };
        self.keep_released();
        // Asked last: it may be buried just now, which is noted before.
        let told = sys::exit_status(part.process.as_fd(), pid);
        let status = self.buried.take(pid).or(told);
        self.changed_at = Instant::now();
        if self.listeners.was_seen_with(pid) {
            self.table.note_untaken(true);
        }
        self.table.accepting.forget(pid);
        let Was { older, killed } = self.left_over.ended(pid);
        let is_main = self.main == Some(pid.cast_unsigned());
        if is_main {
            self.note_short_generation(self.changed_at);
            // What has never listened was no time to serve.
            if self.serves_since.is_some() {
                self.main_ended_at = Some(Instant::now());
            }
            self.listeners.make_room();
        }
        let keep = match self.ending {
            // Some end in order because their master has crashed.
            Ending::No => status != Some(0) || older || (!is_main && self.is_main_down()),
            Ending::Replaced => true,
            Ending::ForGood => false,
        };
        if self.ending == Ending::No && !is_main && !self.is_main_down() {
            let closed = self.listeners.on_end(pid, status == Some(0), family::below_this, self.changed_at);
            self.connections.pass_on_all(&closed);
        }
        if !keep && !is_main && self.follows_crash(self.changed_at) {
            self.postpone_all_of(pid, self.changed_at);
        }
        let elsewhere = |inodes: &[u64]| open_at_others(pid, inodes);
        let (kept, closed) = self.connections.ended(pid, keep, &self.epoll, elsewhere);
        let ends_with_main = !is_main && self.is_main_down();
        self.leaves_to_others |= (is_main && keep) || ends_with_main;
        if keep {
            self.closed.keep_postponed_of(pid);
        }
        let closed_before = self.closed.take_kept_of(pid);
        // A main process that ends in order has closed them for good, as far as is known.
        let closed_before = if is_main && status == Some(0) { 0 } else { closed_before };
        let kept = kept + closed_before;
        let death = status.map(Death::from_status);
        let is_crash = match death {
            // Servers with a process for each client have them end so when a client goes.
            _ if killed => false,
            Some(Death::Exited(code)) => code != 0 && !older && part.has_table && kept + closed > 0,
            Some(death) => part.has_table && !death.is_usual(),
            None => kept + closed > 0,
        };
        if is_main {
            self.closed.keep_postponed();
        } else if is_crash && self.ending == Ending::No {
            self.closed.note_crash(self.changed_at);
        }
        let has_finished =
            older || killed || !is_main && closed_before > 0 || ends_with_main && status == Some(0);
        if self.ending == Ending::No && !is_crash && has_finished && kept + closed > 0 {
            self.report(Report::Finished { pid, kept, closed });
        } else if self.ending == Ending::No && (is_crash || (is_main && kept + closed > 0)) {
            self.report(Report::PartEnded(PartEnded { pid, death, kept, closed }));
        }
    }
}

/// Which of these sockets are open in processes of the program that live, but for this one.
fn open_at_others(than: Pid, inodes: &[u64]) -> Vec<u64> {
    let mut others = family::below_this();
    others.retain(|other| *other != than && !sys::is_exiting(*other));
    open_of(&others, inodes)
}
