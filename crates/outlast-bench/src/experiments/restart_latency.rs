//! How long a crash takes: Table I of Chang, Tsai, Li, Lee (2006), who needed 208 us.
//!
//! A client asks the server to die. The server writes down when it does, and the next generation, which is given the same
//! request again, answers with that and with the time at which it began. It has all descriptors by then. The client adds
//! when the first byte of that answer came: the server has looked for its connections by then, has asked the kernel how
//! far each of them was, and has dealt with the request.

use super::{Setting, in_turns};
use crate::ground::Ground;
use crate::options::{Death, Options, PathKind, Placement};
use crate::restart::answer::{Exchange, pattern};
use crate::restart::load::{Fleet, Single};
use crate::restart::service::Service;
use crate::series::{Bench, Better, Lane, Metric};
use crate::stats::Latencies;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

const METRICS: [Metric; 4] = [
    Metric { name: "descriptors p50", unit: "us", better: Better::Lower },
    Metric { name: "descriptors p99", unit: "us", better: Better::Lower },
    Metric { name: "first byte p50", unit: "us", better: Better::Lower },
    Metric { name: "first byte p99", unit: "us", better: Better::Lower },
];

const LANES: [(&str, Death); 5] = [
    ("fault", Death::Fault),
    ("fault again", Death::Fault),
    ("SIGKILL", Death::Kill),
    ("abort", Death::Abort),
    ("exit", Death::Exit),
];

/// One line of the table.
#[derive(Clone, Copy)]
struct Case {
    connections: usize,
    resident_mib: usize,
    /// On one core with the client, or where the scheduler wants it.
    pinned: bool,
    core_dumps: bool,
    lanes: usize,
    /// In each repeat, of each lane.
    deaths: usize,
    repeats: Option<usize>,
}

const PLAIN: Case = Case {
    connections: 1,
    resident_mib: 8,
    pinned: true,
    core_dumps: false,
    lanes: LANES.len(),
    deaths: 100,
    repeats: None,
};

impl Case {
    fn name(&self) -> String {
        let place = if self.pinned { "pinned" } else { "as scheduled" };
        let dumps = if self.core_dumps { ", core dumps" } else { "" };
        format!("{} connections, {} MiB, {place}{dumps}", self.connections, self.resident_mib)
    }
}

fn cases(options: &Options) -> Vec<Case> {
    let quick = |case: Case| Case { deaths: 20, lanes: 3, ..case };
    let smoke = Case { deaths: 3, resident_mib: 1, ..PLAIN };
    options.pick(
        vec![smoke, Case { core_dumps: true, lanes: 2, deaths: 1, ..smoke }],
        vec![
            Case { deaths: 30, lanes: 4, ..PLAIN },
            quick(Case { pinned: false, ..PLAIN }),
            quick(Case { core_dumps: true, ..PLAIN }),
            Case { deaths: 4, repeats: Some(1), lanes: 3, resident_mib: 1024, ..PLAIN },
            Case { deaths: 2, repeats: Some(1), lanes: 3, connections: 10_000, ..PLAIN },
        ],
        [1, 8, 64, 256, 1024]
            .map(|resident_mib| Case {
                resident_mib,
                deaths: if resident_mib > 100 { 10 } else { 100 },
                ..PLAIN
            })
            .into_iter()
            .chain([8, 1024].map(|mib| Case { pinned: false, resident_mib: mib, deaths: 20, ..PLAIN }))
            .chain([100, 1000, 10_000].map(|connections| Case { connections, deaths: 20, ..PLAIN }))
            .chain([8, 64].map(|mib| Case { core_dumps: true, resident_mib: mib, deaths: 20, ..PLAIN }))
            .collect(),
    )
}

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Same)?;
    let cases = cases(options);
    let mut bench = Bench::new(options, report, cases.len(), &[]);
    bench.count_family();
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with(['|', '@']) {
        bench.report.warn(format!("dumps go to a program, also where they are off: {}", pattern.trim()));
    }
    crate::place::raise_descriptor_limit(crate::serve::DESCRIPTORS)?;
    let mut count = 0;
    for case in &cases {
        let mut server = Mortal::start(&setting.ground, case)?;
        let lanes = LANES[..case.lanes].iter().enumerate().map(|(index, (name, _))| match index {
            0 => Lane::raw(*name),
            1 => Lane::again(*name, 0),
            _ => Lane::against(*name, 0),
        });
        let started = Instant::now();
        bench.set_repeats(case.repeats);
        let outcome = bench.series(&case.name(), lanes.collect(), &METRICS, |order| {
            in_turns(order, |lane| server.die_often(LANES[lane].1, case.deaths, &mut count))
        })?;
        if case.repeats.is_some() {
            bench.spend(started.elapsed());
        }
        claim(&mut bench, &outcome, case);
    }
    bench.finish()
}

/// Targets are for cases that are named in them; the others are for information.
fn claim(bench: &mut Bench, outcome: &crate::series::Outcome, case: &Case) {
    for (lane, (_, death)) in LANES.iter().enumerate().take(case.lanes) {
        let is_plain = case.pinned && case.connections == 1 && !case.core_dumps && case.resident_mib == 8;
        // One that exits is waited for by its parent: nobody else may decide that it was no end in order.
        let has_targets = *death != Death::Exit && !outcome.lanes[lane].again;
        let names: &[(&str, usize)] = match case {
            _ if !has_targets => &[],
            _ if is_plain => &[
                ("restart/latency/descriptors-p50", 0),
                ("restart/latency/descriptors-p99", 1),
                ("restart/latency/answer-p50", 2),
            ],
            Case { core_dumps: true, .. } if *death != Death::Kill => {
                &[("restart/latency/descriptors-core-dumps-p50", 0)]
            }
            Case { resident_mib: 1024, pinned: true, .. } => &[("restart/latency/descriptors-1-gib-p50", 0)],
            _ => &[("restart/latency/other-descriptors-p50", 0), ("restart/latency/other-answer-p50", 2)],
        };
        for (name, metric) in names {
            bench.report.claim_value(name, outcome, lane, *metric);
        }
    }
}

/// A server that dies when it is asked to, with connections that do nothing.
struct Mortal<'a> {
    service: Service,
    ground: &'a Ground,
    resident_mib: usize,
    client: Single,
    _idle: Fleet,
}

impl<'a> Mortal<'a> {
    fn start(ground: &'a Ground, case: &Case) -> Result<Self> {
        let everywhere = ground.home();
        let cores = (!case.pinned).then_some(everywhere);
        let dumps: &[&str] = if case.core_dumps { &["--core-dumps"] } else { &[] };
        let service = Service::own(ground, cores, &[&["--registered"], dumps].concat())?;
        let exchange = Exchange::get("/bytes/64", Some(pattern(64).into()));
        let mut idle = Fleet::connect(service.address(), case.connections - 1, exchange, PATIENCE)?;
        idle.run(Duration::ZERO, &[], || Ok(()))?;
        let client = Single::connect(service.address())?;
        Ok(Self { service, ground, resident_mib: case.resident_mib, client, _idle: idle })
    }

    /// The percentiles of so many deaths. Each has a number of its own.
    fn die_often(&mut self, how: Death, deaths: usize, count: &mut u64) -> Result<Vec<f64>> {
        let (mut descriptors, mut first_byte) = (Latencies::default(), Latencies::default());
        for _ in 0..deaths {
            self.client.ask(&format!("/fill/{}", self.resident_mib))?;
            self.service.wait_standby()?;
            *count += 1;
            let (body, answered_ns) = self.client.ask(&format!("/die/{}/{count}", how.name()))?;
            let text = String::from_utf8_lossy(&body);
            let words = text.split_once(' ').context("the server does not say when it died")?;
            let (fault_ns, first_ns): (u64, u64) = (words.0.parse()?, words.1.parse()?);
            descriptors.push(Duration::from_nanos(first_ns.saturating_sub(fault_ns)));
            first_byte.push(Duration::from_nanos(answered_ns.saturating_sub(fault_ns)));
            self.remove_dumps();
        }
        Ok([&mut descriptors, &mut first_byte]
            .into_iter()
            .flat_map(|all| [all.quantile_us(0.5), all.quantile_us(0.99)])
            .collect())
    }

    /// Of those before this death: its own may still be written.
    fn remove_dumps(&self) {
        for entry in std::fs::read_dir(self.ground.scratch()).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("core") {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
