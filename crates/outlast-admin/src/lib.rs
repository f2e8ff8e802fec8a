//! What a running Outlast instance is asked over its admin socket, and what it answers: the same types at both ends.
//!
//! One exchange is one line of JSON each way: a [`Request`], and an [`Answer`]. Each capability has a file of its own with
//! what it shows: [`sessions`], [`kept`], [`replica`], [`program`], with its
//! [`upgrade`]. `outlast status --json` prints a list of [`Status`].
//!
//! # Versions
//! The two ends may be of different versions, as when the program on disk was replaced and an instance still runs.
//! - [`Status::format`] says which version of these types an answer has: [`FORMAT`] is this one.
//! - A newer version only adds fields. A field that is missing has the value of its type's `Default`; one that is not
//!   known is passed over. What could be misread so gets another name instead.
//! - A [`Page`] of a kind that is not known here is [`Page::Other`]: its process can be named, but not shown.
//! - Answers of version 0.1.0, before there was a format, are read as well ([`Status::read`]).

pub mod client;
pub mod exchange;
pub mod kept;
pub mod program;
pub mod replica;
pub mod sessions;
pub mod status;
pub mod upgrade;

pub use exchange::{Answer, Request};
pub use status::{FORMAT, Page, Status};
