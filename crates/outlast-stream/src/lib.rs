//! What every Outlast capability needs to carry a byte stream past a failure.
//!
//! * [`RetainRing`]: the bytes of a stream that may have to be sent again, found by absolute position.
//! * [`BufferPool`] and [`BufferSource`]: where the rings get their memory, bounded and reused.
//! * [`Backoff`]: how long to wait before the next attempt at reconnecting.
//! * [`SplitMix64`]: the seeded generator behind the jitter and behind the simulations.
//!
//! # Conventions
//!
//! A position is the number of bytes of the stream that came before it, counted from the very first byte
//! in a `u64` that never wraps; names end in `_offset`. Sizes end in `_bytes`.
//!
//! # Purity
//!
//! The crate is `no_std` and uses `alloc` only: no sockets, no clock, no threads, no source of randomness.
//! Time and seeds are arguments, and the same arguments give the same results.
#![no_std]

extern crate alloc;

mod backoff;
mod pool;
mod random;
mod ring;

pub use backoff::Backoff;
pub use pool::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, BufferPool, BufferSource, Heap};
pub use random::SplitMix64;
pub use ring::{Lent, RetainRing};
