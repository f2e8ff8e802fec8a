//! What a byte stream has to do, in the spirit of Go's `nettest.TestConn`: both faces, every mode, every security.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

#[path = "conformance/blocking.rs"]
mod blocking_face;
mod ends;
mod idle;
mod silence;
#[path = "conformance/tokio.rs"]
mod tokio_face;
