//! Who may serve, and until when.
//!
//! A leader of the consensus holds a *lease* as long as a quorum of voters has promised, by acknowledging what it sent, to elect nobody else for
//! a time (Gray and Cheriton 1989; Raft: Ongaro 2014, section 6.4.1). Voters count that time from when they heard the leader, the leader
//! from when it began to say it, which was before: so its lease ends first, whatever happens to messages and processes in between. What
//! remains is that clocks run at other speeds: the lease is shorter by [`MARGIN_MS`].
//!
//! The leader need not be the primary: then the primary borrows what is left of the lease, and the leader lends it to no other one, nor serves
//! itself, before that is over, or given back.

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use crate::is_mutant;
use crate::view::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Clocks of two machines may differ by so much in the time of a promise, and reading one may take so long.
pub const MARGIN_MS: u64 = 5;

/// What a leader has lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loan {
    to: NodeId,
    until_ms: u64,
    /// When it was asked for last, by the clock of that node.
    asked_ms: u64,
}

/// What one node knows of the lease. All times are its own clock's, which never goes back (`CLOCK_MONOTONIC`).
#[derive(Debug)]
pub struct Lease {
    me: NodeId,
    promise_ms: u64,
    term: u64,
    leads: bool,
    /// An entry of this term is committed and applied: the leader knows all that was decided before.
    applied: bool,
    /// Each of these sets has to have a majority: two while members change (joint consensus, Ongaro 2014, section 4.3).
    voters: Vec<Vec<NodeId>>,
    /// When the last thing was sent that this voter has acknowledged in this term.
    acked_ms: BTreeMap<NodeId, u64>,
    /// When this node last heard the leader: it has promised to elect nobody else for a time.
    heard_ms: Option<u64>,
    lent: Option<Loan>,
    /// Until when.
    borrowed_ms: Option<u64>,
    /// This node gave back what it had borrowed: loans that it asked for until then are none.
    returned_ms: Option<u64>,
    /// Which node has done so last, and when by its own clock: what it asked for before may come later.
    returned_by: Option<(NodeId, u64)>,
    #[cfg(test)]
    pub(crate) mutant: Option<crate::mutant::Mutant>,
}

impl Lease {
    /// All voters of a group have to promise for the same time.
    #[must_use]
    pub fn new(me: NodeId, promise_ms: u64) -> Self {
        Self {
            me,
            promise_ms,
            term: 0,
            leads: false,
            applied: false,
            voters: Vec::new(),
            acked_ms: BTreeMap::new(),
            heard_ms: None,
            lent: None,
            borrowed_ms: None,
            returned_ms: None,
            returned_by: None,
            #[cfg(test)]
            mutant: None,
        }
    }

    /// The consensus has a new term, or this node leads in it.
    pub fn handle_term(&mut self, term: u64, leads: bool) {
        if term < self.term || (term, leads) == (self.term, self.leads) {
            return;
        }
        if !is_mutant!(self, KeepsPromisesOfOtherTerms) {
            self.acked_ms.clear();
        }
        (self.term, self.leads, self.applied) = (term, leads, false);
    }

    /// Who votes: one set, or two while members change.
    pub fn handle_voters(&mut self, voters: Vec<Vec<NodeId>>) {
        self.voters = voters;
    }

    /// An entry that this node has proposed as the leader of this term is applied.
    pub fn handle_applied(&mut self, term: u64) {
        self.applied |= term == self.term && self.leads;
    }

    /// A voter has acknowledged what was sent to it in this term; the clock was read before it was sent.
    pub fn handle_acked(&mut self, voter: NodeId, term: u64, sent_ms: u64) {
        if term == self.term && self.leads {
            let newest = self.acked_ms.entry(voter).or_insert(sent_ms);
            *newest = sent_ms.max(*newest);
        }
    }

    /// The leader of this term says something. To be said before it is answered.
    pub fn handle_heard(&mut self, term: u64, now_ms: u64) {
        self.handle_term(term, self.leads && term == self.term);
        if term == self.term && !is_mutant!(self, PromisesNothing) {
            self.heard_ms = Some(now_ms);
        }
    }

    /// Until when this node holds the lease as the leader; none where it does not lead.
    #[must_use]
    pub fn until_ms(&self) -> Option<u64> {
        if !self.leads || !self.applied || self.voters.is_empty() {
            return None;
        }
        let margin_ms = if is_mutant!(self, NoMargin) { 0 } else { MARGIN_MS };
        let oldest = self.voters.iter().map(|set| self.newest_of_majority(set)).min().flatten()?;
        Some((oldest + self.promise_ms).saturating_sub(margin_ms))
    }

    /// What a majority of these has acknowledged was sent then, or later. This node itself elects nobody while it holds the lease.
    fn newest_of_majority(&self, set: &[NodeId]) -> Option<u64> {
        let acked = |voter: &NodeId| {
            if *voter == self.me { Some(u64::MAX) } else { self.acked_ms.get(voter).copied() }
        };
        let mut acked: Vec<u64> = set.iter().filter_map(acked).collect();
        acked.sort_unstable_by(|one, other| other.cmp(one));
        let majority = if is_mutant!(self, HalfIsEnough) { set.len() / 2 } else { set.len() / 2 + 1 };
        let at = acked.get(majority.checked_sub(1)?).copied()?;
        // A set of this node alone has nobody to wait for: what others think of it is not asked.
        Some(if at == u64::MAX { u64::MAX / 2 } else { at })
    }

    /// Whether this node may elect another leader now, or stand for it: nobody has its promise any more, it does not hold the lease, and what
    /// it has lent is over. One that learns of a newer term leads no more at once, and the primary goes on to serve by what it has borrowed.
    #[must_use]
    pub fn may_vote(&self, now_ms: u64) -> bool {
        let has_lent = self.lent.is_some_and(|loan| now_ms < loan.until_ms);
        let promised = self.heard_ms.is_some_and(|heard_ms| now_ms < heard_ms + self.promise_ms);
        let holds = self.until_ms().is_some_and(|until_ms| now_ms < until_ms);
        !promised && (!has_lent || is_mutant!(self, VotesAtOnce)) && (!holds || is_mutant!(self, LeaderVotes))
    }

    /// The primary, another node, asks for what is left of the lease: how long that is. It counts from before it asked, with a clock of its
    /// own, which may be slower. By that clock it asked at `asked_ms`.
    pub fn lend(&mut self, to: NodeId, asked_ms: u64, now_ms: u64) -> Option<u64> {
        let is_late =
            self.returned_by.is_some_and(|(node, returned_ms)| node == to && asked_ms <= returned_ms);
        if is_late || !self.may_name(to, now_ms) {
            return None;
        }
        let until_ms = self.until_ms().filter(|until_ms| now_ms < *until_ms)?;
        // What was lent before is not taken back, should the lease be shorter since: the voters may be others.
        let before = self.lent.filter(|before| before.to == to);
        self.lent = Some(Loan {
            to,
            until_ms: before.map_or(until_ms, |before| before.until_ms.max(until_ms)),
            asked_ms: before.map_or(asked_ms, |before| before.asked_ms.max(asked_ms)),
        });
        let margin_ms = if is_mutant!(self, LendsAll) { 0 } else { MARGIN_MS };
        Some((until_ms - now_ms).saturating_sub(margin_ms))
    }

    /// Whether the leader may name this node as the primary now: no other one serves by its lease.
    #[must_use]
    pub fn may_name(&self, primary: NodeId, now_ms: u64) -> bool {
        let is_free = |loan: Loan| loan.to == primary || now_ms >= loan.until_ms;
        self.lent.is_none_or(is_free) || is_mutant!(self, NamesTwo)
    }

    /// This node does not serve any more by what it has borrowed, nor by what it has asked for: the leader may have it back.
    /// It is to say that with [`handle_returned`](Self::handle_returned) and this time, by its own clock.
    pub fn give_back(&mut self, now_ms: u64) {
        self.returned_ms = Some(now_ms);
        if !is_mutant!(self, GivesBackAndServes) {
            self.borrowed_ms = None;
        }
    }

    /// At the leader: that node has given back what it had asked for at `returned_ms` or before, by its own clock.
    pub fn handle_returned(&mut self, from: NodeId, returned_ms: u64) {
        let is_old = |loan: &Loan| loan.asked_ms > returned_ms && !is_mutant!(self, TakesOldReturns);
        self.lent = self.lent.filter(|loan| loan.to != from || is_old(loan));
        self.returned_by = Some((from, returned_ms));
    }

    /// What was left of the leader's lease when it was asked, at this time or later.
    pub fn handle_borrowed(&mut self, asked_ms: u64, left_ms: u64) {
        if self.returned_ms.is_some_and(|returned_ms| asked_ms <= returned_ms)
            && !is_mutant!(self, GivesBackAndServes)
        {
            return;
        }
        self.borrowed_ms = self.borrowed_ms.max(Some(asked_ms.saturating_add(left_ms)));
    }

    /// Whether this node may serve now, if it is the primary. To be asked after the work and right before its result is sent: a process may be
    /// stopped at any instruction.
    #[must_use]
    pub fn may_serve(&self, now_ms: u64) -> bool {
        self.left_ms(now_ms) > 0
    }

    /// For so long it may, in milliseconds, if nothing else is heard.
    #[must_use]
    pub fn left_ms(&self, now_ms: u64) -> u64 {
        let own = self.until_ms().filter(|_| self.may_name(self.me, now_ms));
        own.max(self.borrowed_ms).map_or(0, |until_ms| until_ms.saturating_sub(now_ms))
    }
}
