//! How long it takes from a fault until the next generation runs with all descriptors: dies so often, and prints the
//! percentiles.
//!
//! `cargo run --example latency -- 1000 64` dies 1,000 times with 64 MiB of memory in use.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::policy::Policy;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let count = numbers.next().transpose()?.unwrap_or(1000);
    let used_mib = numbers.next().transpose()?.unwrap_or(8);
    // What a generation leaves to the next one: when it died, and what was measured before.
    let (reader, writer) = std::io::pipe()?;
    let (mut left, mut leave) = (File::from(reader.as_fd().try_clone_to_owned()?), writer);
    // The same moment for all of them.
    let origin = Instant::now();
    let policy = Policy { intensity: 20, intensity_window_ms: 1, ..Policy::default() };
    let generation = outlast_restart::register_with(policy)?;
    let began = origin.elapsed();
    let mut measured_ns = Vec::new();
    if generation.number() > 1 {
        let died = Duration::from_nanos(number(&mut left)?);
        for _ in 0..number(&mut left)? {
            measured_ns.push(number(&mut left)?);
        }
        measured_ns.push(u64::try_from((began - died).as_nanos())?);
    }
    if measured_ns.len() >= count {
        measured_ns.sort_unstable();
        let at = |part: usize| measured_ns[(measured_ns.len() - 1) * part / 100] as f64 / 1000.0;
        println!(
            "{count} deaths, {used_mib} MiB: p50 {:.1} us, p90 {:.1}, p99 {:.1}",
            at(50),
            at(90),
            at(99)
        );
        return Ok(());
    }
    let memory = vec![1u8; used_mib << 20];
    // Until somebody stands by, and sleeps.
    std::thread::sleep(Duration::from_millis(3));
    std::hint::black_box(&memory);
    let mut words = vec![u64::try_from(origin.elapsed().as_nanos())?, u64::try_from(measured_ns.len())?];
    words.extend(&measured_ns);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    leave.write_all(&bytes)?;
    std::process::abort()
}

fn number(from: &mut File) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
