//! The system calls that no safe library offers: everything `unsafe` of this crate is in here.
//!
//! Each function does one thing, checks what the kernel says and gives a plain value back.

pub(crate) mod clock;
pub(crate) mod descriptors;
pub(crate) mod futex;
pub(crate) mod process;
pub(crate) mod robust;
pub(crate) mod shared;
pub(crate) mod signals;
pub(crate) mod tcp;
