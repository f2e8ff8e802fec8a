//! What happens to all processes, on the one board of the supervisor: each process writes its own, and the root alone copies.

use super::plan::Plan;
use crate::board::{Backend, Board};
use crate::policy::Inheritance;
use crate::zygote::Common;

/// What was copied of one process.
#[derive(Clone, Debug, Default)]
struct Copied {
    generation: u32,
    /// Generations whose end is not known: their numbers, there and here.
    open: Vec<(u32, u32)>,
    quarantined: u32,
}

/// The copies.
pub(super) struct Report {
    supervisor: &'static Board,
    copied: Vec<Copied>,
}

impl Report {
    pub(super) fn new(supervisor: &'static Board, plan: &Plan) -> Self {
        supervisor.set_backend(Backend::Roles);
        Self { supervisor, copied: vec![Copied::default(); plan.processes.len()] }
    }

    /// Copies what is new.
    pub(super) fn look(&mut self, plan: &Plan, commons: &[Common]) {
        let (mut connections, mut held_bytes) = (0u32, 0u64);
        for ((copied, process), common) in self.copied.iter_mut().zip(&plan.processes).zip(commons) {
            copied.look(self.supervisor, &process.name, common.board);
            let (its_connections, its_bytes) = common.board.held();
            connections = connections.saturating_add(its_connections);
            held_bytes = held_bytes.saturating_add(its_bytes);
        }
        self.supervisor.note_held(connections, held_bytes);
        // Of the process that has crashed most.
        let least = commons.iter().map(|common| common.board.inheritance()).max();
        self.supervisor.note_inheritance(least.unwrap_or(Inheritance::Everything));
        if commons.iter().all(|common| common.board.is_ready()) {
            self.supervisor.set_ready();
        }
    }
}

impl Copied {
    fn look(&mut self, to: &Board, name: &str, from: &Board) {
        for past in from.generations() {
            let Some(forgotten) = past.number.checked_sub(self.generation.saturating_add(1)) else {
                continue;
            };
            let number = to.note_of(&crate::board::Past { role: name.to_owned(), ..past.clone() }, forgotten);
            self.open.push((past.number, number));
            self.generation = past.number;
        }
        self.open.retain(|&(there, here)| {
            let Some(past) = from.past(there) else { return false };
            let status = past.death.map(crate::Death::status);
            if past.ended_ms.is_some() {
                to.note_end(here, status, past.cause);
            }
            status.is_none()
        });
        let (count, kept) = from.quarantined();
        let new = count.saturating_sub(std::mem::replace(&mut self.quarantined, count)) as usize;
        for request in kept.iter().skip(kept.len().saturating_sub(new)) {
            to.note_quarantined(request.generation, &request.peer, &request.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Cause;
    use crate::policy::Policy;
    use std::time::Duration;

    #[test]
    fn generations_of_all_are_told_apart_and_none_is_counted_twice() {
        let (_memory, supervisor) = Board::create(&Policy::default()).unwrap();
        let boards = [Board::private().unwrap(), Board::private().unwrap()];
        let mut copied = [Copied::default(), Copied::default()];
        for round in 1..=100 {
            for (number, (board, copied)) in boards.iter().zip(&mut copied).enumerate() {
                // Of one, more die between two looks than are remembered.
                for _ in 0..if number == 0 { 1 } else { 70 } {
                    let generation = board.note_begin(round, Duration::from_micros(5));
                    board.note_end(generation, Some(9), Cause::Killed);
                }
                for _ in 0..2 {
                    copied.look(supervisor, &format!("worker {number}"), board);
                }
            }
        }
        assert_eq!(supervisor.generation(), 100 + 7000);
        let last = supervisor.generations();
        assert!(last.iter().all(|past| past.cause == Cause::Killed && past.role == "worker 1"), "{last:?}");
        let begun = boards[0].note_begin(7, Duration::ZERO);
        copied[0].look(supervisor, "worker 0", boards[0]);
        let serving = supervisor.generations().pop().unwrap();
        assert_eq!((serving.pid, serving.ended_ms, serving.role.as_str()), (7, None, "worker 0"));
        boards[0].note_end(begun, Some(11), Cause::Crash);
        copied[0].look(supervisor, "worker 0", boards[0]);
        assert_eq!(supervisor.generations().pop().unwrap().death, Some(crate::Death::Signal(11)));
    }
}
