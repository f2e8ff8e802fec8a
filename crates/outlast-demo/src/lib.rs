//! Nothing to call: the Rust examples of the README, compiled and run as documentation tests.
#![doc = include_str!("../../../README.md")]
