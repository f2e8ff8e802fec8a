//! Sessions for threads: the names and the behaviour of `std::net`, over links that may break.
//!
//! A read or write goes straight to the kernel, on the caller's thread. There is no runtime behind it: one helper
//! thread for the process (see the crate's documentation), one thread for each [`Listener`], and for the time of an
//! outage one that reconnects.

mod listener;
mod reconnect;
mod session;

pub use listener::{Incoming, Listener};
pub use session::{Reservation, Session};
