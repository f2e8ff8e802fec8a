//! A server that counts, and that nobody sees crash: `add NAME` adds one to what NAME has, and says how much that is. No
//! client is counted twice, or not at all. `crash` crashes the first generation in the middle of a change, with half a
//! gigabyte that a dump takes its time for. A second argument is a command that it starts to help it.
//!
//! `cargo run --example tally -- 127.0.0.1:7` and `nc 127.0.0.1 7`.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::policy::Policy;
use outlast_restart::state::{Map, Options, Region, StateError, Transaction, bytemuck, field};
use outlast_restart::{Connection, Generation};
use std::sync::Arc;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(C)]
struct Root {
    /// By which the library knows which requests were dealt with.
    served: u64,
    counts: Map,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = outlast_restart::listen(address)?;
    println!("listening on {}", listener.local_addr()?);
    if let Some(helper) = std::env::args().nth(2) {
        std::process::Command::new("sh").args(["-c", &helper]).spawn()?;
    }
    let region = Arc::new(Region::anonymous("tally", &Options { layout: "tally", ..Options::default() })?);
    // For an example that is there to be crashed.
    let policy = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let mut generation = outlast_restart::register_with(policy)?;
    prepare(&generation, &region)?;
    let number = generation.number();
    println!("generation {number} {}", std::process::id());
    for client in generation.incoming(&listener)? {
        let (client, region, is_first) = (client?, Arc::clone(&region), number == 1);
        std::thread::spawn(move || serve(client, &region, is_first).map_err(|error| error.to_string()));
    }
    Ok(())
}

/// What every generation begins with.
fn prepare(generation: &Generation, region: &Arc<Region>) -> Result<(), StateError> {
    let root = region.root::<Root>()?;
    generation.attach(Arc::clone(region), field!(root, Root, served)?)?;
    let counts = field!(root, Root, counts)?;
    region.transaction(|tx| {
        if tx.get(counts)?.is_none() {
            let map = Map::create(tx)?;
            tx.set(counts, map)?;
        }
        Ok(())
    })
}

fn serve(mut client: Connection, region: &Region, is_first: bool) -> Result<(), Failure> {
    let root = region.root::<Root>()?;
    let counts = field!(root, Root, counts)?;
    // The answers of the last generation come first.
    client.flush()?;
    loop {
        while let Some(length) = client.input().iter().position(|&byte| byte == b'\n') {
            let line = client.input()[..length].to_vec();
            client.transact(length + 1, |tx| {
                if line == b"crash" && is_first {
                    crash();
                }
                answer(tx, tx.get(counts)?, &line)
            })?;
        }
        if client.receive()? == 0 {
            return Ok(());
        }
    }
}

fn answer(tx: &mut Transaction<'_>, counts: Map, line: &[u8]) -> Result<Vec<u8>, Failure> {
    let Some(name) = line.strip_prefix(b"add ") else { return Ok(b"say: add NAME\n".to_vec()) };
    let before = counts.get(tx, name)?.map_or(Ok(0), |count| count.try_into().map(u64::from_ne_bytes))?;
    counts.insert(tx, name, &(before + 1).to_ne_bytes())?;
    Ok(format!("{}\n", before + 1).into_bytes())
}

fn crash() {
    let much = std::hint::black_box(vec![1u8; 512 << 20]);
    let nowhere = std::hint::black_box(std::ptr::null_mut::<u8>());
    // SAFETY: none. That is what it is for.
    unsafe { nowhere.write_volatile(much.len().to_le_bytes()[0]) };
    drop(much);
}
