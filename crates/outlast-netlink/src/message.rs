//! One message: a header, a fixed part, and attributes, which may hold others.

use std::io;

/// Of a message, before its fixed part.
pub(crate) const HEADER_LEN: usize = 16;
const ATTRIBUTE_HEADER_LEN: usize = 4;
const NLA_F_NESTED: u16 = 1 << 15;
const NLA_TYPE_MASK: u16 = !(3 << 14);

/// Flags of a request, as the kernel names them.
pub mod flags {
    /// It is a request: set always.
    pub const REQUEST: u16 = 0x1;
    /// The kernel is to answer in any case.
    pub const ACK: u16 = 0x4;
    /// About everything of its kind.
    pub const DUMP: u16 = 0x300;
    /// What is there is replaced.
    pub const REPLACE: u16 = 0x100;
    /// It must not be there.
    pub const EXCL: u16 = 0x200;
    /// It is made, if it is not there.
    pub const CREATE: u16 = 0x400;
}

/// One netlink request being written.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A request of `kind` whose fixed part is `fixed`.
    #[must_use]
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | flags::REQUEST).to_ne_bytes());
        bytes.extend_from_slice(fixed);
        let mut message = Self { bytes };
        message.pad();
        message
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Appends the attribute `kind` holding `value`.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(value.len() + ATTRIBUTE_HEADER_LEN).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// Appends a 32-bit attribute.
    pub fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends a 32-bit attribute in the order of bytes of the network.
    pub fn number_be(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// Appends a NUL-terminated string attribute.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Appends an attribute that holds what `fill` appends.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ATTRIBUTE_HEADER_LEN]);
        fill(self);
        let len = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        self
    }

    /// Appends bytes as they are: the fixed part inside a nest.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// With more flags.
    pub(crate) fn add_flags(&mut self, flags: u16) {
        let with = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | flags;
        self.bytes[6..8].copy_from_slice(&with.to_ne_bytes());
    }

    /// The whole message, with its number, by which the answer is known.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One message from the kernel: its kind and what follows the header.
#[derive(Debug)]
pub struct Reply {
    /// As the kernel numbers it.
    pub kind: u16,
    /// The fixed part and the attributes.
    pub body: Vec<u8>,
}

/// A kind of messages.
const ERROR: u16 = 2;

/// Sorts one datagram into `replies`; true when the exchange is over.
pub(crate) fn take(mut datagram: &[u8], sequence: u32, replies: &mut Vec<Reply>) -> io::Result<bool> {
    const DONE: u16 = 3;
    while datagram.len() >= HEADER_LEN {
        let len =
            usize::try_from(u32_at(datagram, 0)).unwrap_or(usize::MAX).clamp(HEADER_LEN, datagram.len());
        let (message, rest) = (&datagram[..len], &datagram[len.next_multiple_of(4).min(datagram.len())..]);
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        datagram = rest;
        if u32_at(message, 8) != sequence {
            continue; // left over from an exchange that was given up
        }
        match kind {
            ERROR => {
                let errno = i32::from_ne_bytes(u32_at(message, HEADER_LEN).to_ne_bytes());
                return if errno == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(-errno)) };
            }
            DONE => return Ok(true),
            _ => replies.push(Reply { kind, body: message[HEADER_LEN..].to_vec() }),
        }
    }
    Ok(false)
}

/// What a datagram says of messages that were sent: their numbers, and the error, negative, or 0.
pub(crate) fn errors(mut datagram: &[u8]) -> Vec<(u32, i32)> {
    let mut found = Vec::new();
    while datagram.len() >= HEADER_LEN {
        let len =
            usize::try_from(u32_at(datagram, 0)).unwrap_or(usize::MAX).clamp(HEADER_LEN, datagram.len());
        let (message, rest) = (&datagram[..len], &datagram[len.next_multiple_of(4).min(datagram.len())..]);
        if u16::from_ne_bytes([message[4], message[5]]) == ERROR {
            found.push((u32_at(message, 8), u32_at(message, HEADER_LEN).cast_signed()));
        }
        datagram = rest;
    }
    found
}

/// The attributes in `bytes`: kind and value.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & NLA_TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER_LEN..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The 32-bit number at `offset`, 0 when the bytes end before.
#[must_use]
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_written_as_they_are_read() {
        let mut message = Message::new(16, 0, &[7; 5]);
        message.text(3, "eth0").nest(18, |m| {
            m.number(1, 0xdead_beef);
        });
        let bytes = message.finish(9);
        assert_eq!(u32_at(&bytes, 0) as usize, bytes.len());
        let read: Vec<_> = attributes(&bytes[HEADER_LEN + 8..]).collect();
        assert_eq!(read[0], (3, &b"eth0\0"[..]));
        assert_eq!(read[1].0, 18);
        let inner: Vec<_> = attributes(read[1].1).collect();
        assert_eq!(inner, [(1, &0xdead_beef_u32.to_ne_bytes()[..])]);
    }

    #[test]
    fn broken_datagrams_end_the_reading_and_nothing_else() {
        for cut in 0..40 {
            let mut bytes = Message::new(16, 0, &[1; 16]).finish(1);
            bytes.truncate(cut);
            let mut replies = Vec::new();
            assert!(!take(&bytes, 1, &mut replies).unwrap());
            let _ = attributes(&bytes).count();
        }
    }
}
