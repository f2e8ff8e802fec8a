//! Whoever is about to take over, and whoever hands over, is killed at instructions all over the way. `OUTLAST_CRASHES=n`
//! says at how many.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, reason = "a test")]

use crate::common::number;
use crate::common::tracer::Step;
use crate::common::victim::{Means, Victim, lines};

/// At so many of the first instructions.
const CRASHES: u64 = 40;
const INSTRUCTIONS: u64 = 20_000;
/// To hand over takes some 1,300.
const HAND_OVER_INSTRUCTIONS: u64 = 2_500;
/// From the first crash to the second.
const FIRST_INSTRUCTIONS: u64 = 12;
/// Less than what the smallest step takes that leads from one consistent state to another one.
const STRIDE: usize = 11;
const ROUNDS: usize = 100;
const MISSES: usize = 8;

/// Of the first `all`; more and more of them between two; each run begins at another one.
fn instructions(all: u64) -> impl Iterator<Item = u64> {
    let crashes = number("OUTLAST_CRASHES", CRASHES);
    let first = 1 + number("OUTLAST_SEED", 0) % FIRST_INSTRUCTIONS;
    (0..crashes).map(move |crash| first + crash + all * crash * crash / (crashes * crashes))
}

#[test]
fn who_takes_over_is_killed_at_any_instruction() {
    let mut victim = Victim::start("lines", lines);
    let killed = instructions(INSTRUCTIONS)
        .take_while(|count| victim.kill_successor_at(Step::Instruction, *count, Means::Kill))
        .count();
    println!("killed at {killed} instructions");
    assert!(killed > 10, "{killed} only: it was not watched");
}

/// A request that comes through one pipe and is answered through another one has two marks, one after the other.
#[test]
fn who_has_answered_is_killed_at_any_instruction_until_that_is_written_down() {
    let mut victim = Victim::start_between_pipes("filter", lines);
    let (mut killed, mut missed) = (0, 0);
    let first = 1 + number("OUTLAST_SEED", 0) % STRIDE as u64;
    for instruction in (first..).step_by(STRIDE).take(ROUNDS) {
        let has_died = victim.kill_successor_behind_answers(instruction);
        (killed, missed) = if has_died { (killed + 1, 0) } else { (killed, missed + 1) };
        // When the last one is reached all the following are missed.
        if missed >= MISSES {
            break;
        }
    }
    println!("killed at {killed} instructions behind the answers");
    assert!(killed > 20, "{killed} only: it was not watched");
}

#[test]
fn who_hands_over_is_killed_at_any_instruction() {
    let mut victim = Victim::start("lines", lines);
    for signal in [libc::SIGABRT, libc::SIGILL] {
        let killed = instructions(HAND_OVER_INSTRUCTIONS)
            .take_while(|count| victim.kill_after_fault(signal, *count))
            .count();
        println!("signal {signal}: killed at {killed} instructions");
        assert!(killed > 10, "{killed} only: it was not watched");
    }
}
