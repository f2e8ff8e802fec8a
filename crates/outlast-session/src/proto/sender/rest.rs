//! The sending half without a link, handed from one process to the next.

use super::Sender;
use crate::proto::detached::Sending;
use outlast_stream::BufferSource;

impl<S: BufferSource> Sender<S> {
    /// What the next process has to know. Only final while there is no link.
    pub(crate) fn rest(&self) -> Sending {
        debug_assert!(self.link.is_none() && self.aside_bytes == 0, "not at rest");
        let (first, second) = self.ring.slices(self.ring.start_offset(), self.ring.end_offset());
        Sending {
            retained_offset: self.ring.start_offset(),
            acked_offset: self.acked_offset,
            sent_offset: self.sent_offset_max,
            ended: self.ended,
            end_acked: self.end_acked,
            retained: [first, second].concat(),
        }
    }

    /// As it was. More than `retain_bytes_max` is retained if the process before could.
    pub(crate) fn restored(source: S, retain_bytes_max: usize, rest: &Sending) -> Self {
        let capacity_bytes = retain_bytes_max.max(rest.retained.len());
        let mut sender = Self::new(source, capacity_bytes);
        sender.ring.advance_empty_to(rest.retained_offset);
        sender.ring.push(&rest.retained);
        sender.sent_offset = sender.ring.start_offset();
        sender.sent_offset_max = rest.sent_offset;
        sender.acked_offset = rest.acked_offset;
        sender.ended = rest.ended;
        sender.end_acked = rest.end_acked;
        sender
    }
}
