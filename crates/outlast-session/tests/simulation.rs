//! The whole protocol, both ends and the network between them, in one thread and virtual time: many thousands of
//! schedules, each drawn from a seed, of writes, reads, breaks, resumes, refusals and attacks.
//!
//! `OUTLAST_SEED=n` replays one schedule and tells what happens in it; `OUTLAST_SCHEDULES=n` sets how many there are
//! of every mode.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

mod simulation {
    pub mod attacker;
    pub mod bytes;
    pub mod client;
    pub mod endpoint;
    pub mod linking;
    pub mod oracle;
    pub mod outcome;
    pub mod plan;
    pub mod reading;
    pub mod server;
    pub mod tcp;
    pub mod udp;
    pub mod world;
    pub mod writing;
}

use simulation::endpoint::Failure;
use simulation::outcome::Outcome;
use simulation::plan::{Mistake, Mode, Plan};
use simulation::world::World;
use std::collections::BTreeMap;

const SCHEDULES: u64 = 20_000;
const MISTAKEN_SCHEDULES: u64 = 3_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// One schedule; a panic in the protocol is told with its seed.
fn run(seed: u64, mode: Mode, mistake: Mistake, trace: bool) -> (Outcome, bool) {
    let plan = Plan::new(seed, mode, mistake);
    if trace {
        println!("{plan:#?}");
    }
    let result = std::panic::catch_unwind(|| {
        let keep_ms = plan.keep_ms;
        let (outcome, restarted, hijacked) = World::new(plan, trace).run();
        let excused = match &outcome {
            Outcome::Failed(failure) => World::is_excused(failure, restarted, hijacked, keep_ms),
            Outcome::Delivered | Outcome::DeliveredUnknown => true,
            Outcome::Violated(_) => false,
        };
        (outcome, excused)
    });
    result.unwrap_or_else(|_| (Outcome::Violated("a panic".into()), false))
}

fn kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Delivered => "delivered",
        Outcome::DeliveredUnknown => "delivered, one end not told",
        Outcome::Failed(Failure::Refused(refusal)) => refusal.name(),
        Outcome::Failed(Failure::Offset(_) | Failure::Missing) => "bytes missing",
        Outcome::Failed(Failure::Expired) => "expired",
        Outcome::Failed(Failure::Protocol(_)) => "protocol",
        Outcome::Violated(_) => "VIOLATED",
    }
}

fn simulate(test: &str, mode: Mode) {
    let replayed = number("OUTLAST_SEED");
    let count = number("OUTLAST_SCHEDULES").unwrap_or(SCHEDULES);
    let seeds = replayed.map_or(0..count, |seed| seed..seed + 1);
    let mut counts = BTreeMap::new();
    for seed in seeds {
        let (outcome, excused) = run(seed, mode, Mistake::None, replayed.is_some());
        *counts.entry(kind(&outcome)).or_insert(0u64) += 1;
        assert!(
            excused,
            "{mode:?}: {outcome:?}\nto repeat: OUTLAST_SEED={seed} cargo test -p outlast-session --test simulation \
             {test} -- --nocapture"
        );
    }
    println!("{mode:?}: {counts:?}");
}

#[test]
fn kernel() {
    simulate("kernel", Mode::Kernel);
}

#[test]
fn window() {
    simulate("window", Mode::Window);
}

#[test]
fn window_discarding() {
    simulate("window_discarding", Mode::WindowDiscarding);
}

#[test]
fn udp() {
    simulate("udp", Mode::Udp);
}

#[test]
fn inband() {
    simulate("inband", Mode::Inband);
}

#[test]
fn auto() {
    simulate("auto", Mode::Auto);
}

/// What becomes of the schedules when something is deliberately wrong.
fn with_mistake(mode: Mode, mistake: Mistake) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for seed in 0..MISTAKEN_SCHEDULES {
        let (outcome, _) = run(seed, mode, mistake, false);
        *counts.entry(kind(&outcome)).or_insert(0) += 1;
        if std::env::var_os("OUTLAST_TELL").is_some() {
            if let Outcome::Violated(what) = &outcome {
                println!("{mistake:?} {seed}: {}", &what[..what.len().min(200)]);
            }
        }
    }
    println!("{mode:?}, {mistake:?}: {counts:?}");
    counts
}

#[test]
fn mistakes() {
    for (mode, mistake) in [
        (Mode::Kernel, Mistake::AckingMiddlebox),
        (Mode::Window, Mistake::AckingMiddlebox),
        (Mode::Udp, Mistake::AckingMiddlebox),
        (Mode::Inband, Mistake::AckingMiddlebox),
        (Mode::Kernel, Mistake::NoFreeze),
        (Mode::Kernel, Mistake::UnreadWelcome),
        (Mode::Kernel, Mistake::WelcomeAsPayload),
        (Mode::Kernel, Mistake::EofIsEnd),
        (Mode::Kernel, Mistake::ForgottenFin),
        (Mode::WindowDiscarding, Mistake::SmallWindow),
        (Mode::WindowDiscarding, Mistake::FinMeansRead),
        (Mode::Inband, Mistake::AckTooOld),
        (Mode::Inband, Mistake::DroppedFrames),
        (Mode::Inband, Mistake::ChangedByte),
        (Mode::Kernel, Mistake::ChangedByte),
    ] {
        with_mistake(mode, mistake);
    }
}
