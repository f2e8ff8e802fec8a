//! Messages of PostgreSQL's protocol: one byte says the kind, four say how long the rest is, themselves counted. The first one of a client has no kind
//! (PostgreSQL 15, 55.2 "Message Flow" and 55.7 "Message Formats").

use alloc::vec::Vec;

pub(super) const KIND_BYTES: usize = 1;
pub(super) const LENGTH_BYTES: usize = 4;
pub(super) const HEADER_BYTES: usize = KIND_BYTES + LENGTH_BYTES;

/// A number in the order of the network.
pub(super) fn four(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Up to the next zero, and what is behind it.
pub(super) fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}

/// One of this kind, with this in it.
pub(super) fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(LENGTH_BYTES + payload.len()).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
    message.push(kind);
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(payload);
    message
}

/// The messages that are there as a whole: their kinds, and all bytes of each.
pub(super) fn each(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    core::iter::from_fn(move || {
        let length = usize::try_from(four(bytes.get(KIND_BYTES..)?)?).ok()?;
        let (now, rest) = bytes.split_at_checked(KIND_BYTES + length)?;
        bytes = rest;
        now.first().map(|kind| (*kind, now))
    })
}

/// What comes next of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Of what is in the message; and whether it ends with that.
    Payload(&'a [u8], bool),
    /// Not all of the head has come.
    Nothing,
}

/// Of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Messages {
    head: [u8; HEADER_BYTES],
    head_bytes: usize,
    left: usize,
}

impl Messages {
    /// Nothing of one has come.
    pub(super) fn is_at_start(&self) -> bool {
        self.head_bytes == 0
    }

    pub(super) fn kind(&self) -> u8 {
        self.head[0]
    }

    /// Takes what comes next. None: it is no message.
    pub(super) fn take<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Step<'a>> {
        while self.head_bytes < HEADER_BYTES {
            let Some((byte, rest)) = bytes.split_first() else { return Some(Step::Nothing) };
            self.head[self.head_bytes] = *byte;
            (self.head_bytes, *bytes) = (self.head_bytes + 1, rest);
            if self.head_bytes == HEADER_BYTES {
                let length = usize::try_from(four(&self.head[KIND_BYTES..])?).ok()?;
                self.left = length.checked_sub(LENGTH_BYTES)?;
            }
        }
        let (now, rest) = bytes.split_at(self.left.min(bytes.len()));
        (*bytes, self.left) = (rest, self.left - now.len());
        let is_over = self.left == 0;
        if is_over {
            self.head_bytes = 0;
        }
        Some(Step::Payload(now, is_over))
    }
}
