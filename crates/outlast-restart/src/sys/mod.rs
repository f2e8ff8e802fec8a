//! The system calls that no safe library offers: everything `unsafe` of this crate is in here.
//!
//! Each function does one thing, checks what the kernel says and gives a plain value back.

pub(crate) mod activation;
pub(crate) mod addresses;
pub(crate) mod clock;
pub mod credentials;
pub(crate) mod custody;
pub(crate) mod descriptors;
pub(crate) mod family;
pub(crate) mod fault;
pub(crate) mod file_size;
pub(crate) mod futex;
pub(crate) mod launch;
mod lineage;
pub(crate) mod local;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub(crate) mod memory;
pub(crate) mod pages;
pub(crate) mod process;
#[cfg(feature = "tokio")]
pub(crate) mod reactor;
pub(crate) mod region;
pub(crate) mod reserve;
pub(crate) mod robust;
pub(crate) mod shared;
pub(crate) mod signals;
pub(crate) mod tcp;
pub(crate) mod thread;
