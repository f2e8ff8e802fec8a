//! The lab on the real kernel: hosts, wires and faults do what they say, and nothing is left behind.
//! One program, so that it is built and linked once.

mod cleanup;
mod cli;
mod common;
mod faults;
mod links;
mod nat;
