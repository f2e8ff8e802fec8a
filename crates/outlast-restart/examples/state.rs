//! What a transaction costs: `cargo run --release --example state`.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::state::{Map, Options, Region, StateError, bytemuck, field};
use std::time::Instant;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(C)]
struct Counters {
    served: u64,
    bytes: u64,
}

const ROUNDS: u32 = 500;
const PIECES: u32 = 2000;
const KEYS: u64 = 100_000;

fn main() -> Result<(), StateError> {
    let region = Region::anonymous("measured", &Options { size_bytes: 64 << 20, ..Options::default() })?;
    let root = region.root::<Counters>()?;
    let (served, bytes) = (field!(root, Counters, served)?, field!(root, Counters, bytes)?);
    measure("a transaction that changes nothing", || region.transaction(|_| Ok(())))?;
    measure("a transaction that changes two words", || {
        region.transaction(|tx| {
            tx.set(served, tx.get(served)? + 1)?;
            tx.set(bytes, tx.get(bytes)? + 100)
        })
    })?;
    measure("a word that is read", || region.get(served).map(drop))?;
    measure("a record of 100 bytes, made and freed", || {
        region.transaction(|tx| {
            let record = tx.put(&[7; 100])?;
            tx.free(record)
        })
    })?;
    let map = region.transaction(Map::create)?;
    let mut n = 0u64;
    let mut key = || {
        n = (n + 7_919) % KEYS;
        n.to_be_bytes()
    };
    for _ in 0..KEYS {
        region.transaction(|tx| map.insert(tx, &key(), &[7; 100]))?;
    }
    println!("in a map of {KEYS} keys:");
    measure("a value that is read", || region.read(|view| map.get(view, &key()).map(drop)))?;
    measure("a value that changes", || region.transaction(|tx| map.insert(tx, &key(), &[8; 100]).map(drop)))?;
    measure("a key that is taken out and put back", || {
        let key = key();
        region.transaction(|tx| map.remove(tx, &key))?;
        region.transaction(|tx| map.insert(tx, &key, &[9; 90]).map(drop))
    })?;
    let begin = Instant::now();
    region.recover()?;
    println!("taking it over: {} us, if nothing is to be taken back", begin.elapsed().as_micros());
    let begin = Instant::now();
    region.check()?;
    println!("looking at all of it: {} ms", begin.elapsed().as_millis());
    Ok(())
}

/// Per piece of work in the quickest of the rounds, as other programs run, too.
fn measure(what: &str, mut work: impl FnMut() -> Result<(), StateError>) -> Result<(), StateError> {
    let mut least = u128::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..PIECES {
            work()?;
        }
        least = least.min(begin.elapsed().as_nanos() / u128::from(PIECES));
    }
    println!("{what}: {least} ns");
    Ok(())
}
