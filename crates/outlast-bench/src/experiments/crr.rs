//! Connect, 64 bytes of request, 8 KiB of response, close: what opening and closing a session costs.

use super::{Setting, claim_each, in_turns, promised, runtime};
use crate::options::{Faces, Options, PathKind, Placement};
use crate::process::Meter;
use crate::series::{Bench, CPU_EACH, Lane, MEDIAN_RATE, P50, P99};
use crate::stats::Latencies;
use crate::wire::{Endpoint, Face, Guard, Kind, Mode, asynchronous, blocking};
use anyhow::Result;
use serde_json::Value;

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
        let (window, server_pid) = (options.window(), server.pid());
        let mut measure: Box<dyn FnMut(usize) -> Result<Vec<f64>>> = match face {
            Face::Blocking => {
                let dial =
                    |(endpoint, address): &_| blocking::Dialer::new(*endpoint, *address, &setting.identity);
                let dialers = dialed.iter().map(dial).collect::<Result<Vec<_>>>()?;
                Box::new(move |lane| timed(server_pid, |into| dialers[lane].transactions(window, into)))
            }
            Face::Tokio => {
                let dial = |(endpoint, address): &_| {
                    asynchronous::Dialer::new(*endpoint, *address, &setting.identity)
                };
                let (dialers, runtime) = (dialed.iter().map(dial).collect::<Result<Vec<_>>>()?, runtime()?);
                Box::new(move |lane| {
                    timed(server_pid, |into| runtime.block_on(dialers[lane].transactions(window, into)))
                })
            }
        };
        let sessions = modes.iter().map(|mode| Lane::against(format!("session {}", mode.name()), 0));
        let lanes = [Lane::raw("raw"), Lane::again("raw again", 0)].into_iter().chain(sessions).collect();
        let metrics = [MEDIAN_RATE, P50, P99, CPU_EACH];
        let outcome = bench.series(face.name(), lanes, &metrics, |order| in_turns(order, &mut measure))?;
        claim_each(&mut bench, &outcome, 0, |lane| format!("crr/{}", promised(modes[lane - 2])));
    }
    bench.finish()
}

/// The rate at the median, the median, the worst hundredth, the processor time of both ends for each.
fn timed(server: u32, run: impl FnOnce(&mut Latencies) -> Result<()>) -> Result<Vec<f64>> {
    let mut latencies = Latencies::with_capacity(ROOM);
    let meter = Meter::start(server);
    run(&mut latencies)?;
    let cpu_us = meter.read().as_secs_f64() * 1e6 / latencies.len() as f64;
    let p50 = latencies.quantile_us(0.5);
    Ok(vec![1e6 / p50, p50, latencies.quantile_us(0.99), cpu_us])
}
