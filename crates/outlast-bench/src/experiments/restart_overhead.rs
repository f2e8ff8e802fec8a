//! What Outlast costs a server that does not crash: Figures 13 and 14 of Chang, Tsai, Li, Lee (2006).
//!
//! Throughput and latency are those of the example server in C, which is the same source with Outlast and without, for
//! files of several sizes and several numbers of clients that ask again at once. Each end has a core: the server's is
//! never idle, so that the ratio is that of its processor time for a request. Memory is that of all processes of a
//! service together, what they share counted once, with connections that do nothing.

use super::{Setting, in_turns};
use crate::ground::Ground;
use crate::options::{Options, PathKind, Placement};
use crate::restart::answer::{Exchange, pattern};
use crate::restart::load::{Fleet, Seen};
use crate::restart::memory;
use crate::restart::service::{FILE_BYTES, Programs, Service};
use crate::series::{Bench, Better, Lane, Metric, P50, P99, RATE};
use anyhow::Result;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns that each variant takes within a repeat.
const BLOCKS: u32 = 4;
/// A client that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// With more clients, latency is throughput turned upside down.
const LATENCY_CLIENTS_MAX: usize = 10;
/// What each connection may cost, beyond which the rest is what Outlast costs by itself.
const CONNECTION_BYTES: usize = 256;

const ANONYMOUS: Metric = Metric { name: "memory", unit: "KiB", better: Better::Lower };
const RESIDENT: Metric = Metric { name: "with files", unit: "KiB", better: Better::Lower };
const BEYOND: Metric = Metric { name: "beyond 256 B each", unit: "KiB", better: Better::Lower };
const EACH: Metric = Metric { name: "each connection", unit: "B", better: Better::Lower };

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let started = Instant::now();
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Cross)?;
    let programs = Programs::build(setting.ground.scratch())?;
    let plan: Vec<(usize, usize)> = match options.pick(0, 1, 2) {
        0 => vec![(FILE_BYTES[0], 4)],
        1 => vec![(FILE_BYTES[0], 10), (FILE_BYTES[0], 100), (FILE_BYTES[0], 1000), (FILE_BYTES[3], 10)],
        _ => FILE_BYTES
            .into_iter()
            .flat_map(|bytes| [10, 30, 100, 300, 1000].map(|clients| (bytes, clients)))
            .collect(),
    };
    let idle: &[usize] = options.pick(&[0, 20], &[0, 1000, 10_000], &[0, 100, 1000, 10_000]);
    let mut bench = Bench::new(options, report, plan.len() + 1, &[]);
    bench.count_family();
    bench.spend(started.elapsed());
    crate::place::raise_descriptor_limit(crate::serve::DESCRIPTORS)?;
    throughput(&mut bench, &setting.ground, &programs, &plan, options)?;
    idle_memory(&mut bench, &setting.ground, idle)?;
    bench.finish()
}

fn lanes() -> Vec<Lane> {
    vec![Lane::raw("without"), Lane::again("without again", 0), Lane::against("with Outlast", 0)]
}

fn throughput(
    bench: &mut Bench,
    ground: &Ground,
    programs: &Programs,
    plan: &[(usize, usize)],
    options: &Options,
) -> Result<()> {
    let services = [false, false, true].map(|outlast| Service::httpd(ground, programs, outlast));
    let services = services.into_iter().collect::<Result<Vec<_>>>()?;
    let window = Duration::from_millis(options.pick(20, 240, 800));
    for &(bytes, clients) in plan {
        let body: Arc<[u8]> = pattern(bytes).into();
        let exchange = Exchange::get(&format!("/{bytes}"), Some(body));
        let connect =
            |service: &Service| Fleet::connect(service.address(), clients, exchange.clone(), PATIENCE);
        let mut fleets = services.iter().map(connect).collect::<Result<Vec<_>>>()?;
        let group = format!("{bytes} B, {clients} clients");
        let outcome = bench.series(&group, lanes(), &[RATE, P50, P99], |order| {
            let mut found = vec![Seen::default(); order.len()];
            for _ in 0..BLOCKS {
                for &lane in order {
                    found[lane].append(&fleets[lane].run(window / BLOCKS, &[], || Ok(()))?);
                }
            }
            let flaws: u64 = found.iter().map(|seen| seen.failed + seen.wrong).sum();
            anyhow::ensure!(flaws == 0, "{flaws} requests failed or have a wrong answer, without any fault");
            let figures = |seen: &mut Seen| {
                vec![seen.rate(), seen.latencies.quantile_us(0.5), seen.latencies.quantile_us(0.99)]
            };
            Ok(found.iter_mut().map(figures).collect())
        })?;
        bench.report.claim_ratio_to_both("restart/overhead/throughput", &outcome, 2, 0);
        if clients <= LATENCY_CLIENTS_MAX {
            bench.report.claim_ratio_to_both("restart/overhead/latency", &outcome, 2, 1);
        }
    }
    Ok(())
}

/// Hardly varies: once is enough.
fn idle_memory(bench: &mut Bench, ground: &Ground, counts: &[usize]) -> Result<()> {
    bench.set_repeats(Some(1));
    let started = Instant::now();
    let mut at_none = vec![0.0; lanes().len()];
    for &count in counts {
        let metrics = [ANONYMOUS, RESIDENT, EACH, BEYOND];
        let outcome = bench.series(&format!("{count} idle"), lanes(), &metrics, |order| {
            let mut figures = in_turns(order, |lane| hold(ground, lane == 2, count))?;
            let without = figures[0][0];
            for (lane, figures) in figures.iter_mut().enumerate() {
                let memory = figures[0];
                if count == 0 {
                    at_none[lane] = memory;
                }
                let each = (memory - at_none[lane]) * 1024.0 / count.max(1) as f64;
                figures.extend([each, memory - without - (count * CONNECTION_BYTES) as f64 / 1024.0]);
            }
            Ok(figures)
        })?;
        bench.report.claim_value("restart/overhead/memory", &outcome, 2, 3);
    }
    bench.set_repeats(None);
    bench.spend(started.elapsed());
    Ok(())
}

/// The memory of a service with connections that have asked once.
fn hold(ground: &Ground, outlast: bool, count: usize) -> Result<Vec<f64>> {
    let service = Service::own(ground, None, if outlast { &["--registered"] } else { &[] })?;
    if outlast {
        service.wait_standby()?;
    }
    let exchange = Exchange::get("/bytes/64", Some(pattern(64).into()));
    let mut fleet = Fleet::connect(service.address(), count, exchange, PATIENCE)?;
    fleet.run(Duration::ZERO, &[], || Ok(()))?;
    let memory = memory::of_service(service.pid());
    Ok(vec![memory.anonymous_bytes as f64 / 1024.0, memory.resident_bytes as f64 / 1024.0])
}
