//! A program between two pipes that nobody sees crash: each line that comes in goes out as [`lines`](../lines.rs) answers it.
//!
//! `while read line; do echo "$line"; done | cargo run --example filter | cat`
#![allow(clippy::print_stderr, reason = "a program")]

use outlast_restart::policy::Policy;
use std::io;
use std::os::fd::AsFd;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // For an example that is there to be crashed.
    let policy = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    // Copies, with the same numbers in every generation.
    let (input, output) =
        (io::stdin().as_fd().try_clone_to_owned()?, io::stdout().as_fd().try_clone_to_owned()?);
    let mut generation = outlast_restart::register_with(policy)?;
    eprintln!("generation {} {}", generation.number(), std::process::id());
    // What the last one had open besides, at that very instant, is closed.
    drop(generation.inherited()?);
    let (mut input, mut output) = (generation.hold(input)?, generation.hold(output)?);
    if let Ok(answered) = output.note().try_into().map(u64::from_ne_bytes) {
        // The last generation has answered it, and not come as far as to say so.
        input.done(usize::try_from(answered - input.done_bytes())?);
    }
    loop {
        while let Some(length) = input.input().iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = input.input()[..length].iter().rev().copied().collect();
            let answer = [line.repeat(length % 20 + 1), b"\n".to_vec()].concat();
            output.write_all(&answer)?;
            // Two pipes are not marked at once: so the output knows for how much input its answers are.
            output.set_note(&(input.done_bytes() + length as u64 + 1).to_ne_bytes())?;
            output.done(0);
            input.done(length + 1);
        }
        if input.receive()? == 0 {
            return Ok(());
        }
    }
}
