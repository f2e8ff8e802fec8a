//! What the server does not answer: when it is asked about that, when all go on without an answer, and when a server counts as hanging.

use super::super::{Action, GAP_MS, MISSED_MS, Replica, Role};
use super::{
    ASK_AFTER_MS, ASK_AGAIN_MS, ASK_ALONE_LONG_MS, ASK_ALONE_MS, ASK_BACKUP_MS, ASK_WHERE_OWED_MS,
    BYTES_PER_QUESTION, ENTRY_BITS, NO_CONNECTION, Proceed, QUESTIONS_MAX, REST, TIMES_WAIT, Working,
};
use crate::entry::{ConnectionId, Entry};
use crate::is_mutant;
use crate::protocol::Questions;
use alloc::vec::Vec;

/// Of a server, by its own numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// It is done when these wait for others.
    pub wait: Vec<u32>,
    /// And when these are no more.
    pub ended: Vec<u32>,
}

impl Replica {
    /// When the server is asked whether it is done with what it does not answer.
    pub(in crate::replica) fn asks_at_ms(&self) -> Option<u64> {
        let several = self.protocol.works_on_several();
        let ends =
            |working: &Working| working.awaits_end && (!several || working.connection == NO_CONNECTION);
        let is_asked = |working: &Working| !ends(working) && !self.rests();
        let working = self.deliveries.working.filter(is_asked)?;
        // Requests that are kept wait for it as well. A backup asks whether its server works at all.
        let is_awaited = self.blocking().is_some()
            || several && (self.deliveries.owes() || self.deliveries.kept.has_any()) && !self.is_holding();
        let leads = (self.role == Role::Serving || several && self.is_backup()) && is_awaited;
        let asks = self.protocol.asks_server() && working.bytes <= BYTES_PER_QUESTION * QUESTIONS_MAX;
        if asks && (leads || working.passed_ms().is_some() || working.is_time()) {
            return Some(working.ask_at_ms);
        }
        // It may have to end after some time, though nobody waits for it.
        let is_alone = asks && several && self.role == Role::Serving && !self.is_holding();
        let lasts = working.ask_at_ms > working.since_ms + ASK_ALONE_LONG_MS;
        let pause_ms = if lasts { ASK_ALONE_LONG_MS } else { ASK_ALONE_MS };
        is_alone.then(|| working.ask_at_ms + pause_ms)
    }

    /// What is given to the server now is asked about then for the first time.
    pub(super) fn asks_first_at_ms(&self, now_ms: u64) -> u64 {
        let is_owed = self.protocol.works_on_several() && self.deliveries.owes();
        now_ms + if is_owed { ASK_WHERE_OWED_MS } else { ASK_AFTER_MS }
    }

    pub(in crate::replica) fn ask_server(&mut self, now_ms: u64) {
        if self.asks_at_ms().is_none_or(|at_ms| now_ms < at_ms) {
            return;
        }
        let leads = self.role == Role::Serving;
        if let Some(working) = &mut self.deliveries.working {
            let waits = leads || working.passed_ms().is_some() || working.is_time();
            working.ask_at_ms = now_ms + if waits { ASK_AGAIN_MS } else { ASK_BACKUP_MS };
            let (index, connection) = (working.index, working.connection);
            if is_mutant!(self, PassesUnasked) {
                return self.handle_server_idle(index, now_ms);
            }
            self.actions.push_back(Action::AskServer { index, connection });
        }
    }

    /// The server of this node has worked off all that it was given up to this entry, and all that it has said was handed in. What it has not
    /// answered it does not answer before others have said something. The primary has all pass it; others do, when their servers are as far.
    pub fn handle_server_idle(&mut self, index: u64, now_ms: u64) {
        self.deliveries.is_silent = false;
        let working = self.deliveries.working.filter(|working| working.index == index);
        if working.is_some_and(|working| working.is_time()) {
            self.deliveries.end_work(NO_CONNECTION);
            self.go_on_with_deliveries(now_ms);
        } else if let Some(working) = &mut self.deliveries.working
            && working.index == index
            && working.bytes > BYTES_PER_QUESTION
        {
            // It has read a part at the least.
            working.bytes -= BYTES_PER_QUESTION;
            working.ask_at_ms = now_ms;
            self.ask_server(now_ms);
        } else if working.is_some_and(|working| working.passed_ms().is_some()) {
            self.pass(index, now_ms);
        } else if working.is_some() && self.role == Role::Serving {
            self.go_on_unanswered(index, now_ms);
        }
        self.take_outputs(now_ms);
    }

    /// The server of this node has cleaned up after these connections ([`Threads::ended`]).
    pub fn forget_ended(&mut self, numbers: &[u32]) {
        self.deliveries.ended_numbers.retain(|number| !numbers.contains(number));
    }

    /// The server of this node works on what it was given up to this entry. A backup that does is late, and does not hang.
    pub fn handle_server_busy(&mut self, index: u64, now_ms: u64) {
        if self.is_backup() && self.deliveries.working.is_some_and(|working| working.index == index) {
            self.gap_ms = now_ms;
        }
    }

    /// A server that does not say whether it is done is not waited for without end.
    pub(in crate::replica) fn passed_until_ms(&self) -> Option<u64> {
        // One that works on several at a time might do it in another order than those of other nodes: it is passed when it waits for others, and only then.
        let working = self.deliveries.working.filter(|_| !self.protocol.works_on_several())?;
        let passed_ms = if working.is_time() { working.since_ms } else { working.passed_ms()? };
        Some(passed_ms + self.order.limits().answer_timeout_ms)
    }

    /// What keeps others waiting, or keeps the server from coming to a rest.
    fn blocking(&self) -> Option<(u64, u64)> {
        let working = self.deliveries.working.filter(|_| self.is_holding());
        self.deliveries.blocking().or(working.map(|working| (working.index, working.since_ms)))
    }

    /// All is held, and what the server works on is known not to be answered before that is over.
    fn rests(&self) -> bool {
        let is_idle = self.deliveries.working.is_none_or(|working| working.is_idle);
        self.is_holding() && is_idle && self.deliveries.waiting.is_empty()
    }

    /// When the primary passes what its server does not answer.
    pub(in crate::replica) fn passes_at_ms(&self) -> Option<u64> {
        let (index, since_ms) = self.blocking().filter(|_| self.role == Role::Serving)?;
        // What the node asks itself is answered, or the server hangs.
        let is_own = self.deliveries.connection_of(index) == Some(NO_CONNECTION);
        let is_new =
            !self.deliveries.proceeds(index) && !self.rests() && !is_own && !self.protocol.works_on_several();
        let timeout_ms = self.order.limits().answer_timeout_ms;
        // A time alone is no client that waits, but the server may wait for a time: CLIENT PAUSE.
        let timeout_ms =
            if self.deliveries.have_times_alone() { timeout_ms * TIMES_WAIT } else { timeout_ms };
        is_new.then_some(since_ms + timeout_ms)
    }

    /// When a backup's server counts as hanging. The primary has been heard all the time: it would have passed what its server does not
    /// answer.
    pub(in crate::replica) fn hangs_at_ms(&self) -> Option<u64> {
        let (_, since_ms) = self.deliveries.blocking().filter(|_| self.is_backup())?;
        // The primary passes it when others wait, and not before.
        let since_ms = since_ms.max(self.deliveries.first_since_ms);
        Some(since_ms.max(self.gap_ms) + self.order.limits().hang_timeout_ms)
    }

    /// Whether this node is a member, and another one leads.
    fn is_backup(&self) -> bool {
        self.order.view().has(self.order.me()) && !self.order.is_primary()
    }

    /// Nobody passes anything, and no connection is ended, while the primary is not heard: what was to come then is not late.
    pub(in crate::replica) fn note_gap(&mut self, now_ms: u64) -> bool {
        let is_gap = now_ms > self.heard_ms + GAP_MS;
        if is_gap {
            self.gap_ms = now_ms;
            self.missed.values_mut().for_each(|at_ms| *at_ms = now_ms);
        }
        is_gap
    }

    /// The server of a backup may have ended a connection that the primary's server has not.
    pub(in crate::replica) fn find_differing_server(&mut self, now_ms: u64) {
        let late =
            |(connection, at_ms): (&ConnectionId, &u64)| (now_ms >= at_ms + MISSED_MS).then_some(*connection);
        let Some(connection) = self.missed.iter().find_map(late) else { return };
        if !self.is_backup() {
            self.missed.remove(&connection);
        } else if !self.note_gap(now_ms) {
            self.missed.remove(&connection);
            self.actions.push_back(Action::ServerDiffers { connection });
        }
    }

    pub(in crate::replica) fn pass_unanswered(&mut self, now_ms: u64) {
        if self.hangs_at_ms().is_some_and(|at_ms| now_ms >= at_ms) && !self.note_gap(now_ms) {
            self.gap_ms = now_ms;
            self.actions.push_back(Action::ServerHangs);
        }
        if self.passed_until_ms().is_some_and(|at_ms| now_ms >= at_ms)
            && let Some(working) = self.deliveries.working
        {
            self.deliveries.is_silent |= working.is_time();
            self.pass(working.index, now_ms);
        }
        if self.passes_at_ms().is_none_or(|at_ms| now_ms < at_ms) {
            return;
        }
        if let Some((index, _)) = self.blocking() {
            self.go_on_unanswered(index, now_ms);
        }
    }

    /// The answer to this entry is not waited for. While all is held, and nothing else waits, it is enough to know that.
    fn go_on_unanswered(&mut self, index: u64, now_ms: u64) {
        if let Some(working) = &mut self.deliveries.working {
            working.is_idle |= working.index == index && self.holding.is_some();
        }
        if self.holding.is_none() || !self.deliveries.waiting.is_empty() {
            self.propose_proceed(index, now_ms);
        }
    }

    /// Once: it is not passed by what is proposed, but when that is stable.
    fn propose_proceed(&mut self, index: u64, now_ms: u64) {
        if let Some(proceed) = self.deliveries.proceed_mut(index).filter(|proceed| **proceed == Proceed::No) {
            *proceed = Proceed::Proposed;
            self.clock.note_passed(now_ms);
            self.transactions.note_conflict(now_ms);
            self.propose(Entry::Proceed { index }, now_ms);
        }
    }

    /// The number that the server of this node has for a connection, where it says one.
    fn server_number(&self, connection: ConnectionId) -> Option<u32> {
        self.questions.get(&connection).and_then(Questions::server_number)
    }

    /// Whether the server of this node has said which number it has for a connection.
    #[must_use]
    pub fn has_server_number(&self, connection: ConnectionId) -> bool {
        self.server_number(connection).is_some()
    }

    /// By which threads a server is known to be done, or to wait for others.
    #[must_use]
    pub fn threads(&self, connection: ConnectionId) -> Threads {
        let owing = self.deliveries.owing.keys().copied().filter(|owing| *owing != connection);
        let wait = owing.chain([connection]).filter_map(|connection| self.server_number(connection));
        Threads { wait: wait.collect(), ended: self.deliveries.ended_numbers.clone() }
    }

    /// Connections on which a request was passed, and has no answer.
    pub fn owing(&self) -> impl Iterator<Item = ConnectionId> {
        self.deliveries.owing.keys().copied()
    }

    pub(super) fn note_owing(&mut self, connection: ConnectionId, now_ms: u64) {
        if self.questions.get(&connection).is_some_and(Questions::owes) {
            let since_ms = self.deliveries.kept.since_ms(connection).unwrap_or(now_ms);
            self.deliveries.owing.entry(connection).or_insert(since_ms);
        } else {
            self.deliveries.owing.remove(&connection);
        }
    }

    /// What was proposed by a node that leads no more may not come.
    pub(in crate::replica) fn forget_proposed_proceeds(&mut self) {
        let working = self.deliveries.working.as_mut().map(|working| &mut working.proceed);
        let waiting = self.deliveries.waiting.iter_mut().map(|waiting| &mut waiting.proceed);
        for proceed in waiting.chain(working).filter(|proceed| **proceed == Proceed::Proposed) {
            *proceed = Proceed::No;
        }
        self.deliveries.kept.forget_proposed();
    }

    /// All nodes go on without the answer to this entry.
    pub(in crate::replica) fn proceed(&mut self, index: u64, now_ms: u64) {
        if is_mutant!(self, ProceedIsForgotten) {
            return;
        }
        let (asks, serves) = (self.protocol.asks_server(), self.role == Role::Serving);
        let several = self.protocol.works_on_several();
        if index >= REST && self.deliveries.connection_of(index).is_none() {
            // The server has not come to it, or has answered it.
            if self.deliveries.has_entry(index & ENTRY_BITS) {
                self.deliveries.early_proceeds.insert(index);
            }
            return;
        }
        let timeout_ms = self.order.limits().answer_timeout_ms;
        if let Some(working) = &mut self.deliveries.working
            && working.index == index
            && !serves
            && (!working.awaits_end || several)
            && (asks || now_ms < working.since_ms + timeout_ms)
        {
            // What the server of the primary was done with this one may have to read still: it is asked, or has as long.
            let at_ms = if asks { now_ms } else { working.since_ms };
            (working.proceed, working.ask_at_ms) = (Proceed::Since { at_ms }, now_ms);
            return;
        }
        self.pass(index, now_ms);
    }

    /// One request waits at a server at the most: what is to wait beside it is ended by an error, on all nodes, and [kept](super::kept). And what a
    /// client has left waiting is for nobody.
    fn interrupts(&mut self, index: u64, now_ms: u64) -> bool {
        let Some(working) = self.deliveries.working.filter(|working| working.index == index) else {
            return false;
        };
        let connection = working.connection;
        let is_second = self.deliveries.owing.keys().any(|other| *other != connection);
        let Some(number) = self.server_number(connection) else { return false };
        if !working.awaits_end && !is_second {
            return false;
        }
        if let Some(questions) = self.questions.get_mut(&connection) {
            questions.interrupt(!working.awaits_end);
        }
        // It is asked whether that has come, and told again if not.
        if let Some(proceed) = self.deliveries.proceed_mut(index) {
            *proceed = Proceed::Since { at_ms: now_ms };
        }
        self.actions.push_back(Action::Interrupt { connection, number });
        true
    }

    fn pass(&mut self, index: u64, now_ms: u64) {
        if self.interrupts(index, now_ms) {
            return;
        }
        if let Some(connection) = self.deliveries.pass(index, now_ms)
            && let Some(questions) = self.questions.get_mut(&connection)
        {
            questions.pass();
            self.note_owing(connection, now_ms);
        }
        self.go_on_with_deliveries(now_ms);
        self.give_again(now_ms);
    }
}
