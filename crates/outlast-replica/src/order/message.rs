//! What nodes say to each other about the order.

use crate::connection::comparison::NAME_BYTES;
use crate::entry::ConnectionId;
use crate::log::Ordered;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// From one node to another. Links keep the order of messages; what was under way when one breaks is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<E> {
    /// To the primary: begin to send. From a member that has entered the view, or from a node that wants to become one.
    Hello {
        /// Of the view that it means.
        epoch: u64,
        /// Index of the last entry that it may keep.
        last: u64,
    },
    /// From the primary, before any entry of its view on this link.
    Start {
        /// Of its view.
        epoch: u64,
        /// The last entry that it knows to be stable. Every member has that, and what is behind it has to come from this primary.
        stable: u64,
    },
    /// From the primary.
    Entries {
        /// Of its view.
        epoch: u64,
        /// Index of the first one.
        first: u64,
        /// Of consecutive indices. There may be none.
        entries: Vec<Ordered<E>>,
        /// The last entry that is stable now.
        stable: u64,
    },
    /// To the primary: this is there, and all before it.
    Ack {
        /// Of the view in which it came.
        epoch: u64,
        /// Index of the last entry.
        index: u64,
    },
    /// From the primary, to a node that is no member: what follows on what that has is not kept any more.
    Outdated {
        /// Of the view.
        epoch: u64,
    },
    /// From a node that begins to serve clients as the primary.
    Serving {
        /// Of its view.
        epoch: u64,
    },
    /// To the primary, or one that is about to be it: a packet of a client has come to the primary before.
    Forwarded {
        /// From its IP header on.
        bytes: Arc<[u8]>,
    },
    /// To the primary: all that entries up to this one say of its server's answers was compared, or cannot be.
    Compared {
        /// Of the view.
        epoch: u64,
        /// Of that entry.
        index: u64,
    },
    /// To the primary: the server of this node has said something else.
    Differs {
        /// Of the view.
        epoch: u64,
        /// What.
        difference: Difference,
    },
    /// To the primary: what was sent does not follow on this.
    Missing {
        /// Of the view.
        epoch: u64,
        /// Index of the last entry that is there.
        after: u64,
    },
}

/// A server has said something else than the primary's server at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Of the entry that says what the primary's server has said.
    pub index: u64,
    /// On which connection.
    pub connection: ConnectionId,
    /// A digest of what it has said.
    pub digest: u64,
    /// Position of the first of `bytes`.
    pub offset: u64,
    /// What it has said: of one answer, or of several; or the beginning of it.
    pub bytes: Vec<u8>,
    /// The command that was answered, if that is known, filled up with zeros.
    pub command: [u8; NAME_BYTES],
}
