//! The lab on the real kernel: hosts, wires and faults do what they say, and nothing is left behind.
//! One program, so that it is built and linked once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a failed expectation is the message of a test"
)]

mod cleanup;
mod cli;
mod common;
mod faults;
mod links;
mod nat;
mod port;
