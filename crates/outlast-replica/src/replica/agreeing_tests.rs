#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use super::super::tests::{Group, only_finds};
use super::*;
use crate::mutant::Mutant;

fn group(policy: AnswerPolicy, count: u64) -> (Group, ConnectionId) {
    mutant(policy, count, None)
}

fn mutant(policy: AnswerPolicy, count: u64, mutant: Option<Mutant>) -> (Group, ConnectionId) {
    let mut group = Group::new(count, mutant);
    group.replicas = core::mem::take(&mut group.replicas)
        .into_iter()
        .map(|(node, replica)| (node, replica.answering(policy)))
        .collect();
    let connection = group.open(1);
    (group, connection)
}

/// The servers of these nodes say this.
fn say(group: &mut Group, connection: ConnectionId, nodes: &[u64], bytes: &[u8]) {
    for node in nodes {
        let now_ms = group.now_ms;
        group.node(*node).handle_answer(connection, bytes, now_ms);
    }
    settle(group);
}

fn settle(group: &mut Group) {
    for _ in 0..3 {
        let now_ms = group.now_ms;
        group.replicas.values_mut().for_each(|replica| replica.handle_timeout(now_ms));
        group.settle();
    }
}

fn goes_out(group: &mut Group, connection: ConnectionId) -> Vec<u8> {
    goes_out_at(group, 1, connection)
}

fn goes_out_at(group: &mut Group, node: u64, connection: ConnectionId) -> Vec<u8> {
    let (front, back, _) = group.node(node).client_bytes(connection).unwrap();
    [front, back].concat()
}

#[test]
fn clients_get_what_all_servers_have_said() {
    let (mut group, connection) = group(AnswerPolicy::All, 3);
    say(&mut group, connection, &[1], b"ok");
    assert!(goes_out(&mut group, connection).is_empty());
    say(&mut group, connection, &[2], b"ok");
    assert!(goes_out(&mut group, connection).is_empty());
    say(&mut group, connection, &[3], b"o");
    assert!(goes_out(&mut group, connection).is_empty());
    say(&mut group, connection, &[3], b"k");
    assert_eq!(goes_out(&mut group, connection), b"ok");
    // No time has passed.
    assert_eq!(group.now_ms, 0);
}

#[test]
fn clients_get_what_more_than_half_of_the_servers_have_said() {
    for (count, first, second) in [(2, &[1_u64][..], 2), (3, &[1], 3), (4, &[1, 2], 4), (5, &[1, 4], 2)] {
        let (mut group, connection) = group(AnswerPolicy::Majority, count);
        say(&mut group, connection, first, b"ok");
        assert!(goes_out(&mut group, connection).is_empty(), "{count}");
        say(&mut group, connection, &[second], b"ok");
        assert_eq!(goes_out(&mut group, connection), b"ok", "{count}");
    }
}

#[test]
fn what_another_server_contradicts_does_not_go_out() {
    let (mut group, connection) = group(AnswerPolicy::Majority, 3);
    say(&mut group, connection, &[1], b"no");
    say(&mut group, connection, &[2], b"ok");
    assert!(goes_out(&mut group, connection).is_empty());
    say(&mut group, connection, &[3], b"ok");
    assert!(goes_out(&mut group, connection).is_empty());
}

#[test]
fn a_primary_that_is_alone_waits_for_nobody() {
    let (mut group, connection) = group(AnswerPolicy::All, 2);
    say(&mut group, connection, &[1], b"ok");
    assert!(goes_out(&mut group, connection).is_empty());
    let alone = crate::View { epoch: 2, primary: NodeId(1), members: alloc::vec![NodeId(1)] };
    group.node(1).handle_view(alone, 0);
    assert_eq!(goes_out(&mut group, connection), b"ok");
}

/// Whether a wrong answer goes out as another member dies, and whether it is judged.
fn goes_out_when_another_one_dies(forgets: Option<Mutant>) -> (bool, bool) {
    let (mut group, connection) = mutant(AnswerPolicy::Majority, 4, forgets);
    say(&mut group, connection, &[1], b"no");
    say(&mut group, connection, &[2, 3], b"ok");
    assert!(goes_out(&mut group, connection).is_empty());
    let members = [1, 2, 3].map(NodeId).to_vec();
    for node in [1, 2, 3] {
        let view = crate::View { epoch: 2, primary: NodeId(1), members: members.clone() };
        let now_ms = group.now_ms;
        group.node(node).handle_view(view, now_ms);
    }
    settle(&mut group);
    let is_out = !goes_out(&mut group, connection).is_empty();
    let is_wrong = |action: &crate::Action| matches!(action, crate::Action::AnswersDiffer { node, .. } if *node == NodeId(1));
    (is_out, group.actions(1).iter().any(is_wrong))
}

#[test]
fn what_was_contradicted_does_not_go_out_when_another_member_dies() {
    assert_eq!(goes_out_when_another_one_dies(None), (false, true));
    assert_eq!(goes_out_when_another_one_dies(Some(Mutant::ForgetsDifferences)), (true, false));
}

#[test]
fn a_new_primary_gives_clients_what_others_have_compared_before_it_served() {
    for is_late in [false, true] {
        only_finds(Mutant::AgreedIsForgotten, |forgets| {
            let (mut group, connection) = mutant(AnswerPolicy::All, 3, forgets);
            say(&mut group, connection, if is_late { &[1, 3] } else { &[1, 2, 3] }, b"ok");
            group.replicas.remove(&NodeId(1));
            let members = [2, 3].map(NodeId).to_vec();
            for node in [2, 3] {
                let view = crate::View { epoch: 2, primary: NodeId(2), members: members.clone() };
                group.node(node).handle_view(view, 0);
            }
            // The other one says how far it is, and nothing more.
            settle(&mut group);
            group.node(2).handle_restored(2, 0);
            settle(&mut group);
            if is_late {
                assert!(goes_out_at(&mut group, 2, connection).is_empty());
                say(&mut group, connection, &[2], b"ok");
            }
            goes_out_at(&mut group, 2, connection) == b"ok"
        });
    }
}

#[test]
fn what_members_have_said_while_the_primary_had_no_lease_is_judged_when_it_serves_again() {
    let (mut group, connection) = group(AnswerPolicy::All, 3);
    say(&mut group, connection, &[1], b"no");
    group.node(1).handle_lease(false, 0);
    say(&mut group, connection, &[2, 3], b"ok");
    group.node(1).handle_lease(true, 0);
    settle(&mut group);
    group.node(1).handle_restored(1, 0);
    let is_wrong = |action: &crate::Action| matches!(action, crate::Action::AnswersDiffer { node, .. } if *node == NodeId(1));
    assert!(group.actions(1).iter().any(is_wrong));
    assert!(goes_out(&mut group, connection).is_empty());
}
