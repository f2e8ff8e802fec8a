//! Whether the servers of all nodes say the same.
//!
//! The primary's answers go out as they come, or when enough others have compared them (`agreeing.rs`). What they were has a place in the order, as digests ([`Said`]): each node compares them with what
//! its own server says to the same requests. One that finds a difference tells the primary, which decides who is wrong when it knows of all members
//! ([`Action::AnswersDiffer`]): with three servers or more the fewer ones, with two the one that clients do not hear. TCP-ABC, section 3.4
//! (response control), compares before anything goes out, and packet by packet.

use super::deliveries::BACKLOG_LOGS;
use super::{Action, Replica, Role};
use crate::connection::comparison::Compared;
use crate::connection::{Answers, Connection, Piece, Said};
use crate::entry::{ConnectionId, DATA_BYTES_MAX, Entry};
use crate::is_mutant;
use crate::order::message::{Difference, Message};
use crate::view::{NodeId, View};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;

/// The primary learns so often how far a node has compared.
const TELL_EVERY_MS: u64 = 100;
/// Where differences are only reported, one is in this time.
const REPORT_EVERY_MS: u64 = 1_000;
/// Of differences that one node tells of again, where the link is a new one.
const DIFFERENCES_MAX: usize = 16;
/// A reply that every server gives in its own way may be so long: it waits at all nodes, and is in the order as a whole.
pub const OWN_REPLY_BYTES_MAX: usize = 128 << 20;
/// The primary keeps so much of what the client of a connection has, for people who want to know what differs.
const SHOWN_BYTES_MAX: u64 = 64 << 10;

/// What becomes of the answers of servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerPolicy {
    /// Clients get those of the primary's server at once. Those of the others are compared with them.
    #[default]
    First,
    /// Clients get an answer of the primary's server when the servers of more than half of the members have given it, its own among them.
    Majority,
    /// Clients get an answer of the primary's server when the servers of all members have given it.
    All,
    /// Clients get those of the primary's server at once, and a server that differs is only reported: its node stays a member.
    Reported,
    /// The same, and nothing is compared.
    Unchecked,
}

/// A connection that is closed.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) client: SocketAddr,
    pub(super) answers: Answers,
}

/// What a node knows of it.
#[derive(Debug, Default)]
pub(super) struct Comparing {
    pub(super) policy: AnswerPolicy,
    /// Entries with digests that were not compared yet, and since when.
    open: BTreeMap<u64, u64>,
    /// At the primary: digests of what its server has said, which others have not compared yet.
    own: BTreeMap<u64, ConnectionId>,
    /// Connections that are closed, and whose answers are not all there, or were not all compared by all.
    pub(super) leaving: BTreeMap<ConnectionId, Leaving>,
    /// Those of this node's server, in this view.
    differences: VecDeque<Difference>,
    /// When the server was last given something that comes before the first of `open`.
    behind_ms: u64,
    /// Where they are only reported: when the next one may be, if that is known; and whether there was one since the last.
    reports_at_ms: Option<u64>,
    has_reported: bool,
    /// The primary knows that so much was compared here.
    told: u64,
    tell_at_ms: u64,
    /// Digests that could not be compared.
    skipped: u64,
}

impl Replica {
    /// What becomes of answers. The same at all nodes, and from the beginning.
    #[must_use]
    pub fn answering(mut self, policy: AnswerPolicy) -> Self {
        self.comparing.policy = policy;
        if policy == AnswerPolicy::Unchecked {
            self.connections.values_mut().for_each(|state| state.answers.comparison.end());
        }
        self
    }

    /// All that entries up to this one say of answers was compared here, or could not be.
    #[must_use]
    pub fn compared(&self) -> u64 {
        let first = self.comparing.open.first_key_value().map(|(index, _)| *index);
        first.map_or(self.worked_on, |index| index - 1)
    }

    /// At the primary: the same of the other members, as far as it knows.
    pub fn compared_by_others(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.judging.others.iter().map(|(node, index)| (*node, *index))
    }

    /// So many answers could not be compared: nobody knows whether they are equal.
    #[must_use]
    pub fn not_compared(&self) -> u64 {
        self.comparing.skipped
    }

    pub(super) fn answers_mut(&mut self, connection: ConnectionId) -> Option<&mut Answers> {
        let here = self.connections.get_mut(&connection).map(|state| &mut state.answers);
        here.or_else(|| self.comparing.leaving.get_mut(&connection).map(|leaving| &mut leaving.answers))
    }

    /// The server of this node has said this.
    pub(super) fn take_answer(&mut self, connection: ConnectionId, bytes: &[u8], now_ms: u64) {
        let protocol = self.protocol;
        let says_own = is_mutant!(self, OwnRepliesAreSaid);
        let here = self.connections.get_mut(&connection).map(|state| &mut state.answers);
        let leaving = self.comparing.leaving.get_mut(&connection).map(|leaving| &mut leaving.answers);
        let Some(answers) = here.or(leaving) else {
            // The client is gone. What is open is counted still: others wait for it.
            if let Some(questions) = self.questions.get_mut(&connection) {
                questions.answer(bytes, |_| {});
            }
            return;
        };
        match self.questions.get_mut(&connection) {
            Some(questions) => {
                questions.answer(bytes, |piece| match piece {
                    Piece::Own(bytes, _) if says_own => answers.take(Piece::Bytes(bytes)),
                    piece => answers.take(piece),
                });
                if !questions.are_compared(protocol) {
                    answers.comparison.end();
                }
            }
            // The server has ended its stream, or the connection is closed.
            None => answers.take(Piece::Bytes(bytes)),
        }
        self.tell_client(connection);
        self.propose_canonical(connection, now_ms);
        self.compare(connection);
    }

    /// At the primary: a reply that all nodes are to keep as a whole has become too long for that, and has not come to its end.
    #[must_use]
    pub fn is_reply_long(&self, connection: ConnectionId) -> bool {
        let is_asked = self.role == Role::Serving && self.protocol.works_on_several();
        let questions = self.questions.get(&connection).filter(|_| is_asked);
        questions.is_some_and(|questions| questions.reply_bytes() > OWN_REPLY_BYTES_MAX)
    }

    /// At the primary: replies that each server gives in its own way are put into the order.
    pub(super) fn propose_canonical(&mut self, connection: ConnectionId, now_ms: u64) {
        while self.role == Role::Serving
            && let Some(state) = self.connections.get_mut(&connection)
            && let Some((number, bytes)) = state.answers.own.propose()
        {
            let mut offset = 0;
            while {
                let rest = bytes.get(offset..).unwrap_or_default();
                let piece = rest.get(..DATA_BYTES_MAX).unwrap_or(rest);
                let (at, is_last) = (offset as u64, piece.len() == rest.len());
                offset += piece.len();
                let entry = Entry::Canonical { connection, number, offset: at, is_last, bytes: piece.into() };
                self.propose(entry, now_ms);
                !is_last
            } {}
        }
    }

    /// An entry is stable that has such a reply.
    pub(super) fn take_canonical(&mut self, entry: Entry, now_ms: u64) {
        let Entry::Canonical { connection, number, offset, is_last, bytes } = entry else { return };
        let waiting_bytes_max = BACKLOG_LOGS * self.order.limits().log_bytes_max;
        if let Some(questions) = self.questions.get_mut(&connection)
            && offset == 0
            && is_last
        {
            questions.note_canonical(number, &bytes);
        }
        let Some(answers) = self.answers_mut(connection) else { return };
        let said = answers.take_canonical(number, offset, is_last, &bytes);
        // A backup that does not keep up would keep all of it in memory.
        if answers.own.waiting_bytes() > waiting_bytes_max && self.role == Role::Backup {
            self.actions.push_back(Action::ServerHangs);
        }
        if said {
            self.tell_client(connection);
            self.propose_end(connection, now_ms);
            self.compare(connection);
            self.propose_news(connection, now_ms);
        }
    }

    /// An entry is stable that tells what the primary's server has said.
    pub(super) fn report(&mut self, index: u64, connection: ConnectionId, said: Said, now_ms: u64) {
        let is_own = self.role == Role::Serving;
        let Some(state) = self.connections.get_mut(&connection) else { return };
        if !state.answers.comparison.report(index, said, is_own) {
            // If it is over, nothing is waited for.
            if self.awaits_agreement() {
                self.tell_client(connection);
            }
            return self.compare(connection);
        }
        let position = state.answers.comparison.reported_bytes();
        if !is_own {
            self.comparing.open.insert(index, now_ms);
            return self.compare(connection);
        }
        self.comparing.own.insert(index, connection);
        if state.answers.retained_bytes() > SHOWN_BYTES_MAX {
            self.confirm_one(connection, index);
        }
        self.confirm();
        self.goes_out_after(index, connection, position);
        self.let_go_out();
    }

    /// Compares what can be compared.
    fn compare(&mut self, connection: ConnectionId) {
        let is_early = is_mutant!(self, ComparesEarly);
        let is_blind = is_mutant!(self, ComparesNothing);
        while let Some(compared) = self.answers_mut(connection).and_then(|answers| answers.compare(is_early))
        {
            let index = match &compared {
                Compared::Equal { index } | Compared::Skipped { index } => *index,
                Compared::Differs { index, .. } => *index,
            };
            self.comparing.open.remove(&index);
            self.goes_out_after_compared(index, connection);
            match compared {
                Compared::Differs { index, digest, offset, bytes, command } if !is_blind => {
                    let difference = Difference { index, connection, digest, offset, bytes, command };
                    self.find(difference);
                }
                Compared::Skipped { .. } => self.comparing.skipped += 1,
                _ => {}
            }
        }
        self.give_up_unsaid(connection);
        self.forget_leaving(connection);
        if !is_mutant!(self, AgreedIsForgotten) {
            self.let_go_out();
        }
    }

    /// One that is closed is forgotten when there is nothing to compare any more.
    fn forget_leaving(&mut self, connection: ConnectionId) {
        let is_over = |leaving: &Leaving| !leaving.answers.comparison.is_due();
        if self.comparing.leaving.get(&connection).is_some_and(is_over) {
            self.comparing.leaving.remove(&connection);
        }
    }

    /// A server that has ended its stream says nothing more.
    pub(super) fn give_up_unsaid(&mut self, connection: ConnectionId) {
        let is_over = |state: &&mut Connection| {
            let answers = &state.answers;
            let by_itself = !state.is_server_closed && !state.is_aborted;
            state.is_server_done() && by_itself && !answers.own.waits()
        };
        let Some(state) = self.connections.get_mut(&connection).filter(is_over) else { return };
        if self.role == Role::Serving || !state.answers.comparison.is_due() {
            return;
        }
        // Where its client has ended first, a server may drop what it has not sent.
        let by_itself = state.answers.server_ended && !state.input.ended;
        let less = state.answers.compare_less().filter(|_| by_itself);
        let indices: Vec<u64> = state.answers.comparison.give_up().collect();
        self.skip(indices);
        if let Some(Compared::Differs { index, digest, offset, bytes, command }) = less {
            self.find(Difference { index, connection, digest, offset, bytes, command });
        }
    }

    fn skip(&mut self, indices: impl IntoIterator<Item = u64>) {
        for index in indices {
            self.comparing.skipped += u64::from(self.comparing.open.remove(&index).is_some());
        }
    }

    /// The client has gone, and what the server has not said yet is compared when it does.
    pub(super) fn leave_answers(&mut self, connection: ConnectionId, client: SocketAddr, answers: Answers) {
        if answers.comparison.is_due() {
            self.comparing.leaving.insert(connection, Leaving { client, answers });
        }
    }

    /// The server of this node says nothing more to this client.
    pub(super) fn end_answers(&mut self, connection: ConnectionId) {
        if let Some(answers) = self.answers_mut(connection) {
            let indices = answers.comparison.give_up_others();
            self.skip(indices);
        }
        self.forget_leaving(connection);
    }

    /// This node's server has said something else than the primary's.
    fn find(&mut self, difference: Difference) {
        if self.comparing.policy == AnswerPolicy::Reported {
            // Nobody does anything about it, so there may be any number.
            if core::mem::replace(&mut self.comparing.has_reported, true) {
                self.comparing.skipped += 1;
                return;
            }
            self.actions.push_back(Action::FoundDifference { difference: difference.clone() });
            return self.tell_difference(difference);
        }
        let is_full = self.comparing.differences.len() >= DIFFERENCES_MAX;
        if !is_full || !self.comparing.policy.waits() {
            self.comparing.differences.push_back(difference.clone());
        }
        if is_full && !self.comparing.policy.waits() {
            self.comparing.differences.pop_front();
        }
        self.actions.push_back(Action::FoundDifference { difference: difference.clone() });
        self.tell_difference(difference);
    }

    fn tell_difference(&mut self, difference: Difference) {
        let (me, view) = (self.order.me(), self.order.view());
        if view.primary != me && view.has(me) && self.order.has_started() {
            let message = Message::Differs { epoch: view.epoch, difference };
            self.actions.push_back(Action::Send { to: view.primary, message });
        }
    }

    /// There is another primary, or a new link to it, and it knows of the view.
    pub(super) fn tell_differences(&mut self) {
        self.comparing.told = 0;
        for difference in self.comparing.differences.clone() {
            self.tell_difference(difference);
        }
    }

    /// Another view is decided.
    pub(super) fn compare_in_new_view(&mut self, before: &View, now_ms: u64) {
        let view = self.order.view();
        // Where clients wait, answers of the same primary may not have gone out.
        let waits = self.comparing.policy.waits() && !is_mutant!(self, ForgetsDifferences);
        let is_same_primary = waits && view.primary == before.primary;
        let goes_on = is_same_primary && view.epoch <= before.epoch + 1;
        let comparing = &mut self.comparing;
        (comparing.has_reported, comparing.reports_at_ms) = (false, None);
        (comparing.told, comparing.tell_at_ms) = (0, now_ms + TELL_EVERY_MS);
        if !is_same_primary {
            comparing.differences.clear();
        }
        comparing.behind_ms = now_ms;
        let inherited = self.order.inherited();
        let is_new = |node: &&NodeId| goes_on && !before.has(**node);
        let new: Vec<NodeId> = view.members.iter().filter(is_new).copied().collect();
        self.judging.begin(goes_on, inherited, new);
        self.let_go_out_in_new_view(now_ms);
    }

    /// This node does not lead any more: what its server has said is compared as that of any other.
    pub(super) fn disown_answers(&mut self, now_ms: u64) {
        let own = core::mem::take(&mut self.comparing.own);
        self.comparing.open.values_mut().for_each(|since_ms| *since_ms = now_ms);
        self.comparing.open.extend(own.keys().map(|index| (*index, now_ms)));
        for (index, connection) in own {
            match self.answers_mut(connection) {
                Some(answers) => answers.comparison.disown(),
                None => _ = self.comparing.open.remove(&index),
            }
            self.compare(connection);
        }
    }

    /// When the primary has to know how far this node has compared, or who is wrong is decided at the latest.
    pub(super) fn compares_at_ms(&self) -> Option<u64> {
        if self.role == Role::Serving {
            return self.judging.ends_ms(self.comparing.policy);
        }
        let view = self.order.view();
        let is_backup = view.has(self.order.me()) && !self.order.is_primary() && self.order.has_started();
        // Clients wait for that.
        let at_ms = if self.comparing.policy.waits() { 0 } else { self.comparing.tell_at_ms };
        (is_backup && self.compared() > self.comparing.told).then_some(at_ms)
    }

    /// Tells the primary, or decides.
    pub(super) fn tell_compared(&mut self, now_ms: u64) {
        if self.compares_at_ms().is_none_or(|at_ms| now_ms < at_ms) {
            return;
        }
        if self.role == Role::Serving {
            self.judge_differences(now_ms);
            return self.let_go_out();
        }
        let (index, view) = (self.compared(), self.order.view());
        (self.comparing.told, self.comparing.tell_at_ms) = (index, now_ms + TELL_EVERY_MS);
        if self.comparing.has_reported {
            let at_ms = *self.comparing.reports_at_ms.get_or_insert(now_ms + REPORT_EVERY_MS);
            if now_ms >= at_ms {
                (self.comparing.has_reported, self.comparing.reports_at_ms) = (false, None);
            }
        }
        let message = Message::Compared { epoch: view.epoch, index };
        self.actions.push_back(Action::Send { to: view.primary, message });
    }

    /// Whether the message was about answers.
    pub(super) fn handle_comparison(&mut self, from: NodeId, message: &Message<Entry>, now_ms: u64) -> bool {
        let epoch = match message {
            Message::Compared { epoch, .. } | Message::Differs { epoch, .. } => *epoch,
            _ => return false,
        };
        let view = self.order.view();
        if !self.order.is_primary() || epoch != view.epoch || !view.has(from) {
            return true;
        }
        match message {
            Message::Compared { index, .. } => {
                let known = self.judging.others.entry(from).or_default();
                *known = (*index).max(*known);
            }
            Message::Differs { difference, .. } => self.accuse(from, difference.clone(), now_ms),
            _ => {}
        }
        // What differs is shown, and forgotten then.
        self.judge_differences(now_ms);
        self.confirm();
        self.let_go_out();
        true
    }

    /// What all have compared is not needed any more.
    fn confirm(&mut self) {
        let me = self.order.me();
        let members = self.order.view().members.iter().filter(|node| **node != me);
        let compared = |node: &NodeId| self.judging.others.get(node).copied().unwrap_or(0);
        let to = members.map(compared).min().unwrap_or(u64::MAX);
        while let Some((index, connection)) =
            self.comparing.own.first_key_value().map(|(index, connection)| (*index, *connection))
            && index <= to
        {
            self.comparing.own.remove(&index);
            self.confirm_one(connection, index);
        }
    }

    /// The same of one connection, up to this entry.
    fn confirm_one(&mut self, connection: ConnectionId, index: u64) {
        let confirmed = self.answers_mut(connection).map(|answers| answers.confirm(index));
        for index in confirmed.into_iter().flatten() {
            self.comparing.own.remove(&index);
        }
        self.forget_leaving(connection);
    }

    /// When the server of a backup counts as hanging, as it has not said for long what the primary's server had said before.
    pub(super) fn hangs_unsaid_at_ms(&self) -> Option<u64> {
        let (_, since_ms) = self.comparing.open.first_key_value()?;
        let is_backup = self.order.view().has(self.order.me()) && !self.order.is_primary();
        let since_ms = self.gap_ms.max(*since_ms).max(self.comparing.behind_ms);
        (is_backup && !self.is_holding()).then(|| since_ms + self.order.limits().hang_timeout_ms)
    }

    /// The server is given this. One that has much to do still works.
    pub(super) fn note_given(&mut self, index: u64, now_ms: u64) {
        if self.comparing.open.first_key_value().is_some_and(|(open, _)| index < *open) {
            self.comparing.behind_ms = now_ms;
        }
    }

    pub(super) fn find_unsaid(&mut self, now_ms: u64) {
        if self.hangs_unsaid_at_ms().is_some_and(|at_ms| now_ms >= at_ms) && !self.note_gap(now_ms) {
            self.gap_ms = now_ms;
            self.actions.push_back(Action::ServerHangs);
        }
    }
}
