//! Saying no, and why.

use super::super::hello::TAG_REASON;
use super::fields::checked_offset;
use super::{Fields, Modes, SecurityKind, WireError, Writer, printable};
use alloc::string::String;
use core::fmt;

/// The longest time a server can send a client away for: an hour.
pub const RETRY_AFTER_MS_MAX: u64 = 3_600_000;

/// Why a server turns a link away. The text says what happened and what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The server has never heard of the session, or has forgotten it entirely.
    UnknownSession,
    /// The session had no link for longer than the server keeps one.
    Expired,
    /// No room at the moment.
    Busy {
        /// When to try again, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// The mode needs end-to-end TCP, and that is not proven.
    NotDirect,
    /// The proof is wrong.
    BadKey,
    /// The session is over.
    Ended {
        /// Everything the client sent before this was delivered.
        offset: u64,
    },
    /// A link with this epoch or a later one was there already.
    StaleEpoch {
        /// The session's present epoch.
        current: u64,
    },
    /// The server does not speak the client's version.
    Version {
        /// The oldest it speaks.
        min: u8,
        /// The newest it speaks.
        max: u8,
    },
    /// The server does not offer the acknowledgement mode.
    ModeRefused {
        /// What it offers; none: it does not say.
        offered: Modes,
    },
    /// The server wants another security.
    SecurityRequired {
        /// Which one.
        wanted: SecurityKind,
    },
    /// The positions in the Hello contradict what the server knows.
    OffsetOutOfRange,
    /// The client's address has as many sessions as one may have.
    Quota,
    /// The server takes no new sessions because it is about to stop or restart. Those that are there still get links.
    Draining {
        /// When to try again, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// The message made no sense to the server.
    Malformed,
    /// A reason that a later version of the protocol has added.
    Other {
        /// Its number.
        code: u8,
    },
}

impl Refusal {
    /// How many reasons there are, [`Refusal::Other`] aside: codes are `1..=KINDS`.
    pub const KINDS: usize = 14;

    /// The reason's number on the wire.
    pub const fn code(&self) -> u8 {
        match *self {
            Self::UnknownSession => 1,
            Self::Expired => 2,
            Self::Busy { .. } => 3,
            Self::NotDirect => 4,
            Self::BadKey => 5,
            Self::Ended { .. } => 6,
            Self::StaleEpoch { .. } => 7,
            Self::Version { .. } => 8,
            Self::ModeRefused { .. } => 9,
            Self::SecurityRequired { .. } => 10,
            Self::OffsetOutOfRange => 11,
            Self::Quota => 12,
            Self::Draining { .. } => 13,
            Self::Malformed => 14,
            Self::Other { code } => code,
        }
    }

    /// A short name for counters and logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::UnknownSession => "unknown_session",
            Self::Expired => "expired",
            Self::Busy { .. } => "busy",
            Self::NotDirect => "not_direct",
            Self::BadKey => "bad_key",
            Self::Ended { .. } => "ended",
            Self::StaleEpoch { .. } => "stale_epoch",
            Self::Version { .. } => "version",
            Self::ModeRefused { .. } => "mode_refused",
            Self::SecurityRequired { .. } => "security_required",
            Self::OffsetOutOfRange => "offset_out_of_range",
            Self::Quota => "quota",
            Self::Draining { .. } => "draining",
            Self::Malformed => "malformed",
            Self::Other { .. } => "other",
        }
    }

    /// The [`name`](Self::name) of the reason with this code.
    pub(crate) fn name_of(code: usize) -> &'static str {
        let code = u8::try_from(code).unwrap_or_default();
        Self::from_parts(code, SecurityKind::Open as u64).map_or("other", |refusal| refusal.name())
    }

    /// Whether the same attempt may succeed later, with another epoch, or over another path.
    pub const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Busy { .. }
                | Self::NotDirect
                | Self::Quota
                | Self::Draining { .. }
                | Self::StaleEpoch { .. }
        )
    }

    /// How long the server asks to stay away, in milliseconds, if it said so.
    pub const fn retry_after_ms(&self) -> Option<u64> {
        match *self {
            Self::Busy { retry_after_ms } | Self::Draining { retry_after_ms } => Some(retry_after_ms),
            _ => None,
        }
    }

    /// What travels with the reason.
    const fn value(&self) -> u64 {
        match *self {
            Self::Busy { retry_after_ms } | Self::Draining { retry_after_ms } => retry_after_ms,
            Self::Ended { offset } => offset,
            Self::StaleEpoch { current } => current,
            Self::Version { min, max } => (min as u64) << 8 | max as u64,
            Self::ModeRefused { offered } => offered.to_wire(),
            Self::SecurityRequired { wanted } => wanted as u64,
            _ => 0,
        }
    }

    fn from_parts(code: u8, value: u64) -> Result<Self, WireError> {
        let [.., min, max] = value.to_be_bytes();
        // PROTOCOL 1.7: nobody is sent away for longer than this.
        let retry_after_ms = value.min(RETRY_AFTER_MS_MAX);
        Ok(match code {
            0 => return Err(WireError::Value("refusal code")),
            1 => Self::UnknownSession,
            2 => Self::Expired,
            3 => Self::Busy { retry_after_ms },
            4 => Self::NotDirect,
            5 => Self::BadKey,
            6 => Self::Ended { offset: checked_offset("ended offset", value)? },
            7 => Self::StaleEpoch { current: checked_offset("epoch", value)? },
            8 => Self::Version { min, max },
            // PROTOCOL 1.10
            9 => Self::ModeRefused { offered: Modes::from_wire(value) },
            10 => {
                let wanted = SecurityKind::from_u8(max).ok_or(WireError::Value("wanted security"))?;
                Self::SecurityRequired { wanted }
            }
            11 => Self::OffsetOutOfRange,
            12 => Self::Quota,
            13 => Self::Draining { retry_after_ms },
            14 => Self::Malformed,
            code => Self::Other { code },
        })
    }
}

/// The message that turns a link away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// For programs.
    pub refusal: Refusal,
    /// What it came to, for people, if there is more to say; at most 255 bytes of it are sent.
    pub why: Option<String>,
}

impl Refuse {
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        writer.byte(self.refusal.code());
        writer.u64(self.refusal.value());
        writer.text(TAG_REASON, self.why.as_deref());
    }

    pub(crate) fn decode(mut fields: Fields<'_>) -> Result<Self, WireError> {
        let code = fields.byte()?;
        let value = fields.u64()?;
        let mut why = None;
        fields.tags(|tag, field| {
            if tag == TAG_REASON {
                why = Some(printable(field.value()));
            }
            Ok(())
        })?;
        Ok(Self { refusal: Refusal::from_parts(code, value)?, why })
    }
}

impl From<Refusal> for Refuse {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, why: None }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSession => f.write_str(
                "the server does not know the session: it was restarted and could not hand the session over, or was away \
                 for longer than --hand-over-timeout or --keep there; what was not confirmed is lost, connect again",
            ),
            Self::Expired => f.write_str(
                "the server has given the session up: it had no link for longer than --keep there, or the server needed its \
                 memory or descriptors for others, as its log says; connect again",
            ),
            Self::Busy { retry_after_ms } => {
                write!(f, "the server has no room for more sessions: try again in {retry_after_ms} ms")
            }
            Self::NotDirect => f.write_str(
                "something between the two ends terminates tcp, or packets were lost while the connection was made: what \
                 kernels acknowledge would prove nothing; use the mode inband or auto",
            ),
            Self::BadKey => {
                f.write_str("the proof of the key is wrong: check that both sides use the same key file")
            }
            Self::Ended { offset } => write!(
                f,
                "the session was ended at the server, which had received everything up to offset {offset} (its log says \
                 why; a target that cannot be reached ends a session, too): connect again"
            ),
            Self::StaleEpoch { current } => write!(
                f,
                "the server already had link {current} of this session: try again with a higher epoch"
            ),
            Self::Version { min, max } => write!(
                f,
                "the server speaks protocol versions {min} to {max} only: update the older of the two"
            ),
            Self::ModeRefused { offered } if offered.is_empty() => {
                f.write_str("the server does not offer the acknowledgement mode: look at --ack there")
            }
            Self::ModeRefused { offered } => write!(
                f,
                "the server does not offer the acknowledgement mode: its --ack allows {offered} only"
            ),
            Self::SecurityRequired { wanted: SecurityKind::Open } => f.write_str(
                "the server has no key and does not speak tls: leave --psk-file and --tls away here, or set them up there",
            ),
            Self::SecurityRequired { wanted: SecurityKind::Psk } => f.write_str(
                "the server wants a shared key and does not speak tls: use the same --psk-file here, without --tls",
            ),
            Self::SecurityRequired { wanted: SecurityKind::Tls } => {
                f.write_str("the server speaks tls only: use --tls here, without --psk-file")
            }
            Self::OffsetOutOfRange => f.write_str(
                "the server cannot continue at this position, bytes that were acknowledged are gone or never existed: \
                 open a new session",
            ),
            Self::Quota => f.write_str(
                "this address has as many sessions as the server allows: close some, or raise the quota there",
            ),
            Self::Draining { retry_after_ms } => {
                write!(f, "the server is about to restart: try again in {retry_after_ms} ms")
            }
            Self::Malformed => f.write_str("the server could not make sense of the request: compare the versions"),
            Self::Other { code } => {
                write!(f, "the server refused for reason {code}, unknown to this version: update this side")
            }
        }
    }
}
