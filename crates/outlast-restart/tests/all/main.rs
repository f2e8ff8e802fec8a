//! Servers that are killed in every way, and answer as if they were not.
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

mod common;
mod core_dumps;
mod downloads;
mod every_call;
mod every_instruction;
mod exactly_once;
mod forbidden_calls;
mod full_table;
mod generations;
mod handlers;
mod holder;
mod keepers;
mod leaks;
mod matrix;
mod roles;
mod state;
mod state_kills;
mod state_steps;
mod systemd;
mod trouble;
mod upgrade;
