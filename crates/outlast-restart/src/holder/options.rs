//! What a holder is told before it begins, and what it tells.

use super::Refusal;
use super::store::{Limits, Service};
use std::time::Duration;

/// How much a holder does for whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much is held.
    pub limits: Limits,
    /// Clients that are connected at a time. More are refused.
    pub clients_max: usize,
    /// Who connects has so long to say which service it is.
    pub hello_timeout: Duration,
    /// Users besides this one and root.
    pub allowed_uids: Vec<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits { descriptors_max: 65_536, bytes_max: 64 << 20, keep_ms: 300_000 },
            clients_max: 256,
            hello_timeout: Duration::from_secs(5),
            allowed_uids: Vec::new(),
        }
    }
}

/// What happens, for whoever tells people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A process of a service has come, and so many descriptors were held for it.
    Joined {
        /// Which.
        service: Service,
        /// Its process, as the kernel says. None: it is in another PID namespace.
        pid: Option<u32>,
        /// How many.
        held: usize,
    },
    /// It has gone, and so many are held on.
    Left {
        /// Which.
        service: Service,
        /// How many.
        held: usize,
    },
    /// It has not come again in time: so many were closed.
    Expired {
        /// Which.
        service: Service,
        /// How many.
        closed: usize,
    },
    /// A process was refused something.
    Refused {
        /// Which. None: it is in another PID namespace.
        pid: Option<u32>,
        /// Why.
        why: Refusal,
        /// The same for people, with what is known of it.
        text: String,
    },
}
