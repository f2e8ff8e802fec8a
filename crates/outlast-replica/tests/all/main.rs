//! The real kernel, in network namespaces.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed expectation is the message of a test")]

mod group;
mod restore;
