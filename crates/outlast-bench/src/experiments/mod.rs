//! The experiments, one file each.

mod clients;
mod crr;
mod idle;
mod peers;
mod replica_bulk;
mod replica_db;
mod replica_failover;
mod replica_latency;
mod restart_faults;
mod restart_latency;
mod restart_overhead;
mod restart_peers;
mod resume;
mod rr;
mod stream;

use crate::ground::Ground;
use crate::options::{Experiment, Options, PathKind, Placement};
use crate::report::Report;
use crate::series::{Bench, Outcome};
use crate::serve::Server;
use crate::wire::identity::Identity;
use crate::wire::{Endpoint, Mode};
use anyhow::{Context, Result};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// Runs an experiment, or all; the last line is one object.
pub fn run(experiment: Experiment, options: &Options) -> Result<()> {
    // Not to measure for minutes and then have nowhere to put it.
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot create {}", options.out.display()))?;
    let last = if experiment == Experiment::All {
        let mut found = Vec::new();
        for each in Experiment::EACH {
            // One that fails does not take the others' results along.
            let value = one(each, options);
            let value = value.unwrap_or_else(|error| {
                println!("!! {}: {error:#}", each.name());
                serde_json::json!({ "experiment": each.name(), "error": format!("{error:#}") })
            });
            found.push(value);
        }
        serde_json::json!({ "experiment": experiment.name(), "experiments": found })
    } else {
        one(experiment, options)?
    };
    println!("{last}");
    Ok(())
}

fn one(experiment: Experiment, options: &Options) -> Result<Value> {
    let run = match experiment {
        Experiment::SessionRr => rr::run,
        Experiment::SessionStream => stream::run,
        Experiment::SessionCrr => crr::run,
        Experiment::SessionResume => resume::run,
        Experiment::SessionIdle => idle::run,
        Experiment::SessionClients => clients::run,
        Experiment::SessionPeers => peers::run,
        Experiment::RestartOverhead => restart_overhead::run,
        Experiment::RestartFaults => restart_faults::run,
        Experiment::RestartLatency => restart_latency::run,
        Experiment::RestartPeers => restart_peers::run,
        Experiment::ReplicaLatency => replica_latency::run,
        Experiment::ReplicaBulk => replica_bulk::run,
        Experiment::ReplicaDb => replica_db::run,
        Experiment::ReplicaFailover => replica_failover::run,
        Experiment::All => unreachable!("all is not one"),
    };
    run(experiment.name(), options).with_context(|| format!("{} failed", experiment.name()))
}

/// Where an experiment takes place, with the keys of both ends.
struct Setting {
    ground: Ground,
    identity: Identity,
}

impl Setting {
    /// The setting, with the report begun. Options go before the defaults.
    fn new(
        name: &'static str,
        options: &Options,
        path: PathKind,
        placement: Placement,
    ) -> Result<(Self, Report)> {
        let ground =
            Ground::new(options, options.path.unwrap_or(path), options.placement.unwrap_or(placement))?;
        let identity = Identity::create(ground.scratch())?;
        let report = Report::new(name, options, &ground);
        Ok((Self { ground, identity }, report))
    }

    fn serve(&self, clients: &[Endpoint], workers: usize) -> Result<Server> {
        Server::start(&self.ground, clients, workers)
    }
}

/// A runtime on this thread, and therefore on its core and in its host.
fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}

/// Measures the lanes one after the other in the order given, and returns the figures in the order of the lanes.
fn in_turns(order: &[usize], mut measure: impl FnMut(usize) -> Result<Vec<f64>>) -> Result<Vec<Vec<f64>>> {
    let mut figures = vec![Vec::new(); order.len()];
    for &lane in order {
        figures[lane] = measure(lane)?;
    }
    Ok(figures)
}

/// Claims the ratio of every lane that is no second run of another. `name` gets the lane's place after the raw ones.
fn claim_each(bench: &mut Bench, outcome: &Outcome, metric: usize, mut name: impl FnMut(usize) -> String) {
    for (lane, each) in outcome.lanes.iter().enumerate() {
        if !each.again && each.against.is_some() {
            bench.report.claim_ratio(&name(lane), outcome, lane, metric);
        }
    }
}

/// The mode that a lane's name has in the names of targets: `auto` must reach what `kernel` promises.
fn promised(mode: Mode) -> &'static str {
    match mode {
        Mode::Auto => Mode::Kernel.name(),
        other => other.name(),
    }
}
