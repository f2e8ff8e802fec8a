//! Connect, 64 bytes of request, 8 KiB of response, close: what opening and closing a session costs.

use super::{Setting, claim_each, in_turns, promised, runtime};
use crate::options::{Faces, Options, PathKind, Placement};
use crate::series::{Bench, Lane, MEDIAN_RATE, P50, P99, RATE};
use crate::stats::Latencies;
use crate::wire::{Endpoint, Face, Guard, Kind, Mode, asynchronous, blocking};
use anyhow::Result;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Most transactions in a window that there is room for from the start.
const ROOM: usize = 20_000;

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Same)?;
    let (faces, modes) = (options.faces(Faces::Both), options.modes(&[Mode::Kernel]));
    let sessions = modes.iter().map(|mode| Kind::Session(*mode, Guard::Open));
    let kinds: Vec<Kind> = [Kind::Raw, Kind::Raw].into_iter().chain(sessions).collect();
    let endpoints: Vec<Endpoint> =
        faces.iter().flat_map(|face| kinds.iter().map(|kind| Endpoint::new(*face, *kind))).collect();
    let server = setting.serve(&endpoints, 1)?;
    let mut bench = Bench::new(options, report, faces.len(), &[server.pid()]);
    for &face in faces {
        let endpoints = kinds.iter().map(|kind| Endpoint::new(face, *kind));
        let dialed = endpoints
            .map(|endpoint| Ok((endpoint, server.address(endpoint)?)))
            .collect::<Result<Vec<_>>>()?;
        let window = options.window();
        let mut measure: Box<dyn FnMut(usize) -> Result<Vec<f64>>> = match face {
            Face::Blocking => {
                let dial =
                    |(endpoint, address): &_| blocking::Dialer::new(*endpoint, *address, &setting.identity);
                let dialers = dialed.iter().map(dial).collect::<Result<Vec<_>>>()?;
                Box::new(move |lane| timed(|into| dialers[lane].transactions(window, into)))
            }
            Face::Tokio => {
                let dial = |(endpoint, address): &_| {
                    asynchronous::Dialer::new(*endpoint, *address, &setting.identity)
                };
                let (dialers, runtime) = (dialed.iter().map(dial).collect::<Result<Vec<_>>>()?, runtime()?);
                Box::new(move |lane| timed(|into| runtime.block_on(dialers[lane].transactions(window, into))))
            }
        };
        let sessions = modes.iter().map(|mode| Lane::against(format!("session {}", mode.name()), 0));
        let lanes = [Lane::raw("raw"), Lane::again("raw again", 0)].into_iter().chain(sessions).collect();
        let metrics = [MEDIAN_RATE, P50, P99, RATE];
        let outcome = bench.series(face.name(), lanes, &metrics, |order| in_turns(order, &mut measure))?;
        claim_each(&mut bench, &outcome, 0, |lane| format!("crr/{}", promised(modes[lane - 2])));
    }
    bench.finish()
}

/// The rate at the median, the median, the worst hundredth, the rate.
pub fn timed(run: impl FnOnce(&mut Latencies) -> Result<()>) -> Result<Vec<f64>> {
    let mut latencies = Latencies::with_capacity(ROOM);
    let start = Instant::now();
    run(&mut latencies)?;
    Ok(figures(&mut latencies, start.elapsed()))
}

fn figures(latencies: &mut Latencies, time: Duration) -> Vec<f64> {
    let p50 = latencies.quantile_us(0.5);
    vec![1e6 / p50, p50, latencies.quantile_us(0.99), latencies.len() as f64 / time.as_secs_f64()]
}
