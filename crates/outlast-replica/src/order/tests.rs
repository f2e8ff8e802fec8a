//! What is too rare, or too plain, for the simulation.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use super::{Limits, NotTaken, Order, Output};
use crate::mutant::Mutant;
use crate::view::{NodeId, View};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

const LIMITS: Limits = Limits {
    log_bytes_max: 80,
    message_bytes_max: 24,
    heartbeat_ms: 20,
    tell_stable_ms: 2,
    lag_timeout_ms: 1_000,
    resent_bytes_max: 0,
    answer_timeout_ms: 400,
    hang_timeout_ms: 60_000,
    lock_wait_timeout_ms: 50_000,
};

fn view(epoch: u64, primary: u64, members: &[u64]) -> View {
    View { epoch, primary: NodeId(primary), members: members.iter().map(|node| NodeId(*node)).collect() }
}

/// Nodes with links between all of them, which deliver at once.
struct Nodes {
    orders: BTreeMap<NodeId, Order<u64>>,
    delivered: BTreeMap<NodeId, Vec<u64>>,
    others: Vec<(NodeId, Output<u64>)>,
}

impl Nodes {
    fn new(first: &View) -> Self {
        let mut nodes = Self { orders: BTreeMap::new(), delivered: BTreeMap::new(), others: Vec::new() };
        for node in &first.members {
            nodes.add(*node, 0, first);
        }
        nodes
    }

    fn add(&mut self, node: NodeId, index: u64, view: &View) {
        let mut order = Order::new(node, index, view.clone(), LIMITS);
        for (other, there) in &mut self.orders {
            order.handle_linked(*other);
            there.handle_linked(node);
        }
        self.orders.insert(node, order);
    }

    fn order(&mut self, node: u64) -> &mut Order<u64> {
        self.orders.get_mut(&NodeId(node)).unwrap()
    }

    fn learn(&mut self, view: &View, nodes: &[u64]) {
        for node in nodes {
            self.order(*node).handle_view(view.clone());
        }
    }

    /// Until nothing is under way, but for what these nodes would get.
    fn settle(&mut self, but: &[u64]) {
        loop {
            let mut is_quiet = true;
            let nodes: Vec<NodeId> = self.orders.keys().copied().collect();
            for node in nodes {
                let order = self.orders.get_mut(&node).unwrap();
                order.flush(false, 0);
                while let Some(output) = self.orders.get_mut(&node).unwrap().poll_output() {
                    is_quiet = false;
                    match output {
                        Output::Send { to, .. } if but.contains(&to.0) => {}
                        Output::Send { to, message } => {
                            if let Some(there) = self.orders.get_mut(&to) {
                                there.handle_message(node, message, 0);
                            }
                        }
                        Output::Deliver { entry, .. } => self.delivered.entry(node).or_default().push(entry),
                        other => self.others.push((node, other)),
                    }
                }
            }
            if is_quiet {
                return;
            }
        }
    }
}

/// Two nodes, of which the first has delivered an entry that the second has, and does not know to be stable; then the second
/// one leads, and a third one wants to join.
fn inherited(mutant: Option<Mutant>) -> (Nodes, bool) {
    let first = view(1, 1, &[1, 2]);
    let mut nodes = Nodes::new(&first);
    nodes.settle(&[]);
    nodes.order(1).propose(100, 0).unwrap();
    nodes.order(1).flush(false, 0);
    // The entry arrives, and its acknowledgement; that it is stable does not.
    while let Some(output) = nodes.order(1).poll_output() {
        if let Output::Send { message, .. } = output {
            nodes.order(2).handle_message(NodeId(1), message, 0);
        }
    }
    nodes.settle(&[2]);
    assert_eq!(nodes.delivered[&NodeId(1)], [100]);
    assert_eq!(nodes.order(2).delivered(), 0);
    let second = view(2, 2, &[1, 2]);
    nodes.learn(&second, &[2]);
    nodes.order(2).mutant = mutant;
    nodes.add(NodeId(3), 0, &second);
    // It says that it is there, and has not got anything yet.
    while let Some(output) = nodes.order(3).poll_output() {
        if let Output::Send { to: NodeId(2), message } = output {
            nodes.order(2).handle_message(NodeId(3), message, 0);
        }
    }
    while let Some(output) = nodes.order(2).poll_output() {
        if let Output::Send { to: NodeId(3), message } = output {
            nodes.order(3).handle_message(NodeId(2), message, 0);
        }
    }
    while let Some(output) = nodes.order(3).poll_output() {
        if let Output::Send { to: NodeId(2), message } = output {
            nodes.order(2).handle_message(NodeId(3), message, 0);
        }
    }
    let is_promoted = nodes.order(2).promote(NodeId(3), 0);
    (nodes, is_promoted)
}

/// One schedule in 150,000 of the simulation.
#[test]
fn a_node_is_not_promoted_without_what_an_earlier_primary_may_have_known_to_be_stable() {
    let (mut nodes, is_promoted) = inherited(None);
    assert!(!is_promoted);
    nodes.settle(&[1]);
    assert!(nodes.order(2).promote(NodeId(3), 0));
    // And so nothing is lost when that one is the only one left.
    let third = view(3, 2, &[2, 3]);
    nodes.learn(&third, &[2, 3]);
    let fourth = view(4, 3, &[3]);
    nodes.learn(&fourth, &[3]);
    nodes.order(3).propose(101, 0).unwrap();
    nodes.settle(&[1, 2]);
    assert_eq!(nodes.delivered[&NodeId(3)], [100, 101]);

    let (_, is_promoted) = inherited(Some(Mutant::ForgetsWhatItInherited));
    assert!(is_promoted, "the fault would be noticed");
}

#[test]
fn what_is_proposed_is_delivered_everywhere_once_all_have_it() {
    let mut nodes = Nodes::new(&view(1, 1, &[1, 2, 3]));
    nodes.settle(&[]);
    assert_eq!(nodes.order(2).propose(7, 0), Err(NotTaken::NotPrimary(7)));
    assert_eq!(nodes.order(1).propose(7, 0), Ok(1));
    nodes.settle(&[3]);
    assert!(nodes.delivered.is_empty(), "one does not have it");
    // A heartbeat tells the third one what it has missed.
    nodes.order(1).handle_timeout(20);
    nodes.settle(&[]);
    assert_eq!(nodes.delivered.values().map(|entries| entries.as_slice()).collect::<Vec<_>>(), [[7]; 3]);
    assert_eq!(nodes.order(1).log_bytes() + nodes.order(2).log_bytes(), 0, "nobody needs it any more");
}

#[test]
fn one_that_acknowledges_nothing_fills_the_log_and_is_told_of_and_the_next_view_goes_on_without_it() {
    let mut nodes = Nodes::new(&view(1, 1, &[1, 2, 3]));
    nodes.settle(&[]);
    for entry in 1..=10 {
        nodes.order(1).propose(entry, 5).unwrap();
    }
    nodes.settle(&[3]);
    assert_eq!(nodes.order(1).propose(11, 6), Err(NotTaken::Full(11)));
    nodes.order(1).handle_timeout(1_004);
    nodes.settle(&[3]);
    assert_eq!(nodes.others, []);
    assert_eq!(nodes.order(1).poll_timeout(), Some(1_005));
    nodes.order(1).handle_timeout(1_005);
    nodes.order(1).handle_timeout(1_900);
    nodes.settle(&[3]);
    assert_eq!(nodes.others, [(NodeId(1), Output::Lags { node: NodeId(3) })], "it is told once");
    nodes.learn(&view(2, 1, &[1, 2]), &[1, 2, 3]);
    nodes.settle(&[]);
    let all: Vec<u64> = (1..=10).collect();
    assert_eq!((&nodes.delivered[&NodeId(1)], &nodes.delivered[&NodeId(2)]), (&all, &all));
    assert_eq!(nodes.others.last(), Some(&(NodeId(3), Output::Excluded { epoch: 2 })));
    assert!(nodes.order(1).propose(11, 2_000).is_ok());
}

#[test]
fn one_that_catches_up_does_not_hold_the_others_up() {
    let first = view(1, 1, &[1, 2]);
    let mut nodes = Nodes::new(&first);
    nodes.settle(&[]);
    nodes.add(NodeId(3), 0, &first);
    nodes.settle(&[]);
    for entry in 1..=30 {
        assert!(nodes.order(1).propose(entry, 0).is_ok(), "{entry}");
        nodes.settle(&[3]);
    }
    let expected = [(NodeId(1), Output::TooFar { node: NodeId(3) })];
    assert_eq!(nodes.others, expected);
    // It begins again, with a newer snapshot.
    nodes.orders.remove(&NodeId(3));
    assert_eq!(nodes.order(1).expect(NodeId(4)), Some(30));
    // While that is on its way, more happens.
    nodes.order(1).propose(31, 0).unwrap();
    nodes.settle(&[]);
    assert!(!nodes.order(1).promote(NodeId(4), 0), "nothing was heard of it");
    nodes.add(NodeId(4), 30, &first);
    nodes.order(1).propose(32, 0).unwrap();
    nodes.settle(&[]);
    assert_eq!(nodes.delivered[&NodeId(4)], vec![31, 32]);
    assert!(nodes.order(1).promote(NodeId(4), 0));
    // From now on nothing is stable without it.
    nodes.order(1).propose(33, 0).unwrap();
    nodes.settle(&[4]);
    assert_eq!(nodes.order(1).delivered(), 32);
    assert_eq!((nodes.order(2).expect(NodeId(5)), nodes.order(1).expect(NodeId(1))), (None, None));
}
