//! What sessions cost that do nothing, and what calm clients cost the server.
//!
//! 10,000 connections are opened by a process of its own to a server in a process of its own; each goes round once
//! and then does nothing. Memory is the growth of resident memory for each connection, as an absolute number: it
//! includes what the server's own task needs. It hardly varies, so a quick run measures it once.
//!
//! The second part is Figure 11 of the session patterns of 2014: the server's processor time and memory with 1 to
//! 100 clients that send 100 requests a second each.

use super::{Setting, in_turns, runtime};
use crate::loads::{self, Pace, Work};
use crate::options::{Options, PathKind, Placement};
use crate::process::{self, Usage};
use crate::series::{Bench, Better, Lane, Metric, P50, P99};
use crate::serve::Server;
use crate::serve::hold::Holder;
use crate::wire::asynchronous::{Dialer, Stream};
use crate::wire::{Endpoint, Face, Guard, Kind, Mode};
use anyhow::Result;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const SERVER_MEMORY: Metric = Metric { name: "server memory each", unit: "B", better: Better::Lower };
const CLIENT_MEMORY: Metric = Metric { name: "client memory each", unit: "B", better: Better::Lower };
const SERVER_THREADS: Metric = Metric { name: "server threads", unit: "threads", better: Better::Lower };
const CLIENT_THREADS: Metric = Metric { name: "client threads", unit: "threads", better: Better::Lower };
const SERVER_WAKEUPS: Metric = Metric { name: "server wake-ups each", unit: "1/s", better: Better::Lower };
const CLIENT_WAKEUPS: Metric = Metric { name: "client wake-ups each", unit: "1/s", better: Better::Lower };
const SERVER_CPU: Metric = Metric { name: "server cpu", unit: "% of a core", better: Better::Lower };
const SERVER_RSS: Metric = Metric { name: "server memory", unit: "KiB", better: Better::Lower };

/// Requests per second of a calm client.
const REQUESTS_PER_SECOND: u32 = 100;

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Cross)?;
    let modes = options.modes(&[Mode::Kernel]);
    let sessions = modes.iter().map(|mode| Kind::Session(*mode, Guard::Open));
    let kinds: Vec<Kind> = [Kind::Raw, Kind::Raw].into_iter().chain(sessions).collect();
    let clients: &[usize] = options.pick(&[2], &[10, 100], &[1, 5, 10, 25, 50, 100]);
    let mut bench = Bench::new(options, report, 1 + clients.len(), &[]);
    idle(&mut bench, &setting, &kinds, options)?;
    calm(&mut bench, &setting, &kinds, clients, options)?;
    bench.finish()
}

fn lanes(kinds: &[Kind]) -> Vec<Lane> {
    let lane = |(index, kind): (usize, &Kind)| match index {
        0 => Lane::raw("raw"),
        1 => Lane::again("raw again", 0),
        _ => Lane::against(kind.to_string().replace('-', " "), 0),
    };
    kinds.iter().enumerate().map(lane).collect()
}

fn idle(bench: &mut Bench, setting: &Setting, kinds: &[Kind], options: &Options) -> Result<()> {
    let (count, watch) = options.pick(
        (50, Duration::from_millis(20)),
        (10_000, Duration::from_millis(1500)),
        (10_000, Duration::from_secs(5)),
    );
    let metrics =
        [SERVER_MEMORY, CLIENT_MEMORY, SERVER_THREADS, CLIENT_THREADS, SERVER_WAKEUPS, CLIENT_WAKEUPS];
    bench.set_repeats(Some(options.pick(1, 1, 3)));
    let outcome = bench.series(&format!("{count} idle"), lanes(kinds), &metrics, |order| {
        in_turns(order, |lane| hold(setting, Endpoint::new(Face::Tokio, kinds[lane]), count, watch))
    })?;
    bench.set_repeats(None);
    for lane in 2..kinds.len() {
        for (metric, name) in
            ["memory", "memory", "threads", "threads", "wakeups", "wakeups"].iter().enumerate()
        {
            bench.report.claim_value(&format!("idle/{name}"), &outcome, lane, metric);
        }
    }
    Ok(())
}

/// Holds connections of one kind and says what they cost, in the order of the metrics.
fn hold(setting: &Setting, endpoint: Endpoint, count: usize, watch: Duration) -> Result<Vec<f64>> {
    let server = setting.serve(&[endpoint], 2)?;
    let mut holder = Holder::start(&setting.ground, endpoint, server.address(endpoint)?, count)?;
    let both = || Ok::<_, anyhow::Error>([process::usage(server.pid())?, process::usage(holder.pid())?]);
    let before = both()?;
    holder.open()?;
    // What opening leaves to be done (timers, buffers that are given back) is not idling.
    std::thread::sleep(watch / 4);
    let both = || Ok::<_, anyhow::Error>([process::usage(server.pid())?, process::usage(holder.pid())?]);
    let open = both()?;
    let start = Instant::now();
    std::thread::sleep(watch);
    let (later, time) = (both()?, start.elapsed());
    let each = count as f64;
    let grown = |end: usize| open[end].rss_bytes.saturating_sub(before[end].rss_bytes) as f64 / each;
    let threads = |end: usize| open[end].threads as f64;
    let woken = |end: usize| {
        let wakeups = later[end].voluntary_switches.saturating_sub(open[end].voluntary_switches);
        wakeups as f64 / each / time.as_secs_f64()
    };
    Ok(vec![grown(0), grown(1), threads(0), threads(1), woken(0), woken(1)])
}

/// A server of its own for each lane, and clients that call it.
struct Calm {
    server: Server,
    dialer: Dialer,
    streams: Vec<Stream>,
}

fn calm(
    bench: &mut Bench,
    setting: &Setting,
    kinds: &[Kind],
    clients: &[usize],
    options: &Options,
) -> Result<()> {
    let runtime = runtime()?;
    let start = |kind: &Kind| {
        let endpoint = Endpoint::new(Face::Tokio, *kind);
        let server = setting.serve(&[endpoint], 2)?;
        let dialer = Dialer::new(endpoint, server.address(endpoint)?, &setting.identity)?;
        Ok(Calm { server, dialer, streams: Vec::new() })
    };
    let mut lines = kinds.iter().map(start).collect::<Result<Vec<_>>>()?;
    bench.set_helpers(&lines.iter().map(|line| line.server.pid()).collect::<Vec<_>>());
    let window = Duration::from_millis(options.pick(20, 400, 1000));
    for &count in clients {
        for line in &mut lines {
            line.connect(&runtime, count)?;
        }
        let group = format!("{count} clients, {REQUESTS_PER_SECOND} requests/s each");
        let outcome = bench.series(&group, lanes(kinds), &[SERVER_CPU, SERVER_RSS, P50, P99], |order| {
            in_turns(order, |lane| lines[lane].call(&runtime, window))
        })?;
        for lane in 2..kinds.len() {
            bench.report.claim_ratio("idle/server-cpu", &outcome, lane, 0);
            bench.report.claim_ratio("idle/server-memory", &outcome, lane, 1);
        }
    }
    // Streams of a runtime go while it is entered.
    let inside = runtime.enter();
    drop(lines);
    drop(inside);
    Ok(())
}

impl Calm {
    fn connect(&mut self, runtime: &Runtime, count: usize) -> Result<()> {
        runtime.block_on(async {
            while self.streams.len() < count {
                self.streams.push(self.dialer.dial().await?);
            }
            Ok(())
        })
    }

    fn call(&mut self, runtime: &Runtime, window: Duration) -> Result<Vec<f64>> {
        let pace = Pace::Every(Duration::from_secs(1) / REQUESTS_PER_SECOND);
        let (before, start) = (process::cpu_time(self.server.pid()), Instant::now());
        let mut seen = runtime.block_on(loads::run(&mut self.streams, Work::None, pace, window))?;
        let (cpu, time) = (process::cpu_time(self.server.pid()).saturating_sub(before), start.elapsed());
        let Usage { rss_bytes, .. } = process::usage(self.server.pid())?;
        let share = 100.0 * cpu.as_secs_f64() / time.as_secs_f64();
        let latencies = &mut seen.latencies;
        Ok(vec![share, rss_bytes as f64 / 1024.0, latencies.quantile_us(0.5), latencies.quantile_us(0.99)])
    }
}
