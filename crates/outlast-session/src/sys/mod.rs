//! The system calls that no safe library offers. (The relays have a few of their own in `relay/sys.rs` and
//! `relay/stdio.rs`.)
//!
//! Each function does one call, checks what it returns and gives a plain value back. What they rely on is
//! tested against the real kernel here, and in `tests/all/`.

mod kernel_memory;
mod limits;
mod netlink;
mod pipe;
mod poller;
mod reactor;
mod secret;
mod source_ports;
mod tcp;
pub(crate) mod urgent;

pub(crate) use kernel_memory::{Lent, OtherEnds, TcpMemory, held_bytes, let_receive_buffer_grow};
pub(crate) use limits::{
    SpareDescriptor, descriptors_max, descriptors_open, is_short, memory_bytes, return_free_memory,
};
pub(crate) use netlink::RouteWatch;
pub(crate) use pipe::{Pipe, splice};
pub(crate) use poller::{Poller, Ready};
pub(crate) use reactor::{Shared, register, register_owned};
pub(crate) use secret::Secret;
pub(crate) use tcp::*;
