//! When servers hear what time it is.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use super::tests::Group;
use super::{Action, NO_CONNECTION, ServerClock};
use crate::Protocol;
use crate::view::NodeId;
use alloc::vec;
use alloc::vec::Vec;

/// The time of day at which each test begins.
const BEGINS_MS: u64 = 1_000_000;

fn group() -> Group {
    let mut group = Group::new(2, None);
    for replica in group.replicas.values_mut() {
        replica.clock.source = ServerClock::Order;
        replica.protocol = Protocol::Redis;
        replica.handle_time_of_day(BEGINS_MS, 0);
    }
    group
}

fn wait_until(group: &mut Group, now_ms: u64) {
    group.now_ms = now_ms;
    for node in [1, 2] {
        group.node(node).handle_timeout(now_ms);
    }
    group.settle();
}

/// What a node's server was given since: a time, or bytes, and what it was asked.
fn given(group: &mut Group, node: u64) -> Vec<Action> {
    let is_it = |action: &Action| {
        matches!(action, Action::SetClock { .. } | Action::ToServer { .. } | Action::AskServer { .. })
    };
    group.actions(node).into_iter().filter(is_it).collect()
}

#[test]
fn the_time_comes_in_front_of_what_clients_send_and_by_itself_where_they_send_nothing() {
    let mut group = group();
    let connection = group.open(1);
    for node in [1, 2] {
        group.actions(node);
    }
    group.now_ms = 30;
    for (bytes, at) in [(&b"get a\r\n"[..], 30), (b"get b\r\n", 31)] {
        group.now_ms = at;
        group.node(1).handle_input(connection, bytes.into(), at).unwrap();
    }
    group.settle();
    let first = |bytes: &[u8]| Action::ToServer { connection, bytes: bytes.into() };
    for node in [1, 2] {
        // The second one is for another time: it waits for the answer to the first.
        assert_eq!(given(&mut group, node), [Action::SetClock { at_ms: 1_000_030 }, first(b"get a\r\n")]);
        group.node(node).handle_answer(connection, b"$-1\r\n", 31);
        assert_eq!(given(&mut group, node), [Action::SetClock { at_ms: 1_000_031 }, first(b"get b\r\n")]);
        group.node(node).handle_answer(connection, b"$-1\r\n", 31);
    }
    wait_until(&mut group, 130);
    assert_eq!(given(&mut group, 2), []);
    wait_until(&mut group, 131);
    assert_eq!(given(&mut group, 2), [Action::SetClock { at_ms: 1_000_131 }]);
}

#[test]
fn a_server_that_has_heard_a_time_before_hears_of_no_earlier_one_and_of_none_that_is_far_ahead() {
    let mut group = group();
    // Far behind its beginning, by the clock of this node: as time of day is.
    group.now_ms = 5_000_000;
    for node in [1, 2] {
        let replica = group.replicas.remove(&NodeId(node)).unwrap();
        let mut replica = replica.timed_from(7_000_000, 5_000_000);
        replica.handle_time_of_day(6_999_000, 5_000_000);
        group.replicas.insert(NodeId(node), replica);
    }
    wait_until(&mut group, 5_000_100);
    assert_eq!(given(&mut group, 2), [Action::SetClock { at_ms: 7_000_050 }]);
}

#[test]
fn a_primary_whose_clock_is_behind_lets_time_go_on_at_half_the_speed_until_it_is_right() {
    let mut group = group();
    group.node(2).handle_time_of_day(BEGINS_MS - 60, 0);
    wait_until(&mut group, 100);
    assert_eq!(given(&mut group, 1), [Action::SetClock { at_ms: 1_000_100 }]);
    group.replicas.remove(&NodeId(1));
    group.take_over(2, 2);
    group.actions(2);
    let mut times = Vec::new();
    for now_ms in (100..600).step_by(100) {
        group.now_ms = now_ms;
        group.node(2).handle_timeout(now_ms);
        group.settle();
        times.extend(given(&mut group, 2));
    }
    let expected = [1_000_150, 1_000_240, 1_000_340, 1_000_440].map(|at_ms| Action::SetClock { at_ms });
    assert_eq!(times, expected);
}

#[test]
fn a_server_that_owes_an_answer_has_looked_at_the_time_before_it_gets_more() {
    let mut group = group();
    let connection = group.open(1);
    group.node(1).handle_input(connection, b"blpop q 1\r\n"[..].into(), 0).unwrap();
    group.settle();
    wait_until(&mut group, 100);
    // The server is asked whether it waits for somebody else, and does.
    for node in [1, 2] {
        given(&mut group, node);
    }
    wait_until(&mut group, 110);
    let asked = given(&mut group, 1);
    let [Action::AskServer { index, connection: of }] = asked[..] else { unreachable!("{asked:?}") };
    assert_eq!(of, connection);
    group.node(1).handle_server_idle(index, 110);
    group.settle();
    group.node(2).handle_server_idle(index, 110);
    group.settle();
    for node in [1, 2] {
        given(&mut group, node);
        group.node(node).handle_timeout(111);
    }
    group.settle();
    for node in [1, 2] {
        let asked = given(&mut group, node);
        let [.., Action::AskServer { index, connection: NO_CONNECTION }] = asked[..] else {
            unreachable!("{node}: {asked:?}")
        };
        // Its time is over.
        group.node(node).handle_answer(connection, b"*-1\r\n", 111);
        group.node(node).handle_server_idle(index, 111);
        assert_eq!(
            group.actions(node).iter().filter(|action| matches!(action, Action::AskServer { .. })).count(),
            0
        );
    }
    group.settle();
    wait_until(&mut group, 300);
    assert_eq!(given(&mut group, 2), vec![Action::SetClock { at_ms: 1_000_300 }]);
}
