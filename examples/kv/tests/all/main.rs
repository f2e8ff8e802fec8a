//! The key-value service, crashed.
//! One program, so that it is built and linked once.

mod common;
mod crashes;
mod protocol;
mod resources;
