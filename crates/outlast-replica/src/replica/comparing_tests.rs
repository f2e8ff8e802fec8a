//! Who is taken for wrong when servers answer differently.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use super::tests::{Group, only_finds};
use super::{Action, Shown};
use crate::entry::ConnectionId;
use crate::mutant::Mutant;
use crate::view::NodeId;
use alloc::vec::Vec;

/// The primary of this group has said this, and its server's answer has a place in the order.
fn answered(count: u64, mutant: Option<Mutant>) -> (Group, ConnectionId) {
    let mut group = Group::new(count, mutant);
    let connection = group.open(1);
    group.node(1).handle_answer(connection, b"ok 1", 0);
    pass(&mut group, 200);
    group.actions.clear();
    (group, connection)
}

/// Until then timers go off.
fn pass(group: &mut Group, until_ms: u64) {
    while group.now_ms < until_ms {
        group.now_ms += 20;
        let now_ms = group.now_ms;
        group.replicas.values_mut().for_each(|replica| replica.handle_timeout(now_ms));
        group.settle();
    }
}

/// Who is to be out, and who leads then.
fn wrong(group: &mut Group, node: u64) -> Vec<(NodeId, NodeId, Shown)> {
    let actions = group.actions(node).into_iter();
    actions
        .filter_map(|action| match action {
            Action::AnswersDiffer { node, successor, shown } => Some((node, successor, shown)),
            _ => None,
        })
        .collect()
}

#[test]
fn the_server_that_clients_do_not_hear_is_wrong_where_there_are_two() {
    let (mut group, connection) = answered(2, None);
    let now_ms = group.now_ms;
    group.node(2).handle_answer(connection, b"ok", now_ms);
    group.settle();
    assert_eq!(wrong(&mut group, 1), []);
    group.node(2).handle_answer(connection, b" 2", now_ms);
    group.settle();
    let shown = Shown {
        client: Some("10.0.0.9:40000".parse().unwrap()),
        command: None,
        offset: 3,
        wrong: b"2".to_vec(),
        right: Some(b"1".to_vec()),
    };
    assert_eq!(wrong(&mut group, 1), [(NodeId(2), NodeId(1), shown)]);
    // Once.
    pass(&mut group, 10_000);
    assert_eq!(wrong(&mut group, 1), []);
}

#[test]
fn the_fewer_ones_are_wrong_also_where_the_primary_is_one_of_them() {
    for (second, third, wrong_ones) in [
        (&b"ok 2"[..], &b"ok 2"[..], &[1][..]),
        (b"ok 1", b"ok 2", &[3]),
        (b"ok 2", b"ok 1", &[2]),
        (b"ok 2", b"ok 3", &[2, 3]),
        (b"ok 1", b"ok 1", &[]),
    ] {
        let (mut group, connection) = answered(3, None);
        let now_ms = group.now_ms;
        group.node(2).handle_answer(connection, second, now_ms);
        group.settle();
        // The third one may say what either says.
        assert_eq!(wrong(&mut group, 1), []);
        group.node(3).handle_answer(connection, third, now_ms);
        pass(&mut group, now_ms + 200);
        let found = wrong(&mut group, 1);
        let mut nodes: Vec<u64> = found.iter().map(|(node, ..)| node.0).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, wrong_ones);
        assert!(found.iter().all(|(node, successor, _)| node != successor));
    }
}

#[test]
fn one_that_does_not_answer_is_waited_for_and_not_without_end() {
    let (mut group, connection) = answered(3, None);
    let now_ms = group.now_ms;
    group.node(2).handle_answer(connection, b"ok 2", now_ms);
    pass(&mut group, now_ms + 4_900);
    assert_eq!(wrong(&mut group, 1), []);
    pass(&mut group, now_ms + 5_100);
    assert_eq!(wrong(&mut group, 1).first().map(|(node, ..)| *node), Some(NodeId(2)));
}

#[test]
fn what_an_earlier_primary_has_said_is_not_judged() {
    only_finds(Mutant::JudgesOthers, |mutant| {
        let (mut group, connection) = answered(3, mutant);
        group.replicas.remove(&NodeId(1));
        group.take_over(2, 2);
        let now_ms = group.now_ms;
        // That one was wrong, and both say the same.
        group.node(3).handle_answer(connection, b"ok 2", now_ms);
        group.settle();
        group.node(2).handle_answer(connection, b"ok 2", now_ms);
        pass(&mut group, now_ms + 6_000);
        wrong(&mut group, 2).is_empty()
    });
}

#[test]
fn a_server_that_ends_its_stream_early_has_said_something_else() {
    let (mut group, connection) = answered(2, None);
    let now_ms = group.now_ms;
    group.node(2).handle_answer(connection, b"ok", now_ms);
    group.node(2).handle_answer_end(connection, now_ms);
    group.settle();
    assert_eq!(wrong(&mut group, 1).first().map(|(node, ..)| *node), Some(NodeId(2)));
}

#[test]
fn a_backup_whose_server_does_not_answer_what_the_primarys_has_answered_hangs() {
    let (mut group, _) = answered(2, None);
    let now_ms = group.now_ms;
    pass(&mut group, now_ms + 29_000);
    assert!(!group.actions(2).contains(&Action::ServerHangs));
    pass(&mut group, now_ms + 31_000);
    assert!(group.actions(2).contains(&Action::ServerHangs));
}
