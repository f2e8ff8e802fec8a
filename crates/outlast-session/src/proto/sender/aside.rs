//! Bytes that go to the link without passing through the ring, and are retained outside of it.
//!
//! They lie right behind those in the ring: the shell keeps `[ring end, stream end)`. Nothing may be pushed while there
//! are any; the shell gives them [`back`](Sender::put_back) first.

use super::{LinkMode, Sender};
use outlast_stream::BufferSource;

impl<S: BufferSource> Sender<S> {
    /// Whether bytes may be given to the link that the ring never sees: nothing is before them, and the kernel alone
    /// says what can be forgotten.
    pub fn can_pass_by(&self) -> bool {
        !self.is_lent() && self.can_bypass() && self.link.is_some_and(|link| link.mode == LinkMode::Kernel)
    }

    /// Bytes that the shell has to retain.
    pub fn aside_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// `bytes` went to the link ([`can_pass_by`](Self::can_pass_by)); the shell retains them.
    ///
    /// At most [`room_bytes`](Self::room_bytes) in all, so that they can be put back.
    pub fn passed_by(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.room_bytes(), "more passed by the ring than it could take back");
        self.aside_bytes += bytes;
        self.advance(bytes);
    }

    /// The next bytes that the shell retains, back into the ring; behind them bytes that are still to be sent.
    /// Returns how many there was room for: all, if no more passed by than may.
    pub fn put_back(&mut self, bytes: &[u8]) -> usize {
        let taken_bytes = self.ring.push(bytes);
        self.aside_bytes = self.aside_bytes.saturating_sub(taken_bytes);
        taken_bytes
    }

    /// The peer has everything before `offset`.
    pub(super) fn forget_to(&mut self, offset: u64) {
        self.ring.trim_to(offset);
        if self.aside_bytes > 0 && offset > self.ring.end_offset() {
            let bytes = offset.min(self.end_offset()) - self.ring.end_offset();
            // The ring is empty: everything in it lies before these.
            self.ring.advance_empty_to(self.ring.end_offset() + bytes);
            self.aside_bytes -= usize::try_from(bytes).unwrap_or(self.aside_bytes).min(self.aside_bytes);
        }
    }
}
