//! Handshake messages on the wire: a fixed prefix, fixed fields, then tagged ones.
//!
//! Layouts and rules are in `PROTOCOL.md`, section 1. Nothing here trusts a length: a message is at most
//! [`MESSAGE_BYTES_MAX`] long, and every field is checked before it is used.

mod fields;
mod foreign;
mod id;
mod modes;
mod refusal;

pub(crate) use fields::{Fields, REASON_BYTES_MAX, Writer, printable, truncated};
pub use foreign::ForeignProtocol;
pub use id::{IdError, LinkMode, SecurityKind, SessionId};
pub use modes::Modes;
pub use refusal::{RETRY_AFTER_MS_MAX, Refusal, Refuse};

use super::hello::{Hello, Welcome};
use alloc::vec::Vec;

/// The first bytes of every message. No text protocol, TLS record, SSH banner or PROXY header starts so.
pub const MAGIC: [u8; 4] = [0xD7, b'O', b'L', b'S'];
/// The protocol version written here.
pub const VERSION: u8 = 1;
/// The oldest version understood here.
pub const VERSION_MIN: u8 = 1;
/// Magic, version, kind, body length.
pub const PREFIX_BYTES: usize = 8;
/// The longest body: roomy for tags yet unknown, small enough to be buffered for anyone.
pub const BODY_BYTES_MAX: usize = 2048;
/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = PREFIX_BYTES + BODY_BYTES_MAX;
/// A proof as it ends a message: tag, length, 32 bytes.
pub(crate) const PROOF_FIELD_BYTES: usize = 34;

/// No position reaches this: at 100 Gbit/s it is 23 years away. Sums of two positions never overflow.
pub const OFFSET_MAX: u64 = 1 << 63;

const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_CHALLENGE: u8 = 3;
const KIND_ANSWER: u8 = 4;
const KIND_REFUSE: u8 = 5;

/// Bytes that are no message of this protocol. The link is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Another protocol altogether.
    #[error("{0}")]
    Foreign(ForeignProtocol),
    /// This protocol in a version not understood here.
    #[error(
        "peer speaks protocol version {0}, this side {VERSION_MIN} to {VERSION}: update the older of the two"
    )]
    Version(u8),
    /// A message kind that does not exist.
    #[error("unknown message kind {0}")]
    Kind(u8),
    /// A body longer than [`BODY_BYTES_MAX`].
    #[error("message body of {0} bytes, at most {BODY_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// A body that ends within a field.
    #[error("message body ends within a field")]
    Truncated,
    /// The same tag twice.
    #[error("field with tag {0} is there twice")]
    Duplicate(u8),
    /// A tagged field of the wrong length.
    #[error("field with tag {tag} has {bytes} bytes")]
    FieldLength {
        /// The field's tag.
        tag: u8,
        /// Its length on the wire.
        bytes: usize,
    },
    /// A value that the field cannot have.
    #[error("field {0} has an impossible value")]
    Value(&'static str),
    /// Another message was due.
    #[error("message of kind {0} is out of turn, as from a service that echoes")]
    OutOfTurn(u8),
}

/// One handshake message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Client: opens or resumes a session.
    Hello(Hello),
    /// Server: the link carries the session now.
    Welcome(Welcome),
    /// Server, `psk` opening: proves that it holds the key, and asks for the same.
    Challenge(Challenge),
    /// Client: the answer to a challenge.
    Answer(Answer),
    /// Server: no, and why.
    Refuse(Refuse),
}

/// See [`Message::Challenge`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Fresh and unpredictable.
    pub nonce: [u8; 32],
    /// That the server holds the key.
    pub proof: [u8; 32],
}

/// See [`Message::Answer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// That the client holds the key.
    pub proof: [u8; 32],
}

/// What the front of the received bytes is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one for each end of a handshake, and kept nowhere")]
pub enum Decoded {
    /// The start of a message; nothing can be said before there are `at_least` bytes in all.
    NeedMore {
        /// Bytes needed, counted from the start of the message.
        at_least: usize,
    },
    /// A whole message. What follows it is the next message or the stream itself.
    Message {
        /// The message.
        message: Message,
        /// Its length, prefix included.
        consumed_bytes: usize,
    },
}

/// Decodes the message at the front of `bytes`.
///
/// # Errors
/// [`WireError`], as early as the bytes show it: a wrong first byte is enough.
pub fn decode(bytes: &[u8]) -> Result<Decoded, WireError> {
    // PROTOCOL 1.1: nothing else is waited for once the first bytes cannot be ours.
    let magic_bytes = bytes.len().min(MAGIC.len());
    if bytes.get(..magic_bytes) != MAGIC.get(..magic_bytes) {
        return Err(WireError::Foreign(ForeignProtocol::recognise(bytes)));
    }
    let Some(&[_, _, _, _, version, kind, high, low]) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(Decoded::NeedMore { at_least: PREFIX_BYTES });
    };
    // PROTOCOL 1.3: a refusal has the same layout in every version, so that versions can be refused.
    if kind != KIND_REFUSE && !(VERSION_MIN..=VERSION).contains(&version) {
        return Err(WireError::Version(version));
    }
    if !(KIND_HELLO..=KIND_REFUSE).contains(&kind) {
        return Err(WireError::Kind(kind));
    }
    let body_bytes = usize::from(u16::from_be_bytes([high, low]));
    if body_bytes > BODY_BYTES_MAX {
        return Err(WireError::TooLong(body_bytes));
    }
    let consumed_bytes = PREFIX_BYTES + body_bytes;
    let Some(body) = bytes.get(PREFIX_BYTES..consumed_bytes) else {
        return Ok(Decoded::NeedMore { at_least: consumed_bytes });
    };
    let fields = Fields::new(body);
    let message = match kind {
        KIND_HELLO => Message::Hello(Hello::decode(fields)?),
        KIND_WELCOME => Message::Welcome(Welcome::decode(fields)?),
        KIND_CHALLENGE => Message::Challenge(Challenge::decode(fields)?),
        KIND_ANSWER => Message::Answer(Answer::decode(fields)?),
        _ => Message::Refuse(Refuse::decode(fields)?),
    };
    Ok(Decoded::Message { message, consumed_bytes })
}

impl Message {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out, VERSION, self.kind());
        match self {
            Message::Hello(hello) => hello.encode(&mut writer),
            Message::Welcome(welcome) => welcome.encode(&mut writer),
            Message::Challenge(challenge) => {
                writer.bytes(&challenge.nonce);
                writer.bytes(&challenge.proof);
            }
            Message::Answer(answer) => writer.bytes(&answer.proof),
            Message::Refuse(refuse) => refuse.encode(&mut writer),
        }
        writer.finish();
    }

    /// The message by itself.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(160);
        self.encode(&mut bytes);
        bytes
    }

    /// The number of the message's kind on the wire.
    pub const fn kind(&self) -> u8 {
        match self {
            Message::Hello(_) => KIND_HELLO,
            Message::Welcome(_) => KIND_WELCOME,
            Message::Challenge(_) => KIND_CHALLENGE,
            Message::Answer(_) => KIND_ANSWER,
            Message::Refuse(_) => KIND_REFUSE,
        }
    }
}

impl Challenge {
    fn decode(mut fields: Fields<'_>) -> Result<Self, WireError> {
        let challenge = Self { nonce: fields.array()?, proof: fields.array()? };
        fields.tags(|_, _| Ok(()))?;
        Ok(challenge)
    }
}

impl Answer {
    fn decode(mut fields: Fields<'_>) -> Result<Self, WireError> {
        let answer = Self { proof: fields.array()? };
        fields.tags(|_, _| Ok(()))?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
