//! Clients with TCPs of their own, and nodes with kernels and servers around the product's type.

mod client;
mod healing;
mod invariants;
mod membership;
mod node;
mod server;
mod tcp;
mod world;

use super::{first_seed, number};
use crate::mutant::Mutant;
use std::collections::BTreeMap;
use std::{println, vec::Vec};
use world::{Outcome, World};
extern crate std;

/// In one run of the tests. `OUTLAST_SCHEDULES` says another number.
const SCHEDULES: u64 = 4_000;
/// Within so many schedules each fault has to be found.
const MUTANT_SCHEDULES: u64 = 150_000;

#[test]
fn clients_get_what_one_server_would_have_said_whatever_dies() {
    let (first, count) = (first_seed(), number("OUTLAST_SCHEDULES", SCHEDULES));
    let mut outcomes = BTreeMap::new();
    for seed in first..first + count {
        let outcome = World::run(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        *outcomes.entry(outcome).or_insert(0_u64) += 1;
    }
    println!("{count} schedules from seed {first}: {outcomes:?}");
    assert!(outcomes[&Outcome::Healed] > count / 2, "{outcomes:?}");
}

/// Each with the check that finds it. Rarer ones have tests of their own beside the core.
const MUTANTS: [(Mutant, &[&str]); 35] = [
    (Mutant::AcksLeaveEarly, &["acknowledged", "clients", "progress"]),
    (Mutant::ProposedIsAcknowledged, &["acknowledged", "clients", "progress"]),
    (Mutant::SynAckLeavesEarly, &["clients", "progress"]),
    (Mutant::StraysLeave, &["clients"]),
    (Mutant::EndsBeforeItIsStable, &["clients", "progress", "differences"]),
    (Mutant::SynIsNotAnswered, &["progress", "clients"]),
    (Mutant::RestoresNoAnswers, &["progress", "clients", "differences"]),
    (Mutant::TakesOverEarly, &["progress", "clients", "acknowledged", "differences"]),
    (Mutant::ClientIsNotTold, &["progress"]),
    (Mutant::ServerHearsMore, &["same answers", "clients", "same input", "differences"]),
    (Mutant::SnapshotForgetsAnswers, &["progress", "clients", "differences"]),
    (Mutant::SnapshotIsAhead, &["same answers", "same input", "progress", "clients", "differences"]),
    (
        Mutant::SnapshotForgetsConnections,
        &["progress", "clients", "same input", "same answers", "differences"],
    ),
    (Mutant::NothingIsForgotten, &["same answers", "clients", "progress", "differences"]),
    (Mutant::KeepsUnopened, &["progress", "clients", "same answers", "same input", "differences"]),
    (Mutant::KeepsProposed, &["progress", "clients", "differences"]),
    (Mutant::EndsAreForgotten, &["progress", "clients", "differences"]),
    (Mutant::ServesTooEarly, &["clients", "progress", "fenced"]),
    (Mutant::DeliversAtOnce, &["same answers", "clients", "differences"]),
    (Mutant::PassesUnasked, &["same answers", "clients", "differences"]),
    (Mutant::ProceedIsForgotten, &["progress", "differences"]),
    (Mutant::KeptForEver, &["progress"]),
    (Mutant::KeptIsOvertaken, &["clients", "progress", "acknowledged"]),
    (Mutant::ServesWithoutLease, &["fenced"]),
    (Mutant::OwnRepliesAreForgotten, &["progress", "differences"]),
    (Mutant::OwnRepliesAreSaid, &["clients", "differences", "progress"]),
    (Mutant::ClockIsItsOwn, &["clock"]),
    (Mutant::ClockIsEarly, &["same answers", "clients", "differences"]),
    (Mutant::TimeIsNotAwaited, &["same answers", "clients", "differences"]),
    (Mutant::SnapshotForgetsTheTime, &["clock"]),
    (Mutant::ComparesEarly, &["differences"]),
    (Mutant::ComparesNothing, &["differences", "clients"]),
    (Mutant::AnswersGoOutAtOnce, &["agreed"]),
    (Mutant::OneFewerIsEnough, &["agreed"]),
    (
        Mutant::LeadsAgainEarly,
        &["progress", "clients", "same input", "same answers", "acknowledged", "differences"],
    ),
];

/// Those that are found in one of tens of thousands of schedules are looked for from one on that has found them.
const RARE: [(Mutant, u64); 2] =
    [(Mutant::ProposedIsAcknowledged, 1_023_940), (Mutant::NothingIsForgotten, 1_036_458)];

#[test]
fn each_fault_with_clients_is_found_by_the_check_for_it() {
    let first = first_seed();
    let mut undetected = Vec::new();
    for (mutant, checks) in MUTANTS {
        let first = RARE.iter().find(|(rare, _)| *rare == mutant).map_or(first, |(_, seed)| *seed);
        let found = (first..first + MUTANT_SCHEDULES)
            .find_map(|seed| World::run(seed, Some(mutant)).err().map(|it| (seed, it)));
        match found {
            Some((seed, violation)) => {
                println!("{mutant:?}: after {} schedules: {violation}", seed - first + 1);
                if !checks.contains(&violation.invariant) {
                    undetected.push(std::format!("{mutant:?}: found by {violation}, not by {checks:?}"));
                }
            }
            None => undetected.push(std::format!("{mutant:?}: not found")),
        }
    }
    assert!(undetected.is_empty(), "{undetected:#?}");
}
