//! Connections of clients: what their packets say, and what a node knows of each.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod segment;
mod sequence;
mod state;

pub use handshake::{Agreed, Handshake};
pub use segment::{Direction, Ends, Flags, Malformed, Segment, SynOptions};
pub use sequence::InitialSequence;
pub(crate) use state::{Connection, Verdict};
