//! The demo, the examples of the README, and the licences of what is shipped.
//! One program, so that it is built and linked once.

mod common;
mod demo;
mod licences;
mod readme;
