//! What carries the bytes of an experiment: raw TCP, sessions in every mode, MPTCP, QUIC; blocking and tokio.

pub mod asynchronous;
pub mod blocking;
pub mod identity;
pub mod quic;

use clap::ValueEnum;
use outlast_session::{AckMode, LinkMode};
use std::fmt;
use std::str::FromStr;

/// A bounded send buffer as `getsockopt` tells it, for the second raw baseline of bulk transfers: bounding the
/// buffer alone makes raw TCP faster on loopback, so a session must not get the credit for it.
pub const BOUNDED_SEND_BUFFER_BYTES: usize = 256 << 10;
/// Bytes of a request.
pub const REQUEST_BYTES: usize = 64;
/// Bytes of the response of a connect/request/response/close transaction.
pub const RESPONSE_BYTES: usize = 8192;

/// The first byte that a client sends: what it wants.
pub mod wants {
    /// Everything comes back.
    pub const ECHO: u8 = b'R';
    /// Everything is counted; after the end of the stream the count comes back in 8 bytes.
    pub const SINK: u8 = b'S';
    /// So many bytes (8 bytes that follow), and the end of the stream.
    pub const SOURCE: u8 = b'D';
    /// A request, a response, the end.
    pub const TRANSACTION: u8 = b'C';
    /// Requests with some work, each with a response of the same size.
    pub const WORK: u8 = b'W';
}

/// A programming interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Threads.
    Blocking,
    /// tokio.
    Tokio,
}

impl Face {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Face::Blocking => "blocking",
            Face::Tokio => "tokio",
        }
    }
}

/// An acknowledgement mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// What the session chooses.
    Auto,
    /// The peer's kernel has it.
    Kernel,
    /// No buffer can hold it any more.
    Window,
    /// A datagram says so.
    Udp,
    /// The stream says so.
    Inband,
}

impl Mode {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Kernel => "kernel",
            Mode::Window => "window",
            Mode::Udp => "udp",
            Mode::Inband => "inband",
        }
    }

    /// As the session takes it.
    pub fn setting(self) -> AckMode {
        match self {
            Mode::Auto => AckMode::Auto,
            Mode::Kernel => AckMode::Fixed(LinkMode::Kernel),
            Mode::Window => AckMode::Fixed(LinkMode::Window),
            Mode::Udp => AckMode::Fixed(LinkMode::Udp),
            Mode::Inband => AckMode::Fixed(LinkMode::Inband),
        }
    }
}

/// Who may open and resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Who knows the id.
    Open,
    /// Who has the key.
    Psk,
    /// TLS.
    Tls,
}

impl Guard {
    /// For names.
    pub fn name(self) -> &'static str {
        match self {
            Guard::Open => "open",
            Guard::Psk => "psk",
            Guard::Tls => "tls",
        }
    }
}

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP.
    Raw,
    /// TCP with a bounded send buffer at the client.
    RawBounded,
    /// A session.
    Session(Mode, Guard),
    /// Multipath TCP.
    Mptcp,
    /// QUIC, one stream.
    Quic,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Raw => f.write_str("raw"),
            Kind::RawBounded => f.write_str("raw-bounded"),
            Kind::Session(mode, guard) => write!(f, "session-{}-{}", mode.name(), guard.name()),
            Kind::Mptcp => f.write_str("mptcp"),
            Kind::Quic => f.write_str("quic"),
        }
    }
}

/// Something to listen with or to connect with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Programming interface.
    pub face: Face,
    /// Protocol.
    pub kind: Kind,
}

impl Endpoint {
    /// An endpoint.
    pub fn new(face: Face, kind: Kind) -> Self {
        Self { face, kind }
    }

    /// What a server listens with for this client.
    pub fn served_by(self) -> Self {
        match self.kind {
            Kind::RawBounded => Self { kind: Kind::Raw, ..self },
            _ => self,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.face.name(), self.kind)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("unknown endpoint {text:?}");
        let (face, kind) = text.split_once('/').ok_or_else(wrong)?;
        let face =
            [Face::Blocking, Face::Tokio].into_iter().find(|known| known.name() == face).ok_or_else(wrong)?;
        let kind = match kind {
            "raw" => Kind::Raw,
            "raw-bounded" => Kind::RawBounded,
            "mptcp" => Kind::Mptcp,
            "quic" => Kind::Quic,
            session => {
                let (mode, guard) = session
                    .strip_prefix("session-")
                    .and_then(|rest| rest.split_once('-'))
                    .ok_or_else(wrong)?;
                let guards = [Guard::Open, Guard::Psk, Guard::Tls];
                let guard = guards.into_iter().find(|known| known.name() == guard).ok_or_else(wrong)?;
                Kind::Session(<Mode as ValueEnum>::from_str(mode, false).map_err(|_| wrong())?, guard)
            }
        };
        Ok(Self { face, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_they_print() {
        for text in ["blocking/raw", "tokio/session-kernel-open", "blocking/session-inband-tls", "tokio/quic"]
        {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in ["raw", "green/raw", "tokio/session-kernel", "tokio/session-x-open", "tokio/"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
