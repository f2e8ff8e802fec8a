//! What a node gets to know that begins with a copy of another one's data, as bytes. PROTOCOL 12.8.

use super::entry::{encode_handshake, parse_handshake};
use super::{NoMessage, Reader};
use crate::connection::Handshake;
use crate::entry::ConnectionId;
use crate::protocol::Resume;
use crate::replica::{Known, LastAck, Snapshot};
use alloc::vec::Vec;

/// Bits of a connection.
const ENDED: u8 = 1;
const ENDED_FIRST: u8 = 2;
const ABORTED: u8 = 4;
const HAS_END: u8 = 8;
const RESUMES: u8 = 16;
const NOT_COMPARED: u8 = 32;
const RESET: u8 = 64;

/// Appends it.
pub fn encode(snapshot: &Snapshot, out: &mut Vec<u8>) {
    out.extend(snapshot.index.to_be_bytes());
    out.extend(snapshot.at_ms.to_be_bytes());
    out.extend(snapshot.clock_ms.to_be_bytes());
    out.extend(count_of(snapshot.connections.len()));
    for known in &snapshot.connections {
        encode_known(known, out);
    }
    out.extend(count_of(snapshot.closed.len()));
    for (last_ack, age_ms) in &snapshot.closed {
        encode_handshake(&last_ack.handshake, out);
        out.extend(last_ack.sequence.to_be_bytes());
        out.extend(last_ack.ack.to_be_bytes());
        out.extend(age_ms.to_be_bytes());
    }
}

/// From these bytes, and no others.
///
/// # Errors
/// They are none.
pub fn parse(bytes: &[u8]) -> Result<Snapshot, NoMessage> {
    let mut reader = Reader::new(bytes);
    let index = reader.u64()?;
    // Others follow on it.
    if index > u64::MAX / 2 {
        return Err(NoMessage::Value);
    }
    let (at_ms, clock_ms) = (reader.u64()?, reader.position()?);
    let (mut connections, mut closed) = (Vec::new(), Vec::new());
    for _ in 0..reader.u32()? {
        connections.push(parse_known(&mut reader)?);
    }
    for _ in 0..reader.u32()? {
        let handshake = parse_handshake(&mut reader)?;
        let (sequence, ack) = (reader.u32()?, reader.u32()?);
        closed.push((LastAck { handshake, sequence, ack, opened_at_ms: 0 }, reader.u64()?));
    }
    if !reader.is_empty() {
        return Err(NoMessage::Length);
    }
    Ok(Snapshot { index, at_ms, clock_ms, connections, closed })
}

fn count_of(count: usize) -> [u8; 4] {
    u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes()
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(count_of(bytes.len()));
    out.extend_from_slice(bytes);
}

fn parse_bytes(reader: &mut Reader<'_>) -> Result<Vec<u8>, NoMessage> {
    let length = usize::try_from(reader.u32()?).map_err(|_| NoMessage::Length)?;
    Ok(reader.bytes(length)?.to_vec())
}

fn encode_known(known: &Known, out: &mut Vec<u8>) {
    out.extend(known.connection.0.to_be_bytes());
    encode_handshake(&known.handshake, out);
    for number in [known.age_ms, known.delivered, known.produced, known.said, known.reported, known.own] {
        out.extend(number.to_be_bytes());
    }
    let bit = |is_so: bool, bit: u8| if is_so { bit } else { 0 };
    out.push(
        bit(known.ended, ENDED)
            | bit(known.ended_first, ENDED_FIRST)
            | bit(known.is_aborted, ABORTED)
            | bit(known.is_reset, RESET)
            | bit(known.end.is_some(), HAS_END)
            | bit(known.resume.is_some(), RESUMES)
            | bit(known.resume.as_ref().is_some_and(|resume| resume.is_not_compared), NOT_COMPARED),
    );
    out.extend(known.end.into_iter().flat_map(u64::to_be_bytes));
    encode_bytes(&known.unacked, out);
    if let Some(Resume { setup, queued, queued_count, partial, is_not_compared: _ }) = &known.resume {
        encode_bytes(setup, out);
        encode_bytes(queued, out);
        out.extend(queued_count.to_be_bytes());
        encode_bytes(partial, out);
    }
}

fn parse_known(reader: &mut Reader<'_>) -> Result<Known, NoMessage> {
    let connection = ConnectionId(reader.u64()?);
    let handshake: Handshake = parse_handshake(reader)?;
    let (age_ms, delivered, produced) = (reader.u64()?, reader.position()?, reader.position()?);
    let (said, reported, own) = (reader.position()?, reader.position()?, reader.position()?);
    let bits = reader.u8()?;
    if bits & !(ENDED | ENDED_FIRST | ABORTED | RESET | HAS_END | RESUMES | NOT_COMPARED) != 0
        || bits & RESET != 0 && bits & (ABORTED | RESUMES) != 0
        || bits & (RESUMES | NOT_COMPARED) == NOT_COMPARED
    {
        return Err(NoMessage::Value);
    }
    let has = |bit: u8| bits & bit != 0;
    let end = has(HAS_END).then(|| reader.u64()).transpose()?;
    let unacked = parse_bytes(reader)?;
    if unacked.len() as u64 > produced {
        return Err(NoMessage::Value);
    }
    let resume = if has(RESUMES) {
        let (setup, queued) = (parse_bytes(reader)?, parse_bytes(reader)?);
        let (queued_count, partial) = (reader.u64()?, parse_bytes(reader)?);
        Some(Resume { setup, queued, queued_count, partial, is_not_compared: has(NOT_COMPARED) })
    } else {
        None
    };
    Ok(Known {
        connection,
        handshake,
        age_ms,
        delivered,
        ended: has(ENDED),
        produced,
        said,
        reported,
        own,
        unacked,
        resume,
        end,
        ended_first: has(ENDED_FIRST),
        is_aborted: has(ABORTED),
        is_reset: has(RESET),
    })
}
