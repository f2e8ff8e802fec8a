//! One node of a group: the order, and the connections of clients that it is about.

mod action;
mod agreeing;
mod clock;
#[cfg(test)]
mod clock_tests;
mod closed;
mod comparing;
#[cfg(test)]
mod comparing_tests;
mod deliveries;
mod entries;
mod handing_over;
mod joining;
mod judging;
mod let_pass;
mod packets;
mod streams;
mod take_over;
#[cfg(test)]
mod tests;
mod transactions;

use crate::connection::{Connection, Direction, Ends, Segment};
use crate::entry::{ConnectionId, Entry};
use crate::protocol::{Protocol, Questions};
use crate::view::{NodeId, View};
use crate::{Limits, Message, NotTaken, Order, is_mutant};
pub use action::{Action, PacketId};
use agreeing::Unagreed;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use clock::Clock;
pub use clock::ServerClock;
use closed::Closed;
pub use closed::LastAck;
pub use comparing::AnswerPolicy;
use comparing::Comparing;
#[cfg(feature = "io")]
pub(crate) use comparing::OWN_REPLY_BYTES_MAX;
use deliveries::Deliveries;
pub use deliveries::Delivery;
#[cfg(any(test, feature = "io"))]
pub(crate) use deliveries::NO_CONNECTION;
#[cfg(feature = "io")]
pub use deliveries::Threads;
pub use handing_over::NoHandOver;
use handing_over::{Early, Forwarding, Withholding};
use joining::Holding;
pub use joining::{Known, Snapshot};
use judging::Judging;
pub use judging::Shown;
pub use take_over::Restore;
use transactions::Transactions;

/// A primary that is not heard for so long may be gone, and nobody passes what servers do not answer.
const GAP_MS: u64 = 1_000;
/// The end of a connection that the primary's server has ended as well comes within this time.
const MISSED_MS: u64 = 10_000;

/// A no-op that was proposed to know whether this node leads still.
#[derive(Clone, Copy, Debug)]
struct LeadershipCheck {
    index: u64,
    /// So many of the strays were there before.
    strays: usize,
}

/// What a node does with the portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Nothing: no packet passes.
    Backup,
    /// It leads, but some that an earlier primary may have shown to clients is not stable here yet.
    Waiting,
    /// The shell restores connections.
    Restoring,
    /// It serves clients.
    Serving,
}

/// A node.
///
/// What happens is handed in by `handle_*`; [`flush`](Self::flush) is called when everything that has come at a time is handed in; what
/// is to be done comes out of [`poll_action`](Self::poll_action), in this order.
#[derive(Debug)]
pub struct Replica {
    order: Order<Entry>,
    role: Role,
    /// No other node may serve.
    has_lease: bool,
    connections: BTreeMap<ConnectionId, Connection>,
    by_ends: BTreeMap<Ends, ConnectionId>,
    /// SYNs whose answers have not been seen, oldest first.
    opening: VecDeque<Segment>,
    held: BTreeMap<(ConnectionId, PacketId), (Direction, Segment)>,
    /// Connections that have ended: a kernel knows only those that it had itself.
    closed: Closed,
    /// Packets of connections that are not known here, and the no-op that they wait for, once it has an index.
    strays: Vec<(PacketId, Segment)>,
    leadership_check: Option<LeadershipCheck>,
    /// Proposals for which there was no room.
    pending: VecDeque<Entry>,
    /// Clients that have acknowledged something, and the other nodes do not know it.
    acked: BTreeSet<ConnectionId>,
    deliveries: Deliveries,
    comparing: Comparing,
    unagreed: Unagreed,
    judging: Judging,
    protocol: Protocol,
    clock: Clock,
    /// What the server has not answered, of connections to it.
    questions: BTreeMap<ConnectionId, Questions>,
    acked_at_ms: u64,
    /// Connections that the server of this node has ended by itself, and what clients have said since then it has not got: since when.
    missed: BTreeMap<ConnectionId, u64>,
    /// When this node last heard the primary.
    heard_ms: u64,
    /// When it had not heard the primary for a while before.
    gap_ms: u64,
    /// What is stable waits, so that the server has nothing to do ([`hold`](Self::hold)).
    holding: Option<Holding>,
    /// All is held from behind this entry on.
    holds_behind: Option<u64>,
    withholding: Option<Withholding>,
    transactions: Transactions,
    forwarding: Option<Forwarding>,
    early: Early,
    /// Which other node has said last that it serves, and in which view.
    serving: Option<(NodeId, u64)>,
    /// Index of the last entry that was worked on here.
    worked_on: u64,
    /// Since this node has begun with a snapshot, until it is a member: when that was made, by the clocks of the node that made it, and of this one.
    late: Option<(u64, u64)>,
    /// Connections that the portal's kernel has not accepted yet, and when each is given up, oldest first.
    unaccepted: VecDeque<(u64, ConnectionId)>,
    actions: VecDeque<Action>,
    #[cfg(test)]
    pub(crate) mutant: Option<crate::mutant::Mutant>,
}

impl Replica {
    /// A member of the first view, or of the one to come ([`View::none`]). It does not serve before it has the lease
    /// ([`handle_lease`](Self::handle_lease)).
    #[must_use]
    pub fn new(me: NodeId, view: View, limits: Limits) -> Self {
        Self::after(Order::new(me, 0, view, limits))
    }

    /// When the server gets what clients send, and how it is known that it has answered. The same at all nodes, and from the beginning.
    #[must_use]
    pub fn with(mut self, delivery: Delivery, protocol: Protocol) -> Self {
        self.deliveries.delivery = delivery;
        self.protocol = protocol;
        self
    }

    fn after(order: Order<Entry>) -> Self {
        let worked_on = order.delivered();
        Self {
            order,
            role: Role::Backup,
            has_lease: false,
            connections: BTreeMap::new(),
            by_ends: BTreeMap::new(),
            opening: VecDeque::new(),
            held: BTreeMap::new(),
            closed: Closed::default(),
            strays: Vec::new(),
            leadership_check: None,
            pending: VecDeque::new(),
            acked: BTreeSet::new(),
            deliveries: Deliveries::default(),
            comparing: Comparing::default(),
            unagreed: Unagreed::default(),
            judging: Judging::default(),
            protocol: Protocol::default(),
            clock: Clock::default(),
            questions: BTreeMap::new(),
            acked_at_ms: 0,
            missed: BTreeMap::new(),
            heard_ms: 0,
            gap_ms: 0,
            holding: None,
            holds_behind: None,
            withholding: None,
            transactions: Transactions::default(),
            forwarding: None,
            early: Early::default(),
            serving: None,
            worked_on,
            late: None,
            unaccepted: VecDeque::new(),
            actions: VecDeque::new(),
            #[cfg(test)]
            mutant: None,
        }
    }

    /// The order of entries, to be looked at.
    #[must_use]
    pub fn order(&self) -> &Order<Entry> {
        &self.order
    }

    /// Whether this node serves clients.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.role == Role::Serving
    }

    /// Whether it was said last ([`handle_lease`](Self::handle_lease)) that no other node may serve.
    #[must_use]
    pub fn has_lease(&self) -> bool {
        self.has_lease
    }

    /// Whether no other node may serve in this view, or a later one ([`Lease::may_serve`](crate::Lease::may_serve)). A primary without the
    /// lease says nothing to clients, and takes over again when it has it again.
    pub fn handle_lease(&mut self, has_lease: bool, now_ms: u64) {
        if has_lease == self.has_lease || !has_lease && is_mutant!(self, ServesWithoutLease) {
            return;
        }
        self.has_lease = has_lease;
        if has_lease {
            self.order.lead_again(now_ms);
        }
        self.handle_role(now_ms);
        self.release(now_ms);
        self.take_outputs(now_ms);
    }

    /// Consensus has decided about a view.
    pub fn handle_view(&mut self, view: View, now_ms: u64) {
        // Another node may have led in one that this node has not heard of, and clients may have more of it.
        let before = self.order.view().clone();
        let skips = view.epoch > before.epoch + 1;
        self.release(now_ms);
        self.order.handle_view(view);
        if self.order.view().has(self.order.me()) {
            self.late = None;
        }
        if skips {
            self.step_down(now_ms);
        }
        self.handle_role(now_ms);
        self.compare_in_new_view(&before, now_ms);
        self.forward_to_primary(now_ms);
        self.take_outputs(now_ms);
    }

    /// There is a link to this node, a new one.
    pub fn handle_linked(&mut self, node: NodeId, now_ms: u64) {
        self.order.handle_linked(node);
        self.say_that_it_serves_to(node);
        if node == self.order.view().primary {
            // What was under way may be lost.
            self.tell_differences();
        }
        self.take_outputs(now_ms);
    }

    /// The link to this node is broken.
    pub fn handle_unlinked(&mut self, node: NodeId) {
        self.order.handle_unlinked(node);
    }

    /// Another node says something.
    pub fn handle_message(&mut self, from: NodeId, message: Message<Entry>, now_ms: u64) {
        if from == self.order.view().primary {
            self.note_gap(now_ms);
            self.heard_ms = now_ms;
        }
        if !self.handle_hand_over(from, &message, now_ms) && !self.handle_comparison(from, &message, now_ms) {
            let begins = matches!(message, Message::Start { .. });
            self.order.handle_message(from, message, now_ms);
            if begins {
                self.tell_differences();
            }
        }
        self.take_outputs(now_ms);
    }

    /// Sends to the others what has not been sent.
    pub fn flush(&mut self, now_ms: u64) {
        // Another node that is about to lead has to have worked off all.
        // And others compare what is stable: clients may wait for that.
        self.order.flush(self.withholding.is_none() && self.unagreed.is_empty(), now_ms);
        self.take_outputs(now_ms);
    }

    /// What is to be said next to other nodes, of all that is to be done: it may be said before the rest is done.
    pub fn poll_message(&mut self) -> Option<(NodeId, Message<Entry>)> {
        let at = self.actions.iter().position(|action| matches!(action, Action::Send { .. }))?;
        match self.actions.remove(at)? {
            Action::Send { to, message } => Some((to, message)),
            _ => None,
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let acked_at_ms = (!self.acked.is_empty()).then_some(self.acked_at_ms);
        let given_up_at_ms = self.unaccepted.front().map(|(at_ms, _)| *at_ms);
        let differs_at_ms = self.missed.values().min().map(|at_ms| at_ms + MISSED_MS);
        let deliveries = [self.passes_at_ms(), self.hangs_at_ms(), self.asks_at_ms(), differs_at_ms];
        let deliveries = deliveries.into_iter().chain([
            self.passed_until_ms(),
            self.hand_over_ends_ms(),
            self.compares_at_ms(),
            self.hangs_unsaid_at_ms(),
            self.ticks_at_ms(),
            self.gives_again_at_ms(),
            self.transactions.wakes_at_ms(),
        ]);
        [self.order.poll_timeout(), acked_at_ms, given_up_at_ms].into_iter().chain(deliveries).flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        self.order.handle_timeout(now_ms);
        if now_ms >= self.acked_at_ms {
            self.tell_acked(now_ms);
        }
        self.transactions.wake(now_ms);
        self.give_up_unaccepted(now_ms);
        self.end_late_hand_over(now_ms);
        self.tell_compared(now_ms);
        self.find_unsaid(now_ms);
        self.tick_idly(now_ms);
        self.ask_server(now_ms);
        self.pass_unanswered(now_ms);
        self.give_again(now_ms);
        self.find_differing_server(now_ms);
        self.take_outputs(now_ms);
    }

    #[cfg(test)]
    pub(crate) fn set_mutant(&mut self, mutant: Option<crate::mutant::Mutant>) {
        (self.mutant, self.order.mutant) = (mutant, mutant);
    }

    /// Gives an entry a place in the order now, or as soon as there is room. What only a primary may say is passed over elsewhere.
    fn propose(&mut self, entry: Entry, now_ms: u64) {
        if self.role != Role::Serving {
            return;
        }
        if !self.pending.is_empty() {
            self.pending.push_back(entry);
            return;
        }
        if entry.given_on().is_some() {
            self.tick(now_ms);
        }
        if let Err(NotTaken::Full(entry)) = self.order.propose(entry, now_ms) {
            self.pending.push_back(entry);
        }
    }

    fn propose_pending(&mut self, now_ms: u64) {
        while let Some(entry) = self.pending.pop_front() {
            if let Err(NotTaken::Full(entry)) = self.order.propose(entry, now_ms) {
                self.pending.push_front(entry);
                return;
            }
        }
    }
}
