//! Nothing to call: the Rust examples of the README, compiled and run as documentation tests.
#![cfg_attr(doctest, doc = include_str!("../../../README.md"))]
