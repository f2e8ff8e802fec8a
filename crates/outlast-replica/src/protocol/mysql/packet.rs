//! Packets of the MySQL protocol, in whatever pieces they come: three bytes say how long one is, the fourth counts. What is longer than they can say
//! goes on in the next one (MariaDB, "Protocol basics: packets").

use alloc::vec::Vec;

pub(crate) const HEADER_BYTES: usize = 4;
/// One that is as long as that goes on in the next.
pub(crate) const PART_BYTES_MAX: usize = 0xff_ff_ff;

/// Of a header: how long what follows is.
pub(crate) fn length(header: &[u8]) -> Option<usize> {
    let [low, middle, high, ..] = header else { return None };
    Some(usize::from(*low) | usize::from(*middle) << 8 | usize::from(*high) << 16)
}

/// One with this in it, which is shorter than [`PART_BYTES_MAX`].
pub(crate) fn packet(number: u8, payload: &[u8]) -> Vec<u8> {
    let [low, middle, high, ..] = payload.len().to_le_bytes();
    let mut packet = Vec::with_capacity(HEADER_BYTES + payload.len());
    packet.extend_from_slice(&[low, middle, high, number]);
    packet.extend_from_slice(payload);
    packet
}

/// What comes next of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// Of a header, or nothing.
    Nothing,
    /// Of what is in the packet.
    Payload(&'a [u8]),
}

/// Of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packets {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    /// So much of this part has not come.
    left: usize,
    /// It goes on in the next one.
    goes_on: bool,
}

impl Packets {
    /// Whether nothing of a packet has come.
    #[cfg(test)]
    pub(crate) fn is_at_start(&self) -> bool {
        self.header_bytes == 0 && !self.goes_on
    }

    /// Takes what comes next, as far as it is of one kind. Whether a packet has ended with it.
    pub(crate) fn take<'a>(&mut self, bytes: &mut &'a [u8]) -> (Step<'a>, bool) {
        if self.header_bytes < HEADER_BYTES {
            let Some((byte, rest)) = bytes.split_first() else { return (Step::Nothing, false) };
            self.header[self.header_bytes] = *byte;
            self.header_bytes += 1;
            *bytes = rest;
            if self.header_bytes < HEADER_BYTES {
                return (Step::Nothing, false);
            }
            self.left = length(&self.header).unwrap_or(0);
            self.goes_on = self.left == PART_BYTES_MAX;
            return (Step::Nothing, self.ends());
        }
        let count = self.left.min(bytes.len());
        let (now, rest) = bytes.split_at(count);
        (*bytes, self.left) = (rest, self.left - count);
        (Step::Payload(now), self.ends())
    }

    fn ends(&mut self) -> bool {
        let is_over = self.left == 0;
        if is_over {
            self.header_bytes = 0;
        }
        is_over && !self.goes_on
    }
}

/// Reads what is in a packet, from its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(now)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn two(&mut self) -> Option<u16> {
        self.take(2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes)
    }

    pub(crate) fn four(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
    }

    /// A number whose first byte says how long it is; none as well where it stands for something else.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let count = match self.byte()? {
            0xfb | 0xff => return None,
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            byte => return Some(u64::from(byte)),
        };
        let bytes = self.take(count)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Up to the next zero, which is taken as well.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = self.take(end)?;
        self.take(1)?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_end_where_they_say_in_whatever_pieces_they_come() {
        let long = alloc::vec![7; PART_BYTES_MAX];
        let mut stream = packet(0, b"one");
        stream.extend(packet(1, b""));
        stream.extend([0xff, 0xff, 0xff, 2]);
        stream.extend(&long);
        stream.extend(packet(3, b"rest"));
        for piece_bytes in [5, 4096, stream.len()] {
            let (mut packets, mut ends, mut payload) = (Packets::default(), Vec::new(), 0);
            for mut piece in stream.chunks(piece_bytes) {
                while !piece.is_empty() {
                    let (step, is_end) = packets.take(&mut piece);
                    if let Step::Payload(bytes) = step {
                        payload += bytes.len();
                    }
                    if is_end {
                        ends.push(payload);
                    }
                }
            }
            assert_eq!(ends, [3, 3, 3 + PART_BYTES_MAX + 4]);
            assert!(packets.is_at_start());
        }
    }

    #[test]
    fn numbers_are_as_long_as_they_say() {
        let number = |bytes: &[u8]| Fields(bytes).number();
        assert_eq!(number(&[250]), Some(250));
        assert_eq!(number(&[0xfc, 1, 2]), Some(0x201));
        assert_eq!(number(&[0xfd, 1, 2, 3]), Some(0x3_0201));
        assert_eq!(number(&[0xfe, 1, 0, 0, 0, 0, 0, 0, 1]), Some(1 << 56 | 1));
        assert_eq!((number(&[0xfb]), number(&[0xfc, 1]), number(&[])), (None, None, None));
        let mut fields = Fields(b"root\0rest");
        assert_eq!((fields.text(), fields.text(), fields.0), (Some(&b"root"[..]), None, &b"rest"[..]));
    }
}
