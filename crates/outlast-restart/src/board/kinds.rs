//! What is written down of a generation by a number.

/// What a generation has met its end by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Cause {
    /// It serves, or nobody knows.
    Unknown = 0,
    /// A fault of its own: a signal like SIGSEGV, an abort, an exit with an error.
    Crash = 1,
    /// It was killed from outside.
    Killed = 2,
    /// The kernel killed it for the memory it used.
    OutOfMemory = 3,
    /// It was busy for longer than the policy's `hang_timeout_ms`, and was killed for that.
    Hang = 4,
    /// Another binary took over.
    Upgrade = 5,
    /// It ended in order, or because it was told to.
    Ended = 6,
}

impl Cause {
    pub(super) fn from_number(number: u32) -> Self {
        let all = [
            Self::Unknown,
            Self::Crash,
            Self::Killed,
            Self::OutOfMemory,
            Self::Hang,
            Self::Upgrade,
            Self::Ended,
        ];
        all.into_iter().find(|cause| *cause as u32 == number).unwrap_or(Self::Unknown)
    }
}

/// By what it was seen that a generation serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Sign {
    /// It says so, or it serves clients.
    #[default]
    Serves = 0,
    /// It listens, and no client has waited there: how soon one would be served is not known.
    Listens = 1,
}

impl Sign {
    pub(super) fn from_number(number: u32) -> Self {
        if number == Self::Listens as u32 { Self::Listens } else { Self::Serves }
    }
}

/// How the server lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Backend {
    /// It does not: it was started again.
    None = 0,
    /// Generations of the library.
    Library = 1,
    /// Unmodified, started again with its sockets.
    Exec = 3,
    /// Several processes with [roles](crate::roles), each of which has generations of the library.
    Roles = 4,
}
