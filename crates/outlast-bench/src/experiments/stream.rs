//! Bulk data in writes of one size, for some time, until the peer has read it all.
//!
//! There are two baselines: raw TCP as it comes, and raw TCP with a bounded send buffer. Reserving room and filling
//! it in place saves the copy into the retained bytes; as raw TCP sends one buffer over and over, neither side
//! makes up new data for each write.

use super::{Setting, promised, runtime};
use crate::options::{Faces, Options, PathKind, Placement};
use crate::process::Meter;
use crate::series::{Bench, Lane, Outcome, PER_CPU, THROUGHPUT};
use crate::wire::blocking::Flood;
use crate::wire::{Endpoint, Face, Guard, Kind, Mode, asynchronous, blocking};
use anyhow::Result;
use serde_json::Value;
use std::time::Duration;

const SIZES: [usize; 6] = [1, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20];
/// Filling in place is for writes from this size on; smaller ones are joined by copying.
const IN_PLACE_BYTES_MIN: usize = 8 << 10;
/// Turns that each variant takes within a repeat, each with a new connection. How the scheduler lets the two ends
/// take turns with small writes is chance, and differs between connections by a factor of 3.
const TURNS: u32 = 4;
/// The lane of raw TCP with a bounded send buffer.
const BOUNDED: usize = 2;

/// One variant.
#[derive(Clone, Copy)]
struct Way {
    kind: Kind,
    mode: Option<Mode>,
    in_place: bool,
}

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Same)?;
    let default = if options.quick && !options.smoke { Faces::Blocking } else { Faces::Both };
    let (faces, modes) = (options.faces(default), options.modes(&[Mode::Kernel]));
    let endpoints: Vec<Endpoint> = faces
        .iter()
        .flat_map(|face| ways(&modes, usize::MAX).into_iter().map(|way| Endpoint::new(*face, way.kind)))
        .collect();
    let server = setting.serve(&endpoints, 1)?;
    let sizes = options.sizes(&SIZES);
    let series = faces.len() * sizes.len();
    let mut bench = Bench::new(options, report, series, &[server.pid()]);
    let window = options.window() / TURNS;
    for &face in faces {
        for &size in &sizes {
            let ways = ways(&modes, size);
            let measure: Box<dyn FnMut(usize) -> Result<Flood>> = match face {
                Face::Blocking => {
                    let dial = |way: &Way| {
                        let endpoint = Endpoint::new(face, way.kind);
                        blocking::Dialer::new(endpoint, server.address(endpoint)?, &setting.identity)
                    };
                    let dialers = ways.iter().map(dial).collect::<Result<Vec<_>>>()?;
                    let ways = ways.clone();
                    Box::new(move |lane| {
                        Ok(dialers[lane].dial()?.flood(size, window, ways[lane].in_place)?)
                    })
                }
                Face::Tokio => {
                    let dial = |way: &Way| {
                        let endpoint = Endpoint::new(face, way.kind);
                        asynchronous::Dialer::new(endpoint, server.address(endpoint)?, &setting.identity)
                    };
                    let dialers = ways.iter().map(dial).collect::<Result<Vec<_>>>()?;
                    let (ways, runtime) = (ways.clone(), runtime()?);
                    Box::new(move |lane| {
                        runtime.block_on(async {
                            let mut stream = dialers[lane].dial().await?;
                            Ok(stream.flood(size, window, ways[lane].in_place).await?)
                        })
                    })
                }
            };
            let outcome = one_size(&mut bench, (face, size), &ways, server.pid(), measure)?;
            claim(&mut bench, &outcome, size, &ways);
        }
    }
    bench.finish()
}

fn ways(modes: &[Mode], size: usize) -> Vec<Way> {
    let raw = |kind| Way { kind, mode: None, in_place: false };
    let mut ways = vec![raw(Kind::Raw), raw(Kind::Raw), raw(Kind::RawBounded)];
    for &mode in modes {
        for in_place in [false, true] {
            if !in_place || size >= IN_PLACE_BYTES_MIN {
                ways.push(Way { kind: Kind::Session(mode, Guard::Open), mode: Some(mode), in_place });
            }
        }
    }
    ways
}

fn lanes(ways: &[Way]) -> Vec<Lane> {
    let lane = |(index, way): (usize, &Way)| match (index, way.mode) {
        (0, _) => Lane::raw("raw"),
        (1, _) => Lane::again("raw again", 0),
        (_, None) => Lane::against("raw, bounded send buffer", 0),
        (_, Some(mode)) => {
            let how = if way.in_place { "reserve" } else { "write" };
            Lane::against(format!("session {} {how}", mode.name()), 0)
        }
    };
    ways.iter().enumerate().map(lane).collect()
}

fn one_size(
    bench: &mut Bench,
    (face, size): (Face, usize),
    ways: &[Way],
    server: u32,
    mut measure: impl FnMut(usize) -> Result<Flood>,
) -> Result<Outcome> {
    let group = format!("{size} B {}", face.name());
    bench.series(&group, lanes(ways), &[THROUGHPUT, PER_CPU], |order| {
        let mut found = vec![(0, Duration::ZERO, Duration::ZERO); order.len()];
        for _ in 0..TURNS {
            for &lane in order {
                let meter = Meter::start(server);
                let flood = measure(lane)?;
                let (bytes, time, cpu) = &mut found[lane];
                *bytes += flood.bytes;
                *time += flood.time;
                *cpu += meter.read();
            }
        }
        let rates = |(bytes, time, cpu): &(u64, Duration, Duration)| {
            [time, cpu].map(|per| *bytes as f64 / 1e6 / per.as_secs_f64()).to_vec()
        };
        Ok(found.iter().map(rates).collect())
    })
}

fn claim(bench: &mut Bench, outcome: &Outcome, size: usize, ways: &[Way]) {
    for (lane, way) in ways.iter().enumerate() {
        let Some(mode) = way.mode else { continue };
        let how = if way.in_place { "reserve" } else { "write" };
        let name = match promised(mode) {
            "kernel" => format!("stream/{how}/{size}"),
            other => format!("stream/{how}/{size}/{other}"),
        };
        bench.report.claim_ratio(&name, outcome, lane, 0);
        bench.report.claim_ratio(&format!("{name}/cpu"), outcome, lane, 1);
        bench.report.claim_ratio_to(&format!("{name}/bounded"), outcome, BOUNDED, lane, 0);
    }
}
