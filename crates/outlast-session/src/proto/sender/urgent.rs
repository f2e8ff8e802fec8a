//! Urgent bytes: where they are, and how they go to the link. PROTOCOL 11.
//!
//! Only the latest one counts, as in TCP. Its mark stays until it is delivered: a byte that has to be sent again is
//! urgent again.

use super::{LinkMode, Sender};
use outlast_stream::BufferSource;

impl<S: BufferSource> Sender<S> {
    /// The byte that was written last is urgent.
    pub fn mark_urgent(&mut self) {
        self.urgent_offset = self.end_offset().checked_sub(1);
    }

    /// Whether the peer takes urgent bytes on the present link. Until this is said, it does not.
    pub fn peer_takes_urgent(&mut self, takes_urgent: bool) {
        if let Some(link) = &mut self.link {
            link.takes_urgent = takes_urgent;
        }
    }

    /// Modes without frames: the urgent byte, if it goes to the link next. It has to go alone.
    pub fn urgent_byte(&self) -> Option<u8> {
        let offset = self.urgent_pending().filter(|offset| *offset == self.sent_offset)?;
        if self.head_sent < self.head.len() {
            return None;
        }
        let (older, newer) = self.ring.slices(offset, offset + 1);
        older.iter().chain(newer).next().copied()
    }

    /// Modes without frames: where the urgent byte is, if it is still to be given to the link.
    #[inline]
    pub(super) fn urgent_pending(&self) -> Option<u64> {
        let offset = self.urgent_offset?;
        let marks = self.link.is_some_and(|link| link.takes_urgent && link.mode != LinkMode::Inband);
        (marks && (self.sent_offset..self.ring.end_offset()).contains(&offset)).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use outlast_stream::Heap;

    fn sender(mode: LinkMode, takes_urgent: bool) -> Sender<Heap> {
        let mut sender = Sender::new(Heap, 1 << 16);
        sender.link(mode, 0, 0, true).unwrap();
        sender.peer_takes_urgent(takes_urgent);
        sender
    }

    fn write(sender: &mut Sender<Heap>) {
        sender.push(b"abcD");
        sender.mark_urgent();
        sender.push(b"efg");
    }

    /// What goes to a link without frames; urgent bytes in brackets.
    fn sent(sender: &mut Sender<Heap>) -> Vec<u8> {
        let mut out = Vec::new();
        while sender.has_output() {
            sender.prepare(0);
            match sender.urgent_byte() {
                Some(byte) => {
                    out.extend_from_slice(&[b'[', byte, b']']);
                    sender.sent(1);
                }
                None => {
                    let next = sender.chunks().concat();
                    assert!(!next.is_empty(), "has output, and none");
                    // Half of it, as a link that is full would.
                    let count = next.len().div_ceil(2);
                    out.extend_from_slice(&next[..count]);
                    sender.sent(count);
                }
            }
        }
        out
    }

    #[test]
    fn the_byte_goes_alone_and_in_its_place() {
        for mode in [LinkMode::Kernel, LinkMode::Window, LinkMode::Udp] {
            let mut sender = sender(mode, true);
            write(&mut sender);
            assert_eq!(sent(&mut sender), b"abc[D]efg", "{mode}");
        }
    }

    /// The ring's memory ends somewhere: before the byte, at it, or behind it.
    #[test]
    fn the_byte_is_found_wherever_it_is_in_memory() {
        for before in 0..200 {
            let mut sender = Sender::new(Heap, 64);
            sender.link(LinkMode::Window, 0, 0, true).unwrap();
            sender.peer_takes_urgent(true);
            for _ in 0..before {
                assert_eq!(sender.push(b"."), 1);
                sender.sent(1);
                if sender.end_offset() > 40 {
                    sender.acked(sender.end_offset() - 40).unwrap();
                }
            }
            write(&mut sender);
            assert_eq!(sent(&mut sender), b"abc[D]efg", "{before}");
        }
    }

    #[test]
    fn a_peer_that_does_not_know_of_it_gets_an_ordinary_byte() {
        let mut sender = sender(LinkMode::Kernel, false);
        write(&mut sender);
        assert_eq!(sent(&mut sender), b"abcDefg");
    }

    #[test]
    fn a_handshake_message_goes_first() {
        let mut sender = sender(LinkMode::Kernel, true);
        sender.push_head(b"welcome");
        sender.push(b"D");
        sender.mark_urgent();
        assert_eq!(sent(&mut sender), b"welcome[D]");
    }

    #[test]
    fn what_is_sent_again_is_urgent_again_and_what_was_delivered_is_not() {
        for (expected_next, again) in [(0, &b"abc[D]efg"[..]), (3, b"[D]efg"), (4, b"efg")] {
            let mut sender = sender(LinkMode::Kernel, true);
            write(&mut sender);
            sent(&mut sender);
            sender.unlink();
            sender.link(LinkMode::Kernel, 0, expected_next, true).unwrap();
            sender.peer_takes_urgent(true);
            assert_eq!(sent(&mut sender), again);
        }
    }

    #[test]
    fn frames_announce_it_before_the_bytes() {
        use crate::proto::{Control, Piece, Receiver};
        let mut sender = sender(LinkMode::Inband, true);
        write(&mut sender);
        let bytes = sent(&mut sender);
        let mut receiver = Receiver::default();
        receiver.link(LinkMode::Inband);
        let Ok(Piece::Control { bytes: skip, control }) = receiver.parse(&bytes) else { panic!("{bytes:?}") };
        assert_eq!(control, Control::Urgent { offset: 3 });
        let Ok(Piece::Payload { skip_bytes }) = receiver.parse(&bytes[skip..]) else { panic!("{bytes:?}") };
        assert_eq!(&bytes[skip + skip_bytes..], b"abcDefg");
    }
}
