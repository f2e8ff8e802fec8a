//! The small values that messages are made of.

use core::fmt;
use core::str::FromStr;

/// Names a session. The client draws it at random: opening needs no round trip, and opening twice is harmless.
///
/// With `open` security the id is the whole credential. Text therefore shows the first half only, which is
/// enough to tell sessions apart; the other 64 bits stay secret. [`to_hex`](Self::to_hex) gives all of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// An id from 128 unpredictable bits.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id as on the wire.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// All 32 hexadecimal digits. Keep them out of logs.
    pub fn to_hex(&self) -> alloc::string::String {
        use fmt::Write;
        let mut text = alloc::string::String::with_capacity(32);
        for byte in self.0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

/// A text that is no session id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session id is 32 hexadecimal digits")]
pub struct IdError;

impl FromStr for SessionId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut bytes = [0; 16];
        super::super::auth::decode_hex(text, &mut bytes).ok_or(IdError)?;
        Ok(Self(bytes))
    }
}

/// How the sender learns which bytes it need not retain any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LinkMode {
    /// What the peer's kernel has acknowledged is delivered. Needs end-to-end TCP.
    Kernel = 1,
    /// What the two kernels' buffers cannot hold any more is delivered. Needs end-to-end TCP.
    Window = 2,
    /// Acknowledgement datagrams beside the link.
    Udp = 3,
    /// The stream is framed, and every frame acknowledges.
    Inband = 4,
}

impl LinkMode {
    /// The mode with this number on the wire.
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Kernel),
            2 => Some(Self::Window),
            3 => Some(Self::Udp),
            4 => Some(Self::Inband),
            _ => None,
        }
    }

    /// Whether the peer itself says what it has, rather than a kernel.
    pub const fn is_acked_by_peer(self) -> bool {
        matches!(self, Self::Udp | Self::Inband)
    }

    /// Whether acknowledged bytes would be lost behind anything that terminates TCP on the way.
    pub const fn needs_direct_path(self) -> bool {
        matches!(self, Self::Kernel | Self::Window)
    }

    /// The mode's name in settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Window => "window",
            Self::Udp => "udp",
            Self::Inband => "inband",
        }
    }
}

impl fmt::Display for LinkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a peer has to prove, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SecurityKind {
    /// That it knows the session's id.
    Open = 1,
    /// That it holds the shared key.
    Psk = 2,
    /// What TLS proves, and that it is the client that opened the session.
    Tls = 3,
}

impl SecurityKind {
    /// The kind with this number on the wire.
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Open),
            2 => Some(Self::Psk),
            3 => Some(Self::Tls),
            _ => None,
        }
    }

    /// The kind's name in settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Psk => "psk",
            Self::Tls => "tls",
        }
    }
}

impl fmt::Display for SecurityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
