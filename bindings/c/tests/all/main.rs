//! Servers in C on liboutlast.
//! One program, so that it is built and linked once.

mod binding;
mod common;
mod crashes;
mod http;
