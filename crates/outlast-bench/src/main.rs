//! Experiments that back the numbers in the specification.

fn main() {}
