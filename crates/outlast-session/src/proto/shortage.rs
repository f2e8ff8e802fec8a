//! Which limit keeps a newcomer out: the peer hears only of a refusal, the server's operator of the limit.

use super::Refusal;
use core::fmt;

/// What there is too little of for one more session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Sessions from one address.
    Address,
    /// The application's time: it does not accept the sessions that are open already.
    Application,
    /// File descriptors.
    Descriptors,
    /// Sessions from one network, while file descriptors are short.
    Network,
    /// Memory.
    Memory,
    /// Sessions.
    Sessions,
}

impl Shortage {
    /// How many kinds there are.
    pub const KINDS: usize = 6;

    /// The answer to the newcomer.
    pub const fn refusal(self, retry_after_ms: u64) -> Refusal {
        match self {
            Self::Address => Refusal::Quota,
            _ => Refusal::Busy { retry_after_ms },
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => {
                "this address has as many sessions as one address may have (--max-sessions-per-address)"
            }
            Self::Application => "the application does not accept the sessions that are open already",
            Self::Descriptors => {
                "three quarters of the file descriptors are in use (ulimit -n), sessions without a link make room"
            }
            Self::Network => {
                "half of the file descriptors are in use (ulimit -n), and the network of this address (24 bits of IPv4, 48 of \
                 IPv6) has its share of the sessions"
            }
            Self::Memory => {
                "sessions hold most of the memory that they may (--memory), those without a link make room"
            }
            Self::Sessions => "there are as many sessions as there may be (--max-sessions)",
        })
    }
}
