//! Memory that outlives the process, and is consistent after a crash at any instruction.
//!
//! A [`Region`] is shared memory at a fixed address. What a service keeps there, every generation finds: changes are made in
//! [transactions](Region::transaction), which count as a whole or not at all, whatever the process dies of, and whenever.
//!
//! ```
//! use outlast_restart::policy::Inheritance;
//! use outlast_restart::state::{Map, Options, Region, StateError, bytemuck, field};
//!
//! #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
//! #[bytemuck(crate = "bytemuck")]
//! #[repr(C)]
//! struct Root {
//!     served: u64,
//!     names: Map,
//! }
//!
//! let region = Region::anonymous("counter", &Options { layout: "counter", ..Options::default() })?;
//! // let generation = outlast_restart::register()?; and then, in each of them:
//! let adopted = region.adopt(Inheritance::Everything, |_| Ok::<_, StateError>(()))?;
//! assert!(!adopted.rolled_back);
//!
//! let root = region.root::<Root>()?;
//! let (served, names) = (field!(root, Root, served)?, field!(root, Root, names)?);
//! for _ in 0..3 {
//!     region.transaction(|tx| {
//!         tx.set(served, tx.get(served)? + 1)?;
//!         if tx.get(names)?.is_none() {
//!             let map = Map::create(tx)?;
//!             tx.set(names, map)?;
//!         }
//!         let number = tx.get(served)?;
//!         tx.get(names)?.insert(tx, b"last", number.to_string().as_bytes())
//!     })?;
//! }
//! assert_eq!((region.get(served)?, region.committed()), (3, 3));
//!
//! // An error takes back what was done so far, as a panic does, or a crash.
//! let failed = region.transaction(|tx| {
//!     tx.set(served, 1000)?;
//!     Err::<(), _>("it went wrong".into())
//! });
//! assert!(failed.is_err_and(|error: Box<dyn std::error::Error>| error.to_string() == "it went wrong"));
//! region.read(|view| {
//!     assert_eq!(view.get(served)?, 3);
//!     assert_eq!(view.get(names)?.get(view, b"last")?, Some(&b"3"[..]));
//!     Ok::<_, StateError>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | content | |
//! |---|---|
//! | [root](Region::root) | one value of the application's own type, from which it finds the rest; [`field!`](field) is a part of it |
//! | [`Record`] | bytes of any length, [made](Transaction::put), [resized](Transaction::resize) and [freed](Transaction::free) |
//! | [`Pool`] | a fixed number of values of one type |
//! | [`Map`] | an ordered map from bytes to bytes |
//! | [`Suspect`] | memory without transactions, which is verified or discarded after a crash |
//!
//! Handles are offsets, and looked up whenever they are used: one that means nothing (any more) is an error, not a crash.
//! The region itself is not trusted either: what is found in it is checked before it is followed.
//!
//! What is not promised: the machine's own crash (nothing is written to a disk); that what was committed makes sense; wild
//! stores of the program itself, of which [`Region::check`] finds those that hit what holds the heap together.
//!
//! All threads and processes that change a region are in one namespace of process ids, and take turns: a transaction should
//! be short, and is not to be split by `fork`.

mod cell;
mod check;
mod error;
mod fields;
#[cfg(test)]
mod fuse;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod heap;
mod layout;
mod lock;
mod map;
mod pool;
mod record;
mod region;
mod suspect;
#[cfg(test)]
mod tests;
mod transaction;
mod words;

pub use crate::state_field as field;
pub use bytemuck;
pub use cell::Cell;
pub use check::check_image;
pub use error::StateError;
pub use layout::{DEFAULT_ADDRESS, Options};
pub use map::Map;
pub use pool::{Pool, Slot};
pub use record::Record;
pub(crate) use region::is_lost_by_upgrades;
pub use region::{Adopted, Region, Usage};
pub use suspect::{Suspect, SuspectPart};
pub use transaction::{Transaction, View};
