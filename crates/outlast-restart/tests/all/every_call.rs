//! The generation that serves is killed at the beginning and at the end of each of its system calls, from when it takes over
//! until it has answered everything: every byte is the right one, every count is exact.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, reason = "a test")]

use crate::common::tracer::Step;
use crate::common::victim::{Means, Questions, Victim, closing, lines, tally};

fn at_every_call(example: &str, questions: Questions, means: &[Means]) {
    kill_at_every_call(Victim::start(example, questions), example, means);
}

fn kill_at_every_call(mut victim: Victim, example: &str, means: &[Means]) {
    for &means in means {
        let stop = (1..).find(|stop| !victim.kill_successor_at(Step::SystemCall, *stop, means)).unwrap();
        println!("{example}, {means:?}: {} stops", stop - 1);
        assert!(stop > 20, "{example}, {means:?}: {stop} stops only: it was not watched");
    }
}

#[test]
fn killed_at_any_system_call() {
    at_every_call("lines", lines, &[Means::Kill]);
    at_every_call("tally", tally, &[Means::Kill]);
    at_every_call("event_loop", lines, &[Means::Kill]);
    kill_at_every_call(Victim::start_between_pipes("filter", lines), "filter", &[Means::Kill]);
}

#[test]
fn faults_at_any_system_call() {
    at_every_call("lines", lines, &[Means::Fault(libc::SIGSEGV)]);
    at_every_call("tally", tally, &[Means::Fault(libc::SIGABRT)]);
    at_every_call("event_loop", lines, &[Means::Fault(libc::SIGSEGV)]);
}

#[test]
fn who_is_told_goodbye_is_not_waited_for_again() {
    let victim = Victim::start_closing("trouble", closing, true);
    kill_at_every_call(victim, "trouble", &[Means::Kill, Means::Fault(libc::SIGABRT)]);
}
