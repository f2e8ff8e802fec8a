//! Requests that would wait beside another one: the node keeps them, and its server gets them again.
//!
//! A server that works on several requests at a time may go on with two that wait, when one answer lets both go: in any order. So one waits there
//! at the most. A second one is ended by an error, at all nodes, that its client does not hear. Servers get it again where the primary says so
//! in the order ([`Entry::Again`]): as soon as none waits; else now and then, when others have been answered, as it may not have to wait any more.
//!
//! A server does not see that requests wait for each other if it has one of them at a time. But where each client that may have locked something waits,
//! and each request has been tried since somebody was answered last, nobody can let anybody go: that is a deadlock, and one of them ends.

use super::ASK_AGAIN_MS;
use super::queue::{Proceed, Waiting, Working};
use crate::entry::{Again, ConnectionId, Entry};
use crate::is_mutant;
use crate::protocol::Questions;
use crate::replica::{Action, Replica, Role};
use alloc::collections::{BTreeMap, VecDeque};

/// While another request waits, each that is kept is tried again after so long, and then after twice as long as before.
const TRY_AFTER_MS: u64 = 100;
const TRY_AFTER_MS_MAX: u64 = 1_000;
/// Each try takes others some time, so many wait for longer.
const TRY_EACH_MS: u64 = 50;
/// One that was ended, as it has waited for too long, and goes on waiting, is ended again after so long.
const END_AGAIN_MS: u64 = 1_000;

/// A request that the server had, and ended.
#[derive(Debug)]
struct Request {
    since_ms: u64,
    /// The server has it again.
    is_given: bool,
    tries: u32,
    /// Where another one waits.
    try_at_ms: u64,
    /// So many had been answered when it was last kept.
    answered: u64,
    /// What the client has said since then.
    behind: VecDeque<Waiting>,
}

/// Those of all connections.
#[derive(Debug, Default)]
pub(in crate::replica) struct Kept {
    requests: BTreeMap<ConnectionId, Request>,
    /// So many of any connection were answered.
    answered: u64,
    /// At the primary: that one goes on has been proposed.
    proposed: Option<ConnectionId>,
}

impl Kept {
    /// Whether a request is kept that comes before this.
    pub(super) fn precedes(&self, waiting: &Waiting) -> bool {
        let is_of_client = matches!(waiting.action, Action::ToServer { .. } | Action::EndToServer { .. });
        self.has(waiting.connection) && waiting.again.is_none() && is_of_client
    }

    /// The server does not have it.
    pub(super) fn has(&self, connection: ConnectionId) -> bool {
        self.requests.get(&connection).is_some_and(|request| !request.is_given)
    }

    /// It lacks one at the least.
    pub(super) fn has_any(&self) -> bool {
        self.waiting().next().is_some()
    }

    pub(super) fn push_behind(&mut self, waiting: Waiting) {
        if let Some(request) = self.requests.get_mut(&waiting.connection) {
            request.behind.push_back(waiting);
        }
    }

    pub(super) fn note_answered(&mut self) {
        self.answered += 1;
    }

    /// There is none of this connection any more.
    pub(in crate::replica) fn remove(&mut self, connection: ConnectionId) {
        self.requests.remove(&connection);
        self.forget_proposed_of(connection);
    }

    /// What waits behind those that are kept.
    pub(super) fn behind(&self) -> impl Iterator<Item = &Waiting> {
        self.requests.values().flat_map(|request| &request.behind)
    }

    pub(super) fn behind_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.requests.values_mut().flat_map(|request| &mut request.behind)
    }

    /// Since when a request waits that was kept.
    pub(super) fn since_ms(&self, connection: ConnectionId) -> Option<u64> {
        self.requests.get(&connection).map(|request| request.since_ms)
    }

    /// That of this connection has come to nothing.
    fn forget_proposed_of(&mut self, connection: ConnectionId) {
        self.proposed = self.proposed.filter(|proposed| *proposed != connection);
    }

    /// What was proposed may not come: this node leads no more.
    pub(super) fn forget_proposed(&mut self) {
        self.proposed = None;
    }

    /// The server has ended the request.
    fn keep(&mut self, connection: ConnectionId, now_ms: u64) {
        if self.requests.get(&connection).is_some_and(|request| !request.is_given) {
            return;
        }
        let answered = self.answered;
        let least_ms = self.requests.len() as u64 * TRY_EACH_MS;
        let request = self.requests.entry(connection).or_insert_with(|| Request {
            since_ms: now_ms,
            is_given: false,
            tries: 0,
            try_at_ms: 0,
            answered,
            behind: VecDeque::new(),
        });
        let wait_ms = (TRY_AFTER_MS << request.tries.min(4)).min(TRY_AFTER_MS_MAX).max(least_ms);
        (request.is_given, request.answered) = (false, answered);
        (request.tries, request.try_at_ms) = (request.tries + 1, now_ms + wait_ms);
    }

    /// The server gets it again. What waits behind it; none: there is no such request.
    fn give(&mut self, connection: ConnectionId) -> Option<VecDeque<Waiting>> {
        self.forget_proposed_of(connection);
        let request = self.requests.get_mut(&connection).filter(|request| !request.is_given)?;
        request.is_given = true;
        Some(core::mem::take(&mut request.behind))
    }

    /// Those that the server does not have.
    fn waiting(&self) -> impl Iterator<Item = (ConnectionId, &Request)> {
        self.requests.iter().filter(|(_, request)| !request.is_given).map(|(id, request)| (*id, request))
    }

    /// The one that has waited for longest.
    fn oldest(&self) -> Option<(u64, ConnectionId)> {
        self.waiting().map(|(connection, request)| (request.since_ms, connection)).min()
    }

    /// The one that is tried next while another one waits, and when.
    fn next(&self) -> Option<(u64, ConnectionId)> {
        let may_go_on = self.waiting().filter(|(_, request)| request.answered < self.answered);
        may_go_on.map(|(connection, request)| (request.try_at_ms, connection)).min()
    }
}

impl Replica {
    /// The server has said something: it may have ended a request that would have waited, or have answered one.
    pub(super) fn note_kept(&mut self, connection: ConnectionId, now_ms: u64) {
        let Some(questions) = self.questions.get(&connection) else { return };
        if questions.is_kept() && !self.deliveries.closing.contains(&connection) {
            self.deliveries.kept.keep(connection, now_ms);
        } else if questions.are_answered() && !questions.owes() {
            self.deliveries.kept.note_answered();
            self.deliveries.kept.remove(connection);
        }
    }

    /// When the primary has servers get one again, or has one end; which; and how.
    fn next_again(&self) -> Option<(u64, ConnectionId, Again)> {
        let kept = &self.deliveries.kept;
        let rests = self.holding.is_some() || self.withholding.is_some() || !self.pending.is_empty();
        if self.role != Role::Serving || rests || kept.proposed.is_some() {
            return None;
        }
        let timeout_ms = self.order.limits().lock_wait_timeout_ms;
        let times_out =
            |connection: &ConnectionId| self.questions.get(connection).is_some_and(Questions::times_out);
        let owing = self.deliveries.owing.iter().map(|(connection, since_ms)| (*connection, *since_ms));
        let waiting = kept.waiting().map(|(connection, request)| (connection, request.since_ms));
        let over = owing.chain(waiting).filter(|(connection, _)| times_out(connection));
        let over = over.map(|(connection, since_ms)| (since_ms + timeout_ms, connection)).min();
        let over = over.map(|(at_ms, connection)| (at_ms, connection, Again::TimedOut));
        let given = |(at_ms, connection)| (at_ms, connection, Again::Given);
        let next = if !self.deliveries.owes() {
            kept.oldest().map(given)
        } else if !kept.has_any() || !self.all_wait() {
            kept.next().map(given)
        } else {
            // Nothing else happens: there is nothing to wait for.
            let next = kept.next().map(|(_, connection)| (0, connection, Again::Given));
            next.or_else(|| self.deadlocked().map(|connection| (0, connection, Again::Deadlock)))
        };
        [over, next].into_iter().flatten().min_by_key(|(at_ms, ..)| *at_ms)
    }

    /// Each client that may have locked something waits, and the server has nothing else to do.
    fn all_wait(&self) -> bool {
        let deliveries = &self.deliveries;
        let waits = |connection: &ConnectionId| deliveries.is_blocked(*connection);
        let of_owing = |connection: &ConnectionId| self.questions.get(connection);
        let reads_matter =
            deliveries.owing.keys().filter_map(of_owing).any(|questions| questions.waits_for_readers());
        let mut holders =
            self.questions.iter().filter(|(_, questions)| questions.may_hold_locks(reads_matter));
        let is_at_rest = deliveries.working.is_none() && deliveries.waiting.is_empty();
        is_at_rest && deliveries.closing.is_empty() && holders.all(|(connection, _)| waits(connection))
    }

    /// The first one that was kept, of those that may have locked something: others have come when nothing went on any more.
    fn deadlocked(&self) -> Option<ConnectionId> {
        let holds = |connection: &ConnectionId| {
            self.questions.get(connection).is_some_and(|questions| questions.may_hold_locks(false))
        };
        let holders = self.deliveries.kept.waiting().filter(|(connection, _)| holds(connection));
        holders.map(|(connection, request)| (request.since_ms, connection)).min().map(|(_, id)| id)
    }

    pub(in crate::replica) fn gives_again_at_ms(&self) -> Option<u64> {
        self.next_again().map(|(at_ms, ..)| at_ms)
    }

    /// At the primary.
    pub(in crate::replica) fn give_again(&mut self, now_ms: u64) {
        if let Some((at_ms, connection, how)) = self.next_again()
            && now_ms >= at_ms
            && !is_mutant!(self, KeptForEver)
        {
            self.deliveries.kept.proposed = Some(connection);
            self.propose(Entry::Again { connection, how }, now_ms);
        }
    }

    /// That has a place in the order.
    pub(in crate::replica) fn deliver_again(
        &mut self,
        index: u64,
        connection: ConnectionId,
        how: Again,
        now_ms: u64,
    ) {
        if !self.connections.contains_key(&connection) {
            // The server hears of that in its turn, and nothing is proposed for it any more until then.
            if !self.questions.contains_key(&connection) {
                self.deliveries.kept.forget_proposed_of(connection);
            }
            return;
        }
        self.push_waiting(
            Waiting {
                index,
                after: 0,
                connection,
                action: Action::ToServer { connection, bytes: [].into() },
                waits_for_greeting: true,
                waits_for_answers: true,
                proceed: Proceed::No,
                again: Some(how),
            },
            now_ms,
        );
    }

    /// It is its turn.
    pub(super) fn begin_again(
        &mut self,
        index: u64,
        connection: ConnectionId,
        (how, proceed): (Again, Proceed),
        now_ms: u64,
    ) {
        let ask_at_ms = self.asks_first_at_ms(now_ms);
        let behind = self.deliveries.kept.give(connection);
        let Some(questions) = self.questions.get_mut(&connection) else { return };
        let mut working = Working {
            connection,
            index,
            since_ms: now_ms,
            awaits_end: false,
            bytes: 0,
            ask_at_ms,
            proceed,
            is_idle: false,
        };
        if let Some(behind) = behind {
            questions.give_again(how);
            let given = questions.instead_of(&[]).unwrap_or_default();
            for waiting in behind.into_iter().rev() {
                self.deliveries.bytes += waiting.bytes();
                self.deliveries.waiting.push_front(waiting);
            }
            self.give_instead(connection, 0, given);
            self.deliveries.working = Some(working);
        } else if how == Again::TimedOut
            && let Some(since_ms) = self.deliveries.owing.get_mut(&connection)
        {
            // The server has it still. If it goes on waiting, whatever the reason, that is tried again.
            *since_ms = now_ms + END_AGAIN_MS;
            *since_ms = since_ms.saturating_sub(self.order.limits().lock_wait_timeout_ms);
            let Some(number) = questions.server_number() else { return };
            questions.interrupt(false);
            (working.proceed, working.ask_at_ms) = (Proceed::Since { at_ms: now_ms }, now_ms + ASK_AGAIN_MS);
            self.deliveries.working = Some(working);
            self.actions.push_back(Action::Interrupt { connection, number });
        }
    }

    /// A request of this client is kept.
    #[cfg(test)]
    pub(crate) fn is_kept(&self, connection: ConnectionId) -> bool {
        self.questions.get(&connection).is_some_and(Questions::is_kept)
    }

    /// The connection is over: what was asked there is for nobody.
    pub(super) fn forget_kept(&mut self, connection: ConnectionId) {
        self.deliveries.kept.remove(connection);
        if let Some(questions) = self.questions.get_mut(&connection) {
            questions.forget_kept();
        }
    }
}
