//! In the holder: idle connections that the program closes just after one of its processes has crashed, or just before one crashes.
//!
//! A master that notices the crash of a worker may end by itself, and have its other workers end before, which close what they have.
//! For their clients that is the same crash: their connections stay open for the next start. Nobody knows at that time whether the
//! master is about to end: so they stay open for a moment, and are closed if it does not. A client that sends its next request
//! meanwhile is served by the process that accepts it.
//!
//! A program in a language that closes what it drops (Python, at an exception that nobody catches) closes its listening socket, then its
//! connections, and exits with an error: what a process closes just after a listening socket stays open for a moment as well.

use super::{Ending, Holder};
use crate::custody::Report;
use crate::sys::process::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What is closed for so long after a crash may be for it.
const FOLLOWS: Duration = Duration::from_secs(2);
/// So long the master has to end, once one of its processes has closed a connection.
const UNDECIDED: Duration = Duration::from_secs(1);

/// The slot of a connection, and its cookie.
pub(super) type Which = (u32, u64);

/// Of connections that processes close: which are kept for a crash, and how many of each process. Decides by what is said to it
/// alone, in whatever order the ends of the processes are heard of.
#[derive(Debug, Default)]
pub(super) struct Closed {
    crashed_at: Option<Instant>,
    /// The process that has closed a listening socket last, and when that was heard of.
    closes_listener: Option<(Pid, Instant)>,
    postponed: Vec<Postponed>,
    /// Of each process so many are kept, which is not said yet.
    kept: BTreeMap<Pid, u32>,
}

/// A connection that a process has closed, and that is open at the holder alone.
#[derive(Debug)]
struct Postponed {
    owner: Pid,
    which: Which,
    since: Instant,
}

impl Closed {
    /// A process that is not the main one has crashed.
    pub(super) fn note_crash(&mut self, now: Instant) {
        self.crashed_at = Some(now);
    }

    /// Whether what is closed now may be so for a crash of another process.
    fn follows_crash(&self, now: Instant) -> bool {
        self.crashed_at.is_some_and(|at| now.duration_since(at) < FOLLOWS)
    }

    /// A process has closed a listening socket.
    fn note_closes_listener(&mut self, pid: Pid, now: Instant) {
        self.closes_listener = Some((pid, now));
    }

    /// Whether what this process closes now may be so as it ends.
    fn precedes_end(&self, pid: Pid, now: Instant) -> bool {
        self.closes_listener.is_some_and(|(its, at)| its == pid && now.duration_since(at) < UNDECIDED)
    }

    /// A process has closed an idle one. Where the main process has ended it is kept.
    fn postpone(&mut self, owner: Pid, which: Which, is_main_down: bool, now: Instant) {
        if is_main_down {
            self.keep(owner);
        } else {
            self.postponed.push(Postponed { owner, which, since: now });
        }
    }

    /// One that this process has closed is kept.
    pub(super) fn keep(&mut self, owner: Pid) {
        *self.kept.entry(owner).or_default() += 1;
    }

    /// The main process has ended: they are kept, as what its other processes have is.
    pub(super) fn keep_postponed(&mut self) {
        for Postponed { owner, .. } in std::mem::take(&mut self.postponed) {
            self.keep(owner);
        }
    }

    /// This process has crashed: they are kept, as what it had not closed is.
    pub(super) fn keep_postponed_of(&mut self, pid: Pid) {
        for one in self.postponed.extract_if(.., |one| one.owner == pid).collect::<Vec<_>>() {
            self.keep(one.owner);
        }
    }

    /// Those whose program goes on, for which the time is over.
    fn take_overdue(&mut self, now: Instant) -> Vec<Which> {
        let is_over = |one: &mut Postponed| now.duration_since(one.since) >= UNDECIDED;
        self.postponed.extract_if(.., is_over).map(|one| one.which).collect()
    }

    /// This process has ended: how many of its connections are kept that it had closed before.
    pub(super) fn take_kept_of(&mut self, owner: Pid) -> u32 {
        self.kept.remove(&owner).unwrap_or(0)
    }

    /// The same, of each process whose end was heard of before that of the main one.
    fn take_kept_of_ended(&mut self, lives: impl Fn(Pid) -> bool) -> BTreeMap<Pid, u32> {
        self.kept.extract_if(.., |owner, _| !lives(*owner)).collect()
    }
}

impl Holder {
    pub(super) fn follows_crash(&self, now: Instant) -> bool {
        self.ending == Ending::No && self.closed.follows_crash(now)
    }

    /// Whether what this process closes now may be so as it ends.
    pub(super) fn precedes_end(&mut self, pid: Pid, now: Instant) -> bool {
        self.hear_of_closed_listener(now);
        self.ending == Ending::No && self.closed.precedes_end(pid, now)
    }

    /// Takes in which process has closed a listening socket.
    pub(super) fn hear_of_closed_listener(&mut self, now: Instant) {
        if let Some(pid) = self.table.take_closes_listener() {
            self.closed.note_closes_listener(pid, now);
        }
    }

    /// Keeps what a process closes, or has when it ends in order, for a moment. Untouched ones are as good as new: they are closed.
    pub(super) fn postpone(&mut self, owner: Pid, which: Which, now: Instant) {
        if self.connections.keep_idle(owner, which, &self.epoll) {
            self.closed.postpone(owner, which, self.is_main_down(), now);
        } else {
            self.connections.release((owner, false), which, &self.epoll, |_| Vec::new());
        }
    }

    /// The same, of all that a process has which has ended in order.
    pub(super) fn postpone_all_of(&mut self, owner: Pid, now: Instant) {
        for which in self.connections.served_by(owner) {
            self.postpone(owner, which, now);
        }
    }

    /// Closes those whose program goes on, and says what is kept of processes that have ended.
    pub(super) fn close_postponed(&mut self, now: Instant) {
        if !self.is_main_down() {
            for which in self.closed.take_overdue(now) {
                self.connections.let_go_of_resting(which);
            }
        }
        let of_ended = self.closed.take_kept_of_ended(|pid| self.parts.contains_key(&pid));
        for (pid, kept) in of_ended.into_iter().filter(|_| self.ending == Ending::No) {
            self.report(Report::Finished { pid, kept, closed: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: Pid = 20;

    /// What happens to a program of which another worker has crashed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        Closes(u32),
        WorkerEnds,
        MainEnds,
    }

    /// The end of the main process is heard of before, between and after what a worker does.
    fn orders() -> Vec<Vec<Event>> {
        let insert = |at: usize| {
            let mut order = vec![Event::Closes(1), Event::Closes(2), Event::WorkerEnds];
            order.insert(at, Event::MainEnds);
            order
        };
        (0..=3).map(insert).collect()
    }

    #[test]
    fn each_is_counted_once_in_every_order_of_ends() {
        for order in orders() {
            let (mut closed, now) = (Closed::default(), Instant::now());
            closed.note_crash(now);
            let (mut lives, mut is_main_down, mut said) = (true, false, 0);
            for event in &order {
                match event {
                    Event::Closes(slot) => closed.postpone(WORKER, (*slot, 1), is_main_down, now),
                    Event::WorkerEnds => {
                        lives = false;
                        said += closed.take_kept_of(WORKER);
                    }
                    Event::MainEnds => {
                        is_main_down = true;
                        closed.keep_postponed();
                    }
                }
                said += closed.take_kept_of_ended(|_| lives).values().sum::<u32>();
                // Nothing is said of a process before its end.
                assert!(!lives || said == 0, "{order:?}");
            }
            assert_eq!(said, 2, "{order:?}");
            assert!(closed.take_overdue(now + UNDECIDED).is_empty(), "{order:?}");
        }
    }

    #[test]
    fn what_is_closed_behind_a_listening_socket_is_kept_if_that_process_crashes() {
        let (mut closed, now) = (Closed::default(), Instant::now());
        assert!(!closed.precedes_end(WORKER, now));
        closed.note_closes_listener(WORKER, now);
        assert!(closed.precedes_end(WORKER, now + UNDECIDED / 2));
        assert!(!closed.precedes_end(WORKER + 1, now) && !closed.precedes_end(WORKER, now + UNDECIDED));
        for (slot, owner) in [(1, WORKER), (2, WORKER + 1)] {
            closed.postpone(owner, (slot, 1), false, now);
        }
        closed.keep_postponed_of(WORKER);
        assert_eq!(closed.take_kept_of(WORKER), 1);
        assert_eq!(closed.take_overdue(now + UNDECIDED), [(2, 1)]);
    }

    #[test]
    fn where_the_main_process_goes_on_each_is_closed_once_and_none_is_counted() {
        let (mut closed, now) = (Closed::default(), Instant::now());
        assert!(!closed.follows_crash(now));
        closed.note_crash(now);
        assert!(closed.follows_crash(now + FOLLOWS / 2) && !closed.follows_crash(now + FOLLOWS));
        closed.postpone(WORKER, (1, 1), false, now);
        closed.postpone(WORKER, (2, 1), false, now + UNDECIDED / 2);
        assert!(closed.take_overdue(now + UNDECIDED / 2).is_empty());
        assert_eq!(closed.take_overdue(now + UNDECIDED), [(1, 1)]);
        assert_eq!(closed.take_overdue(now + UNDECIDED * 2), [(2, 1)]);
        closed.keep_postponed();
        assert_eq!(closed.take_kept_of(WORKER), 0);
    }
}
