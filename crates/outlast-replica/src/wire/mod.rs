//! What the nodes of a group say to each other about the order, as bytes. PROTOCOL 12.

mod entry;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod reader;
pub mod snapshot;
#[cfg(test)]
mod tests;

use crate::entry::{ConnectionId, Entry};
use crate::log::Ordered;
use crate::order::message::{Difference, Message};
use alloc::vec::Vec;
use reader::Reader;

/// PROTOCOL 12.1: of what follows the length. A message of many entries is shorter ([`Limits::message_bytes_max`](crate::Limits)), and
/// one with a single long entry, too ([`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX)).
pub const FRAME_BYTES_MAX: usize = 1 << 20;
const LENGTH_BYTES: usize = 4;

const HELLO: u8 = 1;
const START: u8 = 2;
const ENTRIES: u8 = 3;
const ACK: u8 = 4;
const MISSING: u8 = 5;
const OUTDATED: u8 = 6;
const SERVING: u8 = 7;
const FORWARDED: u8 = 8;
const COMPARED: u8 = 9;
const DIFFERS: u8 = 10;
/// Of answers that differ.
const DIFFERENCE_BYTES_MAX: usize = 4 << 10;
/// The longest packet of IPv4, or of IPv6 with its header.
const PACKET_BYTES_MAX: usize = 40 + u16::MAX as usize;

/// Why bytes are no message. The link is of no use any more: nobody knows where the next message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMessage {
    /// It is longer than any is.
    Long,
    /// It ends too early, or too late.
    Length,
    /// Nobody knows this kind of message or entry.
    Kind(u8),
    /// A field has a value that none has.
    Value,
}

/// Appends a message.
pub fn encode(message: &Message<Entry>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; LENGTH_BYTES]);
    match message {
        Message::Hello { epoch, last } => pair(out, HELLO, *epoch, *last),
        Message::Start { epoch, stable } => pair(out, START, *epoch, *stable),
        Message::Ack { epoch, index } => pair(out, ACK, *epoch, *index),
        Message::Missing { epoch, after } => pair(out, MISSING, *epoch, *after),
        Message::Outdated { epoch } => pair(out, OUTDATED, *epoch, 0),
        Message::Serving { epoch } => pair(out, SERVING, *epoch, 0),
        Message::Compared { epoch, index } => pair(out, COMPARED, *epoch, *index),
        Message::Differs { epoch, difference } => {
            pair(out, DIFFERS, *epoch, difference.index);
            out.extend(difference.connection.0.to_be_bytes());
            out.extend(difference.digest.to_be_bytes());
            out.extend(difference.offset.to_be_bytes());
            out.extend(difference.command);
            out.extend_from_slice(&difference.bytes);
        }
        Message::Forwarded { bytes } => {
            pair(out, FORWARDED, 0, 0);
            out.extend_from_slice(bytes);
        }
        Message::Entries { epoch, first, entries, stable } => {
            pair(out, ENTRIES, *epoch, *first);
            out.extend(stable.to_be_bytes());
            for Ordered { epoch, entry } in entries {
                out.extend(epoch.to_be_bytes());
                entry::encode(entry, out);
            }
        }
    }
    let length = u32::try_from(out.len() - start - LENGTH_BYTES).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start..start + LENGTH_BYTES) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

fn pair(out: &mut Vec<u8>, kind: u8, one: u64, other: u64) {
    out.push(kind);
    out.extend(one.to_be_bytes());
    out.extend(other.to_be_bytes());
}

/// The message that these bytes begin with, and how many of them it is; none until all of it is there.
///
/// # Errors
/// It is none.
pub fn parse(bytes: &[u8]) -> Result<Option<(Message<Entry>, usize)>, NoMessage> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(NoMessage::Long);
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let mut reader = Reader::new(body);
    let (kind, epoch, number) = (reader.u8()?, reader.u64()?, reader.u64()?);
    let message = match kind {
        HELLO => Message::Hello { epoch, last: number },
        START => Message::Start { epoch, stable: number },
        ACK => Message::Ack { epoch, index: number },
        MISSING => Message::Missing { epoch, after: number },
        OUTDATED if number == 0 => Message::Outdated { epoch },
        SERVING if number == 0 => Message::Serving { epoch },
        FORWARDED if (epoch, number) == (0, 0) => {
            let bytes = reader.bytes(reader.left())?;
            if bytes.len() > PACKET_BYTES_MAX {
                return Err(NoMessage::Long);
            }
            Message::Forwarded { bytes: bytes.into() }
        }
        OUTDATED | SERVING | FORWARDED => return Err(NoMessage::Value),
        COMPARED => Message::Compared { epoch, index: number },
        DIFFERS => {
            let connection = ConnectionId(reader.u64()?);
            let (digest, offset, command) = (reader.u64()?, reader.position()?, reader.array()?);
            let bytes = reader.bytes(reader.left())?;
            if bytes.len() > DIFFERENCE_BYTES_MAX {
                return Err(NoMessage::Value);
            }
            let bytes = bytes.to_vec();
            let difference = Difference { index: number, connection, digest, offset, bytes, command };
            Message::Differs { epoch, difference }
        }
        ENTRIES => {
            let (stable, mut entries) = (reader.u64()?, Vec::new());
            while !reader.is_empty() {
                entries.push(Ordered { epoch: reader.u64()?, entry: entry::parse(&mut reader)? });
            }
            Message::Entries { epoch, first: number, entries, stable }
        }
        kind => return Err(NoMessage::Kind(kind)),
    };
    if !reader.is_empty() {
        return Err(NoMessage::Length);
    }
    Ok(Some((message, LENGTH_BYTES + length)))
}
