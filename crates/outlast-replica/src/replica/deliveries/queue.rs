//! What waits for the server of a node, and what it works on.

use super::kept::Kept;
use super::{Delivery, ENTRY_BITS, NO_CONNECTION};
use crate::entry::{Again, ConnectionId};
use crate::replica::Action;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// What the server works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Working {
    pub(super) connection: ConnectionId,
    /// Of the last entry that it was given of that.
    pub(super) index: u64,
    pub(super) since_ms: u64,
    /// It has got the end of the stream, or is to close the connection: an answer is not enough.
    pub(super) awaits_end: bool,
    /// So much has come to the server on that connection since it has answered all.
    pub(super) bytes: usize,
    /// When the server is asked next whether it is done with it.
    pub(super) ask_at_ms: u64,
    pub(super) proceed: Proceed,
    /// The server has nothing to do, though it has not answered: it waits for something that others say.
    pub(super) is_idle: bool,
}

/// Whether others go on without an answer to what was given last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Proceed {
    /// The answer is waited for.
    #[default]
    No,
    /// At the primary: it has been proposed that all go on, or will be.
    Proposed,
    /// That has a place in the order since then. This server gets the next one when it is done with what it has.
    Since { at_ms: u64 },
}

impl Working {
    /// It has another time, and is asked whether it has looked what that means.
    pub(super) fn is_time(&self) -> bool {
        self.connection == NO_CONNECTION && !self.awaits_end
    }

    /// Since when all may go on without an answer.
    pub(super) fn passed_ms(&self) -> Option<u64> {
        if let Proceed::Since { at_ms } = self.proceed { Some(at_ms) } else { None }
    }
}

/// What waits for its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) index: u64,
    /// The server has said so much on that connection before it gets this, unless it has ended it.
    pub(super) after: u64,
    pub(super) connection: ConnectionId,
    pub(super) action: Action,
    /// The server greets the client before it gets this, whatever was passed.
    pub(super) waits_for_greeting: bool,
    /// It comes behind all answers: it is the end of a stream, and the server may drop what it has not sent by then; or clients take turns with the server.
    pub(super) waits_for_answers: bool,
    /// Here [`Proceed::Since`] means that the answer is waited for no longer than the primary has waited.
    pub(super) proceed: Proceed,
    /// In place of the action: the server gets a request again that was [kept](Kept).
    pub(super) again: Option<Again>,
}

impl Waiting {
    pub(super) fn bytes(&self) -> usize {
        if let Action::ToServer { bytes, .. } = &self.action { bytes.len() } else { 0 }
    }
}

/// What the server of a node was given, and is to be given.
#[derive(Debug, Default)]
pub(in crate::replica) struct Deliveries {
    pub(in crate::replica) delivery: Delivery,
    pub(super) waiting: VecDeque<Waiting>,
    /// Bytes of all that waits.
    pub(super) bytes: usize,
    /// Since when the first that waits has been the first.
    pub(super) first_since_ms: u64,
    /// So much the server has said on each connection that it has.
    pub(super) said: BTreeMap<ConnectionId, u64>,
    pub(super) working: Option<Working>,
    /// The server is to close these connections, and has not: it may work still on what has come there.
    pub(super) closing: BTreeSet<ConnectionId>,
    /// The server has ended its streams of these connections, which are to be closed.
    pub(super) ended: BTreeSet<ConnectionId>,
    /// Requests on these connections were passed, and have no answer: the server may give them one when it hears of another time. Since when.
    pub(super) owing: BTreeMap<ConnectionId, u64>,
    /// Requests that the server does not have, and gets again.
    pub(super) kept: Kept,
    /// Of requests that are a part of an entry, and that the server has not come to: all nodes pass them.
    pub(super) early_proceeds: BTreeSet<u64>,
    /// How many times it was waited until all that was passed waits again, or is done.
    pub(super) settles: u64,
    /// Numbers of connections that the server has ended, and may be cleaning up.
    pub(in crate::replica) ended_numbers: Vec<u32>,
    /// The server has not said that it has looked at a time, and nothing else since then: it is not asked about the next ones.
    pub(super) is_silent: bool,
}

impl Deliveries {
    /// Nothing waits, and the server has answered all, or has nothing to do.
    pub(in crate::replica) fn are_done(&self) -> bool {
        self.waiting.is_empty()
            && self.working.is_none_or(|working| working.is_idle)
            && self.closing.is_empty()
    }

    /// What this client has asked waits for what another one has.
    pub(in crate::replica) fn is_blocked(&self, connection: ConnectionId) -> bool {
        self.owing.contains_key(&connection) || self.kept.has(connection)
    }

    /// The server was given all.
    pub(in crate::replica) fn are_given(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Something of this connection waits.
    #[cfg(test)]
    pub(in crate::replica) fn has(&self, connection: ConnectionId) -> bool {
        self.waiting.iter().any(|waiting| waiting.connection == connection)
    }

    /// A request was passed, and has no answer.
    pub(in crate::replica) fn owes(&self) -> bool {
        !self.owing.is_empty()
    }

    /// The server has nothing to do for this connection any more.
    pub(super) fn end_work(&mut self, connection: ConnectionId) {
        self.working = self.working.filter(|working| working.connection != connection);
    }

    /// The next one that the server may have now.
    pub(super) fn next(&mut self, now_ms: u64, overtakes: bool) -> Option<Waiting> {
        // What a client says behind a request that is kept waits with that, and nobody else waits for it.
        while let Some(first) = self.waiting.pop_front_if(|first| self.kept.precedes(first) && !overtakes) {
            self.first_since_ms = now_ms;
            self.bytes = self.bytes.saturating_sub(first.bytes());
            self.kept.push_behind(first);
        }
        let Waiting { connection, after, proceed, waits_for_answers, waits_for_greeting, .. } =
            self.waiting.front()?;
        let is_its = |working: Working| working.connection == *connection && *connection != NO_CONNECTION;
        let is_free = self.working.is_none_or(|working| is_its(working) && !waits_for_answers);
        // What a client says in answer to something comes behind it: the server has answered what it was given before.
        let said = self.said.get(connection).copied().unwrap_or(u64::MAX);
        let is_passed = matches!(proceed, Proceed::Since { .. }) && !waits_for_greeting;
        let is_due = said >= *after || self.ended.contains(connection) || is_passed;
        if self.delivery == Delivery::Serial && !(is_free && is_due) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.first_since_ms = now_ms;
        self.bytes = self.bytes.saturating_sub(next.bytes());
        Some(next)
    }

    /// What keeps others waiting: the entry that is worked on, or the first that waits, where that is not due. And since when it has had no answer.
    pub(super) fn blocking(&self) -> Option<(u64, u64)> {
        let first = self.waiting.front()?;
        Some(
            self.working
                .map_or((first.index, self.first_since_ms), |working| (working.index, working.since_ms)),
        )
    }

    /// The answer to this entry is not waited for. The connection, if the server has it.
    pub(super) fn pass(&mut self, index: u64, now_ms: u64) -> Option<ConnectionId> {
        let working = self.working.filter(|working| working.index == index);
        if working.is_some() {
            self.working = None;
        } else if let Some(proceed) = self.proceed_mut(index) {
            *proceed = Proceed::Since { at_ms: now_ms };
        }
        working.map(|working| working.connection)
    }

    /// Of the entry that is worked on, or of one that waits.
    pub(super) fn proceed_mut(&mut self, index: u64) -> Option<&mut Proceed> {
        let working = self.working.as_mut().filter(|working| working.index == index);
        let mut waiting = self.waiting.iter_mut().chain(self.kept.behind_mut());
        let waiting = waiting.find(|waiting| waiting.index == index);
        working.map(|working| &mut working.proceed).or(waiting.map(|waiting| &mut waiting.proceed))
    }

    /// What waits are times, and nothing else.
    pub(super) fn have_times_alone(&self) -> bool {
        let is_time = |waiting: &Waiting| matches!(waiting.action, Action::SetClock { .. });
        !self.waiting.is_empty() && self.waiting.iter().all(is_time)
    }

    /// Of this entry something waits, or is worked on.
    pub(in crate::replica) fn has_entry(&self, index: u64) -> bool {
        let indices = self.waiting.iter().chain(self.kept.behind()).map(|waiting| waiting.index);
        indices.chain(self.working.map(|working| working.index)).any(|other| other & ENTRY_BITS == index)
    }

    /// Something that is not of this connection waits.
    pub(in crate::replica) fn waits_for_others(&self, connection: ConnectionId) -> bool {
        self.waiting.iter().any(|waiting| waiting.connection != connection)
    }

    /// Of an entry that is worked on, or waits.
    pub(in crate::replica) fn connection_of(&self, index: u64) -> Option<ConnectionId> {
        let working = self.working.filter(|working| working.index == index);
        let all = || self.waiting.iter().chain(self.kept.behind());
        let waiting = || all().find(|waiting| waiting.index == index);
        working.map(|working| working.connection).or_else(|| waiting().map(|waiting| waiting.connection))
    }

    /// It has been proposed that all go on without the answer to this entry, or that has a place in the order.
    pub(super) fn proceeds(&self, index: u64) -> bool {
        let working = self.working.filter(|working| working.index == index).map(|working| working.proceed);
        let all = || self.waiting.iter().chain(self.kept.behind());
        let waiting = || all().find(|waiting| waiting.index == index);
        working.or_else(|| waiting().map(|waiting| waiting.proceed)) != Some(Proceed::No)
    }
}
