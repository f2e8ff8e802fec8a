//! Counts to a million, and crashes in the middle of it all the time: each generation goes on where the last one was.
//!
//! `cargo run --example counter -- 1000000`
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::policy::Policy;
use outlast_restart::state::{Map, Options, Region, StateError, bytemuck, field};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(C)]
struct Root {
    count: u64,
    /// How far each generation has come.
    reached: Map,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let goal: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |goal| goal.parse())?;
    let options = Options { layout: "counter", suspect_bytes: 4096, ..Options::default() };
    let region = Region::anonymous("counter", &options)?;
    // For an example that is there to be crashed.
    let policy = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let generation = outlast_restart::register_with(policy)?;
    let adopted = region.adopt(generation.inheritance(), |_| Ok::<_, StateError>(()))?;
    let root = region.root::<Root>()?;
    let (count, reached) = (field!(root, Root, count)?, field!(root, Root, reached)?);
    region.transaction(|tx| {
        if tx.get(reached)?.is_none() {
            let map = Map::create(tx)?;
            tx.set(reached, map)?;
        }
        Ok::<_, StateError>(())
    })?;
    let name = format!("{:06}", generation.number()).into_bytes();
    println!("generation {} goes on, {} was taken back", generation.number(), u8::from(adopted.rolled_back));
    // Differs from one to the next.
    let crash_at = 1 + std::process::id().wrapping_mul(7919) % 80_000;
    for n in 0.. {
        let done = region.transaction(|tx| {
            let next = tx.get(count)? + 1;
            tx.set(count, next)?;
            if n == crash_at && next < goal {
                std::process::abort();
            }
            tx.get(reached)?.insert(tx, &name, next.to_string().as_bytes())?;
            Ok::<_, StateError>(next)
        })?;
        if done == goal {
            break;
        }
    }
    region.check()?;
    let told = region.read(|view| view.get(reached)?.entries(view))?;
    let last = told.last().map(|(_, reached)| String::from_utf8_lossy(reached).into_owned());
    println!("{} generations have counted to {}", told.len(), last.unwrap_or_default());
    Ok(())
}
