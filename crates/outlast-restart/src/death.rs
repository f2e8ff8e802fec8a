//! How a generation has ended.

use std::fmt;

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Death {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signal(i32),
}

impl Death {
    /// From what `waitpid` gives.
    pub(crate) fn from_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Exited((status >> 8) & 0xff),
            signal => Self::Signal(signal),
        }
    }

    /// As `waitpid` has it.
    pub(crate) fn status(self) -> i32 {
        match self {
            Self::Exited(code) => (code & 0xff) << 8,
            Self::Signal(signal) => signal & 0x7f,
        }
    }

    /// Whether it is by a signal with which processes are told to end, or that nobody reads what they write.
    #[must_use]
    pub fn is_usual(self) -> bool {
        let usual = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE];
        matches!(self, Self::Signal(signal) if usual.contains(&signal))
    }

    /// What a process that stands for it exits with: as a shell tells it, but never 0, as it is the end of something that
    /// was to go on.
    #[must_use]
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Exited(0) => 1,
            Self::Exited(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Exited(code) => return write!(f, "exited with code {code}"),
            Self::Signal(libc::SIGSEGV) => "SIGSEGV",
            Self::Signal(libc::SIGBUS) => "SIGBUS",
            Self::Signal(libc::SIGILL) => "SIGILL",
            Self::Signal(libc::SIGFPE) => "SIGFPE",
            Self::Signal(libc::SIGABRT) => "SIGABRT",
            Self::Signal(libc::SIGKILL) => "SIGKILL",
            Self::Signal(libc::SIGTERM) => "SIGTERM",
            Self::Signal(signal) => return write!(f, "been killed by signal {signal}"),
        };
        write!(f, "been killed by {name}")
    }
}
