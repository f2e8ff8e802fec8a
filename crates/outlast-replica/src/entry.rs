//! What has a place in the order.

use crate::Weigh;
use crate::connection::{Handshake, Said};
use alloc::sync::Arc;

/// A connection: the index of the entry that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// How a request goes on that servers have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// They get it once more.
    Given,
    /// It has waited for too long: its client gets an error.
    TimedOut,
    /// All wait for each other: its transaction is rolled back, and its client gets an error.
    Deadlock,
}

/// Something that all nodes have to learn in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A client's SYN was answered: there is a connection, and its number is the index of this entry. The answer leaves when this
    /// is stable.
    Open {
        /// How it began.
        handshake: Handshake,
        /// When, by the primary's clock: a node that joins hears of it late.
        at_ms: u64,
    },
    /// Bytes from a client.
    Data {
        /// Of which connection.
        connection: ConnectionId,
        /// Position of the first one.
        offset: u64,
        /// So much the primary's server had said on that connection: the client may have said this in answer to it.
        said: u64,
        /// What its server has said, to be compared.
        report: Said,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// The client has ended its stream.
    Fin {
        /// Of which connection.
        connection: ConnectionId,
    },
    /// The client has reset the connection, or is taken for gone.
    Reset {
        /// Of which connection.
        connection: ConnectionId,
    },
    /// The primary's server has ended its stream.
    End {
        /// Of which connection.
        connection: ConnectionId,
        /// It has so many bytes.
        offset: u64,
        /// What its server has said, to be compared.
        report: Said,
    },
    /// The primary's server has reset the connection.
    Abort {
        /// Of which connection.
        connection: ConnectionId,
        /// What its server has said, to be compared.
        report: Said,
    },
    /// The client has acknowledged answers, and does not need them any more; or there is something to be compared.
    Acked {
        /// Of which connection.
        connection: ConnectionId,
        /// All before this position.
        offset: u64,
        /// What the primary's server has said.
        report: Said,
    },
    /// A reply of the primary's server that each server would have given in its own way: clients get this one, whichever node sends it.
    Canonical {
        /// On which connection.
        connection: ConnectionId,
        /// It is the so many-th such reply on that connection; the first is 0.
        number: u64,
        /// Position of the first of these bytes in the reply.
        offset: u64,
        /// They are the last ones.
        is_last: bool,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// Nothing: whoever led when this was proposed led still when it became stable.
    NoOp,
    /// The primary's server has not answered that entry, while other clients wait: all go on.
    Proceed {
        /// Of which entry.
        index: u64,
    },
    /// A request that servers have ended, as it would have waited beside another one, goes on.
    Again {
        /// On which connection.
        connection: ConnectionId,
        /// How.
        how: Again,
    },
    /// The time of day that servers know from here on.
    Tick {
        /// In milliseconds since 1970.
        at_ms: u64,
    },
    /// The servers forget what a copy of their data lacks, as one is about to be made.
    Refresh,
    /// Both streams have ended, and the client has all: the connection is forgotten.
    Closed {
        /// Which connection.
        connection: ConnectionId,
    },
}

/// Of bytes in one entry.
pub const DATA_BYTES_MAX: usize = 256 << 10;

/// What an entry takes beside its bytes, at the most on the wire and about in memory.
const ENTRY_BYTES: usize = 96;

impl Entry {
    /// The connection on which servers are given something for it.
    pub(crate) fn given_on(&self) -> Option<ConnectionId> {
        match self {
            Self::Data { connection, .. }
            | Self::Fin { connection }
            | Self::Reset { connection }
            | Self::Abort { connection, .. }
            | Self::Again { connection, .. }
            | Self::Closed { connection } => Some(*connection),
            Self::Open { .. } | Self::End { .. } | Self::Acked { .. } | Self::Canonical { .. } => None,
            Self::NoOp | Self::Proceed { .. } | Self::Refresh | Self::Tick { .. } => None,
        }
    }
}

impl Weigh for Entry {
    fn weight_bytes(&self) -> usize {
        let bytes =
            if let Self::Data { bytes, .. } | Self::Canonical { bytes, .. } = self { bytes.len() } else { 0 };
        ENTRY_BYTES + bytes
    }
}
