//! What is too rare for the simulation, or too plain.
#![allow(clippy::panic, reason = "a failed expectation is the message of a test")]

use super::{Lease, MARGIN_MS};
use crate::mutant::Mutant;
use crate::view::NodeId;
use alloc::vec;
use alloc::vec::Vec;

const PROMISE_MS: u64 = 100;

/// Leads three voters in term 7; one other has acknowledged what was sent at 1,000.
fn leading(mutant: Option<Mutant>) -> Lease {
    let mut lease = Lease::new(NodeId(1), PROMISE_MS);
    lease.mutant = mutant;
    lease.handle_voters(vec![(1..=3).map(NodeId).collect()]);
    lease.handle_term(7, true);
    lease.handle_acked(NodeId(2), 7, 1_000);
    lease.handle_applied(7);
    lease
}

/// Whether this goes wrong with the fault, and not without it.
fn only_finds(mutant: Mutant, goes_well: impl Fn(Option<Mutant>) -> bool) {
    assert!(goes_well(None));
    assert!(!goes_well(Some(mutant)), "{mutant:?} is not found");
}

#[test]
fn a_lease_ends_before_the_promise() {
    only_finds(Mutant::NoMargin, |mutant| {
        let lease = leading(mutant);
        lease.may_serve(1_094) && !lease.may_serve(1_095)
    });
}

#[test]
fn who_holds_the_lease_elects_nobody() {
    only_finds(Mutant::LeaderVotes, |mutant| {
        let lease = leading(mutant);
        !lease.may_vote(1_094) && lease.may_vote(1_095)
    });
}

/// The primary does not know that the leader leads no more.
#[test]
fn who_has_lent_the_lease_elects_nobody_before_that_is_over() {
    only_finds(Mutant::VotesAtOnce, |mutant| {
        let mut lease = leading(mutant);
        let is_lent = lease.lend(NodeId(2), 0, 1_010).is_some();
        lease.handle_term(8, false);
        is_lent && !lease.may_vote(1_094) && lease.may_vote(1_095)
    });
}

#[test]
fn who_has_heard_the_leader_elects_nobody_else_for_a_time() {
    only_finds(Mutant::PromisesNothing, |mutant| {
        let mut voter = Lease::new(NodeId(2), PROMISE_MS);
        voter.mutant = mutant;
        voter.handle_heard(7, 1_000);
        !voter.may_vote(1_099) && voter.may_vote(1_100)
    });
}

#[test]
fn promises_of_an_earlier_term_count_no_more() {
    only_finds(Mutant::KeepsPromisesOfOtherTerms, |mutant| {
        let mut lease = leading(mutant);
        lease.handle_term(8, true);
        lease.handle_applied(8);
        let has_none = lease.until_ms().is_none();
        lease.handle_acked(NodeId(2), 7, 2_000);
        has_none && lease.until_ms().is_none()
    });
}

#[test]
fn a_new_leader_has_none_before_it_knows_what_was_decided() {
    let mut lease = Lease::new(NodeId(1), PROMISE_MS);
    lease.handle_voters(vec![(1..=3).map(NodeId).collect()]);
    lease.handle_term(7, true);
    lease.handle_acked(NodeId(2), 7, 1_000);
    assert_eq!(lease.until_ms(), None);
    lease.handle_applied(6);
    assert_eq!(lease.until_ms(), None);
    lease.handle_applied(7);
    assert!(lease.until_ms().is_some());
    lease.handle_term(8, false);
    assert_eq!(lease.until_ms(), None);
}

#[test]
fn while_members_change_both_sets_have_to_promise() {
    let mut lease = leading(None);
    let of = |ids: &[u64]| -> Vec<NodeId> { ids.iter().copied().map(NodeId).collect() };
    lease.handle_voters(vec![of(&[1, 2, 3]), of(&[1, 3, 4])]);
    assert_eq!(lease.until_ms(), None);
    lease.handle_acked(NodeId(4), 7, 980);
    assert_eq!(lease.until_ms(), Some(980 + PROMISE_MS - MARGIN_MS));
    // It leaves, and leads until that is decided.
    lease.handle_voters(vec![of(&[2, 3, 4])]);
    assert_eq!(lease.until_ms(), Some(980 + PROMISE_MS - MARGIN_MS));
}

#[test]
fn what_is_lent_counts_from_before_it_was_asked() {
    let (mut leader, mut primary) = (leading(None), Lease::new(NodeId(2), PROMISE_MS));
    // Its clock shows other times.
    let asked_ms = 70_000;
    let left_ms = leader.lend(NodeId(2), 0, 1_050);
    assert_eq!(left_ms, Some(45 - MARGIN_MS));
    assert!(!leader.may_name(NodeId(3), 1_094) && leader.may_name(NodeId(3), 1_095));
    assert!(leader.may_name(NodeId(2), 1_050) && leader.lend(NodeId(3), 0, 1_060).is_none());
    // Nor does the leader serve meanwhile.
    assert!(!leader.may_serve(1_060));
    primary.handle_borrowed(asked_ms, 40);
    assert!(primary.may_serve(asked_ms + 39) && !primary.may_serve(asked_ms + 40));
}

#[test]
fn a_slower_clock_does_not_make_more_of_what_is_lent() {
    only_finds(Mutant::LendsAll, |mutant| {
        leading(mutant).lend(NodeId(2), 0, 1_000) == Some(PROMISE_MS - 2 * MARGIN_MS)
    });
}
