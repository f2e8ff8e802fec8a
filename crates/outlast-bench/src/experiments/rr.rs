//! 1-byte round trips: what a session adds to a message.
//!
//! All connections of a repeat are open at the same time and take turns in blocks of some milliseconds, so that
//! whatever else happens to the machine happens to all of them. Warm-up is left out at the start and of each block.

use super::{Setting, claim_each, promised, runtime};
use crate::options::{Faces, Options, PathKind, Placement};
use crate::series::{Bench, Lane, Outcome, P50, P99};
use crate::stats::Latencies;
use crate::wire::{Endpoint, Face, Guard, Kind, Mode, asynchronous, blocking};
use anyhow::Result;
use serde_json::Value;
use std::time::Duration;

/// Turns that each connection takes within a repeat.
const BLOCKS: u32 = 10;
/// Round trips before the first block.
const WARM_UP: usize = 300;
/// Round trips before each block: the other connections have used the caches.
const WARM_UP_BLOCK: usize = 20;
/// Most round trips of a connection in a repeat that there is room for from the start.
const ROOM: usize = 200_000;

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Same)?;
    let (faces, modes) = (options.faces(Faces::Both), options.modes(&[Mode::Kernel, Mode::Inband]));
    let kinds = kinds(&modes);
    let endpoints: Vec<Endpoint> =
        faces.iter().flat_map(|face| kinds.iter().map(|kind| Endpoint::new(*face, *kind))).collect();
    let server = setting.serve(&endpoints, 1)?;
    let mut bench = Bench::new(options, report, faces.len(), &[server.pid()]);
    for &face in faces {
        let addresses: Vec<_> = kinds
            .iter()
            .map(|kind| {
                let endpoint = Endpoint::new(face, *kind);
                Ok((endpoint, server.address(endpoint)?))
            })
            .collect::<Result<_>>()?;
        let outcome = match face {
            Face::Blocking => {
                let dial =
                    |(endpoint, address): &_| blocking::Dialer::new(*endpoint, *address, &setting.identity);
                with_threads(&mut bench, &modes, &addresses.iter().map(dial).collect::<Result<Vec<_>>>()?)?
            }
            Face::Tokio => {
                let dial = |(endpoint, address): &_| {
                    asynchronous::Dialer::new(*endpoint, *address, &setting.identity)
                };
                with_tokio(&mut bench, &modes, &addresses.iter().map(dial).collect::<Result<Vec<_>>>()?)?
            }
        };
        claim_each(&mut bench, &outcome, 0, |lane| {
            format!("rr/{}/{}", face.name(), promised(modes[lane - 2]))
        });
    }
    bench.finish()
}

fn kinds(modes: &[Mode]) -> Vec<Kind> {
    let sessions = modes.iter().map(|mode| Kind::Session(*mode, Guard::Open));
    [Kind::Raw, Kind::Raw].into_iter().chain(sessions).collect()
}

fn lanes(modes: &[Mode]) -> Vec<Lane> {
    let sessions = modes.iter().map(|mode| Lane::against(format!("session {}", mode.name()), 0));
    [Lane::raw("raw"), Lane::again("raw again", 0)].into_iter().chain(sessions).collect()
}

fn figures(latencies: &mut [Latencies]) -> Vec<Vec<f64>> {
    latencies.iter_mut().map(|each| vec![each.quantile_us(0.5), each.quantile_us(0.99)]).collect()
}

fn block(options: &Options) -> Duration {
    options.window() / BLOCKS
}

fn with_threads(bench: &mut Bench, modes: &[Mode], dialers: &[blocking::Dialer]) -> Result<Outcome> {
    let block = block(bench.options);
    bench.series("blocking", lanes(modes), &[P50, P99], |order| {
        let mut links = dialers.iter().map(blocking::Dialer::dial).collect::<Result<Vec<_>>>()?;
        links.iter_mut().try_for_each(|link| link.warm_up(WARM_UP))?;
        let mut latencies = vec![Latencies::with_capacity(ROOM); links.len()];
        for _ in 0..BLOCKS {
            for &lane in order {
                links[lane].warm_up(WARM_UP_BLOCK)?;
                links[lane].round_trips(block, &mut latencies[lane])?;
            }
        }
        Ok(figures(&mut latencies))
    })
}

fn with_tokio(bench: &mut Bench, modes: &[Mode], dialers: &[asynchronous::Dialer]) -> Result<Outcome> {
    let block = block(bench.options);
    let runtime = runtime()?;
    bench.series("tokio", lanes(modes), &[P50, P99], |order| {
        runtime.block_on(async {
            let mut streams = Vec::new();
            for dialer in dialers {
                let mut stream = dialer.dial().await?;
                stream.warm_up(WARM_UP).await?;
                streams.push(stream);
            }
            let mut latencies = vec![Latencies::with_capacity(ROOM); streams.len()];
            for _ in 0..BLOCKS {
                for &lane in order {
                    streams[lane].warm_up(WARM_UP_BLOCK).await?;
                    streams[lane].round_trips(block, &mut latencies[lane]).await?;
                }
            }
            Ok(figures(&mut latencies))
        })
    })
}
