//! Peers that lie, babble, stall and flood: refused, counted, bounded, while an honest session goes on undisturbed.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

#[path = "conformance/common.rs"]
mod common;
#[path = "attacks/floods.rs"]
mod floods;
#[path = "attacks/frames.rs"]
mod frames;
#[path = "attacks/handshakes.rs"]
mod handshakes;
#[path = "attacks/leaks.rs"]
mod leaks;
#[path = "attacks/raw.rs"]
mod raw;
#[path = "attacks/theft.rs"]
mod theft;

/// Tests that count descriptors or use many run alone.
static ALONE: std::sync::RwLock<()> = std::sync::RwLock::new(());
