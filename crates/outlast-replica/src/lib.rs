//! Several machines run the same TCP server, and all of them process the same input in the same order. This crate decides
//! about that order: it is the pure core, which the product and the simulator drive alike.
//!
//! * [`Order`]: which entry has which place, which entries are *stable*, and what becomes of both when the primary dies.
//! * [`View`]: the nodes that take part at a time, and the one that leads.
//!
//! # How a decision becomes stable
//!
//! The *primary* of a view gives each entry the next *index*, and sends it to all others. They acknowledge what they have. An entry
//! is *stable* when every member of the view has it: then it is delivered to the server of every node, and clients may learn
//! of it. That is the positive acknowledgement of TCP-ABC (Shao, Jin, Jiang, Cheng 2005, section 3), with the views of PacificA
//! (Lin et al. 2008): as every member has every stable entry, any member can lead the next view. Who is a member is decided elsewhere,
//! by consensus, and never on the way of an entry.
//!
//! # Purity
//!
//! The crate is `no_std` and uses `alloc` only: no sockets, no clock, no threads, no source of randomness.
//!
//! With the feature `io` there is the shell as well, [`portal`]: packets, sockets and addresses of the kernel.
#![cfg_attr(not(feature = "io"), no_std)]

extern crate alloc;

mod connection;
#[cfg(feature = "io")]
pub mod consensus;
#[cfg(feature = "io")]
pub mod copy;
mod election;
mod entry;
#[cfg(feature = "io")]
mod history;
mod lease;
mod log;
#[cfg(test)]
mod mutant;
mod naming;
#[cfg(feature = "io")]
pub mod node;
mod order;
#[cfg(feature = "io")]
pub mod portal;
mod protocol;
mod replica;
#[cfg(test)]
mod simulation;
#[cfg(feature = "io")]
pub mod sql;
mod view;
pub mod wire;

/// What must hold for all bytes that others may send: the bodies of fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::connection::fuzzing::packet;
    pub use crate::protocol::fuzzing::{mysql, postgres, redis};
    pub use crate::wire::fuzzing::{order, snapshot};
}
pub use connection::{
    Agreed, Direction, Ends, Flags, Handshake, InitialSequence, Malformed, Segment, SynOptions,
};
pub use election::{Elector, Step};
pub use entry::{Again, ConnectionId, DATA_BYTES_MAX, Entry};
pub use lease::{Lease, MARGIN_MS};
pub use log::Ordered;
pub use naming::{FirstView, Heard, Leader};
pub use order::message::{Difference, Message};
pub use order::{Limits, NotTaken, Order, Output, Weigh};
pub use protocol::database::Login;
pub use protocol::{Protocol, Resume, Resumes};
#[cfg(feature = "io")]
pub use replica::Threads;
pub use replica::{
    Action, AnswerPolicy, Delivery, Known, LastAck, NoHandOver, PacketId, Replica, Restore, ServerClock,
    Shown, Snapshot,
};
pub use view::{NodeId, View};

/// Whether this is the fault that a test has put in.
macro_rules! is_mutant {
    ($order:expr, $mutant:ident) => {{
        #[cfg(test)]
        let is_it = $order.mutant == Some(crate::mutant::Mutant::$mutant);
        #[cfg(not(test))]
        let is_it = false;
        is_it
    }};
}
pub(crate) use is_mutant;
