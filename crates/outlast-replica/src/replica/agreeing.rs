//! Answers that clients get when other servers have given them as well: those of all members, or of more than half of them. TCP-ABC, section 3.4
//! (response control), compares packets; here it is what entries of the order say of answers, which members compare anyway.

use super::comparing::AnswerPolicy;
use super::{Replica, Role};
use crate::connection::Answers;
use crate::entry::{ConnectionId, Entry};
use crate::is_mutant;
use crate::view::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

impl AnswerPolicy {
    /// Whether clients get nothing before other servers have given it.
    pub(super) fn waits(self) -> bool {
        matches!(self, Self::Majority | Self::All)
    }
}

/// At the primary: answers that others are to compare first. When they have compared an entry, those before a position go out.
#[derive(Debug, Default)]
pub(super) struct Unagreed(BTreeMap<u64, Vec<(ConnectionId, u64)>>);

impl Unagreed {
    /// This node does not lead any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Replica {
    /// Whether answers wait for other servers. One that is alone waits for nobody.
    pub(super) fn awaits_agreement(&self) -> bool {
        let waits = self.comparing.policy.waits() && !is_mutant!(self, AnswersGoOutAtOnce);
        waits && self.order.view().members.len() > 1
    }

    /// At the primary: the other members of whom clients are to get nothing on this connection that their servers have not said, and how many of them
    /// need not have done so.
    #[cfg(test)]
    pub(crate) fn waits_for(&self, connection: ConnectionId) -> Option<(Vec<NodeId>, usize)> {
        let is_over = self.connections.get(&connection)?.answers.comparison.is_over();
        let (me, members) = (self.order.me(), &self.order.view().members);
        let others: Vec<NodeId> = members.iter().copied().filter(|node| *node != me).collect();
        let is_waiting = self.comparing.policy.waits() && !is_over;
        let is_majority = self.comparing.policy == AnswerPolicy::Majority;
        let may_lack = if is_majority { members.len().div_ceil(2) - 1 } else { 0 };
        is_waiting.then_some((others, may_lack))
    }

    /// So much the server of this node has said there, or another one that the client has heard.
    #[cfg(test)]
    pub(crate) fn said(&self, connection: ConnectionId) -> Option<u64> {
        self.connections.get(&connection).map(|state| state.answers.produced.max(state.answers.acked))
    }

    /// A client of which this node's server has said something that waits for others.
    #[cfg(test)]
    pub(crate) fn is_waited_for(&self, ends: &crate::connection::Ends) -> bool {
        let state = self.by_ends.get(ends).and_then(|connection| self.connections.get(connection));
        state.is_some_and(|state| self.may_go_out(&state.answers) < state.answers.produced)
    }

    /// So much the client's socket has got, and so much others have agreed to.
    #[cfg(test)]
    pub(crate) fn given(&self, connection: ConnectionId) -> Option<(u64, u64)> {
        self.connections.get(&connection).map(|state| (state.answers.written, state.answers.agreed))
    }

    /// So many of the others need not have compared it.
    fn need_not_agree(&self) -> usize {
        if is_mutant!(self, OneFewerIsEnough) {
            return 1;
        }
        match self.comparing.policy {
            // Half of all are no majority.
            AnswerPolicy::Majority => self.order.view().members.len().div_ceil(2) - 1,
            _ => 0,
        }
    }

    /// Clients may get what is before this.
    pub(super) fn may_go_out(&self, answers: &Answers) -> u64 {
        if !self.awaits_agreement() || answers.comparison.is_over() {
            return u64::MAX;
        }
        answers.agreed.max(answers.acked)
    }

    /// What the primary's server has said has to be in an entry before others can compare it: at once, if clients wait for that. Whether they do.
    pub(super) fn propose_news(&mut self, connection: ConnectionId, now_ms: u64) -> bool {
        if !self.awaits_agreement() {
            return false;
        }
        if self.role == Role::Serving
            && self.has_news(connection)
            && let Some(state) = self.connections.get_mut(&connection)
        {
            let (offset, report) = (state.answers.acked_proposed, state.answers.propose_said());
            self.propose(Entry::Acked { connection, offset, report }, now_ms);
        }
        true
    }

    /// Answers before this position go out when others have compared what is in this entry.
    pub(super) fn goes_out_after(&mut self, index: u64, connection: ConnectionId, position: u64) {
        if self.role == Role::Serving && self.comparing.policy.waits() {
            self.unagreed.0.entry(index).or_default().push((connection, position));
        }
    }

    /// The same of what this node has compared itself, as another one has led.
    pub(super) fn goes_out_after_compared(&mut self, index: u64, connection: ConnectionId) {
        let position = self.connections.get(&connection).map(|state| state.answers.compared_to());
        if let Some(position) = position {
            self.goes_out_after(index, connection, position);
        }
    }

    /// At a primary in a new view, or one that has taken over: nobody has said yet how far it has compared.
    pub(super) fn let_go_out_in_new_view(&mut self, now_ms: u64) {
        if self.role != Role::Serving || !self.comparing.policy.waits() {
            return;
        }
        for connection in self.connections() {
            self.propose_news(connection, now_ms);
            // There may be nobody left to wait for.
            self.tell_client(connection);
        }
        self.let_go_out();
    }

    /// What enough others have compared goes out.
    pub(super) fn let_go_out(&mut self) {
        if self.unagreed.is_empty() {
            return;
        }
        let to = self.agreed_to();
        while let Some(first) = self.unagreed.0.first_entry()
            && *first.key() <= to
        {
            for (connection, position) in first.remove() {
                let Some(state) = self.connections.get_mut(&connection) else { continue };
                if state.answers.agreed < position {
                    state.answers.agreed = position;
                    self.tell_client(connection);
                }
            }
        }
    }

    /// Enough members have compared all up to this entry, and have found the same.
    fn agreed_to(&self) -> u64 {
        let (me, members) = (self.order.me(), &self.order.view().members);
        if self.judging.condemns(me) {
            return 0;
        }
        let compared = |node: &NodeId| self.judging.equal_up_to(*node);
        let mut others: Vec<u64> = members.iter().filter(|node| **node != me).map(compared).collect();
        others.sort_unstable();
        others.get(self.need_not_agree()).copied().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
#[path = "agreeing_tests.rs"]
mod tests;
