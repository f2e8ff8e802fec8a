//! This node is the primary, and another one is to be it: packets of clients are kept whole, and go to that one.

use super::copying::Joins;
use super::machine::Machine;
use super::raw;
use super::rules::COPY_BYTES;
use crate::connection::{Direction, Ends, Segment};
use crate::replica::{NoHandOver, PacketId};
use crate::view::NodeId;
use outlast_netlink::queue::{Packet, Verdict};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The task that wants it hears by this that every member has all that this primary has, or why not.
/// With it comes the epoch of the view in which that is so.
pub type HandedOver = oneshot::Sender<Result<u64, NoHandOver>>;

/// The longest packet.
const WHOLE_BYTES: u32 = 65_531;
/// So much of the promise is left when a lease counts as about to end: it should have been renewed long before. And that at the most, in
/// milliseconds: it is looked at more often.
const LEASE_ENDS_PART: u64 = 8;
const LEASE_ENDS_MS_MAX: u64 = 15;
/// The view is decided by then.
const DECIDED_WITHIN: Duration = Duration::from_secs(1);
/// What clients have sent is read until then, where servers do not take it: they send the rest again.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// What is kept of packets. More are a flood: clients send them again.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// What is done for it.
#[derive(Debug, Default)]
pub(super) struct HandingOver {
    asks: Option<(HandedOver, Instant)>,
    /// When all was ready last for another primary.
    prepared_at: Option<Instant>,
    /// Packets that have no verdict.
    packets: BTreeMap<u32, Kept>,
    bytes: usize,
    /// The kernel gives whole packets.
    copies_whole: bool,
}

#[derive(Debug)]
pub(super) struct Kept {
    bytes: Box<[u8]>,
    /// The kernel has looked up its socket when it came (early demultiplexing), and that is closed: it would go nowhere.
    is_stale: bool,
    ends: Ends,
}

impl HandingOver {
    /// It was ready for another primary a moment ago.
    pub(super) fn has_just_ended(&self) -> bool {
        self.prepared_at.is_some_and(|at| at.elapsed() < DECIDED_WITHIN)
    }

    /// The sockets of clients are closed.
    pub(super) fn note_fence(&mut self) {
        self.packets.values_mut().for_each(|kept| kept.is_stale = true);
    }

    /// The socket of this client is closed.
    pub(super) fn note_closed(&mut self, ends: &Ends) {
        let of_it = self.packets.values_mut().filter(|kept| kept.ends == *ends);
        of_it.for_each(|kept| kept.is_stale = true);
    }

    /// This packet may have to go to another node, or to a socket that is made again.
    pub(super) fn keep(&mut self, packet: &Packet<'_>, ends: Ends, is_stale: bool) {
        let is_whole = packet.bytes.len() == packet.packet_bytes as usize;
        if !is_whole || self.bytes + packet.bytes.len() > KEPT_BYTES_MAX {
            return;
        }
        let mut bytes: Box<[u8]> = packet.bytes.into();
        // A wrong one must stay wrong: nobody else finds that the packet was damaged.
        if packet.checksum_is_open && raw::renew_checksum(&mut bytes).is_none() {
            return;
        }
        self.bytes += bytes.len();
        self.packets.insert(packet.id, Kept { bytes, is_stale, ends });
    }

    /// All have verdicts.
    pub(super) fn forget_all(&mut self) {
        self.packets.clear();
        self.bytes = 0;
    }

    /// It has a verdict.
    fn forget(&mut self, id: u32) -> Option<Kept> {
        let kept = self.packets.remove(&id)?;
        self.bytes -= kept.bytes.len();
        Some(kept)
    }
}

impl Machine {
    /// Another member is to be the primary.
    pub(super) fn begin_to_hand_over(
        &mut self,
        (to, within): (NodeId, Duration),
        asks: HandedOver,
    ) -> io::Result<()> {
        if asks.is_closed() {
            return Ok(());
        }
        let refusal = match () {
            () if self.copying.is_some() || self.known.joins != Joins::No => {
                Some("a node is getting a copy of the data")
            }
            () if !self.known.linked.contains(&to) => Some("there is no connection to that node"),
            () => None,
        };
        let refusal = refusal.map(|why| NoHandOver { why, passes: false });
        if refusal.is_none() {
            self.read_all()?;
        }
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let begun = refusal.map_or_else(|| self.replica.hand_over(to, within_ms, self.now_ms()), Err);
        match begun {
            Ok(()) => self.handing_over.asks = Some((asks, Instant::now())),
            Err(refusal) => {
                self.replica.let_all_pass(self.now_ms());
                let _ = asks.send(Err(refusal));
            }
        }
        Ok(())
    }

    /// All that clients have sent, so that nothing of it is lost with their sockets here.
    fn read_all(&mut self) -> io::Result<()> {
        self.let_none_pass();
        self.copy_whole_packets(true)?;
        // Those of which only the beginning was copied.
        self.take_packets()?;
        self.act()?;
        self.say_verdicts()?;
        self.accept();
        self.read_all_clients();
        Ok(())
    }

    /// A lease that is about to end may be there again soon after that: clients had to send again what is lost meanwhile.
    pub(super) fn look_at_end_of_lease(&mut self) -> io::Result<()> {
        let ends = self.lease_left_ms < (self.promise_ms / LEASE_ENDS_PART).min(LEASE_ENDS_MS_MAX);
        let is_prepared = self.replica.is_about_to_fence() || ends && self.replica.keeps_packets();
        if !self.replica.is_serving() || ends == is_prepared {
            return Ok(());
        }
        if ends {
            self.read_all()?;
            self.replica.prepare_to_fence(self.now_ms());
        } else {
            self.replica.keep_on(self.now_ms());
        }
        Ok(())
    }

    /// The view was not decided.
    pub(super) fn keep_on(&mut self) {
        self.replica.keep_on(self.now_ms());
    }

    /// Looks whether every member has all.
    pub(super) fn go_on_with_hand_over(&mut self) -> io::Result<()> {
        if let Some((asks, begun)) = self.handing_over.asks.take() {
            let is_read = || !self.has_unread_clients() || begun.elapsed() > READ_WITHIN;
            match () {
                () if !self.replica.is_handing_over() => {
                    let why =
                        "a member does not keep up, or this node serves no more, or another view is decided";
                    let _ = asks.send(Err(NoHandOver { why, passes: true }));
                }
                () if self.replica.is_handed_over() && is_read() => {
                    self.replica.note_handed_over(self.now_ms());
                    self.handing_over.prepared_at = Some(Instant::now());
                    if asks.send(Ok(self.replica.order().view().epoch)).is_err() {
                        self.keep_on();
                    }
                }
                () => self.handing_over.asks = Some((asks, begun)),
            }
        }
        self.copy_whole_packets(self.replica.keeps_packets())?;
        self.known.is_forwarding = self.replica.keeps_packets();
        Ok(())
    }

    fn copy_whole_packets(&mut self, whole: bool) -> io::Result<()> {
        if self.handing_over.copies_whole != whole {
            self.queue.copy(if whole { WHOLE_BYTES } else { COPY_BYTES })?;
            self.handing_over.copies_whole = whole;
        }
        Ok(())
    }

    /// It goes to another node.
    pub(super) fn forward(&mut self, packet: PacketId, to: NodeId) {
        self.verdicts.push((packet.0, Verdict::Drop));
        if let Some(kept) = self.handing_over.forget(packet.0)
            && self.peers.send_packet(to, kept.bytes)
        {
            self.known.forwarded += 1;
        }
    }

    /// It goes on here, or is dropped.
    pub(super) fn decide(&mut self, packet: PacketId, passes: bool) {
        let stale = self.handing_over.forget(packet.0).filter(|kept| kept.is_stale && passes);
        let verdict = if passes && stale.is_none() { Verdict::Accept } else { Verdict::Drop };
        self.verdicts.push((packet.0, verdict));
        if let Some(Kept { bytes, .. }) = stale {
            self.inject(&bytes);
        }
    }

    /// One that came to the node that was the primary before.
    pub(super) fn inject(&mut self, bytes: &[u8]) {
        let portal = self.portal_address().ok();
        let is_for_portal = |segment: Segment| Some(segment.ends.portal) == portal;
        if Segment::parse(bytes, Direction::In).is_ok_and(is_for_portal) {
            self.known.injected += 1;
            self.send_raw(|machine| machine.raw.inject(bytes));
        }
    }
}
