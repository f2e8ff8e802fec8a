//! The node that leads: it gives entries their indices, and knows when they are stable.

use super::message::Message;
use super::{NotTaken, Order, Output, Weigh};
use crate::is_mutant;
use crate::log::Ordered;
use crate::view::NodeId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A node that lacks no more than so many entries is waited for, so that it becomes a member.
const NEAR_ENTRIES: u64 = 256;

/// How far another node is.
#[derive(Debug)]
pub(super) struct Progress {
    /// It has all up to this, by its own word in this view; of a member at first, by being one.
    acked: u64,
    /// It has said in this view how far it is.
    heard: bool,
    /// All up to this was sent; none before it has said how far it is.
    sent: Option<u64>,
    /// It was told that all up to this is stable.
    told_stable: u64,
    /// Since when it has not heard of more.
    untold_since_ms: Option<u64>,
    /// Nothing is stable without it: a member, or a node for which a view was asked that has it.
    required: bool,
    /// Since when it has had something to acknowledge, and has acknowledged nothing.
    behind_since_ms: Option<u64>,
    /// That was told.
    told_lag: bool,
}

impl<E: Clone + Weigh> Order<E> {
    /// Gives an entry the next index. It is delivered when it is stable.
    ///
    /// # Errors
    /// This node does not lead, or what is not acknowledged takes too much memory.
    pub fn propose(&mut self, entry: E, now_ms: u64) -> Result<u64, NotTaken<E>> {
        if !self.is_primary() {
            return Err(NotTaken::NotPrimary(entry));
        }
        if self.log.bytes() + entry.weight_bytes() > self.limits.log_bytes_max {
            self.drop_learners();
        }
        if self.log.bytes() + entry.weight_bytes() > self.limits.log_bytes_max && !is_mutant!(self, Unbounded)
        {
            return Err(NotTaken::Full(entry));
        }
        let index = self.log.push(Ordered { epoch: self.view.epoch, entry });
        self.confirmed = index;
        for peer in self.peers.values_mut().filter(|peer| peer.required) {
            peer.behind_since_ms.get_or_insert(now_ms);
        }
        self.learn_stability();
        Ok(index)
    }

    /// Sends what has not been sent: entries, and how far they are stable. That alone waits for more ([`Limits::tell_stable_ms`](super::Limits)), if it may.
    pub fn flush(&mut self, may_wait: bool, now_ms: u64) {
        if !self.is_primary() {
            return;
        }
        let nodes: Vec<NodeId> =
            self.peers.keys().copied().filter(|node| self.linked.contains(node)).collect();
        for node in nodes {
            while let Some(message) = self.next_message(node, may_wait, now_ms) {
                self.send(node, message);
            }
        }
    }

    /// A node is about to begin with a snapshot: keeps what follows on the present state until it asks for it, as far as there is
    /// room. The index of that state; none where this node does not lead, or the other one is necessary already: what that has acknowledged
    /// counts, and it must not begin again.
    pub fn expect(&mut self, node: NodeId) -> Option<u64> {
        let is_required = self.peers.get(&node).is_some_and(|peer| peer.required);
        if !self.is_primary() || node == self.me || is_required {
            return None;
        }
        let delivered = self.delivered;
        self.peers.insert(node, Progress { heard: false, ..Progress::new(delivered, false) });
        Some(delivered)
    }

    /// Makes a node that catches up necessary for stability, so that a view may have it as a member. Whether it is: it has to
    /// have acknowledged all that is stable before. That may be all that was here when this node began to lead: an earlier primary may
    /// have known it to be stable, and be dead.
    ///
    /// Only then is consensus asked for the view. From now on nothing is stable that the node lacks: the view may be decided at any
    /// time, and its primary may die before the node could be sent anything.
    ///
    /// A node that is near is waited for: under load it would never have all at one instant.
    pub fn promote(&mut self, node: NodeId, now_ms: u64) -> bool {
        let inherited = if is_mutant!(self, ForgetsWhatItInherited) { 0 } else { self.inherited };
        let stable = self.stable.max(inherited);
        let (early, silently) = (is_mutant!(self, PromotesEarly), is_mutant!(self, PromotesSilently));
        let last = self.log.last();
        let Some(peer) = self.peers.get_mut(&node).filter(|_| self.view.primary == self.me) else {
            return false;
        };
        if early {
            peer.required = true;
            return true;
        }
        if peer.heard && !peer.required && last <= peer.acked + NEAR_ENTRIES && !silently {
            (peer.required, peer.told_lag) = (true, false);
            peer.behind_since_ms = (peer.acked < last).then_some(now_ms);
        }
        peer.heard && (peer.required || silently) && peer.acked >= stable
    }

    /// How far other nodes are, by their own word in this view.
    pub fn positions(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.peers.iter().filter(|(_, peer)| peer.heard).map(|(node, peer)| (*node, peer.acked))
    }

    /// Nodes that catch up, and have said so in this view.
    pub fn learners(&self) -> impl Iterator<Item = NodeId> {
        let is_learner = |(node, peer): &(&NodeId, &Progress)| !self.view.has(**node) && peer.heard;
        self.peers.iter().filter(is_learner).map(|(node, _)| *node)
    }

    /// Members that have acknowledged nothing for too long, while there is something to acknowledge.
    #[must_use]
    pub fn lagging(&self, now_ms: u64) -> BTreeSet<NodeId> {
        let is_late = |peer: &Progress| {
            // Told: others were heard before that.
            let behind = peer.behind_since_ms.filter(|_| peer.required && peer.told_lag);
            behind.is_some_and(|since_ms| now_ms >= since_ms + self.limits.lag_timeout_ms)
        };
        self.peers.iter().filter(|(_, peer)| is_late(peer)).map(|(node, _)| *node).collect()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        if !self.is_primary() || self.peers.is_empty() {
            return None;
        }
        let waiting = self.peers.values().filter(|peer| !peer.told_lag);
        let lag = waiting.filter_map(|peer| peer.behind_since_ms).min();
        let lag_at_ms = lag.map_or(u64::MAX, |since_ms| since_ms + self.limits.lag_timeout_ms);
        let untold = self.peers.iter().filter(|(node, _)| self.linked.contains(node));
        let untold = untold.filter_map(|(_, peer)| peer.untold_since_ms).min();
        let tells_at_ms = untold.map_or(u64::MAX, |since_ms| since_ms + self.limits.tell_stable_ms);
        Some(lag_at_ms.min(tells_at_ms).min(self.heartbeat_at_ms))
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        if !self.is_primary() {
            return;
        }
        for (node, peer) in &mut self.peers {
            let is_late =
                peer.behind_since_ms.is_some_and(|since_ms| now_ms >= since_ms + self.limits.lag_timeout_ms);
            if is_late && !core::mem::replace(&mut peer.told_lag, true) {
                self.outputs.push_back(Output::Lags { node: *node });
            }
        }
        if now_ms < self.heartbeat_at_ms || is_mutant!(self, NoHeartbeat) {
            return;
        }
        self.heartbeat_at_ms = now_ms + self.limits.heartbeat_ms;
        let last = self.log.last();
        for peer in self.peers.values_mut().filter(|peer| peer.required && peer.acked < last) {
            peer.behind_since_ms.get_or_insert(now_ms);
        }
        let (epoch, mut stable) = (self.view.epoch, self.stable);
        if is_mutant!(self, NeverTellsStable) {
            stable = 0;
        }
        let nodes: Vec<(NodeId, Option<u64>)> =
            self.peers.iter().map(|(node, peer)| (*node, peer.sent)).collect();
        for (node, sent) in nodes {
            let message = match sent {
                Some(sent) => Message::Entries { epoch, first: sent + 1, entries: Vec::new(), stable },
                // It has not said yet how far it is.
                None => Message::Start { epoch, stable },
            };
            self.send(node, message);
        }
    }

    /// This node leads from now on. Every member has all that is known to be stable here; the rest is sent again, as some may
    /// lack it, and others have something else in its place. All that is here counts: some of it may be stable, and known to be
    /// to a primary that is dead.
    pub(super) fn begin_to_lead(&mut self) {
        (self.confirmed, self.inherited) = (self.log.last(), self.log.last());
        let (me, stable) = (self.me, self.stable);
        let keeps_acks = is_mutant!(self, KeepsAcks);
        let mut before = core::mem::take(&mut self.peers);
        for node in self.view.members.iter().copied().filter(|node| *node != me) {
            let acked =
                before.remove(&node).filter(|_| keeps_acks).map_or(stable, |peer| peer.acked.max(stable));
            self.peers.insert(node, Progress::new(acked, true));
        }
        // Whoever catches up has to say what it has kept.
        for (node, peer) in before {
            self.peers.insert(node, Progress { heard: false, ..Progress::new(peer.acked, false) });
        }
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.restart(node);
        }
        self.learn_stability();
    }

    /// This node serves again in the same view: what it has given an index before counts as that of an earlier primary.
    pub(crate) fn lead_again(&mut self, now_ms: u64) {
        // Meanwhile nobody may have been heard.
        for peer in self.peers.values_mut() {
            peer.behind_since_ms = peer.behind_since_ms.map(|_| now_ms);
            peer.told_lag = false;
        }
        if self.is_primary() && !is_mutant!(self, LeadsAgainEarly) {
            self.inherited = self.log.last();
        }
    }

    /// Begins to send on a new link, or in a new view.
    pub(super) fn restart(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.sent = (peer.required || peer.heard).then_some(peer.acked);
        (peer.told_stable, peer.untold_since_ms) = (0, None);
        let message = Message::Start { epoch: self.view.epoch, stable: self.stable };
        self.send(node, message);
    }

    /// A member that did not know that this view has begun, or a node that wants to become one.
    pub(super) fn hello(&mut self, from: NodeId, epoch: u64, last: u64) {
        if !self.is_primary() || epoch != self.view.epoch {
            return;
        }
        if !self.peers.contains_key(&from) {
            if self.is_too_far(last) {
                self.tell_outdated(from);
                return;
            }
            self.peers.insert(from, Progress { heard: false, ..Progress::new(last, false) });
        }
        self.restart(from);
    }

    pub(super) fn acked(&mut self, from: NodeId, epoch: u64, index: u64, now_ms: u64) {
        let is_present = epoch == self.view.epoch || is_mutant!(self, AcksOfOtherViews);
        if !self.is_primary() || !is_present || index > self.log.last() && !is_mutant!(self, AcksMore) {
            return;
        }
        let last = self.log.last();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if !peer.heard {
            // It may have dropped some of what it had acknowledged in the view before.
            (peer.heard, peer.acked, peer.sent) = (true, index, Some(index));
        }
        // It was about to be sent again what it turns out to have.
        peer.sent = peer.sent.map(|sent| sent.max(index));
        if index > peer.acked {
            (peer.acked, peer.told_lag, peer.behind_since_ms) = (index, false, Some(now_ms));
        }
        if peer.acked >= last {
            peer.behind_since_ms = None;
        }
        if self.peers.get(&from).is_some_and(|peer| self.is_too_far(peer.acked)) {
            self.give_up(from);
        }
        self.learn_stability();
    }

    pub(super) fn missing(&mut self, from: NodeId, epoch: u64, after: u64) {
        if is_mutant!(self, MissingIsPassedOver)
            || !self.is_primary()
            || epoch != self.view.epoch
            || !self.peers.contains_key(&from)
        {
            return;
        }
        if self.is_too_far(after) {
            self.give_up(from);
        } else if let Some(peer) = self.peers.get_mut(&from) {
            (peer.sent, peer.untold_since_ms) = (Some(after), None);
        }
    }

    /// What follows on this index is not kept any more.
    fn is_too_far(&self, index: u64) -> bool {
        index + 1 < self.log.first()
    }

    fn give_up(&mut self, node: NodeId) {
        if self.peers.get(&node).is_some_and(|peer| !peer.required) {
            self.peers.remove(&node);
            self.tell_outdated(node);
        }
    }

    fn tell_outdated(&mut self, node: NodeId) {
        self.outputs.push_back(Output::TooFar { node });
        let epoch = self.view.epoch;
        self.send(node, Message::Outdated { epoch });
    }

    /// Nodes that catch up must not hold everybody up.
    fn drop_learners(&mut self) {
        let learners = self.peers.iter().filter(|(_, peer)| !peer.required).map(|(node, _)| *node);
        for node in learners.collect::<Vec<_>>() {
            self.give_up(node);
        }
        self.forget();
    }

    /// Every entry that all have is stable.
    fn learn_stability(&mut self) {
        let last = self.log.last();
        let mut acked: Vec<u64> =
            self.peers.values().filter(|peer| peer.required).map(|peer| peer.acked).collect();
        acked.sort_unstable();
        let slowest = usize::from(is_mutant!(self, OneIsNotNeeded));
        let stable = acked.get(slowest).map_or(last, |acked| last.min(*acked));
        self.stable = self.stable.max(stable);
        self.deliver(self.stable);
        self.forget();
    }

    /// What everybody has, and was delivered here, is not needed any more.
    fn forget(&mut self) {
        let needed = self.peers.values().map(|peer| peer.acked).min().unwrap_or(u64::MAX);
        let to = if is_mutant!(self, ForgetsUnacked) { self.log.last() } else { self.delivered.min(needed) };
        self.log.forget(to);
    }

    fn next_message(&mut self, node: NodeId, may_wait: bool, now_ms: u64) -> Option<Message<E>> {
        let (epoch, last, stable) = (self.view.epoch, self.log.last(), self.stable);
        let wait_ms = self.limits.tell_stable_ms;
        let tells = !is_mutant!(self, NeverTellsStable);
        let peer = self.peers.get_mut(&node)?;
        let sent = peer.sent?;
        if sent >= last {
            if peer.told_stable >= stable || !tells {
                return None;
            }
            let since_ms = *peer.untold_since_ms.get_or_insert(now_ms);
            if may_wait && now_ms < since_ms + wait_ms {
                return None;
            }
        }
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while let Some(entry) = self.log.get(sent + 1 + entries.len() as u64) {
            bytes += entry.entry.weight_bytes();
            if bytes > self.limits.message_bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        if entries.is_empty() && sent < last {
            // Not kept any more: `missing` will tell, or it was given up.
            return None;
        }
        (peer.sent, peer.told_stable) = (Some(sent + entries.len() as u64), stable);
        peer.untold_since_ms = None;
        Some(Message::Entries { epoch, first: sent + 1, entries, stable: if tells { stable } else { 0 } })
    }
}

impl Progress {
    fn new(acked: u64, required: bool) -> Self {
        Self {
            acked,
            heard: required,
            sent: None,
            told_stable: 0,
            untold_since_ms: None,
            required,
            behind_since_ms: None,
            told_lag: false,
        }
    }
}
