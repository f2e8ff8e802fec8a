//! Connections of clients: what their packets say, and what a node knows of each.

pub(crate) mod comparison;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod own;
mod segment;
mod sequence;
mod state;

pub use comparison::Said;
pub use handshake::{Agreed, Handshake};
pub(crate) use own::Piece;
pub use segment::{Direction, Ends, Flags, Malformed, Segment, SynOptions};
pub use sequence::InitialSequence;
pub(crate) use state::{Answers, Connection, Verdict};
