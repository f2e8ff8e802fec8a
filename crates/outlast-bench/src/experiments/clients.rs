//! Many clients: Figures 9 and 10 of the session patterns of 2014.
//!
//! A server on tokio's multi-threaded runtime answers requests with 0, 1 or 2 ms of work (waiting, as for a disk, or
//! computing), on sessions and on plain TCP. *Closed* clients ask again as soon as they have the answer: that shows
//! the throughput of the server at its limit. *Paced* clients together make a fixed number of requests a second,
//! well below the limit: that shows latency. (At the limit, latency is throughput turned upside down.)

use super::{Setting, claim_each, runtime};
use crate::loads::{self, Pace, Seen, Work};
use crate::options::{Options, PathKind, Placement};
use crate::series::{Bench, Lane, P50, P99, RATE};
use crate::wire::asynchronous::{Dialer, Stream};
use crate::wire::{Endpoint, Face, Guard, Kind, Mode};
use anyhow::Result;
use serde_json::Value;
use std::time::Duration;

/// Turns that each variant takes within a repeat.
const BLOCKS: u32 = 4;
/// Threads of the server.
const WORKERS: usize = 2;
/// Requests per second of all paced clients together: a tenth of what one core can answer.
const PACED_TOTAL_PER_SECOND: u32 = 4_000;
/// Most requests per second of one paced client: timers have a resolution of a millisecond.
const PACED_EACH_PER_SECOND_MAX: u32 = 500;

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    paced: bool,
    work: Work,
}

const fn load(name: &'static str, paced: bool, work: Work) -> Load {
    Load { name, paced, work }
}

const ONE: Duration = Duration::from_millis(1);
const TWO: Duration = Duration::from_millis(2);
const LOADS: [Load; 9] = [
    load("closed Invoke1", false, Work::None),
    load("paced Invoke1", true, Work::None),
    load("paced Invoke2 (1 ms waiting)", true, Work::Sleep(ONE)),
    load("paced Invoke3 (2 ms waiting)", true, Work::Sleep(TWO)),
    load("closed Invoke2 (1 ms waiting)", false, Work::Sleep(ONE)),
    load("closed Invoke3 (2 ms waiting)", false, Work::Sleep(TWO)),
    // At a pace of thousands a second, computing for a millisecond would be more than there are cores.
    load("closed Invoke2 (1 ms computing)", false, Work::Spin(ONE)),
    load("closed Invoke3 (2 ms computing)", false, Work::Spin(TWO)),
    load("paced Invoke1 (10 us computing)", true, Work::Spin(Duration::from_micros(10))),
];
/// How many of them a quick run has time for.
const LOADS_QUICK: usize = 3;

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Cross)?;
    let modes = options.modes(&[Mode::Kernel]);
    let sessions = modes.iter().map(|mode| Kind::Session(*mode, Guard::Open));
    let kinds: Vec<Kind> = [Kind::Raw, Kind::Raw].into_iter().chain(sessions).collect();
    let endpoints: Vec<Endpoint> = kinds.iter().map(|kind| Endpoint::new(Face::Tokio, *kind)).collect();
    let clients: &[usize] = options.pick(&[1, 4], &[1, 100, 1000], &[1, 10, 100, 300, 1000]);
    let loads = &LOADS[..options.pick(LOADS_QUICK, LOADS_QUICK, LOADS.len())];
    let server = setting.serve(&endpoints, WORKERS)?;
    let series = clients.len() * loads.len();
    let mut bench = Bench::new(options, report, series, &[server.pid()]);
    crate::place::raise_descriptor_limit(crate::serve::DESCRIPTORS)?;
    let dial = |endpoint: &Endpoint| Dialer::new(*endpoint, server.address(*endpoint)?, &setting.identity);
    let dialers = endpoints.iter().map(dial).collect::<Result<Vec<_>>>()?;
    let runtime = runtime()?;
    let window = Duration::from_millis(options.pick(10, 140, 500));
    let mut groups: Vec<Vec<Stream>> = dialers.iter().map(|_| Vec::new()).collect();
    for &count in clients {
        for (dialer, streams) in dialers.iter().zip(&mut groups) {
            runtime.block_on(async {
                while streams.len() < count {
                    streams.push(dialer.dial().await?);
                }
                anyhow::Ok(())
            })?;
        }
        for load in loads {
            let lanes = modes.iter().map(|mode| Lane::against(format!("session {}", mode.name()), 0));
            let lanes = [Lane::raw("raw"), Lane::again("raw again", 0)].into_iter().chain(lanes).collect();
            let metrics = if load.paced { [P50, P99, RATE] } else { [RATE, P50, P99] };
            let outcome =
                bench.series(&format!("{count} clients, {}", load.name), lanes, &metrics, |order| {
                    let mut found = vec![Seen::default(); order.len()];
                    for _ in 0..BLOCKS {
                        for &lane in order {
                            let run =
                                loads::run(&mut groups[lane], load.work, pace(load, count), window / BLOCKS);
                            found[lane].append(&runtime.block_on(run)?);
                        }
                    }
                    Ok(found.iter_mut().map(|seen| figures(seen, load)).collect())
                })?;
            claim_each(&mut bench, &outcome, 0, |_| match (load.paced, load.work) {
                (true, _) => "clients/latency".to_owned(),
                (false, Work::None) => "clients/throughput".to_owned(),
                (false, _) => "clients/throughput-with-work".to_owned(),
            });
        }
    }
    // Streams of a runtime go while it is entered.
    let inside = runtime.enter();
    drop(groups);
    drop(inside);
    bench.finish()
}

fn figures(seen: &mut Seen, load: &Load) -> Vec<f64> {
    let (p50, p99) = (seen.latencies.quantile_us(0.5), seen.latencies.quantile_us(0.99));
    if load.paced { vec![p50, p99, seen.rate()] } else { vec![seen.rate(), p50, p99] }
}

fn pace(load: &Load, clients: usize) -> Pace {
    if !load.paced {
        return Pace::Closed;
    }
    let clients = u32::try_from(clients).unwrap_or(u32::MAX).max(1);
    let every = Duration::from_secs(1) * clients / PACED_TOTAL_PER_SECOND;
    Pace::Every(every.max(Duration::from_secs(1) / PACED_EACH_PER_SECOND_MAX))
}
