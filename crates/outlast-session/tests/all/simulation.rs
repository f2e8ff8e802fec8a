//! The whole protocol, both ends and the network between them, in one thread and virtual time: many thousands of
//! schedules, each drawn from a seed, of writes, reads, breaks, resumes, refusals and attacks.
//!
//! `OUTLAST_SCHEDULE=n` replays one schedule and tells what happens in it; `OUTLAST_SCHEDULES=n` sets how many there are
//! of every mode, `OUTLAST_SEED=n` which.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

mod attacker;
mod bytes;
mod client;
mod endpoint;
mod linking;
mod oracle;
mod outcome;
mod plan;
mod reading;
mod server;
mod tcp;
mod udp;
mod world;
mod writing;

use endpoint::Failure;
use outcome::{Outcome, Report};
use plan::{Mistake, Mode, Plan};
use std::collections::BTreeMap;
use world::World;

const SCHEDULES: u64 = 6_000;
const MISTAKEN_SCHEDULES: u64 = 3_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// One schedule; a panic in the protocol counts as what must never be.
fn run(seed: u64, mode: Mode, mistake: Mistake, trace: bool) -> Report {
    let plan = Plan::new(seed, mode, mistake);
    if trace {
        println!("{plan:#?}");
    }
    std::panic::catch_unwind(|| World::new(plan, trace).run()).unwrap_or_else(|_| Report {
        outcome: Outcome::Violated("a panic".into()),
        excused: false,
        links: 0,
        resent_bytes: 0,
        read_bytes: 0,
        refusals: 0,
    })
}

fn kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Delivered => "delivered",
        Outcome::DeliveredUnknown => "delivered, one end not told",
        Outcome::Failed(Failure::Refused(refusal)) => refusal.name(),
        Outcome::Failed(Failure::Offset(_) | Failure::Missing) => "bytes missing",
        Outcome::Failed(Failure::Expired) => "expired",
        Outcome::Failed(Failure::Aborted) => "aborted",
        Outcome::Failed(Failure::Protocol(_)) => "protocol",
        Outcome::FalselyDelivered => "falsely delivered",
        Outcome::Violated(_) => "VIOLATED",
    }
}

fn simulate(test: &str, mode: Mode) {
    let replayed = number("OUTLAST_SCHEDULE");
    let count = number("OUTLAST_SCHEDULES").unwrap_or(SCHEDULES);
    // Each run has schedules of its own.
    let first = number("OUTLAST_SEED").unwrap_or(0) << 32;
    let seeds = replayed.map_or(first..first + count, |schedule| schedule..schedule + 1);
    let mut counts = BTreeMap::new();
    let (mut links, mut resent_bytes, mut read_bytes, mut refusals) = (0, 0, 0, 0);
    for seed in seeds {
        let report = run(seed, mode, Mistake::None, replayed.is_some());
        assert!(
            report.excused,
            "{mode:?}: {:?}\nto repeat: OUTLAST_SCHEDULE={seed} cargo test -p outlast-session --test all simulation::{test} -- \
             --exact --nocapture",
            report.outcome
        );
        *counts.entry(kind(&report.outcome)).or_insert(0u64) += 1;
        links += report.links;
        resent_bytes += report.resent_bytes;
        read_bytes += report.read_bytes;
        refusals += report.refusals;
    }
    println!(
        "{mode:?}: {counts:?}; {links} links, {refusals} refusals, {read_bytes} bytes read, {resent_bytes} sent again"
    );
    if replayed.is_none() && count >= 1000 {
        // Schedules in which nothing happens would prove nothing.
        assert!(
            links > 2 * count && resent_bytes > 200 * count && refusals > count / 2,
            "too little happens"
        );
        assert!(
            counts.get("delivered").is_some_and(|delivered| *delivered > count * 9 / 10),
            "too much fails"
        );
    }
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
        let report = run(seed, mode, mistake, false);
        *counts.entry(kind(&report.outcome)).or_insert(0) += 1;
    }
    println!("{mode:?}, {mistake:?}: {counts:?}");
    counts
}

fn sum(counts: &BTreeMap<&'static str, u64>, kinds: &[&str]) -> u64 {
    kinds.iter().filter_map(|kind| counts.get(kind)).sum()
}

const FINE: [&str; 2] = ["delivered", "delivered, one end not told"];
const BYTES_MISSING: [&str; 3] = ["bytes missing", "offset_out_of_range", "ended"];

/// Acknowledged bytes that are gone: an error for the applications, and never a wrong byte.
#[test]
fn lost_bytes_are_loud() {
    for (mode, mistake) in [
        (Mode::Kernel, Mistake::AckingMiddlebox),
        (Mode::Window, Mistake::AckingMiddlebox),
        (Mode::Kernel, Mistake::NoFreeze),
        (Mode::Kernel, Mistake::UnreadWelcome),
        (Mode::Kernel, Mistake::ForgottenFin),
        (Mode::Window, Mistake::UnwelcomedFin),
        (Mode::WindowDiscarding, Mistake::SmallWindow),
        (Mode::WindowDiscarding, Mistake::FinMeansRead),
    ] {
        let counts = with_mistake(mode, mistake);
        let loud = sum(&counts, &BYTES_MISSING);
        assert!(loud > 0, "{mode:?}, {mistake:?} is not noticed");
        // With the client gone for good only the server can say so.
        let known = loud + sum(&counts, &FINE) + sum(&counts, &["falsely delivered"]);
        assert_eq!(known, MISTAKEN_SCHEDULES, "{mode:?}, {mistake:?}: {counts:?}");
    }
}

/// Peers that forget to say the last word leave the other one waiting for it.
#[test]
fn forgotten_confirmations_are_seen() {
    let counts = with_mistake(Mode::Inband, Mistake::DroppedEndAck);
    assert!(sum(&counts, &["VIOLATED"]) > 0, "{counts:?}");
    assert_eq!(sum(&with_mistake(Mode::Inband, Mistake::None), &["VIOLATED"]), 0);
}

/// Where only the peer's own word counts, whatever acknowledges on the way does no harm.
#[test]
fn acking_middleboxes_do_not_fool_udp_and_inband() {
    for mode in [Mode::Udp, Mode::Inband] {
        let counts = with_mistake(mode, Mistake::AckingMiddlebox);
        assert_eq!(sum(&counts, &FINE), MISTAKEN_SCHEDULES, "{mode:?}: {counts:?}");
    }
}

/// The oracle itself: what must never be is seen when it is.
#[test]
fn wrong_bytes_false_ends_and_standstills_are_seen() {
    for (mode, mistake) in [
        (Mode::Kernel, Mistake::WelcomeAsPayload),
        (Mode::Kernel, Mistake::EofIsEnd),
        (Mode::Kernel, Mistake::ChangedByte),
        (Mode::Inband, Mistake::ChangedByte),
        (Mode::Inband, Mistake::AckTooOld),
    ] {
        let counts = with_mistake(mode, mistake);
        assert!(sum(&counts, &["VIOLATED"]) > 0, "{mode:?}, {mistake:?}: {counts:?}");
    }
}
