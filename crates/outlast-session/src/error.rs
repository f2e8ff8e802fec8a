//! Errors, sorted by who is to blame.

use crate::proto::{Refusal, SessionId};
use std::io;
use std::time::Duration;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a session could not be opened, or could not go on.
///
/// A loss of the link is none of these: it is repaired, and the application sees a pause.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- the peer
    /// The peer understood and said no.
    #[error("{}", refused(peer, id, refusal, why.as_deref()))]
    Refused {
        /// Address of the peer.
        peer: String,
        /// The session.
        id: SessionId,
        /// What it said.
        refusal: Refusal,
        /// What it said to people, if anything: up to 255 bytes, printable.
        why: Option<String>,
    },
    /// The peer does not speak this protocol, or broke its rules.
    #[error("{peer} does not speak the outlast session protocol: {what}")]
    Protocol {
        /// Address of the peer.
        peer: String,
        /// What was received instead.
        what: String,
    },
    /// The peer speaks another version of this protocol.
    #[error("cannot open a session with {peer}: {what}")]
    Version {
        /// Address of the peer.
        peer: String,
        /// Which version it speaks, and which this side does.
        what: String,
    },
    /// The peer speaks this protocol, but one side does not trust the other: another key, or a certificate that is
    /// missing, expired or signed by somebody else.
    #[error("{peer} and this side have no key or certificate in common: {what}")]
    Untrusted {
        /// Address of the peer.
        peer: String,
        /// What is wrong with which.
        what: String,
    },
    /// The two sides could not agree on TLS: a version or a cipher that one of them lacks, or bytes that are not TLS.
    #[error("cannot agree on TLS with {peer}: {what}")]
    Tls {
        /// Address of the peer.
        peer: String,
        /// What went wrong.
        what: String,
    },
    /// Bytes that the peer's side acknowledged are gone: its process died, or a middlebox acknowledged for it.
    #[error(
        "session {id} cannot be resumed: {missing_bytes} bytes that were acknowledged never reached the peer's \
         application (delivered up to offset {delivered_offset}); something on the path acknowledges on the \
         peer's behalf, use the inband mode"
    )]
    BytesMissing {
        /// The session.
        id: SessionId,
        /// How many are gone.
        missing_bytes: u64,
        /// Up to where the peer has everything.
        delivered_offset: u64,
    },
    /// The peer ended the session on purpose.
    #[error("session {id} was reset by the peer: {reason}")]
    Reset {
        /// The session.
        id: SessionId,
        /// The peer's reason.
        reason: String,
    },
    // ---- the network
    /// No link could be made within the patience.
    #[error(
        "no link to {targets} within {patience:?}: {last}; {unacked_bytes} bytes are not known to be delivered"
    )]
    PatienceExhausted {
        /// All the addresses that were tried.
        targets: String,
        /// The limit.
        patience: Duration,
        /// The last attempt's error.
        last: String,
        /// Written by the application and not known to have arrived.
        unacked_bytes: u64,
    },
    /// The first connection could not be made.
    #[error("cannot connect to {targets}: {}", last.strip_prefix(targets.as_str()).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(last))]
    Connect {
        /// All the addresses that were tried.
        targets: String,
        /// The last attempt's error.
        last: String,
    },
    // ---- the caller
    /// Settings that cannot work.
    #[error("{0}")]
    Config(String),
    /// The session was closed by this side.
    #[error("session {id} is closed")]
    Closed {
        /// The session.
        id: SessionId,
    },
    /// Written after `shutdown`.
    #[error("session {id} was shut down for writing")]
    ShutDown {
        /// The session.
        id: SessionId,
    },
    /// The session was ended at this side, by its application or an administrator.
    #[error("session {id} was ended: {reason}")]
    Killed {
        /// The session.
        id: SessionId,
        /// Why; the peer hears the same.
        reason: String,
    },
    /// A detached session was kept as long as it was promised, and nobody came back.
    #[error(
        "session {id} had no link for {keep:?} and expired; {unacked_bytes} bytes are not known to be delivered"
    )]
    Expired {
        /// The session.
        id: SessionId,
        /// The limit.
        keep: Duration,
        /// Written by the application and not known to have arrived.
        unacked_bytes: u64,
    },
    /// The session had no link, and this process needed the memory or the descriptors that it held for others.
    #[error(
        "session {id} was ended to free {short_of}: it had no link, and the sessions of this process use most of what they \
         may; {unacked_bytes} bytes are not known to be delivered"
    )]
    Shed {
        /// The session.
        id: SessionId,
        /// What there was too little of, and the setting that decides it.
        short_of: &'static str,
        /// What it held.
        held_bytes: u64,
        /// Written by the application and not known to have arrived.
        unacked_bytes: u64,
    },
    // ---- the system
    /// A system call failed in a way that is not the link's fault.
    #[error("{what}: {errno}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        errno: Errno,
    },
}

fn refused(peer: &str, id: &SessionId, refusal: &Refusal, why: Option<&str>) -> String {
    match (why, refusal) {
        (Some(why), Refusal::Ended { .. }) => format!("session {id} was ended by {peer}: {why}"),
        (Some(why), _) => format!("{peer} refused session {id}: {refusal} ({why})"),
        (None, _) => format!("{peer} refused session {id}: {refusal}"),
    }
}

/// An operating-system error number that can be cloned and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A caller that wants the number has it.
        f.write_str(&in_words(&io::Error::from_raw_os_error(self.0)))
    }
}

/// The system's error in the words of ours: "connection refused" for "Connection refused (os error 111)".
pub(crate) fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    let mut letters = text.split(" (os error").next().unwrap_or(&text).chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

impl Error {
    /// A failed system call, from the error the standard library gives.
    #[must_use]
    pub fn system(what: &'static str, error: &io::Error) -> Self {
        Error::System { what, errno: Errno(error.raw_os_error().unwrap_or(libc::EIO)) }
    }

    /// A session that was killed without a reason.
    #[must_use]
    pub fn killed(id: SessionId) -> Self {
        Error::Killed { id, reason: "killed by its application or an administrator".into() }
    }

    /// Whose fault it is, which also decides the exit code of the `outlast` program.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Error::Refused { .. }
            | Error::Protocol { .. }
            | Error::Version { .. }
            | Error::Untrusted { .. }
            | Error::Tls { .. }
            | Error::BytesMissing { .. }
            | Error::Reset { .. } => Blame::Peer,
            Error::PatienceExhausted { .. }
            | Error::Connect { .. }
            | Error::Expired { .. }
            | Error::Shed { .. } => Blame::Network,
            Error::Config(_) | Error::Closed { .. } | Error::ShutDown { .. } | Error::Killed { .. } => {
                Blame::Caller
            }
            Error::System { .. } => Blame::System,
        }
    }
}

/// Who is to blame for an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The other end refused, lied or lost its state.
    Peer,
    /// No path.
    Network,
    /// This program's own settings or calls.
    Caller,
    /// The operating system.
    System,
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Refused { .. } => io::ErrorKind::ConnectionRefused,
            Error::Protocol { .. }
            | Error::Version { .. }
            | Error::Tls { .. }
            | Error::BytesMissing { .. } => io::ErrorKind::InvalidData,
            Error::Untrusted { .. } => io::ErrorKind::PermissionDenied,
            Error::Reset { .. } | Error::Expired { .. } | Error::Shed { .. } | Error::Killed { .. } => {
                io::ErrorKind::ConnectionReset
            }
            Error::PatienceExhausted { .. } => io::ErrorKind::TimedOut,
            Error::Connect { .. } => io::ErrorKind::NotConnected,
            Error::Config(_) => io::ErrorKind::InvalidInput,
            Error::Closed { .. } => io::ErrorKind::NotConnected,
            Error::ShutDown { .. } => io::ErrorKind::BrokenPipe,
            Error::System { errno, .. } => io::Error::from_raw_os_error(errno.0).kind(),
        };
        io::Error::new(kind, error)
    }
}
