//! The time of day of servers, where it is the same at all nodes. PROTOCOL 12.12.
//!
//! A server that asks its machine for the time does something else than the others: a key expires at one of them a moment before, so a read between
//! those moments has two answers. So the primary puts the time into the order ([`Entry::Tick`]), in front of what clients send, and now and then where
//! they send nothing. Each node's server has the time of the last such entry that it was given, and it stands still until the next one. That the
//! leader takes what is not the same on all machines, and the others take it from the leader, is semi-active replication (Powell, ed., *Delta-4*,
//! 1991, section 6.6).

use super::deliveries::NO_CONNECTION;
use super::{Action, Replica, Role};
use crate::entry::Entry;
use crate::is_mutant;

/// Where clients send nothing, servers hear of the time so often.
const TICK_EVERY_MS: u64 = 100;
/// Where requests have no answer: the server is asked about them whenever it gets a time.
const TICK_WHERE_OWED_MS: u64 = 10;
/// For so long after a request that the server does not answer the next one may be expected.
const PASSED_MS: u64 = 1_000;
/// The time of a primary that is behind what servers know goes on more slowly by this, until it is right again. Time never goes back, and does not
/// stand still.
const SLOWER: u64 = 2;

/// From where servers have the time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerClock {
    /// Each from its machine.
    #[default]
    Machine,
    /// All from the order.
    Order,
}

/// What a node knows of it.
#[derive(Debug, Default)]
pub(super) struct Clock {
    pub(super) source: ServerClock,
    /// The time of day, in milliseconds since 1970, is so much later than what the node's own clock says, or earlier.
    ahead_ms: i64,
    /// The last time that was worked on here.
    at_ms: u64,
    /// At the primary: the last time that has an index.
    proposed_ms: u64,
    /// When one of both was new, by the node's own clock.
    since_ms: u64,
    /// When a request was last passed.
    passed_ms: Option<u64>,
    /// When there was no room for one.
    full_ms: Option<u64>,
}

impl Clock {
    /// That of a server which begins with the data of another one.
    pub(super) fn resumed(at_ms: u64, now_ms: u64) -> Self {
        Self { at_ms, since_ms: now_ms, ..Self::default() }
    }

    /// The last time that the server was given, or is about to be.
    pub(super) fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// A request is passed.
    pub(super) fn note_passed(&mut self, now_ms: u64) {
        self.passed_ms = Some(now_ms);
    }

    /// What was only proposed is forgotten.
    pub(super) fn forget_proposed(&mut self) {
        self.proposed_ms = 0;
    }

    /// The time that comes next.
    fn next_ms(&self, now_ms: u64) -> u64 {
        let last = self.at_ms.max(self.proposed_ms);
        let slow = last.saturating_add(now_ms.saturating_sub(self.since_ms) / SLOWER);
        now_ms.saturating_add_signed(self.ahead_ms).max(slow)
    }

    /// A time has a place in the order. Whether it is later than what is known.
    fn take(&mut self, at_ms: u64, now_ms: u64) -> bool {
        if at_ms <= self.at_ms {
            return false;
        }
        self.at_ms = at_ms;
        if at_ms > self.proposed_ms {
            self.since_ms = now_ms;
        }
        true
    }
}

impl Replica {
    /// From where servers have the time of day. The same at all nodes, and from the beginning.
    #[must_use]
    pub fn timed(mut self, source: ServerClock) -> Self {
        self.clock.source = source;
        self
    }

    /// The server has heard of this time before, in milliseconds since 1970, from another node that was here: it hears of no earlier one.
    #[must_use]
    pub fn timed_from(mut self, at_ms: u64, now_ms: u64) -> Self {
        (self.clock.at_ms, self.clock.since_ms) = (at_ms, now_ms);
        self
    }

    /// What the time of day is, in milliseconds since 1970, when this node's own clock says `now_ms`. To be said now and then, as both may drift
    /// apart.
    pub fn handle_time_of_day(&mut self, time_ms: u64, now_ms: u64) {
        self.clock.ahead_ms = time_ms.cast_signed().wrapping_sub(now_ms.cast_signed());
    }

    /// By so much the time of servers is later than the time of day of this node, which leads: it goes on more slowly until it is right.
    #[must_use]
    pub fn clock_ahead_ms(&self, now_ms: u64) -> u64 {
        let time_ms = now_ms.saturating_add_signed(self.clock.ahead_ms);
        if self.role == Role::Serving { self.clock.at_ms.saturating_sub(time_ms) } else { 0 }
    }

    /// At the primary: what comes next has a time in front of it.
    pub(super) fn tick(&mut self, now_ms: u64) {
        if self.clock.source == ServerClock::Machine || !self.pending.is_empty() {
            return;
        }
        // Each time has a cost then.
        let is_passed = self.clock.passed_ms.is_some_and(|at_ms| now_ms < at_ms + PASSED_MS);
        if (self.deliveries.owes() || is_passed) && now_ms < self.clock.since_ms + TICK_WHERE_OWED_MS {
            return;
        }
        let at_ms = self.clock.next_ms(now_ms);
        let at_ms = if is_mutant!(self, ClockIsItsOwn) {
            now_ms.saturating_add_signed(self.clock.ahead_ms)
        } else {
            at_ms
        };
        let last_ms = self.clock.at_ms.max(self.clock.proposed_ms);
        let is_new = at_ms > last_ms || at_ms != last_ms && is_mutant!(self, ClockIsItsOwn);
        if !is_new {
            return;
        }
        if self.order.propose(Entry::Tick { at_ms }, now_ms).is_ok() {
            (self.clock.proposed_ms, self.clock.since_ms) = (at_ms, now_ms);
        } else {
            // What comes next has the time of before.
            self.clock.full_ms = Some(now_ms);
        }
    }

    /// When a time is proposed for no other reason.
    pub(super) fn ticks_at_ms(&self) -> Option<u64> {
        let rests = self.holding.is_some() || self.withholding.is_some() || !self.pending.is_empty();
        let ticks = self.clock.source == ServerClock::Order && self.role == Role::Serving && !rests;
        ticks.then(|| self.clock.since_ms.max(self.clock.full_ms.unwrap_or(0)) + TICK_EVERY_MS)
    }

    pub(super) fn tick_idly(&mut self, now_ms: u64) {
        if self.ticks_at_ms().is_some_and(|at_ms| now_ms >= at_ms) {
            self.tick(now_ms);
        }
    }

    /// The server gets this time when it has answered what came before.
    pub(super) fn take_tick(&mut self, index: u64, at_ms: u64, now_ms: u64) {
        if !self.clock.take(at_ms, now_ms) && !is_mutant!(self, ClockIsItsOwn)
            || self.clock.source == ServerClock::Machine
        {
            return;
        }
        let action = Action::SetClock { at_ms };
        if is_mutant!(self, ClockIsEarly) {
            self.actions.push_back(action);
        } else {
            self.deliver_to_server((index, 0), NO_CONNECTION, action, now_ms);
        }
    }
}
