//! The sending half of a session: what was written, what the present link was given, what may be forgotten.
//!
//! # Contract
//! The shell owns the link and does the I/O; this type owns the bytes. In order:
//! 1. [`push`](Sender::push) (or [`reserve`](Sender::reserve) and [`commit`](Sender::commit)) what the
//!    application writes;
//! 2. [`prepare`](Sender::prepare), give [`chunks`](Sender::chunks) to the link in one vectored write, and report
//!    with [`sent`](Sender::sent) how much it took; repeat until there is nothing or the link is full;
//! 3. report what the link's acknowledgement mode learns: [`kernel_holds`](Sender::kernel_holds) or
//!    [`acked`](Sender::acked).
//!
//! After a loss of the link [`unlink`](Sender::unlink), and when the peer has said what it expects next,
//! [`link`](Sender::link): what is missing is pending again.

use super::frame::{FRAME_HEADER_BYTES, Frame, FrameHeader};
use super::wire::LinkMode;
use alloc::vec::Vec;
use outlast_stream::{BufferSource, RetainRing};

/// Largest payload of one frame in `inband` mode. Small enough that an acknowledgement is never far away, large
/// enough that its header costs nothing.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 64 << 10;

/// A link that is full and a peer that asks on and on: so many bytes of answers may wait, more are not given.
const ANSWERS_BYTES_MAX: usize = 4 << 10;

/// A peer's position that contradicts what this side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffsetError {
    /// The peer expects bytes that this side may already have forgotten: they were acknowledged, and are gone.
    #[error("the peer is at offset {peer_offset}, but bytes before {retained_offset} are no longer retained")]
    Forgotten {
        /// What the peer expects next.
        peer_offset: u64,
        /// The earliest byte still held here.
        retained_offset: u64,
    },
    /// The peer claims bytes that were never sent.
    #[error("the peer claims offset {peer_offset}, but only {sent_offset} bytes were ever sent")]
    Future {
        /// What the peer expects next.
        peer_offset: u64,
        /// The highest offset ever given to a link.
        sent_offset: u64,
    },
}

/// What the present link knows of the stream.
#[derive(Clone, Copy, Debug)]
struct Link {
    mode: LinkMode,
    /// `window` mode: a byte is delivered when so many were sent after it.
    window_bytes: u64,
    /// `inband`: payload still to come of the frame whose header was prepared.
    frame_left_bytes: usize,
    /// Whether the end of the stream was announced on this link.
    end_sent: bool,
    /// Whether the peer's end was acknowledged on this link.
    end_ack_queued: bool,
    /// Whether acknowledgements count yet: a client's first link has to be welcomed first.
    confirmed: bool,
    /// Whether the peer takes urgent bytes on this link.
    takes_urgent: bool,
}

/// The sending half.
#[derive(Debug)]
pub struct Sender<S: BufferSource> {
    ring: RetainRing<S>,
    /// Retained by the shell, right behind what is in the ring.
    aside_bytes: usize,
    /// Given to the present link (or the last one) up to here.
    sent_offset: u64,
    /// The highest offset ever given to any link.
    sent_offset_max: u64,
    /// What links have taken by [`sent`](Self::sent), frames and handshakes included, before TLS. It wraps.
    given_bytes: u64,
    /// The peer has everything before this.
    acked_offset: u64,
    /// The application wrote its last byte.
    ended: bool,
    /// The peer knows and has acknowledged that.
    end_acked: bool,
    /// Control bytes that go before the next payload: handshake messages, frame headers, control frames.
    head: Vec<u8>,
    head_sent: usize,
    /// Control frames that wait for the end of the frame that has begun.
    queued: Vec<u8>,
    link: Option<Link>,
    resent_bytes: u64,
    /// Where the latest urgent byte is.
    urgent_offset: Option<u64>,
}

impl<S: BufferSource> Sender<S> {
    /// A stream at offset 0 that retains at most `retain_bytes_max`.
    pub fn new(source: S, retain_bytes_max: usize) -> Self {
        Self {
            ring: RetainRing::with_source(0, retain_bytes_max, source),
            aside_bytes: 0,
            sent_offset: 0,
            sent_offset_max: 0,
            given_bytes: 0,
            acked_offset: 0,
            ended: false,
            end_acked: false,
            head: Vec::new(),
            head_sent: 0,
            queued: Vec::new(),
            link: None,
            resent_bytes: 0,
            urgent_offset: None,
        }
    }

    /// Everything the application wrote ends here.
    #[inline]
    pub fn end_offset(&self) -> u64 {
        self.ring.end_offset() + self.aside_bytes as u64
    }

    /// The earliest byte that can be sent again.
    pub fn retained_offset(&self) -> u64 {
        self.ring.start_offset()
    }

    /// The peer is known to have everything before this.
    pub fn acked_offset(&self) -> u64 {
        self.acked_offset
    }

    /// Given to the present link up to here.
    pub fn sent_offset(&self) -> u64 {
        self.sent_offset
    }

    /// The highest offset ever given to a link.
    pub fn sent_offset_max(&self) -> u64 {
        self.sent_offset_max
    }

    /// What links have taken by [`sent`](Self::sent), frames and handshakes included, before TLS. It wraps.
    pub fn given_bytes(&self) -> u64 {
        self.given_bytes
    }

    /// Bytes given to a link a second time, over the whole life.
    pub fn resent_bytes(&self) -> u64 {
        self.resent_bytes
    }

    /// Whether the application ended the stream.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Whether the peer has every byte, and the end.
    pub fn is_delivered(&self) -> bool {
        self.ended && self.end_acked && self.acked_offset == self.end_offset()
    }

    /// Bytes retained at the moment.
    #[inline]
    pub fn retained_bytes(&self) -> usize {
        self.ring.retained_bytes() + self.aside_bytes
    }

    /// Bytes that can be pushed before the ring is full.
    #[inline]
    pub fn room_bytes(&self) -> usize {
        if self.ring.is_lent() {
            return 0;
        }
        self.ring.capacity_bytes_max().saturating_sub(self.retained_bytes())
    }

    /// At most so many bytes are retained.
    pub fn retain_bytes_max(&self) -> usize {
        self.ring.capacity_bytes_max()
    }

    /// Changes that from now on; what is retained already stays.
    pub fn set_retain_bytes_max(&mut self, bytes: usize) {
        self.ring.set_capacity_bytes_max(bytes);
    }

    /// Memory that the retained bytes take at the moment.
    pub fn buffer_bytes(&self) -> usize {
        self.ring.buffer_bytes()
    }

    /// Written by the application and not yet given to the present link.
    #[inline]
    pub fn pending_bytes(&self) -> u64 {
        self.end_offset() - self.sent_offset
    }

    /// Takes as much of `bytes` as there is room for.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        debug_assert!(!self.ended, "pushed after the end");
        debug_assert!(self.aside_bytes == 0, "pushed behind bytes that are not in the ring");
        self.ring.push(bytes)
    }

    /// As [`pending_bytes`](Self::pending_bytes), as far as they can be sent now.
    #[inline]
    pub fn ready_bytes(&self) -> u64 {
        if self.ring.is_lent() { 0 } else { self.pending_bytes() }
    }

    /// Room for the application to write into, at least one byte unless the ring is full; at most `bytes_max`.
    pub fn reserve(&mut self, bytes_max: usize) -> &mut [u8] {
        self.ring.reserve(1, bytes_max)
    }

    /// The first `bytes` of the reserved room are part of the stream now.
    pub fn commit(&mut self, bytes: usize) -> usize {
        self.ring.commit(bytes)
    }

    /// The application wrote its last byte.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Queues bytes that go to the link before any payload: a handshake message.
    pub fn push_head(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// Queues a control frame (`inband` only): it goes out before the next data frame. False if too many wait already:
    /// then what it says is not said.
    pub fn push_frame(&mut self, frame: &Frame<'_>, ack_offset: u64) -> bool {
        let Some(link) = self.link.as_mut().filter(|link| link.mode == LinkMode::Inband) else {
            return false;
        };
        // Once is enough, however often the peer says that its stream has ended.
        if matches!(frame, Frame::EndAck) && core::mem::replace(&mut link.end_ack_queued, true) {
            return true;
        }
        let waiting_bytes = self.head.len() + self.queued.len();
        if matches!(frame, Frame::Pong { .. } | Frame::Ack) && waiting_bytes > ANSWERS_BYTES_MAX {
            return false;
        }
        // PROTOCOL 4.2: a frame that has begun is finished first.
        let out = if link.frame_left_bytes == 0 { &mut self.head } else { &mut self.queued };
        frame.encode(ack_offset, out);
        true
    }

    /// Whether a control frame would be sent in one piece now.
    pub fn can_push_frame(&self) -> bool {
        self.link.is_some_and(|link| link.mode == LinkMode::Inband && link.frame_left_bytes == 0)
    }

    /// Whether anything waits for the link to take it.
    #[inline]
    pub fn has_output(&self) -> bool {
        let Some(link) = &self.link else { return false };
        if self.head_sent < self.head.len() {
            return true;
        }
        if self.ring.is_lent() {
            // What has begun cannot be finished, and nothing may come in between.
            return !self.queued.is_empty() && link.frame_left_bytes == 0;
        }
        !self.queued.is_empty()
            || self.pending_bytes() > 0
            || (link.mode == LinkMode::Inband && self.ended && !link.end_sent)
    }

    /// Raw modes: the last byte was given to the link, and the FIN has to follow now.
    pub fn fin_due(&self) -> bool {
        let Some(link) = &self.link else { return false };
        link.mode != LinkMode::Inband
            && self.ended
            && !link.end_sent
            && !self.ring.is_lent()
            && self.pending_bytes() == 0
            && self.head_sent == self.head.len()
    }

    /// Whether the end of the stream, as a FIN or as a frame, is due once the link has taken what is pending.
    pub fn end_follows(&self) -> bool {
        self.ended && !self.ring.is_lent() && self.link.is_some_and(|link| !link.end_sent)
    }

    /// Raw modes: the FIN was queued.
    pub fn fin_sent(&mut self) {
        if let Some(link) = &mut self.link {
            link.end_sent = true;
        }
    }

    /// Whether the end of the stream was given to the present link.
    pub fn is_end_sent(&self) -> bool {
        self.link.is_some_and(|link| link.end_sent)
    }

    /// Gets the next output ready for [`chunks`](Self::chunks). `ack_offset` is what the receiving half has taken
    /// in; it rides along in `inband` mode.
    #[inline]
    pub fn prepare(&mut self, ack_offset: u64) {
        let Some(link) = &mut self.link else { return };
        if link.mode != LinkMode::Inband || link.frame_left_bytes > 0 {
            return;
        }
        // PROTOCOL 4.2: every frame is sent whole before the next begins.
        self.head.append(&mut self.queued);
        if self.ring.is_lent() {
            return;
        }
        let pending_bytes = usize::try_from(self.ring.end_offset() - self.sent_offset).unwrap_or(usize::MAX);
        if pending_bytes > 0 {
            let payload_bytes = pending_bytes.min(FRAME_PAYLOAD_BYTES_MAX);
            if link.takes_urgent
                && let Some(offset) = self.urgent_offset
                && (self.sent_offset..self.sent_offset + payload_bytes as u64).contains(&offset)
            {
                // PROTOCOL 11.4
                Frame::Urgent { offset }.encode(ack_offset, &mut self.head);
            }
            let header = FrameHeader::data(payload_bytes, ack_offset);
            self.head.extend_from_slice(&header.encode());
            link.frame_left_bytes = payload_bytes;
        } else if self.ended && !link.end_sent {
            Frame::End { end_offset: self.sent_offset }.encode(ack_offset, &mut self.head);
            link.end_sent = true;
        }
    }

    /// What goes to the link next: control bytes, then payload in up to two pieces.
    #[inline]
    pub fn chunks(&self) -> [&[u8]; 3] {
        let Some(link) = &self.link else { return [&[]; 3] };
        let head = self.head.get(self.head_sent..).unwrap_or_default();
        let to_offset = if link.mode == LinkMode::Inband {
            self.sent_offset + link.frame_left_bytes as u64
        } else {
            self.urgent_pending().unwrap_or_else(|| self.ring.end_offset())
        };
        let (first, second) = self.ring.slices(self.sent_offset, to_offset);
        [head, first, second]
    }

    /// The link took so many bytes of [`chunks`](Self::chunks).
    #[inline]
    pub fn sent(&mut self, mut bytes: usize) {
        self.given_bytes = self.given_bytes.wrapping_add(bytes as u64);
        if self.head_sent < self.head.len() {
            let head_bytes = bytes.min(self.head.len() - self.head_sent);
            self.head_sent += head_bytes;
            bytes -= head_bytes;
            if self.head_sent == self.head.len() {
                self.head.clear();
                self.head_sent = 0;
                if self.head.capacity() > 256 {
                    self.head = Vec::new();
                }
            }
        }
        let Some(link) = &mut self.link else { return };
        if link.mode == LinkMode::Inband {
            link.frame_left_bytes -= bytes;
        }
        self.advance(bytes);
    }

    /// Payload given to the link: moves the position, and counts what went out a second time.
    #[inline]
    fn advance(&mut self, bytes: usize) {
        let before = self.sent_offset;
        self.sent_offset += bytes as u64;
        debug_assert!(self.sent_offset <= self.end_offset());
        if before < self.sent_offset_max {
            self.resent_bytes += self.sent_offset.min(self.sent_offset_max) - before;
        }
        self.sent_offset_max = self.sent_offset_max.max(self.sent_offset);
        self.window_passed();
    }

    /// `kernel` mode: the socket holds so many unacknowledged bytes (SIOCOUTQ), the FIN included.
    pub fn kernel_holds(&mut self, bytes: u64) {
        let Some(link) = self.link else { return };
        if link.mode != LinkMode::Kernel || !link.confirmed {
            return;
        }
        // Control bytes (a Welcome) precede the payload in the socket; a FIN follows it and counts as one byte.
        let fin_bytes = u64::from(link.end_sent);
        let acked_offset = self.sent_offset.saturating_sub(bytes.saturating_sub(fin_bytes.min(bytes)));
        if bytes == 0 && link.end_sent {
            self.end_acked = true;
        }
        self.acked_offset = self.acked_offset.max(acked_offset.min(self.sent_offset));
        self.forget_to(self.acked_offset);
    }

    /// The peer says that it has everything before `offset`.
    ///
    /// # Errors
    /// [`OffsetError::Future`] if that was never sent. An older offset than known is stale, not wrong.
    pub fn acked(&mut self, offset: u64) -> Result<(), OffsetError> {
        if offset > self.sent_offset_max {
            return Err(OffsetError::Future { peer_offset: offset, sent_offset: self.sent_offset_max });
        }
        if offset > self.acked_offset {
            self.acked_offset = offset;
            // Bytes of this link that are still to be sent again stay, even if an earlier copy arrived.
            self.forget_to(offset.min(self.sent_offset));
        }
        Ok(())
    }

    /// The peer has the end of the stream.
    pub fn end_acked(&mut self) {
        // PROTOCOL 4.1: an EndAck says that everything was taken in, whatever offset the peer's application has read
        // up to and its header names.
        if self.link.is_some_and(|link| link.mode == LinkMode::Inband && link.end_sent) {
            self.acked_offset = self.end_offset();
            self.forget_to(self.acked_offset);
        }
        if self.ended && self.acked_offset == self.end_offset() {
            self.end_acked = true;
        }
    }

    /// `window` mode: what is further back than the two kernels' buffers can hold was read by the peer.
    #[inline]
    fn window_passed(&mut self) {
        if let Some(link) = &self.link
            && link.mode == LinkMode::Window
            && link.confirmed
        {
            let acked_offset = self.sent_offset.saturating_sub(link.window_bytes);
            if acked_offset > self.acked_offset {
                self.acked_offset = acked_offset;
                self.ring.trim_to(acked_offset);
            }
        }
    }

    /// The link is gone. What it was given and did not acknowledge is retained.
    pub fn unlink(&mut self) {
        debug_assert!(self.aside_bytes == 0, "bytes outside of the ring cannot be sent again");
        self.link = None;
        self.head = Vec::new();
        self.head_sent = 0;
        self.queued = Vec::new();
    }

    /// A link is there, and the peer expects `peer_offset` next: all from there on is pending (again).
    /// Returns how many bytes have to be sent a second time.
    ///
    /// `window_bytes` counts in `window` mode only. `confirmed` is false on the link of a client that has not
    /// been welcomed yet; see [`confirm`](Self::confirm).
    ///
    /// # Errors
    /// [`OffsetError`] if the peer's position is not one this side can continue from.
    pub fn link(
        &mut self,
        mode: LinkMode,
        window_bytes: u64,
        peer_offset: u64,
        confirmed: bool,
    ) -> Result<u64, OffsetError> {
        // PROTOCOL 3.6: offsets outside of [retained, sent] are an error of the peer.
        if peer_offset < self.ring.start_offset() {
            let retained_offset = self.ring.start_offset();
            return Err(OffsetError::Forgotten { peer_offset, retained_offset });
        }
        if peer_offset > self.sent_offset_max {
            return Err(OffsetError::Future { peer_offset, sent_offset: self.sent_offset_max });
        }
        self.head.clear();
        self.head_sent = 0;
        self.queued.clear();
        self.acked_offset = self.acked_offset.max(peer_offset);
        self.ring.trim_to(peer_offset);
        self.sent_offset = peer_offset;
        self.link = Some(Link {
            mode,
            window_bytes,
            frame_left_bytes: 0,
            end_sent: false,
            end_ack_queued: false,
            confirmed,
            takes_urgent: false,
        });
        Ok(self.sent_offset_max - peer_offset)
    }

    /// The peer welcomed this link: from now on its acknowledgements count.
    pub fn confirm(&mut self, window_bytes: u64) {
        if let Some(link) = &mut self.link {
            link.confirmed = true;
            link.window_bytes = window_bytes;
        }
        // What was sent before the Welcome may be more than a window already, and fill the ring.
        self.window_passed();
    }

    /// Whether the link may be trusted with acknowledgements.
    pub fn is_confirmed(&self) -> bool {
        self.link.is_some_and(|link| link.confirmed)
    }

    /// Gives the ring's memory back if nothing is retained.
    pub fn shrink(&mut self) {
        self.ring.shrink();
        if self.head.is_empty() {
            self.head = Vec::new();
        }
    }
}

const _: () = assert!(FRAME_HEADER_BYTES == 16);

mod aside;
mod bypass;
mod lend;
#[cfg(any(feature = "io", feature = "fuzzing", test))]
mod rest;
#[cfg(test)]
mod tests;
mod urgent;
