//! What can be wrong with a region, or with what is asked of it.

use std::io;

/// Why something was not done. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The kernel has refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The region's file is a symbolic link, which may be another user's.
    #[error("the region's file is a symbolic link: name the file itself")]
    SymbolicLink,
    /// The region's file belongs to another user, who could change it at any time.
    #[error(
        "the region's file belongs to user {owner}, not to user {own} or root: remove it, or choose another path"
    )]
    ForeignFile {
        /// Whose it is.
        owner: u32,
        /// Who wants to open it.
        own: u32,
    },
    /// Something else of this process is where the region belongs.
    #[error("address {address:#x} of this process is taken: choose another one for the region")]
    AddressTaken {
        /// Where it was to be.
        address: usize,
    },
    /// [`Options`](super::Options) that make no region.
    #[error("{what} of a region cannot be {value}: {least} is the least")]
    TooSmall {
        /// Of what.
        what: &'static str,
        /// What was asked for, in bytes.
        value: usize,
        /// What would do, in bytes.
        least: usize,
    },
    /// No address for a mapping.
    #[error("a region cannot be at {address:#x}: choose a multiple of 65536 from 65536 on")]
    Address {
        /// What was asked for.
        address: usize,
    },
    /// The file has something else in it.
    #[error("this is no state region: it does not begin as one")]
    NotARegion,
    /// Another version of this library has made it.
    #[error("the region has format {found}, and this program knows {expected}: begin with a new one")]
    OtherFormat {
        /// That of the region.
        found: u32,
        /// That of this library.
        expected: u32,
    },
    /// Another program has made it.
    #[error("the region was made for another application, not for {expected:?}")]
    OtherLayout {
        /// The name in the options.
        expected: String,
    },
    /// Another version of the application has made it.
    #[error("the region has layout version {found}, not {expected}: convert it or begin with a new one")]
    OtherLayoutVersion {
        /// That of the region.
        found: u32,
        /// That in the options.
        expected: u32,
    },
    /// The region is smaller than the application wants it.
    #[error("the region has {found} bytes, and {expected} are asked for: begin with a new one")]
    Smaller {
        /// What it has.
        found: usize,
        /// What the options say.
        expected: usize,
    },
    /// It belongs at another address than it is wanted at.
    #[error(
        "the region was made for address {found:#x}, and is wanted at another one: leave the choice to it"
    )]
    OtherAddress {
        /// Where it belongs.
        found: usize,
    },
    /// The file ends within the region.
    #[error("the region is cut off: {found} bytes are left of {expected}")]
    Truncated {
        /// What there is.
        found: usize,
        /// What there was.
        expected: usize,
    },
    /// The content contradicts itself.
    #[error("the region is damaged at byte {offset}: {what}")]
    Damaged {
        /// What is wrong there.
        what: &'static str,
        /// Where.
        offset: u64,
    },
    /// No such thing is at this place (any more).
    #[error("no {what} is at byte {offset} of the region")]
    Missing {
        /// What was looked for.
        what: &'static str,
        /// Where.
        offset: u64,
    },
    /// Beyond the end of a record, of the root or of the suspect part.
    #[error("bytes {offset} to {end} are asked for, and there are {length}")]
    OutOfBounds {
        /// The first byte asked for.
        offset: usize,
        /// Behind the last one.
        end: usize,
        /// How many there are.
        length: usize,
    },
    /// The region is full.
    #[error(
        "no room for {wanted} more bytes: {used} of the region are used, {free} free (not in one piece, perhaps)"
    )]
    OutOfSpace {
        /// What was asked for, with what the region adds.
        wanted: u64,
        /// In bytes.
        used: u64,
        /// In bytes.
        free: u64,
    },
    /// More changes than the undo log can take back.
    #[error(
        "the transaction changes more than the log of {limit} bytes can undo: make it smaller, or the log larger"
    )]
    TransactionTooLarge {
        /// The size of the log, in bytes.
        limit: usize,
    },
    /// A transaction within a transaction.
    #[error("this thread has the region's lock already: use the transaction it is in")]
    Nested,
    /// [`transact`](crate::Connection::transact) has no state to change.
    #[error("no state is attached to this generation: attach it before connections are served")]
    NotAttached,
    /// Two processes have [attached](crate::Generation::attach) the same cell.
    #[error("another process has changed the cell of `attach`: each needs one of its own")]
    SharedCell,
    /// An answer of [`transact`](crate::Connection::transact), together with what is not sent of earlier ones.
    #[error(
        "an answer makes {found} bytes that are not sent, and {limit} can be kept: say less in one change"
    )]
    AnswerTooLong {
        /// In bytes.
        found: usize,
        /// In bytes.
        limit: usize,
    },
    /// All connections together have too much that is not dealt with or not sent.
    #[error("no memory is left to keep {length} bytes of answers: wait until others are sent")]
    NoRoomForAnswer {
        /// What was to be kept, in bytes.
        length: usize,
    },
}

pub(crate) type Result<T> = std::result::Result<T, StateError>;

#[cold]
pub(crate) fn damaged(what: &'static str, word: usize) -> StateError {
    StateError::Damaged { what, offset: (word as u64).saturating_mul(8) }
}
