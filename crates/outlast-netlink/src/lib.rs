//! Requests to the Linux kernel over netlink, in this process: no program is started for them.
//!
//! [`Message`] and [`attributes`] write and read what is common to all of netlink (RFC 3549; linux/netlink.h), [`Socket`] asks
//! and waits for the answer, [`Queue`](queue::Queue) has packets that wait for a verdict, and [`AckFilter`](ack_filter::AckFilter) says in the
//! kernel which ones need none.

pub mod ack_filter;
pub mod device;
pub mod filter;
mod message;
pub mod queue;
mod socket;
pub mod tcp;

pub use message::{Message, Reply, attributes, flags, u32_at};
pub use socket::{Protocol, Socket};
