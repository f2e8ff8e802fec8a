//! Many nodes in one thread: every schedule of messages, breaks, deaths and views comes from a seed. The nodes are the product's
//! type. What has to hold always is in `invariants`, one in a file.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a failed expectation is the message of a test"
)]

mod cluster;
mod invariants;
mod portal;

extern crate std;

use crate::mutant::Mutant;
use cluster::{Cluster, Outcome};
use std::collections::BTreeMap;
use std::{println, vec::Vec};

/// In one run of the tests. `OUTLAST_SCHEDULES` says another number.
const SCHEDULES: u64 = 20_000;
/// Within so many schedules each fault has to be found.
const MUTANT_SCHEDULES: u64 = 60_000;

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The seed of the first schedule: another one in each run. `OUTLAST_SCHEDULE` says it, to repeat one.
pub(crate) fn first_seed() -> u64 {
    number("OUTLAST_SCHEDULE", number("OUTLAST_SEED", 1).wrapping_mul(1_000_003))
}

#[test]
fn every_node_delivers_the_same_in_the_same_order_whatever_breaks() {
    let (first, count) = (first_seed(), number("OUTLAST_SCHEDULES", SCHEDULES));
    let mut outcomes = BTreeMap::new();
    for seed in first..first + count {
        let outcome = Cluster::run(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        *outcomes.entry(outcome).or_insert(0_u64) += 1;
    }
    println!("{count} schedules from seed {first}: {outcomes:?}");
    // Schedules in which nothing is left to look at prove nothing.
    assert!(outcomes[&Outcome::Healed] > count / 2, "{outcomes:?}");
}

/// Each with the check that finds it.
const MUTANTS: [(Mutant, &[&str]); 24] = [
    (Mutant::OneIsNotNeeded, &["one order"]),
    (Mutant::DeliversUnstable, &["one order"]),
    (Mutant::ConfirmsAll, &["one order"]),
    (Mutant::KeepsOther, &["one order"]),
    (Mutant::TruncatesAtStart, &["one order"]),
    (Mutant::BeginsAgain, &["one order", "progress"]),
    (Mutant::LearnerTrustsAll, &["one order"]),
    (Mutant::AcksOfOtherViews, &["one order", "progress", "same logs"]),
    (Mutant::KeepsAcks, &["one order", "progress"]),
    (Mutant::EntriesOfOtherViews, &["one order", "same logs"]),
    (Mutant::EntriesBeforeStart, &["one order", "same logs", "progress"]),
    (Mutant::GapIsPassedOver, &["one order"]),
    (Mutant::TakesTwice, &["one order", "delivered once"]),
    (Mutant::AcksMore, &["one order"]),
    (Mutant::PromotesEarly, &["one order", "progress"]),
    (Mutant::PromotesSilently, &["one order", "progress"]),
    (Mutant::ForgetsUnacked, &["progress"]),
    (Mutant::FollowerForgetsAll, &["progress", "one order"]),
    (Mutant::ExcludedGoesOn, &["excluded nodes stop"]),
    (Mutant::Unbounded, &["bounded log"]),
    (Mutant::NoHello, &["progress"]),
    (Mutant::MissingIsPassedOver, &["progress"]),
    (Mutant::NeverTellsStable, &["progress"]),
    (Mutant::NoHeartbeat, &["progress"]),
];

#[test]
fn every_fault_of_the_core_is_found_by_the_check_that_is_there_for_it() {
    let first = first_seed();
    let missed: Vec<Mutant> = MUTANTS
        .iter()
        .filter(|(mutant, expected)| {
            let found = (0..MUTANT_SCHEDULES).find_map(|number| {
                let violation = Cluster::run(first + number, Some(*mutant)).err()?;
                expected.contains(&violation.invariant).then_some((number + 1, violation))
            });
            match &found {
                Some((number, violation)) => println!("{mutant:?}: in schedule {number}: {violation}"),
                None => println!("{mutant:?}: not in {MUTANT_SCHEDULES} schedules"),
            }
            found.is_none()
        })
        .map(|(mutant, _)| *mutant)
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
