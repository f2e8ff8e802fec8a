//! At the primary: where clients have waited for each other lately, transactions go one after another, as long as they are short.
//!
//! Two that go on by turns wait for each other's locks, and a server may have one statement wait at a time: others come again, or fail. So what other
//! clients say gets its place in the order when the transaction is over that goes first. Where its client says nothing for a while, or it lasts for longer, or
//! waits itself, they do not wait for it any more. Only the primary knows of that: the order is as if the others had spoken later.

use super::{Replica, Role};
use crate::entry::ConnectionId;
use crate::protocol::Questions;
use alloc::collections::BTreeMap;

/// So long behind a statement that had to wait.
const CONFLICT_MS: u64 = 10_000;
/// A client that says nothing for so long does not go first any more.
const QUIET_MS: u64 = 5;
/// Nor does one that has gone first for so long.
const LASTS_MS: u64 = 100;
/// A client waits no longer than that, whoever goes first.
const WAITS_MS: u64 = 1_000;
/// One that was quiet so many times within a transaction goes first no more.
const QUIET_TIMES: u32 = 3;
/// A client that waits is handed in again before that, or it has gone.
const TRIED_MS: u64 = 50;

/// A transaction that is under way.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// In the order in which they have begun.
    number: u64,
    quiet_times: u32,
    /// It was quiet too often, or has lasted for too long: it goes first no more, and waits for nobody.
    is_long: bool,
}

/// The one that goes first.
#[derive(Clone, Copy, Debug)]
struct First {
    connection: ConnectionId,
    since_ms: u64,
    /// When its client has said something last, or was answered.
    last_ms: u64,
}

/// A client that waits for that.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Of its transaction, or one of its own.
    number: u64,
    since_ms: u64,
    tried_ms: u64,
}

/// What the one that goes first is at.
#[derive(Clone, Copy, Debug, Default)]
struct At {
    /// The server works for it.
    works: bool,
    /// It waits for another one.
    waits: bool,
}

/// Those of all clients.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    /// Clients have waited for each other.
    conflict_until_ms: u64,
    open: BTreeMap<ConnectionId, Open>,
    count: u64,
    first: Option<First>,
    waiting: BTreeMap<ConnectionId, Waiting>,
    /// Those of them that are within a transaction, by its number.
    queue: BTreeMap<u64, ConnectionId>,
    /// Somebody waits until then.
    until_ms: Option<u64>,
}

impl Transactions {
    /// When those that wait are asked again.
    pub(super) fn wakes_at_ms(&self) -> Option<u64> {
        self.until_ms
    }

    pub(super) fn wake(&mut self, now_ms: u64) {
        self.until_ms = self.until_ms.filter(|until_ms| *until_ms > now_ms);
    }

    /// A statement waits for another client.
    pub(super) fn note_conflict(&mut self, now_ms: u64) {
        self.conflict_until_ms = now_ms + CONFLICT_MS;
    }

    /// The client is gone.
    pub(super) fn remove(&mut self, connection: ConnectionId) {
        self.take_from_queue(connection);
        self.open.remove(&connection);
        self.first = self.first.filter(|first| first.connection != connection);
    }

    fn take_from_queue(&mut self, connection: ConnectionId) {
        self.waiting.remove(&connection);
        if let Some(open) = self.open.get(&connection) {
            self.queue.remove(&open.number);
        }
    }

    /// The oldest that waits: it may have what others wait for.
    fn next(&mut self, now_ms: u64) -> Option<(u64, ConnectionId)> {
        while let Some((number, connection)) =
            self.queue.first_key_value().map(|(number, next)| (*number, *next))
        {
            if self.waiting.get(&connection).is_some_and(|waiting| now_ms <= waiting.tried_ms + TRIED_MS) {
                return Some((number, connection));
            }
            self.queue.remove(&number);
        }
        None
    }

    /// How long the one that goes first does so, if it still does.
    fn first_until_ms(&mut self, at: At, now_ms: u64) -> Option<(ConnectionId, u64)> {
        let First { connection, since_ms, last_ms } = self.first?;
        let lasts_ms = since_ms + LASTS_MS;
        let until_ms = if at.works { lasts_ms } else { lasts_ms.min(last_ms + QUIET_MS) };
        if until_ms > now_ms && !at.waits {
            return Some((connection, until_ms));
        }
        self.first = None;
        if let Some(open) = self.open.get_mut(&connection).filter(|_| !at.waits) {
            open.quiet_times += 1;
            open.is_long |= lasts_ms <= now_ms || open.quiet_times >= QUIET_TIMES;
        }
        None
    }

    /// So long this client waits for others, if it does.
    fn waits_until_ms(&mut self, connection: ConnectionId, at: At, now_ms: u64) -> Option<u64> {
        let first = self.first_until_ms(at, now_ms);
        let open = self.open.get(&connection).copied();
        let before = self.waiting.get(&connection).copied();
        let since_ms = before.map_or(now_ms, |before| before.since_ms);
        let number = open.map(|open| open.number).or(before.map(|before| before.number));
        let at_most_ms = since_ms + WAITS_MS;
        let until_ms = match (first, open) {
            _ if now_ms >= self.conflict_until_ms || at_most_ms <= now_ms => None,
            (_, Some(Open { is_long: true, .. })) => None,
            (Some((first, _)), _) if first == connection => None,
            (Some((_, until_ms)), _) => Some(until_ms.min(at_most_ms)),
            // Those within a transaction come one by one, and others in between.
            (None, _) => {
                let next = self.next(now_ms).filter(|(_, next)| *next != connection);
                let is_behind = |(next, _): &(u64, _)| number.is_none_or(|number| *next < number);
                next.filter(is_behind).map(|_| now_ms + 1)
            }
        };
        if until_ms.is_some() {
            let number = number.unwrap_or_else(|| self.next_number());
            self.waiting.insert(connection, Waiting { number, since_ms, tried_ms: now_ms });
            if open.is_some() {
                self.queue.insert(number, connection);
            }
            return until_ms;
        }
        self.take_from_queue(connection);
        match &mut self.first {
            Some(first) if first.connection == connection => first.last_ms = now_ms,
            None if open.is_some_and(|open| !open.is_long) => self.go_first(connection, now_ms),
            _ => {}
        }
        None
    }

    fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn go_first(&mut self, connection: ConnectionId, now_ms: u64) {
        self.first = Some(First { connection, since_ms: now_ms, last_ms: now_ms });
    }

    /// The server has answered this client, which is within a transaction, or not.
    fn note_answer(&mut self, connection: ConnectionId, is_open: bool, now_ms: u64) {
        if !is_open {
            self.take_from_queue(connection);
            self.open.remove(&connection);
            self.first = self.first.filter(|first| first.connection != connection);
            return;
        }
        if !self.open.contains_key(&connection) {
            let number = self.next_number();
            self.open.insert(connection, Open { number, quiet_times: 0, is_long: false });
            if self.first.is_none() && self.next(now_ms).is_none() {
                self.go_first(connection, now_ms);
            }
        }
        if let Some(first) = self.first.as_mut().filter(|first| first.connection == connection) {
            first.last_ms = now_ms;
        }
    }
}

impl Replica {
    /// Whether this client waits for another one's transaction: it is said again later what it has said.
    pub fn waits_for_transaction(&mut self, connection: ConnectionId, now_ms: u64) -> bool {
        if self.holding.is_some() || self.withholding.is_some() {
            self.transactions.take_from_queue(connection);
            return false;
        }
        let first = self.transactions.first.map(|first| first.connection);
        let at = first.map_or_else(At::default, |first| At {
            works: self.questions.get(&first).is_some_and(|questions| !questions.are_answered()),
            waits: self.deliveries.is_blocked(first),
        });
        let until_ms = self.transactions.waits_until_ms(connection, at, now_ms);
        if let Some(until_ms) = until_ms {
            self.transactions.until_ms = Some(until_ms.min(self.transactions.until_ms.unwrap_or(u64::MAX)));
        }
        until_ms.is_some()
    }

    /// The server has answered something.
    pub(super) fn note_transaction(&mut self, connection: ConnectionId, now_ms: u64) {
        let is_answered = |questions: &&Questions| questions.are_answered();
        let Some(questions) = self.questions.get(&connection).filter(is_answered) else { return };
        if !self.protocol.takes_turns() {
            return;
        }
        let leads = self.role == Role::Serving && self.connections.contains_key(&connection);
        let is_open = leads && questions.is_in_transaction();
        self.transactions.note_answer(connection, is_open, now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ConnectionId = ConnectionId(1);
    const OTHER: ConnectionId = ConnectionId(2);
    const THIRD: ConnectionId = ConnectionId(3);

    fn waits(transactions: &mut Transactions, connection: ConnectionId, now_ms: u64) -> bool {
        transactions.waits_until_ms(connection, At::default(), now_ms).is_some()
    }

    fn with_conflict() -> Transactions {
        Transactions { conflict_until_ms: u64::MAX, ..Transactions::default() }
    }

    #[test]
    fn others_wait_for_a_transaction_that_goes_on_and_is_short() {
        let mut transactions = with_conflict();
        assert!(!waits(&mut transactions, OTHER, 0));
        transactions.note_answer(ONE, true, 10);
        assert!(waits(&mut transactions, OTHER, 10) && !waits(&mut transactions, ONE, 12));
        // The server works for it.
        let works = At { works: true, waits: false };
        assert!(transactions.waits_until_ms(OTHER, works, 12 + QUIET_MS).is_some());
        transactions.note_answer(ONE, true, 30);
        assert!(waits(&mut transactions, OTHER, 30 + QUIET_MS - 1));
        transactions.note_answer(ONE, false, 36);
        assert!(!waits(&mut transactions, OTHER, 36) && transactions.first.is_none());
    }

    #[test]
    fn a_transaction_that_was_quiet_or_lasts_goes_first_no_more() {
        let mut transactions = with_conflict();
        transactions.note_answer(ONE, true, 10);
        for at_ms in [10, 20, 30] {
            assert!(!waits(&mut transactions, ONE, at_ms));
            assert!(
                waits(&mut transactions, OTHER, at_ms) && !waits(&mut transactions, OTHER, at_ms + QUIET_MS)
            );
        }
        assert!(!waits(&mut transactions, ONE, 40));
        transactions.note_answer(ONE, true, 40);
        assert!(!waits(&mut transactions, OTHER, 40));
        let mut transactions = with_conflict();
        for at_ms in 10..10 + LASTS_MS {
            transactions.note_answer(ONE, true, at_ms);
            assert!(waits(&mut transactions, OTHER, at_ms), "{at_ms}");
        }
        transactions.note_answer(ONE, true, 10 + LASTS_MS);
        assert!(!waits(&mut transactions, OTHER, 10 + LASTS_MS));
    }

    #[test]
    fn the_oldest_is_the_next_and_others_wait_for_a_bounded_time() {
        let mut transactions = with_conflict();
        for connection in [ONE, OTHER, THIRD] {
            transactions.note_answer(connection, true, 10);
        }
        let late = ConnectionId(4);
        assert!(
            waits(&mut transactions, THIRD, 11)
                && waits(&mut transactions, OTHER, 12)
                && waits(&mut transactions, late, 12)
        );
        transactions.note_answer(ONE, false, 13);
        assert!(waits(&mut transactions, THIRD, 13) && !waits(&mut transactions, OTHER, 13));
        // Whoever goes first.
        transactions.note_answer(OTHER, false, 14);
        assert!(waits(&mut transactions, late, 14));
        // One that has begun later does not come before it.
        transactions.note_answer(THIRD, false, 15);
        transactions.note_answer(OTHER, true, 15);
        transactions.first = None;
        assert!(!waits(&mut transactions, late, 15));
        // One that waits for a lock is not waited for, and one that has gone neither.
        let waits_itself = At { works: true, waits: true };
        assert!(transactions.waits_until_ms(THIRD, waits_itself, 14).is_none());
        transactions.remove(THIRD);
        assert!(
            transactions.first.is_none() && transactions.queue.is_empty() && transactions.waiting.is_empty()
        );
    }

    #[test]
    fn nobody_waits_where_nobody_has_waited_for_a_lock_lately() {
        let mut transactions = Transactions::default();
        transactions.note_answer(ONE, true, 10);
        assert!(!waits(&mut transactions, OTHER, 10));
        transactions.note_conflict(10);
        transactions.note_answer(ONE, true, 11);
        assert!(waits(&mut transactions, OTHER, 11));
        transactions.note_answer(ONE, true, 10 + CONFLICT_MS);
        assert!(!waits(&mut transactions, OTHER, 10 + CONFLICT_MS));
    }
}
