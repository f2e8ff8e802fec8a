//! Entries, as bytes. PROTOCOL 12.3.

use super::NoMessage;
use super::reader::Reader;
use crate::connection::{Ends, Handshake, InitialSequence, Said, SynOptions};
use crate::entry::{Again, ConnectionId, Entry};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const OPEN: u8 = 1;
const DATA: u8 = 2;
const FIN: u8 = 3;
const RESET: u8 = 4;
const END: u8 = 5;
const ABORT: u8 = 6;
const ACKED: u8 = 7;
const CLOSED: u8 = 8;
const NO_OP: u8 = 9;
const PROCEED: u8 = 10;
const REFRESH: u8 = 11;
const CANONICAL: u8 = 12;
const TICK: u8 = 13;
const AGAIN: u8 = 14;

/// How a request goes on.
const GIVEN: u8 = 0;
const TIMED_OUT: u8 = 1;
const DEADLOCK: u8 = 2;

/// What is known of answers.
const UNKNOWN: u8 = 0;
const SKIPPED: u8 = 1;
const DIGEST: u8 = 2;

const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// Bits that say which options of a SYN are there.
const SEGMENT: u8 = 1;
const WINDOW: u8 = 2;
const SELECTIVE: u8 = 4;
const TIMESTAMP: u8 = 8;

pub(super) fn encode(entry: &Entry, out: &mut Vec<u8>) {
    let of = |out: &mut Vec<u8>, kind: u8, connection: &ConnectionId| {
        out.push(kind);
        out.extend(connection.0.to_be_bytes());
    };
    match entry {
        Entry::Open { handshake, at_ms } => {
            out.push(OPEN);
            encode_handshake(handshake, out);
            out.extend(at_ms.to_be_bytes());
        }
        Entry::Data { connection, offset, said, report, bytes } => {
            of(out, DATA, connection);
            out.extend(offset.to_be_bytes());
            out.extend(said.to_be_bytes());
            encode_said(*report, out);
            out.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(bytes);
        }
        Entry::Canonical { connection, number, offset, is_last, bytes } => {
            of(out, CANONICAL, connection);
            out.extend(number.to_be_bytes());
            out.extend(offset.to_be_bytes());
            out.push((*is_last).into());
            out.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(bytes);
        }
        Entry::Fin { connection } => of(out, FIN, connection),
        Entry::Reset { connection } => of(out, RESET, connection),
        Entry::End { connection, offset, report } => {
            of(out, END, connection);
            out.extend(offset.to_be_bytes());
            encode_said(*report, out);
        }
        Entry::Abort { connection, report } => {
            of(out, ABORT, connection);
            encode_said(*report, out);
        }
        Entry::Acked { connection, offset, report } => {
            of(out, ACKED, connection);
            out.extend(offset.to_be_bytes());
            encode_said(*report, out);
        }
        Entry::Closed { connection } => of(out, CLOSED, connection),
        Entry::Again { connection, how } => {
            of(out, AGAIN, connection);
            out.push(match how {
                Again::Given => GIVEN,
                Again::TimedOut => TIMED_OUT,
                Again::Deadlock => DEADLOCK,
            });
        }
        Entry::NoOp => out.push(NO_OP),
        Entry::Refresh => out.push(REFRESH),
        Entry::Tick { at_ms } => {
            out.push(TICK);
            out.extend(at_ms.to_be_bytes());
        }
        Entry::Proceed { index } => {
            out.push(PROCEED);
            out.extend(index.to_be_bytes());
        }
    }
}

pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Entry, NoMessage> {
    let kind = reader.u8()?;
    match kind {
        OPEN => return Ok(Entry::Open { handshake: parse_handshake(reader)?, at_ms: reader.u64()? }),
        NO_OP => return Ok(Entry::NoOp),
        REFRESH => return Ok(Entry::Refresh),
        TICK => return Ok(Entry::Tick { at_ms: reader.position()? }),
        PROCEED => return Ok(Entry::Proceed { index: reader.u64()? }),
        _ => {}
    }
    let connection = ConnectionId(reader.u64()?);
    Ok(match kind {
        DATA => {
            let (offset, said, report) = (reader.u64()?, reader.u64()?, parse_said(reader)?);
            let length = usize::try_from(reader.u32()?).map_err(|_| NoMessage::Length)?;
            Entry::Data { connection, offset, said, report, bytes: reader.bytes(length)?.into() }
        }
        CANONICAL => {
            let (number, offset, is_last) = (reader.position()?, reader.position()?, reader.u8()?);
            let length = usize::try_from(reader.u32()?).map_err(|_| NoMessage::Length)?;
            if is_last > 1 {
                return Err(NoMessage::Value);
            }
            let bytes = reader.bytes(length)?.into();
            Entry::Canonical { connection, number, offset, is_last: is_last == 1, bytes }
        }
        AGAIN => {
            let how = match reader.u8()? {
                GIVEN => Again::Given,
                TIMED_OUT => Again::TimedOut,
                DEADLOCK => Again::Deadlock,
                _ => return Err(NoMessage::Value),
            };
            Entry::Again { connection, how }
        }
        FIN => Entry::Fin { connection },
        RESET => Entry::Reset { connection },
        END => Entry::End { connection, offset: reader.u64()?, report: parse_said(reader)? },
        ABORT => Entry::Abort { connection, report: parse_said(reader)? },
        ACKED => Entry::Acked { connection, offset: reader.u64()?, report: parse_said(reader)? },
        CLOSED => Entry::Closed { connection },
        kind => return Err(NoMessage::Kind(kind)),
    })
}

fn encode_said(said: Said, out: &mut Vec<u8>) {
    match said {
        Said::Unknown => out.push(UNKNOWN),
        Said::Skipped { parts } => {
            out.push(SKIPPED);
            out.extend(parts.to_be_bytes());
        }
        Said::Digest { parts, digest } => {
            out.push(DIGEST);
            out.extend(parts.to_be_bytes());
            out.extend(digest.to_be_bytes());
        }
    }
}

fn parse_said(reader: &mut Reader<'_>) -> Result<Said, NoMessage> {
    Ok(match reader.u8()? {
        UNKNOWN => Said::Unknown,
        SKIPPED => Said::Skipped { parts: reader.position()? },
        DIGEST => Said::Digest { parts: reader.position()?, digest: reader.u64()? },
        _ => return Err(NoMessage::Value),
    })
}

pub(super) fn encode_handshake(handshake: &Handshake, out: &mut Vec<u8>) {
    encode_address(handshake.ends.portal, out);
    encode_address(handshake.ends.client, out);
    out.extend(handshake.client.0.to_be_bytes());
    out.extend(handshake.server.0.to_be_bytes());
    encode_options(&handshake.client_options, out);
    encode_options(&handshake.server_options, out);
}

pub(super) fn parse_handshake(reader: &mut Reader<'_>) -> Result<Handshake, NoMessage> {
    Ok(Handshake {
        ends: Ends { portal: parse_address(reader)?, client: parse_address(reader)? },
        client: InitialSequence(reader.u32()?),
        server: InitialSequence(reader.u32()?),
        client_options: parse_options(reader)?,
        server_options: parse_options(reader)?,
    })
}

/// Scopes of link-local addresses are numbers of one machine: they are not sent.
fn encode_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(IPV4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(IPV6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_be_bytes());
}

fn parse_address(reader: &mut Reader<'_>) -> Result<SocketAddr, NoMessage> {
    let ip = match reader.u8()? {
        IPV4 => IpAddr::V4(Ipv4Addr::from(reader.array::<4>()?)),
        IPV6 => IpAddr::V6(Ipv6Addr::from(reader.array::<16>()?)),
        _ => return Err(NoMessage::Value),
    };
    Ok(SocketAddr::new(ip, reader.u16()?))
}

fn encode_options(options: &SynOptions, out: &mut Vec<u8>) {
    let bit = |is_there: bool, bit: u8| if is_there { bit } else { 0 };
    out.push(
        bit(options.segment_bytes_max.is_some(), SEGMENT)
            | bit(options.window_shift.is_some(), WINDOW)
            | bit(options.selective_acks, SELECTIVE)
            | bit(options.timestamp.is_some(), TIMESTAMP),
    );
    out.extend(options.segment_bytes_max.into_iter().flat_map(u16::to_be_bytes));
    out.extend(options.window_shift);
    out.extend(options.timestamp.into_iter().flat_map(u32::to_be_bytes));
}

fn parse_options(reader: &mut Reader<'_>) -> Result<SynOptions, NoMessage> {
    let bits = reader.u8()?;
    if bits & !(SEGMENT | WINDOW | SELECTIVE | TIMESTAMP) != 0 {
        return Err(NoMessage::Value);
    }
    let has = |bit: u8| bits & bit != 0;
    Ok(SynOptions {
        segment_bytes_max: has(SEGMENT).then(|| reader.u16()).transpose()?,
        window_shift: has(WINDOW).then(|| reader.u8()).transpose()?,
        selective_acks: has(SELECTIVE),
        timestamp: has(TIMESTAMP).then(|| reader.u32()).transpose()?,
    })
}
