//! Bytes that go from the application's buffer to the link, and only then into the ring.

use super::{FRAME_HEADER_BYTES, LinkMode, Sender};
use outlast_stream::BufferSource;

impl<S: BufferSource> Sender<S> {
    /// Whether bytes may go to the link without passing through the ring: nothing is before them, and the mode
    /// knows at once what it has to keep.
    #[inline]
    pub fn can_bypass(&self) -> bool {
        self.pending_bytes() == 0
            && self.head.is_empty()
            && self.link.is_some_and(|link| link.mode != LinkMode::Inband && link.confirmed)
    }

    /// Whether the next bytes may go to the link as one frame that the shell makes: nothing is before them.
    #[inline]
    pub fn can_frame(&self) -> bool {
        self.pending_bytes() == 0
            && self.head.is_empty()
            && self.queued.is_empty()
            && self.link.is_some_and(|link| link.mode == LinkMode::Inband && link.frame_left_bytes == 0)
    }

    /// `bytes` went to the link directly ([`can_bypass`](Self::can_bypass)), and the kernel still holds
    /// `kernel_held_bytes` unacknowledged: only those have to be copied.
    ///
    /// At most [`room_bytes`](Self::room_bytes) may be given at once, so that the copy always fits.
    pub fn bypassed(&mut self, bytes: &[u8], kernel_held_bytes: u64) {
        let begin_offset = self.ring.end_offset();
        let mut skipped_bytes = 0;
        if self.link.is_some_and(|link| link.mode == LinkMode::Kernel) {
            let end_offset = begin_offset + bytes.len() as u64;
            self.acked_offset = self.acked_offset.max(end_offset.saturating_sub(kernel_held_bytes));
            self.ring.trim_to(self.acked_offset);
            if self.ring.advance_empty_to(self.acked_offset) {
                skipped_bytes =
                    usize::try_from(self.acked_offset - begin_offset).unwrap_or(0).min(bytes.len());
            }
        } else {
            self.ring.make_room(bytes.len());
        }
        let taken_bytes = self.ring.push(bytes.get(skipped_bytes..).unwrap_or_default());
        debug_assert_eq!(
            taken_bytes + skipped_bytes,
            bytes.len(),
            "a bypassing write did not fit into the ring"
        );
        self.advance(bytes.len());
    }

    /// As [`bypassed`](Self::bypassed), and all of it is kept: for messages that are too small to ask the kernel. At most
    /// [`room_bytes`](Self::room_bytes).
    #[inline]
    pub fn bypassed_whole(&mut self, bytes: &[u8]) {
        let taken_bytes = self.ring.push(bytes);
        debug_assert_eq!(taken_bytes, bytes.len(), "a bypassing write did not fit into the ring");
        self.advance(bytes.len());
    }

    /// As [`bypassed_whole`](Self::bypassed_whole), in a frame ([`can_frame`](Self::can_frame)) that names `ack_offset`, of
    /// which the link took `sent_bytes`, header included. What it did not take is pending.
    #[inline]
    pub fn framed(&mut self, bytes: &[u8], ack_offset: u64, sent_bytes: usize) {
        if sent_bytes == FRAME_HEADER_BYTES + bytes.len() {
            return self.bypassed_whole(bytes);
        }
        self.push(bytes);
        self.prepare(ack_offset);
        self.sent(sent_bytes);
    }
}
