//! What one node knows of elections and of the lease: the pure [`Lease`] and [`Elector`], for all tasks of the node.

use super::store::Decided;
use super::{First, Member, Settings};
use crate::election::{Elector, Step};
use crate::lease::Lease;
use crate::naming::{FirstView, Heard, Leader};
use crate::view::{NodeId, View};
use openraft::{RaftMetrics, ServerState};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// This process's clock: `CLOCK_MONOTONIC`, from its start.
pub(super) fn now_ms() -> u64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // So that a time before the first one can be told.
    u64::try_from(BEGUN.elapsed().as_millis()).unwrap_or(u64::MAX) + 1_000_000
}

type Metrics = RaftMetrics<u64, Member>;

#[derive(Debug)]
struct Inner {
    lease: Lease,
    elector: Elector,
    /// Votes that are asked of this node, and not decided: it may lead no more a moment later.
    undecided: u32,
    leads: bool,
    since_ms: u64,
    /// Since when more than half of the voters answer this node, the leader; and when that was last looked at.
    majority_since_ms: Option<u64>,
    looked_ms: u64,
    /// Another node that has led last, and has not voted for this one.
    before: Option<NodeId>,
    /// This node has voted for another one in this term: it leads in none up to it.
    given_up_term: u64,
    term: u64,
    /// When this voter has last answered in this term.
    answered_ms: BTreeMap<NodeId, u64>,
    /// This node hands over, and borrows nothing for the view of this epoch.
    borrows_none_for: Option<u64>,
}

/// A node that has not looked for this part of the promise did not run.
const GAPS_IN_PROMISE: u64 = 2;

/// Shared by all tasks of a node.
#[derive(Debug)]
pub(super) struct State {
    pub(super) me: NodeId,
    pub(super) promise_ms: u64,
    pub(super) listed: Vec<Member>,
    pub(super) first: Option<First>,
    /// openraft has ended, by an error or a panic.
    is_fatal: AtomicBool,
    inner: Mutex<Inner>,
    /// Held while a promise is given or taken back: nobody promises in one task what another one breaks.
    pub(super) promising: tokio::sync::Mutex<()>,
}

impl State {
    pub(super) fn new(settings: Settings) -> Self {
        let Settings { me, is_witness, promise_ms, seed, listed, first, .. } = settings;
        let inner = Inner {
            lease: Lease::new(me, promise_ms),
            elector: Elector::new(me, is_witness, promise_ms, seed, now_ms()),
            undecided: 0,
            leads: false,
            since_ms: 0,
            majority_since_ms: None,
            looked_ms: 0,
            before: None,
            given_up_term: 0,
            term: 0,
            answered_ms: BTreeMap::new(),
            borrows_none_for: None,
        };
        let promising = tokio::sync::Mutex::default();
        let is_fatal = AtomicBool::new(false);
        Self { me, promise_ms, listed, first, is_fatal, inner: Mutex::new(inner), promising }
    }

    pub(super) fn note_fatal(&self) {
        self.is_fatal.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_fatal(&self) -> bool {
        self.is_fatal.load(Ordering::Relaxed)
    }

    /// What the consensus says of itself now.
    pub(super) fn note(&self, metrics: &Metrics, decided: &Decided) {
        let inner = &mut *self.inner.lock();
        let now_ms = now_ms();
        // What the consensus tells of itself may be older than a vote.
        let leads = metrics.state == ServerState::Leader && metrics.current_term > inner.given_up_term;
        if (leads, metrics.current_term) != (inner.leads, inner.term) {
            inner.answered_ms.clear();
            (inner.leads, inner.term, inner.since_ms) = (leads, metrics.current_term, now_ms);
            inner.majority_since_ms = None;
        }
        let leader = metrics.current_leader.map(NodeId).filter(|leader| *leader != self.me);
        inner.before = leader.or(inner.before);
        inner.lease.handle_term(metrics.current_term, leads);
        inner.elector.handle_leads(leads, now_ms);
        inner.lease.handle_voters(voters(metrics));
        if leads {
            inner.lease.handle_applied(decided.term);
        }
        let has_majority = inner.lease.until_ms().is_some_and(|until_ms| now_ms < until_ms);
        // It did not run, or nobody has answered it: both are the same to it.
        let looked_ms = core::mem::replace(&mut inner.looked_ms, now_ms);
        let is_gap = now_ms > looked_ms + self.promise_ms / GAPS_IN_PROMISE;
        let since_ms = inner.majority_since_ms.filter(|_| !is_gap).unwrap_or(now_ms);
        inner.majority_since_ms = has_majority.then_some(since_ms);
    }

    /// The leader of this term has said something, and this node is about to acknowledge it.
    pub(super) fn note_heard(&self, term: u64) {
        let inner = &mut *self.inner.lock();
        let now_ms = now_ms();
        inner.lease.handle_heard(term, now_ms);
        inner.elector.handle_heard(now_ms);
    }

    /// A voter has acknowledged what was sent to it in this term.
    pub(super) fn note_acked(&self, voter: NodeId, term: u64, sent_ms: u64) {
        let inner = &mut *self.inner.lock();
        if inner.undecided == 0 {
            inner.lease.handle_acked(voter, term, sent_ms);
        }
        if term == inner.term {
            inner.answered_ms.insert(voter, now_ms());
        }
    }

    /// Whether this node may vote for another one: then it holds no lease until [`Self::voted`].
    pub(super) fn begin_vote(&self) -> bool {
        let inner = &mut *self.inner.lock();
        let may = inner.lease.may_vote(now_ms());
        inner.undecided += u32::from(may);
        may
    }

    /// What came of it: the term that it has voted in, if it has.
    pub(super) fn voted(&self, term: Option<u64>) {
        let inner = &mut *self.inner.lock();
        inner.undecided = inner.undecided.saturating_sub(1);
        if let Some(term) = term {
            inner.given_up_term = inner.given_up_term.max(term);
            inner.lease.handle_term(term, false);
            inner.elector.handle_heard(now_ms());
        }
    }

    /// Another node has voted for this one: it lives.
    pub(super) fn note_vote_of(&self, voter: NodeId) {
        let inner = &mut *self.inner.lock();
        inner.before = inner.before.filter(|before| *before != voter);
    }

    /// Whether this node would vote for another one whose log is not older.
    pub(super) fn would_vote(&self) -> bool {
        let inner = self.inner.lock();
        !inner.leads && inner.lease.may_vote(now_ms())
    }

    pub(super) fn note_answer(&self, voter: NodeId, round: u64, would_vote: bool) {
        self.inner.lock().elector.handle_answer(voter, round, would_vote);
    }

    /// What this node's elector wants.
    pub(super) fn step(&self, metrics: &Metrics) -> Option<Step> {
        let inner = &mut *self.inner.lock();
        let (now_ms, voters) = (now_ms(), voters(metrics));
        // A node that was just started, or has no vote, elects nobody.
        if !voters.iter().any(|set| set.contains(&self.me)) {
            return None;
        }
        let may_vote = inner.lease.may_vote(now_ms);
        inner.elector.step(may_vote, &voters, now_ms)
    }

    /// The view that this node, the leader, has to propose.
    pub(super) fn next_view(&self, metrics: &Metrics, decided: &Decided) -> Option<View> {
        let inner = self.inner.lock();
        // Before an entry of its own term is applied it does not know what was decided before.
        if !inner.leads || decided.term != inner.term || inner.undecided > 0 {
            return None;
        }
        // Nothing comes of what one proposes who is cut off, but a longer log.
        // Nor may this process have been stopped since that was noted.
        let now_ms = now_ms();
        let has_majority = inner.lease.until_ms().is_some_and(|until_ms| now_ms < until_ms);
        let is_gap = now_ms > inner.looked_ms + self.promise_ms / GAPS_IN_PROMISE;
        let majority_since_ms = inner.majority_since_ms.filter(|_| has_majority && !is_gap)?;
        let membership = metrics.membership_config.membership();
        let nodes = membership.voter_ids().filter_map(|id| Some((id, membership.get_node(&id)?)));
        let servers = nodes.filter(|(_, member)| !member.is_witness).map(|(id, _)| NodeId(id));
        let voters: Vec<Heard> =
            servers.map(|node| Heard { node, answered_ms: inner.answered_ms.get(&node).copied() }).collect();
        let is_from = |member: &Member, first: &First| member.name == first.from && !member.is_witness;
        let first = match &self.first {
            None => FirstView::OfAll,
            Some(first) => {
                let mut nodes = membership.nodes().filter(|(_, member)| is_from(member, first));
                FirstView::Of { node: NodeId(*nodes.next()?.0), epoch: first.epoch }
            }
        };
        let leader = Leader {
            me: self.me,
            first,
            since_ms: inner.since_ms,
            majority_since_ms,
            before: inner.before,
            promise_ms: self.promise_ms,
            voters: &voters,
            lease: &inner.lease,
        };
        leader.next_view(decided.view.as_ref(), now_ms)
    }

    /// The leader, if this node has heard it within the time of a promise. Of itself: if more than half of the voters answer it.
    pub(super) fn heard_leader(&self, leader: NodeId) -> Option<NodeId> {
        let inner = self.inner.lock();
        let now_ms = now_ms();
        let is_heard = if inner.leads {
            inner.lease.until_ms().is_some_and(|until_ms| now_ms < until_ms)
        } else {
            leader != self.me && !inner.lease.may_vote(now_ms)
        };
        is_heard.then_some(leader)
    }

    /// Whether this node leads, and another one has answered it within the time of a promise.
    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        let inner = self.inner.lock();
        let answered = inner.answered_ms.get(&node);
        inner.leads && answered.is_some_and(|at_ms| now_ms() < at_ms + self.promise_ms)
    }

    /// Lends the primary what is left of the lease.
    pub(super) fn lend(&self, to: NodeId, asked_ms: u64) -> Option<u64> {
        let inner = &mut *self.inner.lock();
        if inner.undecided > 0 { None } else { inner.lease.lend(to, asked_ms, now_ms()) }
    }

    /// At the primary of this view: it does not serve any more by what it has borrowed, and borrows nothing for that view before
    /// [`Self::borrow_again`]. When that was.
    pub(super) fn give_back(&self, epoch: u64) -> u64 {
        let inner = &mut *self.inner.lock();
        let now_ms = now_ms();
        inner.lease.give_back(now_ms);
        inner.borrows_none_for = Some(epoch);
        now_ms
    }

    pub(super) fn borrow_again(&self) {
        self.inner.lock().borrows_none_for = None;
    }

    /// Whether the primary of this view asks for what is left of the leader's lease.
    pub(super) fn borrows(&self, epoch: u64) -> bool {
        self.inner.lock().borrows_none_for != Some(epoch)
    }

    /// That node has given back what it had borrowed.
    pub(super) fn note_returned(&self, from: NodeId, returned_ms: u64) {
        self.inner.lock().lease.handle_returned(from, returned_ms);
    }

    pub(super) fn note_borrowed(&self, asked_ms: u64, left_ms: u64) {
        self.inner.lock().lease.handle_borrowed(asked_ms, left_ms.min(self.promise_ms));
    }

    /// For so many milliseconds more the primary may serve, from the instant at which it asks on, if nothing else happens.
    pub(super) fn left_ms(&self) -> u64 {
        let inner = self.inner.lock();
        if inner.undecided > 0 { 0 } else { inner.lease.left_ms(now_ms()) }
    }
}

fn voters(metrics: &Metrics) -> Vec<Vec<NodeId>> {
    let sets = metrics.membership_config.membership().get_joint_config();
    sets.iter().map(|set| set.iter().copied().map(NodeId).collect()).collect()
}
