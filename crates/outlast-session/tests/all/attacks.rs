//! Peers that lie, babble, stall and flood: refused, counted, bounded, while an honest session goes on undisturbed.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

mod control_frames;
mod crowds;
mod descriptors;
mod floods;
mod frames;
mod handshakes;
mod hoards;
mod leaks;
mod raw;
mod standstill;
mod theft;
mod tls_ends;
mod urgent_ends;

/// Tests that count descriptors or use many run alone.
static ALONE: std::sync::RwLock<()> = std::sync::RwLock::new(());
