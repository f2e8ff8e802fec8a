//! The system calls that no safe library offers: everything `unsafe` of this crate is in here.
//!
//! Each function does one call, checks what it returns and gives a plain value back. What they rely on is
//! tested against the real kernel in `tests/kernel_facts.rs`.

mod netlink;
mod pipe;
mod poller;
mod reactor;
mod tcp;
pub(crate) mod urgent;

pub(crate) use netlink::RouteWatch;
pub(crate) use pipe::{Pipe, splice};
pub(crate) use poller::{Poller, Ready};
pub(crate) use reactor::{Shared, register, register_owned};
pub(crate) use tcp::*;
