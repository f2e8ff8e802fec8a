//! How a client's relay tells the server's relay where to connect: the first bytes of the session's stream.
//!
//! The rules are in `docs/relay-preamble.md`; code and tests cite them as RP followed by a number.

use super::Parsed;
use super::destination::Destination;
use super::exact::{ReadError, read_parsed};
use crate::error::Error;
use crate::tokio::Session;
use std::fmt;
use tokio::io::AsyncWriteExt;

/// RP 1: no text protocol begins so, because 0xF5 is no part of any UTF-8 text.
const MAGIC: [u8; 4] = [0xF5, b'o', b'l', b'1'];
/// RP 2: magic and length.
const REQUEST_HEAD_BYTES: usize = 6;
/// RP 2: longest request text. A name has 253 bytes, the verb and the port need 14 more.
const REQUEST_TEXT_BYTES_MAX: usize = 512;
/// RP 5: magic, status and length.
const REPLY_HEAD_BYTES: usize = 6;
/// RP 5: longest reason.
const REASON_BYTES_MAX: usize = 255;
/// RP 3: the only verb.
const VERB: &str = "connect ";

/// RP 6: what became of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Connected: the stream begins after the reply.
    Connected,
    /// The server does not go there.
    NotAllowed,
    /// The name cannot be resolved.
    UnknownHost,
    /// The destination refused the connection.
    Refused,
    /// There is no way to the destination.
    Unreachable,
    /// The destination did not answer in time.
    TimedOut,
    /// The request breaks a rule.
    Malformed,
    /// Anything else, or a number of a later version.
    Failed,
}

const STATUSES: [Status; 8] = [
    Status::Connected,
    Status::NotAllowed,
    Status::UnknownHost,
    Status::Refused,
    Status::Unreachable,
    Status::TimedOut,
    Status::Malformed,
    Status::Failed,
];

impl Status {
    fn from_wire(byte: u8) -> Self {
        STATUSES.get(usize::from(byte)).copied().unwrap_or(Status::Failed)
    }

    fn to_wire(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Connected => "connected",
            Status::NotAllowed => "not allowed",
            Status::UnknownHost => "unknown host",
            Status::Refused => "connection refused",
            Status::Unreachable => "unreachable",
            Status::TimedOut => "timed out",
            Status::Malformed => "malformed request",
            Status::Failed => "failed",
        })
    }
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What became of the request.
    pub status: Status,
    /// Why, for people. Printable; may be empty.
    pub reason: String,
}

/// Why bytes are no preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// The peer does not use preambles at all.
    #[error("the stream does not begin with a destination")]
    Magic,
    /// The length is out of bounds.
    #[error("the length is out of bounds")]
    Length,
    /// Not `connect host:port`.
    #[error("the text is not \"connect host:port\"")]
    Text,
}

/// The request for a destination.
#[must_use]
pub fn request(destination: &Destination) -> Vec<u8> {
    let text = format!("{VERB}{destination}");
    debug_assert!(text.len() <= REQUEST_TEXT_BYTES_MAX);
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    [&MAGIC[..], &length.to_be_bytes(), text.as_bytes()].concat()
}

/// Reads a request from the beginning of a stream.
///
/// # Errors
/// As soon as the bytes cannot become one.
pub fn parse_request(bytes: &[u8]) -> Result<Parsed<Destination>, PreambleError> {
    check_magic(bytes)?;
    let Some((head, rest)) = bytes.split_at_checked(REQUEST_HEAD_BYTES) else {
        return Ok(Parsed::More(REQUEST_HEAD_BYTES - bytes.len()));
    };
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    if !(VERB.len()..=REQUEST_TEXT_BYTES_MAX).contains(&length) {
        return Err(PreambleError::Length);
    }
    let Some(text) = rest.get(..length) else {
        return Ok(Parsed::More(length - rest.len()));
    };
    let text = std::str::from_utf8(text).map_err(|_| PreambleError::Text)?;
    let destination =
        text.strip_prefix(VERB).and_then(|text| text.parse().ok()).ok_or(PreambleError::Text)?;
    Ok(Parsed::Done(destination, REQUEST_HEAD_BYTES + length))
}

/// The reply with a status; the reason is cut to what fits.
#[must_use]
pub fn reply(status: Status, reason: &str) -> Vec<u8> {
    let reason = printable(reason);
    let length = u8::try_from(reason.len()).unwrap_or(u8::MAX);
    [&MAGIC[..], &[status.to_wire(), length], reason.as_bytes()].concat()
}

/// Reads a reply from the beginning of a stream.
///
/// # Errors
/// As soon as the bytes cannot become one.
pub fn parse_reply(bytes: &[u8]) -> Result<Parsed<Reply>, PreambleError> {
    check_magic(bytes)?;
    let Some((head, rest)) = bytes.split_at_checked(REPLY_HEAD_BYTES) else {
        return Ok(Parsed::More(REPLY_HEAD_BYTES - bytes.len()));
    };
    let length = usize::from(head[5]);
    let Some(reason) = rest.get(..length) else {
        return Ok(Parsed::More(length - rest.len()));
    };
    let reply =
        Reply { status: Status::from_wire(head[4]), reason: printable(&String::from_utf8_lossy(reason)) };
    Ok(Parsed::Done(reply, REPLY_HEAD_BYTES + length))
}

fn check_magic(bytes: &[u8]) -> Result<(), PreambleError> {
    if bytes.iter().zip(&MAGIC).all(|(byte, magic)| byte == magic) {
        Ok(())
    } else {
        Err(PreambleError::Magic)
    }
}

/// RP 7: a reason ends up in terminals and logs.
fn printable(text: &str) -> String {
    let mut kept = String::new();
    for c in text.chars() {
        let c = if c.is_control() { ' ' } else { c };
        if kept.len() + c.len_utf8() > REASON_BYTES_MAX {
            break;
        }
        kept.push(c);
    }
    kept
}

/// Why the other side did not agree on a destination.
#[derive(Debug, thiserror::Error)]
pub enum PreambleFailure {
    /// The session failed.
    #[error(transparent)]
    Session(#[from] Error),
    /// The peer's bytes break a rule.
    #[error(transparent)]
    Wrong(#[from] PreambleError),
    /// The peer ended its stream in the middle.
    #[error("the stream ended before the destination was agreed")]
    Ended,
}

/// Client: asks the server to connect, and waits for its reply.
///
/// # Errors
/// When the session fails, or the server is not one that takes destinations.
pub async fn ask(session: &mut Session, destination: &Destination) -> Result<Reply, PreambleFailure> {
    session.write_all(&request(destination)).await.map_err(super::session_error)?;
    session.flush().await.map_err(super::session_error)?;
    receive(session, parse_reply).await
}

/// Server: receives the destination of a new session.
///
/// # Errors
/// When the session fails, or the client does not say where it wants to go.
pub async fn receive_request(session: &mut Session) -> Result<Destination, PreambleFailure> {
    receive(session, parse_request).await
}

/// Server: answers a request.
///
/// # Errors
/// When the session fails.
pub async fn answer(session: &mut Session, status: Status, reason: &str) -> Result<(), Error> {
    session.write_all(&reply(status, reason)).await.map_err(super::session_error)?;
    session.flush().await.map_err(super::session_error)
}

async fn receive<T>(
    session: &mut Session,
    parse: fn(&[u8]) -> Result<Parsed<T>, PreambleError>,
) -> Result<T, PreambleFailure> {
    // RP 4: not a byte more than the preamble is taken.
    read_parsed(session, parse).await.map_err(|error| match error {
        ReadError::Io(error) => PreambleFailure::Session(super::session_error(error)),
        ReadError::Ended => PreambleFailure::Ended,
        ReadError::Wrong(error) => PreambleFailure::Wrong(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(text: &str) -> Destination {
        text.parse().unwrap()
    }

    #[test]
    fn a_request_is_taken_at_any_split_and_no_further() {
        // RP 2, RP 3, RP 4
        let mut bytes = request(&destination("example.org:443"));
        let length = bytes.len();
        for end in 0..length {
            let Ok(Parsed::More(more)) = parse_request(&bytes[..end]) else { panic!("at {end}") };
            assert!(more >= 1 && end + more <= length);
        }
        bytes.extend_from_slice(b"GET /");
        assert_eq!(parse_request(&bytes), Ok(Parsed::Done(destination("example.org:443"), length)));
    }

    #[test]
    fn a_reply_is_taken_at_any_split_and_its_reason_is_printable() {
        // RP 5, RP 6, RP 7
        let bytes = reply(Status::Refused, "no\x1b[2J\nway");
        for end in 0..bytes.len() {
            assert!(matches!(parse_reply(&bytes[..end]), Ok(Parsed::More(_))));
        }
        let expected = Reply { status: Status::Refused, reason: "no [2J way".into() };
        assert_eq!(parse_reply(&bytes), Ok(Parsed::Done(expected, bytes.len())));
    }

    #[test]
    fn every_status_survives_the_wire_and_later_ones_are_failures() {
        // RP 6
        for status in STATUSES {
            assert_eq!(Status::from_wire(status.to_wire()), status);
        }
        assert_eq!(Status::from_wire(200), Status::Failed);
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        let bytes = reply(Status::Failed, &"ä".repeat(200));
        let Ok(Parsed::Done(reply, _)) = parse_reply(&bytes) else { panic!() };
        assert_eq!(reply.reason.chars().count(), 127);
    }

    #[test]
    fn other_protocols_and_broken_requests_are_told_apart() {
        // RP 1, RP 2, RP 3
        let corpus: [(&[u8], PreambleError); 9] = [
            (b"SSH-2.0-OpenSSH\r\n", PreambleError::Magic),
            (b"\x16\x03\x01", PreambleError::Magic),
            (b"\xf5oX", PreambleError::Magic),
            (b"\xf5ol1\x00\x00", PreambleError::Length),
            (b"\xf5ol1\xff\xff", PreambleError::Length),
            (b"\xf5ol1\x00\x0aconnect a:", PreambleError::Text),
            (b"\xf5ol1\x00\x0bconnect a:0", PreambleError::Text),
            (b"\xf5ol1\x00\x0dCONNECT a:123", PreambleError::Text),
            (b"\xf5ol1\x00\x0dconnect \xff:123", PreambleError::Text),
        ];
        for (bytes, error) in corpus {
            assert_eq!(parse_request(bytes), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn no_bytes_make_the_parsers_panic() {
        let mut random = outlast_stream::SplitMix64::new(7);
        for _ in 0..20_000 {
            let mut bytes = request(&destination("example.org:443"));
            for _ in 0..=random.next_u64() % 3 {
                let at = usize::try_from(random.next_u64()).unwrap() % bytes.len();
                bytes[at] = random.next_u64().to_le_bytes()[0];
            }
            let _ = parse_request(&bytes);
            let _ = parse_reply(&bytes);
        }
    }
}
