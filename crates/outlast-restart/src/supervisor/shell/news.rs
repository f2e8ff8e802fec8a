//! What the holder, the board and other threads have to say.

use super::{CAUSE_WITHIN_MS, Shell, of};
use crate::board::{Backend, Cause};
use crate::custody::{PartEnded, Report};
use crate::supervisor::left::{self, Predecessors};
use crate::supervisor::machine::Input;
use crate::supervisor::settings::Readiness;
use crate::supervisor::{Attempt, Event, Message, upgrade_signal};
use crate::sys::{clock, family};
use std::process::Command;

impl<M: FnMut(Attempt<'_>) -> Command, T: FnMut(Event)> Shell<M, T> {
    /// What the holder has to say.
    pub(super) fn hear_holder(&mut self) {
        let reports = self.supervisor.custody.as_ref();
        let reports: Vec<Report> =
            reports.iter().flat_map(|custody| std::iter::from_fn(|| custody.report())).collect();
        for report in reports {
            if let Some(event) = self.reported(report) {
                (self.tell)(event);
            }
        }
    }

    /// What others have to say.
    pub(super) fn hear(&mut self) {
        self.hear_holder();
        if self.clearing.is_some() {
            // In a moment there is a program that can do what is asked.
            return;
        }
        while let Ok(message) = self.supervisor.inbox.try_recv() {
            if matches!(message, Message::Upgrade { .. } | Message::Replace { .. }) {
                // The last wish may have come to its end just now, and its binary is the program then.
                self.hear_of_upgrade();
            }
            match message {
                Message::Ready { attempt } if attempt == self.attempt => self.inputs.push_back(Input::Ready),
                Message::SignOfLife { attempt } if attempt == self.attempt => {
                    self.inputs.push_back(Input::SignOfLife);
                }
                Message::Ready { .. } | Message::SignOfLife { .. } => {}
                Message::Upgrade { wish, program } => match self.machine.main() {
                    Some(main)
                        if self.machine.can_replace() && self.supervisor.board.takes_upgrades(main) =>
                    {
                        self.ask(wish, program);
                        let _ = family::signal_below(of(main), upgrade_signal());
                    }
                    _ => self.refuse(wish),
                },
                Message::Replace { wish, program } if self.machine.can_replace() => {
                    self.replace(wish, program);
                }
                Message::Replace { wish, .. } => self.refuse(wish),
            }
        }
    }

    fn reported(&mut self, report: Report) -> Option<Event> {
        Some(match report {
            // As it was asked to.
            Report::PartEnded(PartEnded { death: Some(death), .. })
                if self.machine.is_interrupted_by(death, clock::monotonic_ms()) =>
            {
                return None;
            }
            Report::PartEnded(PartEnded { pid, death, kept, closed }) => {
                Event::PartEnded { pid: pid.cast_unsigned(), death, kept, closed }
            }
            Report::Finished { pid, kept, closed } => {
                Event::PartFinished { pid: pid.cast_unsigned(), kept, closed }
            }
            Report::ListensAgain { number, pause } => Event::ListensAgain { number, pause },
            Report::NotKept(kind) => Event::NotKept { kind },
            Report::Untold { pid, why, listens: false } => {
                Event::HoldsNothing { pid: pid.cast_unsigned(), why }
            }
            Report::Untold { pid, why, listens: true } => {
                Event::HoldsNoConnections { pid: pid.cast_unsigned(), why }
            }
            Report::FailedForUs { starts } => {
                self.machine.forget_failures(starts);
                return None;
            }
            Report::LetGo { sockets } => Event::LetGo { sockets, waits: true },
            Report::LeftToOthers { sockets } => Event::LeftToOthers { sockets },
            Report::Full { limit } => Event::KeepsFewer { limit },
            Report::ClosedStrays { closed } => Event::ListensElsewhere { closed },
            Report::TookOver { supervisor, sockets } => {
                let settings = &self.supervisor.settings;
                let time = left::time_to_end(settings.stop_timeout, true);
                let key = settings.key.as_deref()?;
                let Predecessors { first, count, end } =
                    left::end_of(key, supervisor, settings.stop_signal, time)?;
                self.predecessors = Some(end);
                Event::TookOver { pid: first.cast_unsigned(), count, sockets }
            }
        })
    }

    /// What the board has to say.
    pub(super) fn look(&mut self) {
        let board = self.supervisor.board;
        // Until the next start the board has what the last one has said.
        let runs = self.machine.main().is_some();
        if self.supervisor.settings.readiness == Readiness::Board
            && board.is_ready()
            && runs
            && !self.machine.is_ready()
        {
            self.inputs.push_back(Input::Ready);
        }
        self.hear_of_upgrade();
        self.look_at_change();
        self.look_at_generations(false);
    }

    /// Those that have begun to serve, what they refuse, and how much they take over. Who is `late` does not wait for what is
    /// known in a moment.
    pub(super) fn look_at_generations(&mut self, late: bool) {
        let board = self.supervisor.board;
        let number = board.generation();
        // Those that are still known, each: somebody may count them in a log.
        let first =
            self.generation.saturating_add(1).max(number.saturating_sub(crate::board::GENERATIONS - 1));
        for number in first..=number {
            if !late && self.waits_for_cause(number) {
                return;
            }
            self.cause_until_ms = None;
            (self.tell)(Event::Generation { number });
            self.generation = number;
        }
        self.generation = number;
        let quarantined = board.quarantined_count();
        let first =
            self.quarantined.saturating_add(1).max(quarantined.saturating_sub(crate::board::QUARANTINED - 1));
        (first..=quarantined).for_each(|number| (self.tell)(Event::Quarantined { number }));
        self.quarantined = quarantined;
        let inheritance = board.inheritance();
        if inheritance != std::mem::replace(&mut self.inheritance, inheritance) {
            (self.tell)(Event::Inherits { inheritance });
        }
    }

    /// Whether it is about to be known why the generation before this one has ended.
    fn waits_for_cause(&mut self, number: u32) -> bool {
        let board = self.supervisor.board;
        let last = number.checked_sub(1).and_then(|last| board.past(last));
        let unknown = last.is_some_and(|last| last.ended_ms.is_some() && last.cause == Cause::Unknown);
        let now_ms = clock::monotonic_ms();
        unknown
            && board.backend() != Backend::Roles
            && now_ms < *self.cause_until_ms.get_or_insert(now_ms.saturating_add(CAUSE_WITHIN_MS))
    }
}
