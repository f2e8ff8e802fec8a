//! The order of entries, as one node knows it.

mod follower;
pub(crate) mod message;
mod primary;
#[cfg(test)]
mod tests;

use crate::log::Log;
use crate::view::{NodeId, View};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use message::Message;
use primary::Progress;

/// How much an entry counts against the limits.
pub trait Weigh {
    /// Its size in memory and on the wire, about.
    fn weight_bytes(&self) -> usize;
}

impl Weigh for u64 {
    fn weight_bytes(&self) -> usize {
        8
    }
}

/// What is bounded.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The primary takes no more entries while it keeps so much for members that have not acknowledged. A node that catches up
    /// may keep half of it from being dropped.
    pub log_bytes_max: usize,
    /// Of entries in one message, but one entry at least.
    pub message_bytes_max: usize,
    /// The primary says that it is there, and how far it is, so often: what was lost is noticed then, where links lose anything.
    pub heartbeat_ms: u64,
    /// Others hear that something is stable with the next entry, or after so long.
    pub tell_stable_ms: u64,
    /// A member that acknowledges nothing for so long, while there is something to acknowledge, is told of.
    pub lag_timeout_ms: u64,
    /// A node that makes connections again takes so many bytes of their answers for sent, if the client does not have them. If more were
    /// sent, the client says so: then its socket is made once more. With too many the client would take all that comes for
    /// packets out of its window.
    pub resent_bytes_max: usize,
    /// A request that the primary's server has not answered for so long is passed, if others wait.
    pub answer_timeout_ms: u64,
    /// The server of a backup that has not answered for so long hangs.
    pub hang_timeout_ms: u64,
    /// A statement that waits for a lock of another client for so long ends with an error.
    pub lock_wait_timeout_ms: u64,
}

impl Default for Limits {
    /// 64 MiB: what a gigabit link brings in half a second. 256 KiB: a message takes 2 ms there. 20 ms: a node that hears nothing for five of them
    /// may be suspected, below the least retransmission time-out of clients. 1 s: longer than a retransmission
    /// time-out of TCP between the nodes, shorter than what clients take for a hanging server. 64 KiB: the least window that a client of today has.
    /// `tell_stable_ms`, 2 ms: a client that goes on at once brings the next entry sooner, and nobody waits for it.
    /// `answer_timeout_ms`, 1 s: longer than requests take that change anything, as the order of what works at the same time is not known.
    /// `hang_timeout_ms`, 30 s: a backup may be slower, but not without end. `lock_wait_timeout_ms`, 50 s: as MariaDB has it by default.
    fn default() -> Self {
        Self {
            log_bytes_max: 64 << 20,
            message_bytes_max: 256 << 10,
            heartbeat_ms: 20,
            tell_stable_ms: 2,
            lag_timeout_ms: 1_000,
            resent_bytes_max: 64 << 10,
            answer_timeout_ms: 1_000,
            hang_timeout_ms: 30_000,
            lock_wait_timeout_ms: 50_000,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output<E> {
    /// Send this.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message<E>,
    },
    /// The entry is stable: give it to the server. At the primary, clients may learn of it as well.
    Deliver {
        /// One more than that of the last.
        index: u64,
        /// What.
        entry: E,
    },
    /// This node was a member, and is none any more: it has to stop.
    Excluded {
        /// Of the view that is without it.
        epoch: u64,
    },
    /// Entries that the node needs are no longer kept: it has to begin with a newer snapshot.
    TooFar {
        /// Which node.
        node: NodeId,
    },
    /// This node, which is no member, needs entries that are no longer kept: it has to begin with a newer snapshot.
    Outdated,
    /// The member keeps the others waiting: the next view should be without it.
    Lags {
        /// Which member.
        node: NodeId,
    },
}

/// An entry was not taken, and is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotTaken<E> {
    /// This node does not lead.
    NotPrimary(E),
    /// Too much is not acknowledged: once some of it is, there is room.
    Full(E),
    /// It is longer than one may be.
    Long(E),
}

impl<E> NotTaken<E> {
    /// What was not taken.
    pub fn into_inner(self) -> E {
        match self {
            Self::NotPrimary(entry) | Self::Full(entry) | Self::Long(entry) => entry,
        }
    }
}

/// One node's part in ordering entries of type `E`.
///
/// What happens is handed in by `handle_*` and by [`propose`](Self::propose); [`flush`](Self::flush) is called when everything
/// that has come at a time is handed in; what is to be done comes out of [`poll_output`](Self::poll_output), in this order.
#[derive(Debug)]
pub struct Order<E> {
    me: NodeId,
    limits: Limits,
    view: View,
    log: Log<E>,
    /// All up to this are as the primary of this view has them. What is behind came from earlier ones, and may be replaced.
    confirmed: u64,
    /// All up to this are stable, as far as is known here.
    stable: u64,
    /// All up to this are delivered.
    delivered: u64,
    was_member: bool,
    excluded: bool,
    /// Nodes to which there is a link.
    linked: BTreeSet<NodeId>,
    /// At the primary: how far each other node is.
    peers: BTreeMap<NodeId, Progress>,
    /// At the primary: the last entry that was here when it began to lead.
    inherited: u64,
    /// At the primary: when it says next that it is there.
    heartbeat_at_ms: u64,
    /// At all others: the primary of this view has begun.
    started: bool,
    outputs: VecDeque<Output<E>>,
    #[cfg(test)]
    pub(crate) mutant: Option<crate::mutant::Mutant>,
}

impl<E: Clone + Weigh> Order<E> {
    /// As they were given.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A node that has the state after entry `index`: 0 for the members of the first view, that of its snapshot for one that joins.
    #[must_use]
    pub fn new(me: NodeId, index: u64, view: View, limits: Limits) -> Self {
        let mut order = Self {
            me,
            limits,
            view: View::none(),
            log: Log::after(index),
            confirmed: index,
            stable: index,
            delivered: index,
            was_member: false,
            excluded: false,
            linked: BTreeSet::new(),
            peers: BTreeMap::new(),
            inherited: 0,
            heartbeat_at_ms: 0,
            started: false,
            outputs: VecDeque::new(),
            #[cfg(test)]
            mutant: None,
        };
        order.handle_view(view);
        order
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// The view that this node knows.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether this node leads, as far as it knows.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        !self.excluded && self.view.primary == self.me && self.view.has(self.me)
    }

    /// Index of the newest entry that is here.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.log.last()
    }

    /// Index of the last entry that is here as the primary has it.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Index of the last entry that was delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// At the primary: index of the last entry that was here when it began to lead. An earlier primary may have delivered all up to
    /// it.
    #[must_use]
    pub fn inherited(&self) -> u64 {
        self.inherited
    }

    /// What all entries that are kept weigh.
    #[must_use]
    pub fn log_bytes(&self) -> usize {
        self.log.bytes()
    }

    /// Consensus has decided about a view. Older ones than the present one are passed over.
    pub fn handle_view(&mut self, view: View) {
        if view.epoch <= self.view.epoch || self.excluded {
            return;
        }
        self.view = view;
        (self.started, self.confirmed) = (false, self.stable);
        let is_member = self.view.has(self.me);
        if self.was_member && !is_member && !crate::is_mutant!(self, ExcludedGoesOn) {
            self.excluded = true;
            self.peers.clear();
            self.outputs.push_back(Output::Excluded { epoch: self.view.epoch });
            return;
        }
        self.was_member |= is_member;
        if self.is_primary() {
            self.begin_to_lead();
        } else {
            self.peers.clear();
            self.say_hello();
        }
    }

    /// The primary of this view has begun, so it knows of the view.
    pub(crate) fn has_started(&self) -> bool {
        self.started
    }

    /// Nodes to which there is a link.
    pub(crate) fn linked(&self) -> impl Iterator<Item = NodeId> {
        self.linked.iter().copied()
    }

    /// There is a link to this node, a new one.
    pub fn handle_linked(&mut self, node: NodeId) {
        self.linked.insert(node);
        if self.is_primary() {
            self.restart(node);
        } else if node == self.view.primary {
            self.say_hello();
        }
    }

    /// The link to this node is broken.
    pub fn handle_unlinked(&mut self, node: NodeId) {
        self.linked.remove(&node);
    }

    /// A node says something. What belongs to another view is passed over: its sender will learn of this one.
    pub fn handle_message(&mut self, from: NodeId, message: Message<E>, now_ms: u64) {
        if self.excluded {
            return;
        }
        match message {
            Message::Hello { epoch, last } => self.hello(from, epoch, last),
            Message::Ack { epoch, index } => self.acked(from, epoch, index, now_ms),
            Message::Missing { epoch, after } => self.missing(from, epoch, after),
            Message::Outdated { epoch } => self.outdated(from, epoch),
            Message::Start { epoch, stable } => self.start(from, epoch, stable),
            Message::Entries { epoch, first, entries, stable } => {
                self.entries(from, epoch, first, entries, stable);
            }
            // They are not about the order.
            Message::Serving { .. }
            | Message::Forwarded { .. }
            | Message::Compared { .. }
            | Message::Differs { .. } => {}
        }
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output<E>> {
        self.outputs.pop_front()
    }

    fn send(&mut self, to: NodeId, message: Message<E>) {
        if self.linked.contains(&to) {
            self.outputs.push_back(Output::Send { to, message });
        }
    }

    /// Delivers up to this index.
    fn deliver(&mut self, to: u64) {
        while self.delivered < to
            && let Some(ordered) = self.log.get(self.delivered + 1)
        {
            self.delivered += 1;
            let entry = ordered.entry.clone();
            self.outputs.push_back(Output::Deliver { index: self.delivered, entry });
        }
    }
}
