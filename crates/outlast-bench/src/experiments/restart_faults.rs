//! What crashes cost: Figure 17 of Chang, Tsai, Li, Lee (2006).
//!
//! The same load on the same server, undisturbed, with one crash, and with one every second. No request may fail, and no
//! byte be wrong. A client's pause is the longest time between two of its answers from a crash to the next; without crashes,
//! in stretches that are as long.

use super::{Setting, in_turns};
use crate::options::{Options, PathKind, Placement};
use crate::restart::answer::{Exchange, pattern};
use crate::restart::load::{Fleet, Seen};
use crate::restart::service::{FILE_BYTES, Programs, Service};
use crate::series::{Bench, Better, Lane, Metric, RATE};
use anyhow::Result;
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(5);
/// Between two crashes.
const EVERY: Duration = Duration::from_secs(1);

pub const FAILED: Metric = Metric { name: "failed", unit: "requests", better: Better::Lower };
pub const WRONG: Metric = Metric { name: "wrong", unit: "answers", better: Better::Lower };
pub const PAUSE_P50: Metric = Metric { name: "pause p50", unit: "us", better: Better::Lower };
pub const PAUSE_P99: Metric = Metric { name: "pause p99", unit: "us", better: Better::Lower };
pub const PAUSE_MAX: Metric = Metric { name: "longest pause", unit: "us", better: Better::Lower };

/// When who serves is killed, and how.
struct Crashes {
    name: &'static str,
    signal: Option<Signal>,
    once: bool,
}

const fn crashes(name: &'static str, signal: Option<Signal>, once: bool) -> Crashes {
    Crashes { name, signal, once }
}

const LANES: [Crashes; 6] = [
    crashes("no crash", None, false),
    crashes("no crash again", None, false),
    crashes("SIGKILL each second", Some(Signal::KILL), false),
    crashes("SIGSEGV each second", Some(Signal::SEGV), false),
    // In a second there is no difference to those above.
    crashes("SIGABRT each second", Some(Signal::ABORT), false),
    crashes("SIGKILL once", Some(Signal::KILL), true),
];
const LANES_QUICK: usize = 4;

impl Crashes {
    /// Also without a crash, for what is a pause then.
    fn times(&self, window: Duration) -> Vec<Duration> {
        let all = std::iter::successors(Some(window.min(EVERY) / 4), |at| Some(*at + EVERY));
        let most = if self.once { 1 } else { usize::MAX };
        all.take_while(|at| *at < window).take(most).collect()
    }
}

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let started = Instant::now();
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Cross)?;
    let programs = Programs::build(setting.ground.scratch())?;
    let plan: &[(usize, usize)] = options.pick(
        &[(FILE_BYTES[1], 4)],
        &[(FILE_BYTES[1], 100)],
        &[
            (FILE_BYTES[0], 100),
            (FILE_BYTES[1], 10),
            (FILE_BYTES[1], 1000),
            (FILE_BYTES[2], 100),
            (FILE_BYTES[3], 10),
        ],
    );
    let window = options.pick(Duration::from_millis(100), EVERY, 5 * EVERY);
    let all = &LANES[..options.pick(LANES.len(), LANES_QUICK, LANES.len())];
    let mut bench = Bench::new(options, report, plan.len(), &[]);
    bench.count_family();
    crate::place::raise_descriptor_limit(crate::serve::DESCRIPTORS)?;
    let service = Service::httpd(&setting.ground, &programs, true)?;
    bench.set_repeats(options.repeats.map_or_else(|| options.pick(None, Some(3), None), |_| None));
    bench.spend(started.elapsed());
    for &(bytes, clients) in plan {
        let exchange = Exchange::get(&format!("/{bytes}"), Some(pattern(bytes).into()));
        let mut fleet = Fleet::connect(service.address(), clients, exchange, PATIENCE)?;
        let lanes = all.iter().enumerate().map(|(index, lane)| match index {
            0 => Lane::raw(lane.name),
            1 => Lane::again(lane.name, 0),
            _ => Lane::against(lane.name, 0),
        });
        let metrics = [RATE, FAILED, WRONG, PAUSE_P50, PAUSE_P99, PAUSE_MAX];
        let outcome =
            bench.series(&format!("{bytes} B, {clients} clients"), lanes.collect(), &metrics, |order| {
                in_turns(order, |lane| {
                    service.wait_standby()?;
                    let crash = || all[lane].signal.map_or(Ok(()), |signal| service.crash(signal));
                    let mut seen = fleet.run(window, &all[lane].times(window), crash)?;
                    Ok(figures(&mut seen))
                })
            })?;
        for (lane, crashes) in all.iter().enumerate().skip(2) {
            let name =
                if crashes.once { "restart/faults/throughput-once" } else { "restart/faults/throughput" };
            bench.report.claim_ratio_to_both(name, &outcome, lane, 0);
            bench.report.claim_value("restart/faults/failed", &outcome, lane, 1);
            bench.report.claim_value("restart/faults/wrong", &outcome, lane, 2);
            bench.report.claim_value("restart/faults/longest-pause", &outcome, lane, 5);
        }
    }
    bench.finish()
}

/// In the order of the metrics.
pub fn figures(seen: &mut Seen) -> Vec<f64> {
    let pauses = &mut seen.pauses;
    let pauses = [0.5, 0.99, 1.0].map(|part| pauses.quantile_us(part));
    [&[seen.rate(), seen.failed as f64, seen.wrong as f64], pauses.as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_are_a_second_apart() {
        let count = |lane: usize, seconds| LANES[lane].times(Duration::from_secs(seconds)).len();
        assert_eq!((count(0, 5), count(2, 1), count(2, 5), count(5, 5)), (5, 1, 5, 1));
    }
}
