//! In the supervisor's shell: whoever is left of the program ends, before it is started again, and when it is over.

use super::Shell;
use crate::board::{Backend, Cause};
use crate::custody::Remains;
use crate::supervisor::rest::{self, Step};
use crate::supervisor::{Attempt, Event, copies};
use crate::sys::process::Pid;
use crate::sys::signals::Waited;
use crate::sys::{family, process, signals};
use std::process::Command;
use std::time::{Duration, Instant};

/// So many crashes soon after each other may be because of who is left of an earlier start.
const IN_A_ROW: u32 = 3;

/// A start that waits.
pub(super) struct Clearing {
    deadline_ms: Option<u64>,
    /// Until the next look.
    pause: Duration,
}

impl<M: FnMut(Attempt<'_>) -> Command, T: FnMut(Event)> Shell<M, T> {
    /// Processes that nobody looks after would be in the way of the next start: they may have its port. It begins when they
    /// have ended.
    pub(super) fn clear(&mut self) {
        let board = self.supervisor.board;
        let is_unmodified = !matches!(board.backend(), Backend::Library | Backend::Roles);
        // Who is left may be why it did not come as far as that, or has not lasted.
        let is_in_the_way = board.backend() != Backend::Exec || self.machine.in_a_row() >= IN_A_ROW;
        let patience = rest::time_before_start(self.supervisor.settings.stop_timeout);
        let remains = match &self.supervisor.custody {
            Some(custody) if is_unmodified => custody.clear(patience, is_in_the_way),
            _ => Remains::default(),
        };
        if !remains.is_known {
            copies::kill(&self.mappings());
        }
        // Whoever would have told is among them.
        for past in board.generations().iter().filter(|past| past.ended_ms.is_none()) {
            board.note_end_of(past.number, None, Cause::Killed);
        }
        self.supervisor.rest.begin_end();
        if let Some(pid) = remains.finishing.first() {
            let (pid, count) = (pid.cast_unsigned(), remains.finishing.len());
            (self.tell)(Event::Finishing { pid, count, limit: patience });
        }
        self.supervisor.rest.know(remains);
        let deadline_ms = rest::deadline_before_start_ms(self.supervisor.settings.stop_timeout);
        self.clearing = Some(Clearing { deadline_ms, pause: Duration::ZERO });
        self.go_on_clearing();
    }

    /// Starts the program as soon as nobody is left.
    pub(super) fn go_on_clearing(&mut self) {
        let Some(Clearing { deadline_ms, pause }) = self.clearing else { return };
        match self.supervisor.rest.end(self.supervisor.settings.stop_signal, deadline_ms) {
            // The program has failed beside them, perhaps because of what they hold: a lock, or a file.
            Step::Over if self.predecessors.as_ref().is_some_and(|end| !end.is_finished()) => {}
            Step::Over => {
                (self.clearing, self.predecessors) = (None, None);
                let lives = |pid: &&Pid| family::parent_of_living(**pid).is_some();
                let sessions: Vec<Pid> =
                    self.supervisor.rest.sessions().iter().filter(lives).copied().collect();
                if let Some(pid) = sessions.first() {
                    (self.tell)(Event::LeftAlone { pid: pid.cast_unsigned(), count: sessions.len() });
                }
                self.start();
                return;
            }
            step => self.tell_step(step, true),
        }
        let last = Some(pause).filter(|pause| !pause.is_zero());
        self.clearing = Some(Clearing { deadline_ms, pause: rest::next_look(last, deadline_ms) });
    }

    /// Until the next look.
    pub(super) fn clearing_pause(&self) -> Duration {
        self.clearing.as_ref().map_or(Duration::ZERO, |clearing| clearing.pause)
    }

    /// Whatever else the program has started is to end, too.
    pub(super) fn end_rest(&mut self) {
        let limit = self.supervisor.settings.stop_timeout;
        let by_themselves = limit.map_or(rest::BY_THEMSELVES, |limit| limit.min(rest::BY_THEMSELVES));
        let (mut pause, began) = (None, Instant::now());
        while began.elapsed() < by_themselves && self.supervisor.rest.is_any() {
            pause = Some(rest::next_look(pause, None));
            if let Waited::Arrived(arrived) = signals::wait_for(pause)
                && crate::STOP_SIGNALS.contains(&arrived.number)
            {
                // Somebody is in a hurry.
                break;
            }
            while let Some(ended) = process::reap() {
                self.other_buried(ended.pid);
            }
        }
        let deadline_ms = rest::deadline_ms(self.machine.told_ms(), limit);
        self.supervisor.rest.begin_end();
        pause = None;
        loop {
            match self.supervisor.rest.end(libc::SIGTERM, deadline_ms) {
                Step::Over => return,
                // Those of others have another parent, which is told.
                Step::Wait => {
                    pause = Some(rest::next_look(pause, deadline_ms));
                    let _ = signals::wait_for(pause);
                }
                step => self.tell_step(step, false),
            }
            while let Some(ended) = process::reap() {
                self.other_buried(ended.pid);
            }
        }
    }

    fn tell_step(&mut self, step: Step, before_start: bool) {
        match step {
            Step::Told { pid, count } => {
                let number = if before_start { self.supervisor.settings.stop_signal } else { libc::SIGTERM };
                (self.tell)(Event::Remaining { pid: pid.cast_unsigned(), count, number });
            }
            Step::Killed { pid, count } => {
                (self.tell)(Event::RemainingKilled { pid: pid.cast_unsigned(), count, before_start });
            }
            Step::Wait | Step::Over => {}
        }
    }
}
