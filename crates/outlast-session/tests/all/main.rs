//! Sessions: on the real kernel, against attackers, and simulated.
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

mod addresses;
mod attacks;
mod basics;
mod breakages;
mod broken_openings;
mod common;
mod conformance;
mod damaged_openings;
mod detach;
mod detection;
mod echoes;
mod example;
mod fallback;
mod fruitless_links;
mod last_words;
mod lost_requests;
mod namespaces;
mod openings;
mod pauses;
mod round_trips;
mod second_link;
mod security;
mod signals;
mod simulation;
mod udp_mode;
