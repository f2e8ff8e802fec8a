//! In the supervisor's shell: another binary, by the server's own doing, or in its place.

use super::{Shell, of};
use crate::board::{Backend, UpgradeEnd, WhyNot};
use crate::death::Death;
use crate::supervisor::machine::Input;
use crate::supervisor::settings::Readiness;
use crate::supervisor::{Attempt, Event};
use crate::sys::{clock, family};
use std::path::PathBuf;
use std::process::Command;

/// A program that says nothing of whether it serves has to live for so long to take another one's place.
const TRIAL_MS: u64 = 1_000;
/// A server that deals with a wish for another binary by itself may say so long after its time how that went.
const LATE_MS: u64 = 5_000;

/// A binary that takes another one's place.
pub(super) struct Change {
    pub(super) wish: u32,
    /// That runs again if the new one does not.
    pub(super) previous: Option<PathBuf>,
    /// The new one was started.
    pub(super) begun: bool,
    /// Nobody says whether it serves: the old one has not, either.
    untold: bool,
    /// Generations that have served until the old one was told to end.
    pub(super) replaced: Vec<u32>,
}

/// A wish that the server deals with.
pub(super) struct Asked {
    wish: u32,
    program: PathBuf,
    /// When nobody expects an answer any more.
    until_ms: u64,
}

impl<M: FnMut(Attempt<'_>) -> Command, T: FnMut(Event)> Shell<M, T> {
    /// The program is to be stopped, and started as this one, or as the same if that is empty.
    pub(super) fn replace(&mut self, wish: u32, program: PathBuf) {
        let previous = self.program.clone();
        if !program.as_os_str().is_empty() {
            self.program = Some(program);
        }
        let past = self.supervisor.board.generations();
        let replaced = past.iter().filter(|past| past.ended_ms.is_none()).map(|past| past.number).collect();
        let settings = &self.supervisor.settings;
        let untold = settings.readiness == Readiness::Started
            || settings.assume_ready_after.is_some() && !self.supervisor.board.is_ready();
        self.change = Some(Change { wish, previous, begun: false, untold, replaced });
        self.inputs.push_back(Input::Replace);
    }

    /// The old program has ended, however it took it.
    pub(super) fn note_replaced(&self) {
        let replaced = self.change.iter().filter(|change| !change.begun).flat_map(|change| &change.replaced);
        replaced.for_each(|number| self.supervisor.board.note_replaced(*number));
    }

    /// A change of the binary has come to its end.
    pub(super) fn settle(&mut self, end: UpgradeEnd) {
        match self.change.take() {
            Some(change) if end == UpgradeEnd::Done && !change.begun => self.change = Some(change),
            Some(change) => {
                if end != UpgradeEnd::Done {
                    self.program = change.previous;
                }
                self.supervisor.board.note_upgrade(change.wish, end);
                (self.tell)(Event::Upgrade { wish: change.wish });
            }
            None => {}
        }
    }

    /// Whether a change of the binary has come to its end by itself, or because it is no longer wanted.
    pub(super) fn look_at_change(&mut self) {
        let Some(Change { wish, begun, untold, .. }) = self.change else { return };
        let age_ms = self.machine.age_ms(clock::monotonic_ms());
        if begun && untold && age_ms.is_some_and(|age_ms| age_ms >= TRIAL_MS) {
            self.settle(UpgradeEnd::Done);
        } else if let Some(why) = self.supervisor.board.upgrade_is_over(wish)
            // It has its time from when the old one has ended.
            && (begun || why != WhyNot::TooLate)
        {
            self.settle(UpgradeEnd::undone(why));
            if begun {
                self.inputs.push_back(Input::Undo);
            }
        }
    }

    /// The wish that a server deals with whose old program was killed while that waited for the new one: nobody else can say
    /// any more what becomes of it.
    fn without_old(&self) -> Option<u32> {
        let (board, wish) = (self.supervisor.board, self.asked.as_ref()?.wish);
        let (old, main) = (board.main_pid(), self.machine.main()?);
        let waits = board.backend() == Backend::Library && old != 0 && old != main;
        // It ends in order when it has said how that went.
        let killed =
            waits && family::parent_of_living(of(old)).is_none() && board.upgrade_end(wish).is_none();
        killed.then_some(wish)
    }

    /// Does what the old program would, if that was killed: as soon as it is known which one serves, or too late for the new
    /// one.
    fn stand_in_for_old(&mut self) {
        let (board, Some(wish)) = (self.supervisor.board, self.without_old()) else { return };
        let serves = family::parent_of_living(of(board.serving_pid())).is_some();
        if board.upgrade_decided(wish) == Some(true) {
            board.set_main_pid(self.machine.main().unwrap_or(0));
            board.note_upgrade(wish, UpgradeEnd::Done);
        } else if !serves && board.upgrade_is_over(wish).is_some() && !board.decide_upgrade(wish, false) {
            board.note_upgrade(wish, UpgradeEnd::undone(WhyNot::OldKilled));
            self.inputs.push_back(Input::Undo);
        }
    }

    /// The main process has died, and nobody goes on for it: whether it was one that took another one's place, and is not
    /// to. That is said then.
    pub(super) fn has_died_on_trial(&mut self, death: Death) -> bool {
        if self.change.as_ref().is_some_and(|change| change.begun) {
            let is_told = self.machine.is_interrupted_by(death, clock::monotonic_ms());
            let why = if is_told { WhyNot::Stopped } else { WhyNot::Ended { death: Some(death) } };
            self.settle(UpgradeEnd::undone(why));
            return true;
        }
        let board = self.supervisor.board;
        let lost = self.without_old().filter(|wish| !board.decide_upgrade(*wish, false));
        if let Some(wish) = lost {
            board.note_upgrade(wish, UpgradeEnd::undone(WhyNot::OldKilled));
            self.hear_of_upgrade();
        }
        lost.is_some()
    }

    /// Whether the server has said how a wish for another binary has ended.
    pub(super) fn hear_of_upgrade(&mut self) {
        self.stand_in_for_old();
        let board = self.supervisor.board;
        let Some(Asked { wish, program, until_ms }) = self.asked.take() else { return };
        if clock::monotonic_ms() >= until_ms {
            board.note_upgrade(wish, UpgradeEnd::undone(WhyNot::Unanswered));
        }
        match board.upgrade_end(wish) {
            None => {
                self.asked = Some(Asked { wish, program, until_ms });
                // Whoever begins to serve has nobody yet to give any.
                self.inputs.push_back(Input::SignOfLife);
            }
            Some(end) => {
                if end == UpgradeEnd::Done && !program.as_os_str().is_empty() {
                    self.program = Some(program);
                }
                (self.tell)(Event::Upgrade { wish });
            }
        }
    }

    /// The server is about to be told of a wish.
    pub(super) fn ask(&mut self, wish: u32, program: PathBuf) {
        let left_ms = self.supervisor.board.upgrade_time_left().as_millis();
        let left_ms = u64::try_from(left_ms).unwrap_or(u64::MAX).saturating_add(LATE_MS);
        self.asked = Some(Asked { wish, program, until_ms: clock::monotonic_ms().saturating_add(left_ms) });
    }

    /// A wish cannot be dealt with.
    pub(super) fn refuse(&mut self, wish: u32) {
        self.supervisor.board.note_upgrade(wish, UpgradeEnd::untouched(WhyNot::Unable));
        (self.tell)(Event::Upgrade { wish });
    }
}
