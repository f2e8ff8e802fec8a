//! A primary hands over to another member, and clients notice next to nothing.
//!
//! What happens without a word, when a primary dies, takes a client's retransmission time-out: packets that come while nobody serves are lost.
//! Here the primary first withholds what comes from clients, until all that it has is stable. Then consensus is asked for the view. It forwards to
//! the new primary what it has withheld, and what still comes to it until clients know where the address is. So does one that learns of another
//! view for any other reason. One that has no lease withholds for a moment, too: the leader of the consensus may just have changed.
//!
//! Nothing depends on that but time: each forwarded packet is one that the network has brought late.

use super::{Action, Message, PacketId, Replica, Role};
use crate::connection::{Direction, Ends, Segment};
use crate::entry::Entry;
use crate::is_mutant;
use crate::view::NodeId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Packets of clients wait so long for another primary. It is longer than consensus takes to decide.
const WITHHELD_MS: u64 = 1_000;
/// More packets are a flood, or the view does not come: they are dropped.
const WITHHELD_MAX: usize = 4_096;
/// A primary that has lost its lease keeps the address so long: about as long as an election takes. It must not be much longer: another one may
/// have the address by then, and both machines would answer ARP for it.
const LEASELESS_MS: u64 = 100;
/// When the new primary serves, its announcement is under way: packets still come to the one before.
const ANNOUNCED_MS: u64 = 10;
/// What a node that does not serve yet keeps of packets that are forwarded to it.
const EARLY_BYTES_MAX: usize = 16 << 20;
/// Older ones have been sent again meanwhile.
const EARLY_MS_MAX: u64 = 1_000;
/// What one takes beside its bytes.
const EARLY_PACKET_BYTES: usize = 64;

/// Why a primary does not begin to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHandOver {
    /// As people are told.
    pub why: &'static str,
    /// A moment later it may.
    pub passes: bool,
}

/// At a primary that hands over, or has no lease at the moment.
#[derive(Debug)]
pub(super) struct Withholding {
    /// None: it has no lease.
    to: Option<NodeId>,
    until_ms: u64,
    withheld: Vec<(PacketId, Segment)>,
}

/// At a node that was the primary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forwarding {
    to: NodeId,
    until_ms: u64,
}

/// At a node that is about to serve: packets that were forwarded to it, and when.
#[derive(Debug, Default)]
pub(super) struct Early {
    packets: VecDeque<(u64, Arc<[u8]>)>,
    bytes: usize,
}

impl Early {
    fn push(&mut self, bytes: &Arc<[u8]>, now_ms: u64) {
        let weight = |bytes: &Arc<[u8]>| bytes.len() + EARLY_PACKET_BYTES;
        while let Some((_, old)) = self.packets.pop_front_if(|(at_ms, _)| now_ms > *at_ms + EARLY_MS_MAX) {
            self.bytes -= weight(&old);
        }
        if self.bytes + weight(bytes) <= EARLY_BYTES_MAX {
            self.bytes += weight(bytes);
            self.packets.push_back((now_ms, bytes.clone()));
        }
    }
}

impl Replica {
    /// At the primary: prepares that another member leads. What comes from clients gets no verdict from now on. When
    /// [`is_handed_over`](Self::is_handed_over), consensus may be asked for the view; [`keep_on`](Self::keep_on) ends it otherwise, and so does the
    /// passing of `within_ms`.
    ///
    /// # Errors
    /// Why it does not begin.
    pub fn hand_over(&mut self, to: NodeId, within_ms: u64, now_ms: u64) -> Result<(), NoHandOver> {
        let refusal = match () {
            () if self.role != Role::Serving => Some(("this node serves no clients at present", true)),
            () if self.holding.is_some() => Some(("another node is getting a copy of the data", false)),
            () if self.is_handing_over() => Some(("this node is about to hand over already", false)),
            () if self.withholding.is_some() => Some(("the lease of this node is about to end", true)),
            () if to == self.order.me() || !self.order.view().has(to) => {
                Some(("that node is no other member of the view", false))
            }
            () => None,
        };
        if let Some((why, passes)) = refusal {
            return Err(NoHandOver { why, passes });
        }
        let until_ms = now_ms + within_ms;
        self.withholding = Some(Withholding { to: Some(to), until_ms, withheld: Vec::new() });
        self.let_none_pass();
        Ok(())
    }

    /// Consensus is asked for the view: that takes some time as well.
    pub fn note_handed_over(&mut self, now_ms: u64) {
        if let Some(withholding) = &mut self.withholding {
            withholding.until_ms = now_ms + WITHHELD_MS;
        }
    }

    /// Whether packets of clients are withheld for another primary.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        let to = self.withholding.as_ref().and_then(|withholding| withholding.to);
        self.role == Role::Serving && to.is_some()
    }

    /// At the primary: its lease is about to end, and may be there again soon. What comes from clients gets no verdict before that
    /// ([`keep_on`](Self::keep_on)), for a while.
    pub fn prepare_to_fence(&mut self, now_ms: u64) {
        if self.role == Role::Serving && self.withholding.is_none() {
            let until_ms = now_ms + LEASELESS_MS;
            self.withholding = Some(Withholding { to: None, until_ms, withheld: Vec::new() });
            self.let_none_pass();
        }
    }

    /// Whether it is prepared so.
    #[must_use]
    pub fn is_about_to_fence(&self) -> bool {
        self.role == Role::Serving
            && self.withholding.as_ref().is_some_and(|withholding| withholding.to.is_none())
    }

    /// Whether every member has all that this primary has, which withholds what comes from clients.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.is_handing_over() && self.pending.is_empty() && self.order.delivered() == self.order.last()
    }

    /// Whether packets of clients may have to be [forwarded](Action::Forward): the shell keeps them whole.
    #[must_use]
    pub fn keeps_packets(&self) -> bool {
        self.withholding.is_some() || self.forwarding.is_some()
    }

    /// The primary goes on, if it is one still.
    pub fn keep_on(&mut self, now_ms: u64) {
        if self.role != Role::Serving {
            // It may have the lease again soon.
            if let Some(withholding) =
                self.withholding.as_mut().filter(|withholding| withholding.to.is_some())
            {
                (withholding.to, withholding.until_ms) = (None, now_ms + LEASELESS_MS);
            }
            return;
        }
        let withheld = self.take_withheld(now_ms);
        if is_mutant!(self, WithheldAreForgotten) {
            return;
        }
        // A client that has begun again meanwhile means the last one: the kernel would answer the first, as all come to it at once.
        let is_syn = |segment: &Segment| segment.flags.syn && !segment.flags.ack;
        let syns = withheld.iter().filter(|(_, segment)| is_syn(segment));
        let newest: BTreeMap<Ends, u32> = syns.map(|(_, segment)| (segment.ends, segment.sequence)).collect();
        for (packet, segment) in withheld {
            let newest = newest.get(&segment.ends).copied();
            if is_syn(&segment) && newest.is_some_and(|newest| newest != segment.sequence) {
                self.actions.push_back(Action::Verdict { packet, passes: false });
                continue;
            }
            self.handle_packet(packet, Direction::In, &segment, now_ms);
        }
        self.let_all_pass(now_ms);
    }

    /// Whether this packet was dealt with: it waits for another primary, or goes there.
    pub(super) fn withhold(&mut self, packet: PacketId, direction: Direction, segment: &Segment) -> bool {
        if direction == Direction::Out {
            return false;
        }
        if let Some(withholding) = &mut self.withholding {
            if withholding.withheld.len() < WITHHELD_MAX {
                withholding.withheld.push((packet, *segment));
            } else {
                self.actions.push_back(Action::Verdict { packet, passes: false });
            }
            return true;
        }
        if let Some(Forwarding { to, .. }) = self.forwarding {
            self.actions.push_back(Action::Forward { packet, to });
            return true;
        }
        false
    }

    /// This node serves no more. What comes to it is for another one, or for itself when it has the lease again.
    pub(super) fn begin_to_forward(&mut self, now_ms: u64) {
        let (me, primary) = (self.order.me(), self.order.view().primary);
        if primary != me {
            self.forward_all(primary, now_ms);
            return;
        }
        let leaseless = || Withholding { to: None, until_ms: now_ms, withheld: Vec::new() };
        let withholding = self.withholding.get_or_insert_with(leaseless);
        // Where this process has slept, what it had withheld is dropped by its age.
        if withholding.to.is_none() && now_ms <= withholding.until_ms + WITHHELD_MS {
            withholding.until_ms = now_ms + LEASELESS_MS;
        }
    }

    /// What was withheld. Where this process has slept meanwhile, packets may be older than any that the network brings: they are dropped.
    fn take_withheld(&mut self, now_ms: u64) -> Vec<(PacketId, Segment)> {
        let Some(Withholding { until_ms, withheld, .. }) = self.withholding.take() else { return Vec::new() };
        if now_ms <= until_ms + WITHHELD_MS {
            return withheld;
        }
        let dropped = |(packet, _)| Action::Verdict { packet, passes: false };
        self.actions.extend(withheld.into_iter().map(dropped));
        Vec::new()
    }

    fn forward_all(&mut self, to: NodeId, now_ms: u64) {
        for (packet, _) in self.take_withheld(now_ms) {
            self.actions.push_back(Action::Forward { packet, to });
        }
        let epoch = self.order.view().epoch;
        let serves = self.serving.is_some_and(|(node, since)| node == to && since >= epoch);
        let until_ms = now_ms + if serves { ANNOUNCED_MS } else { WITHHELD_MS };
        self.forwarding = Some(Forwarding { to, until_ms });
    }

    /// There is another view: what was forwarded to this node was for the one before; and what comes here is for its primary.
    pub(super) fn forward_to_primary(&mut self, now_ms: u64) {
        let (me, primary) = (self.order.me(), self.order.view().primary);
        if primary == me {
            // It takes over as soon as it has the lease.
            if self.forwarding.take().is_some() {
                let until_ms = now_ms + LEASELESS_MS;
                self.withholding = Some(Withholding { to: None, until_ms, withheld: Vec::new() });
            }
            if self.is_handing_over()
                && let Some(to) = self.withholding.as_ref().and_then(|withholding| withholding.to)
                && !self.order.view().has(to)
            {
                self.keep_on(now_ms);
            }
            return;
        }
        self.early = Early::default();
        if self.withholding.is_some() {
            self.forward_all(primary, now_ms);
        } else if let Some(forwarding) = &mut self.forwarding {
            forwarding.to = primary;
        }
    }

    /// A node that takes over keeps all that comes.
    pub(super) fn end_forwarding(&mut self) {
        self.forwarding = None;
    }

    /// All other members hear that this node serves: the one before forwards what it gets, and may give the address up.
    pub(super) fn say_that_it_serves(&mut self, now_ms: u64) {
        let (me, epoch) = (self.order.me(), self.order.view().epoch);
        let others = self.order.linked().filter(|node| *node != me).collect::<Vec<_>>();
        let serving = |to| Action::Send { to, message: Message::Serving { epoch } };
        self.actions.extend(others.into_iter().map(serving));
        for (at_ms, bytes) in core::mem::take(&mut self.early).packets {
            if now_ms <= at_ms + EARLY_MS_MAX {
                self.actions.push_back(Action::Inject { bytes });
            }
        }
    }

    /// The same, for one to which there is a link only now.
    pub(super) fn say_that_it_serves_to(&mut self, to: NodeId) {
        if self.role == Role::Serving {
            let epoch = self.order.view().epoch;
            self.actions.push_back(Action::Send { to, message: Message::Serving { epoch } });
        }
    }

    /// Whether the message was about a hand-over.
    pub(super) fn handle_hand_over(&mut self, from: NodeId, message: &Message<Entry>, now_ms: u64) -> bool {
        match message {
            Message::Serving { epoch } => {
                let is_newer = *epoch >= self.order.view().epoch;
                // The view may come later than this.
                self.serving = Some((from, *epoch));
                if let Some(forwarding) = self.forwarding.as_mut().filter(|_| is_newer) {
                    (forwarding.to, forwarding.until_ms) = (from, now_ms + ANNOUNCED_MS);
                }
            }
            Message::Forwarded { bytes } if self.role == Role::Serving => {
                self.actions.push_back(Action::Inject { bytes: bytes.clone() });
            }
            Message::Forwarded { bytes } => self.early.push(bytes, now_ms),
            _ => return false,
        }
        true
    }

    /// All packets that have no verdict, for a shell that ends: they are to be dropped.
    #[must_use]
    pub fn waiting_packets(&self) -> Vec<PacketId> {
        let withheld = self.withholding.iter().flat_map(|withholding| &withholding.withheld);
        let held = self.held.keys().map(|(_, packet)| *packet);
        held.chain(withheld.chain(&self.strays).map(|(packet, _)| *packet)).collect()
    }

    /// When packets are not kept for another primary any longer.
    pub(super) fn hand_over_ends_ms(&self) -> Option<u64> {
        let withheld = self.withholding.as_ref().map(|withholding| withholding.until_ms);
        withheld.or(self.forwarding.map(|forwarding| forwarding.until_ms))
    }

    pub(super) fn end_late_hand_over(&mut self, now_ms: u64) {
        if self.hand_over_ends_ms().is_none_or(|until_ms| now_ms < until_ms) {
            return;
        }
        self.keep_on(now_ms);
        let withheld = self.withholding.take();
        if self.forwarding.take().is_none() && withheld.is_none() {
            return;
        }
        for (packet, _) in withheld.into_iter().flat_map(|withholding| withholding.withheld) {
            self.actions.push_back(Action::Verdict { packet, passes: false });
        }
        // Another one may have it, and if this node is to serve again, it takes it again.
        if self.role == Role::Backup {
            self.actions.push_back(Action::GiveUpAddress);
        }
    }
}
