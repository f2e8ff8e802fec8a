//! What is too rare for the simulation: each of these faults would be found here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use super::{Action, PacketId, Replica};
use crate::connection::{Direction, Ends, Flags, InitialSequence, Segment, SynOptions};
use crate::entry::{ConnectionId, Entry};
use crate::mutant::Mutant;
use crate::view::{NodeId, View};
use crate::{Delivery, Handshake, Limits, Message, Ordered, Protocol};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

const CLIENT: InitialSequence = InitialSequence(u32::MAX - 1);
const SERVER: InitialSequence = InitialSequence(7);
const ACK: Flags = Flags { syn: false, ack: true, fin: false, rst: false };

fn ends() -> Ends {
    Ends { portal: "10.0.0.1:80".parse().unwrap(), client: "10.0.0.9:40000".parse().unwrap() }
}

fn segment(sequence: u32, ack: u32, flags: Flags) -> Segment {
    let options = SynOptions::default();
    Segment { ends: ends(), sequence, ack, flags, window: 0, payload_bytes: 0, options }
}

/// The primary says at once what is stable: time stands still here.
fn limits() -> Limits {
    Limits { tell_stable_ms: 0, ..Limits::default() }
}

/// Nodes with links between all of them. What they are to do beside talking to each other is collected.
pub(super) struct Group {
    pub(super) replicas: BTreeMap<NodeId, Replica>,
    pub(super) actions: BTreeMap<NodeId, Vec<Action>>,
    packets: u32,
    pub(super) now_ms: u64,
}

impl Group {
    pub(super) fn new(count: u64, mutant: Option<Mutant>) -> Self {
        let nodes: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let view = View { epoch: 1, primary: NodeId(1), members: nodes.clone() };
        let mut group = Self { replicas: BTreeMap::new(), actions: BTreeMap::new(), packets: 0, now_ms: 0 };
        for node in &nodes {
            let mut replica = Replica::new(*node, view.clone(), limits());
            replica.set_mutant(mutant);
            replica.handle_lease(true, 0);
            for other in nodes.iter().filter(|other| *other != node) {
                replica.handle_linked(*other, 0);
            }
            group.replicas.insert(*node, replica);
        }
        group.settle();
        group.node(1).handle_restored(1, 0);
        group.settle();
        group.actions.clear();
        group
    }

    pub(super) fn node(&mut self, node: u64) -> &mut Replica {
        self.replicas.get_mut(&NodeId(node)).unwrap()
    }

    /// What this node was to do since it was last asked.
    pub(super) fn actions(&mut self, node: u64) -> Vec<Action> {
        self.collect(NodeId(node));
        self.actions.remove(&NodeId(node)).unwrap_or_default()
    }

    /// Messages to others, and all other actions are kept.
    fn collect(&mut self, node: NodeId) -> Vec<(NodeId, NodeId, Message<crate::Entry>)> {
        let mut messages = Vec::new();
        let Some(replica) = self.replicas.get_mut(&node) else { return messages };
        while let Some(action) = replica.poll_action() {
            match action {
                Action::Send { to, message } => messages.push((node, to, message)),
                action => self.actions.entry(node).or_default().push(action),
            }
        }
        messages
    }

    /// Until nobody has anything to say.
    pub(super) fn settle(&mut self) {
        loop {
            let nodes: Vec<NodeId> = self.replicas.keys().copied().collect();
            let mut messages = Vec::new();
            for node in nodes {
                self.replicas.get_mut(&node).unwrap().flush(self.now_ms);
                messages.extend(self.collect(node));
            }
            if messages.is_empty() {
                return;
            }
            for (from, to, message) in messages {
                if let Some(replica) = self.replicas.get_mut(&to) {
                    replica.handle_message(from, message, self.now_ms);
                }
            }
        }
    }

    fn packet(&mut self, node: u64, direction: Direction, segment: Segment) -> PacketId {
        self.packets += 1;
        let (packet, now_ms) = (PacketId(self.packets), self.now_ms);
        self.node(node).handle_packet(packet, direction, &segment, now_ms);
        packet
    }

    /// A client connects at this node.
    pub(super) fn open(&mut self, node: u64) -> ConnectionId {
        self.open_from(node, ends())
    }

    fn open_from(&mut self, node: u64, ends: Ends) -> ConnectionId {
        let syn = Flags { syn: true, ..Flags::default() };
        self.packet(node, Direction::In, Segment { ends, ..segment(CLIENT.0, 0, syn) });
        let packet = self.packet(node, Direction::Out, Segment { ends, ..syn_ack() });
        self.settle();
        assert!(self.actions(node).contains(&Action::Verdict { packet, passes: true }));
        self.node(node).handle_accepted(&ends).unwrap()
    }

    /// This node leads those that are left.
    pub(super) fn take_over(&mut self, node: u64, epoch: u64) {
        let members: Vec<NodeId> = self.replicas.keys().copied().collect();
        let view = View { epoch, primary: NodeId(node), members };
        let now_ms = self.now_ms;
        for replica in self.replicas.values_mut() {
            replica.handle_view(view.clone(), now_ms);
        }
        self.settle();
        assert!(self.actions(node).contains(&Action::TakeOver { epoch }));
        self.node(node).handle_restored(epoch, now_ms);
        self.settle();
    }
}

fn syn_ack() -> Segment {
    segment(SERVER.0, CLIENT.number(0), Flags { syn: true, ..ACK })
}

/// Whether this goes wrong with the fault, and not without it.
pub(super) fn only_finds(mutant: Mutant, goes_well: impl Fn(Option<Mutant>) -> bool) {
    assert!(goes_well(None));
    assert!(!goes_well(Some(mutant)), "{mutant:?} is not found");
}

#[test]
fn a_kernel_cannot_reset_what_its_server_has_not_reset() {
    only_finds(Mutant::ResetsLeave, |mutant| {
        let mut group = Group::new(1, mutant);
        let connection = group.open(1);
        let reset = segment(SERVER.number(0), CLIENT.number(0), Flags { rst: true, ..ACK });
        let packet = group.packet(1, Direction::Out, reset);
        let is_dropped = group.actions(1).contains(&Action::Verdict { packet, passes: false });
        group.node(1).handle_server_reset(connection, 0);
        let packet = group.packet(1, Direction::Out, reset);
        let actions = group.actions(1);
        assert!(actions.contains(&Action::ResetClient { connection }), "{actions:?}");
        assert!(actions.contains(&Action::Verdict { packet, passes: true }), "{actions:?}");
        is_dropped
    });
}

#[test]
fn a_client_that_has_not_heard_of_its_end_is_answered_by_a_successor() {
    only_finds(Mutant::ForgetsTimeWait, |mutant| {
        let mut group = Group::new(2, mutant);
        let connection = group.open(1);
        group.node(1).handle_answer(connection, b"bye", 0);
        group.node(1).handle_answer_end(connection, 0);
        assert!(group.node(1).handle_input_end(connection, 0));
        group.settle();
        group.node(1).handle_closed(connection, 0);
        group.settle();
        group.replicas.remove(&NodeId(1));
        group.take_over(2, 2);
        group.actions(2);
        let fin = segment(CLIENT.number(0), SERVER.number(4), Flags { fin: true, ..ACK });
        let packet = group.packet(2, Direction::In, fin);
        let actions = group.actions(2);
        let last_ack = actions.iter().find_map(|action| match action {
            Action::Acknowledge(last_ack) => Some((last_ack.sequence, last_ack.ack)),
            _ => None,
        });
        // An acknowledgement that has been under way for long is for nobody.
        let late = group.packet(2, Direction::In, segment(CLIENT.number(1), SERVER.number(4), ACK));
        let is_dropped = group.actions(2) == [Action::Verdict { packet: late, passes: false }];
        last_ack == Some((SERVER.number(4), CLIENT.number(1)))
            && actions.contains(&Action::Verdict { packet, passes: false })
            && is_dropped
    });
}

/// The second of two nodes leads, and a third lacks what it proposes. Its client has five bytes more than it has said.
fn client_is_ahead(mutant: Option<Mutant>) -> (Group, ConnectionId, Segment) {
    let mut group = Group::new(3, mutant);
    let connection = group.open(1);
    for node in [1, 2] {
        group.node(node).handle_answer(connection, b"abc", 0);
    }
    group.replicas.remove(&NodeId(1));
    group.take_over(2, 2);
    group.actions(2);
    group.node(2).handle_input(connection, b"request"[..].into(), 0).unwrap();
    (group, connection, segment(CLIENT.number(7), SERVER.number(8), ACK))
}

#[test]
fn a_client_that_has_more_than_its_server_has_said_is_waited_for() {
    only_finds(Mutant::AcksOfUnsaidEnter, |mutant| {
        let (mut group, connection, ahead) = client_is_ahead(mutant);
        let packet = group.packet(2, Direction::In, ahead);
        let is_asked = group.actions(2) == [Action::AskSent { connection }];
        group.node(2).handle_sent(connection, 3);
        let restored = [
            Action::RestoreAgain { connection },
            Action::ClientReady { connection },
            Action::Verdict { packet, passes: true },
        ];
        let is_restored = group.actions(2) == restored;
        let restore = group.node(2).restore(connection, 0).unwrap();
        let skips = restore.send_sequence == SERVER.number(8) && restore.unacked == (&[], &[]);
        // What the server says then is what the client has, and more.
        group.node(2).handle_answer(connection, b"defghij", 0);
        is_asked && is_restored && skips && group.node(2).client_bytes(connection).unwrap().0 == b"ij"
    });
}

#[test]
fn a_socket_that_is_made_again_does_not_get_twice_what_has_an_index() {
    only_finds(Mutant::RestoresAtDelivered, |mutant| {
        let (mut group, connection, ahead) = client_is_ahead(mutant);
        group.packet(2, Direction::In, ahead);
        group.node(2).handle_sent(connection, 3);
        group.node(2).restore(connection, 0).unwrap().receive_sequence == CLIENT.number(7)
    });
}

#[test]
fn a_socket_that_is_made_again_takes_the_first_answers_for_sent_and_gets_the_rest_later() {
    let mut group = Group::new(2, None);
    let connection = group.open(1);
    let limit = Limits::default().resent_bytes_max;
    let answers: Vec<u8> = (0..=250).cycle().take(limit + 1_000).collect();
    group.node(2).handle_answer(connection, &answers, 0);
    group.replicas.remove(&NodeId(1));
    group.take_over(2, 2);
    let restore = group.node(2).restore(connection, 0).unwrap();
    assert_eq!([restore.unacked.0, restore.unacked.1].concat(), answers[..limit]);
    let (front, back, ends) = group.node(2).client_bytes(connection).unwrap();
    assert_eq!(([front, back].concat(), ends), (answers[limit..].to_vec(), false));
}

#[test]
fn nobody_moves_a_client_by_guessing() {
    let (mut group, connection, ahead) = client_is_ahead(None);
    let guessed = Segment { sequence: CLIENT.number(1 << 31), ..ahead };
    let packet = group.packet(2, Direction::In, guessed);
    group.node(2).handle_sent(connection, 3);
    let actions = [Action::AskSent { connection }, Action::Verdict { packet, passes: false }];
    assert_eq!(group.actions(2), actions);
    assert_eq!(group.node(2).restore(connection, 0).unwrap().send_sequence, SERVER.number(0));
}

#[test]
fn a_connection_is_not_hidden_by_an_older_one_of_the_same_client() {
    only_finds(Mutant::OldConnectionHides, |mutant| {
        let mut group = Group::new(2, mutant);
        let syn = Flags { syn: true, ..Flags::default() };
        group.packet(1, Direction::In, segment(CLIENT.0, 0, syn));
        group.packet(1, Direction::Out, syn_ack());
        // The other node gets that much, and the client begins again before it has said so.
        group.node(1).flush(0);
        let first = group.collect(NodeId(1));
        group.packet(1, Direction::In, segment(55, 0, syn));
        let newer = segment(66, 56, Flags { syn: true, ..ACK });
        group.packet(1, Direction::Out, newer);
        for (from, to, message) in first {
            group.replicas.get_mut(&to).unwrap().handle_message(from, message, 0);
        }
        for (from, to, message) in group.collect(NodeId(2)) {
            group.replicas.get_mut(&to).unwrap().handle_message(from, message, 0);
        }
        assert_eq!(group.node(1).order().delivered(), 1);
        // The kernel repeats its answer.
        let last = group.node(1).order().last();
        group.packet(1, Direction::In, segment(55, 0, syn));
        group.packet(1, Direction::Out, newer);
        group.node(1).order().last() == last
    });
}

#[test]
fn a_client_that_never_finishes_its_handshake_is_forgotten() {
    let mut group = Group::new(1, None);
    let syn = Flags { syn: true, ..Flags::default() };
    group.packet(1, Direction::In, segment(CLIENT.0, 0, syn));
    group.packet(1, Direction::Out, syn_ack());
    assert_eq!(group.node(1).connections().len(), 1);
    let at_ms = group.node(1).poll_timeout().unwrap();
    group.node(1).handle_timeout(at_ms - 1);
    assert_eq!(group.node(1).connections().len(), 1);
    group.node(1).handle_timeout(at_ms);
    assert_eq!(group.node(1).connections().len(), 0);
    let closes = |action: &Action| matches!(action, Action::CloseServer { .. });
    assert!(group.actions(1).iter().any(closes));
}

#[test]
fn answers_are_kept_until_the_client_has_them_on_all_nodes() {
    let mut group = Group::new(2, None);
    let connection = group.open(1);
    for node in [1, 2] {
        group.node(node).handle_answer(connection, &[b'x'; 100_000], 0);
    }
    group.node(1).handle_client_took(connection, 100_000, false);
    let kept = |group: &mut Group, node| {
        let unacked = group.node(node).restore(connection, 0).unwrap().unacked;
        unacked.0.len() + unacked.1.len()
    };
    group.node(1).handle_acked(connection, 90_000, 0);
    group.settle();
    assert_eq!((kept(&mut group, 1), kept(&mut group, 2)), (10_000, 10_000));
    // A little is told later.
    group.node(1).handle_acked(connection, 90_100, 0);
    group.settle();
    assert_eq!(kept(&mut group, 2), 10_000);
    let at_ms = 100;
    group.node(1).handle_timeout(at_ms);
    group.settle();
    assert_eq!((kept(&mut group, 1), kept(&mut group, 2)), (9_900, 9_900));
}

/// Which bytes the server of this node was given since it was last asked.
fn given(group: &mut Group, node: u64) -> Vec<Vec<u8>> {
    let bytes =
        |action| if let Action::ToServer { bytes, .. } = action { Some(bytes.to_vec()) } else { None };
    group.actions(node).into_iter().filter_map(bytes).collect()
}

#[test]
fn a_slower_server_gets_what_a_client_says_in_answer_behind_what_it_has_answered() {
    only_finds(Mutant::AnswersAreNotAwaited, |mutant| {
        let mut group = Group::new(2, mutant);
        let one = group.open(1);
        let mut others = ends();
        others.client.set_port(40_001);
        let other = group.open_from(1, others);
        group.actions(2);
        group.node(1).handle_input(one, b"first"[..].into(), 0).unwrap();
        group.settle();
        group.node(1).handle_answer(one, b"done", 0);
        group.node(1).handle_input(one, b"second"[..].into(), 0).unwrap();
        group.node(1).handle_input(other, b"third"[..].into(), 0).unwrap();
        group.settle();
        // The other server has not answered the first one.
        let begun = given(&mut group, 2);
        group.node(2).handle_answer(one, b"done", 0);
        let then = given(&mut group, 2);
        group.node(2).handle_answer(one, b"done", 0);
        let last = given(&mut group, 2);
        (begun, then, last) == (vec![b"first".to_vec()], vec![b"second".to_vec()], vec![b"third".to_vec()])
    });
}

#[test]
fn a_backup_whose_server_ends_what_the_others_do_not_is_found() {
    let mut group = Group::new(2, None);
    let connection = group.open(1);
    group.node(2).handle_answer_end(connection, 0);
    group.node(1).handle_input(connection, b"more"[..].into(), 0).unwrap();
    group.settle();
    group.actions(2);
    // Nothing is late while the primary is not heard.
    let due_ms = group.node(2).poll_timeout().unwrap();
    group.node(2).handle_timeout(due_ms);
    assert_eq!(group.actions(2), []);
    let mut actions = Vec::new();
    while actions.is_empty() {
        group.now_ms += 500;
        let now_ms = group.now_ms;
        group.node(1).handle_timeout(now_ms);
        group.settle();
        group.node(2).handle_timeout(now_ms);
        actions = group.actions(2);
    }
    assert!(group.now_ms > due_ms, "{}", group.now_ms);
    assert_eq!(actions, [Action::ServerDiffers { connection }]);
}

#[test]
fn a_request_without_an_answer_is_passed_on_all_nodes_when_others_wait() {
    let mut group = Group::new(2, None);
    let one = group.open(1);
    let mut others = ends();
    others.client.set_port(40_001);
    let other = group.open_from(1, others);
    group.actions(1);
    group.actions(2);
    group.node(1).handle_input(one, b"waits"[..].into(), 0).unwrap();
    group.node(1).handle_input(other, b"goes on"[..].into(), 0).unwrap();
    group.settle();
    assert_eq!(
        (given(&mut group, 1), given(&mut group, 2)),
        (vec![b"waits".to_vec()], vec![b"waits".to_vec()])
    );
    group.now_ms = 999;
    group.node(1).handle_timeout(999);
    group.settle();
    assert_eq!(given(&mut group, 1), Vec::<Vec<u8>>::new());
    group.now_ms = 1_000;
    group.node(1).handle_timeout(1_000);
    group.settle();
    let next = vec![b"goes on".to_vec()];
    assert_eq!((given(&mut group, 1), given(&mut group, 2)), (next.clone(), next));
}

#[test]
fn connections_are_as_old_at_a_node_whose_server_took_long_to_get_the_data() {
    let mut group = Group::new(2, None);
    let before = group.open(1);
    group.settle();
    group.now_ms = 5_000;
    let snapshot = group.node(1).snapshot(5_000);
    let ends = Ends { client: "10.0.0.9:40001".parse().unwrap(), ..ends() };
    group.now_ms = 6_500;
    let handshake = group.node(1).restore(before, 0).unwrap().syn_ack.unwrap();
    let open = |at_ms| Entry::Open { handshake: Handshake { ends, ..handshake }, at_ms };
    // It hears of that 2.5 s later, by a clock of its own.
    let (made_ms, now_ms, how) = (1 << 40, (1 << 40) + 4_000, (Delivery::Serial, Protocol::Raw));
    let view = View { epoch: 1, primary: NodeId(1), members: vec![NodeId(1), NodeId(2)] };
    let mut joined = Replica::join(NodeId(3), &snapshot, view, limits(), how, made_ms);
    joined.handle_resumed(now_ms);
    joined.handle_linked(NodeId(1), now_ms);
    let index = snapshot.index;
    joined.handle_message(NodeId(1), Message::Start { epoch: 1, stable: index }, now_ms);
    // One while the server was at rest, and one after that.
    let entries = vec![Ordered { epoch: 1, entry: open(4_000) }, Ordered { epoch: 1, entry: open(6_500) }];
    let message = Message::Entries { epoch: 1, first: index + 1, entries, stable: index + 2 };
    joined.handle_message(NodeId(1), message, now_ms);
    let age_ms = |connection| joined.restore(connection, now_ms).unwrap().age_ms;
    assert_eq!([1, 2].map(|number| age_ms(ConnectionId(index + number))), [5_000, 2_500]);
    assert_eq!(age_ms(before), group.node(1).restore(before, 9_000).unwrap().age_ms);
}

/// The primary of two, with one client, has begun to hand over to the other node, and gets a packet of the client.
fn handing_over(mutant: Option<Mutant>) -> (Group, PacketId) {
    let mut group = Group::new(2, mutant);
    let connection = group.open(1);
    group.node(1).handle_input(connection, b"before"[..].into(), 0).unwrap();
    for (node, to) in [(1, 1), (1, 3), (2, 1)] {
        assert!(group.node(node).hand_over(NodeId(to), 1_000, 0).is_err());
    }
    group.node(1).hand_over(NodeId(2), 1_000, 0).unwrap();
    assert!(!group.node(1).is_handed_over());
    group.actions(1);
    let packet = group.packet(1, Direction::In, segment(CLIENT.number(6), SERVER.number(0), ACK));
    assert_eq!(group.actions(1), []);
    group.settle();
    assert!(group.node(1).is_handed_over());
    group.actions(1);
    (group, packet)
}

#[test]
fn what_comes_while_a_primary_hands_over_goes_to_the_next_one() {
    let (mut group, packet) = handing_over(None);
    let view = View { epoch: 2, primary: NodeId(2), members: vec![NodeId(1), NodeId(2)] };
    group.node(1).handle_view(view.clone(), 0);
    let forward = |packet| Action::Forward { packet, to: NodeId(2) };
    assert_eq!(group.actions(1), [forward(packet), Action::Fence]);
    let late = group.packet(1, Direction::In, segment(CLIENT.number(6), SERVER.number(0), ACK));
    assert_eq!(group.actions(1), [forward(late)]);
    // It comes before that one serves.
    let message = Message::Forwarded { bytes: b"packet"[..].into() };
    group.node(2).handle_view(view, 0);
    group.node(2).handle_message(NodeId(1), message.clone(), 0);
    group.settle();
    assert!(group.actions(2).contains(&Action::TakeOver { epoch: 2 }));
    group.node(2).handle_restored(2, 0);
    let inject = Action::Inject { bytes: b"packet"[..].into() };
    group.settle();
    assert!(group.actions(2).contains(&inject));
    group.node(2).handle_message(NodeId(1), message, 0);
    assert!(group.actions(2).contains(&inject));
    // The one before hears of that, and what comes a little later is forwarded, too.
    let late = group.packet(1, Direction::In, segment(CLIENT.number(6), SERVER.number(0), ACK));
    assert_eq!(group.actions(1), [forward(late)]);
    let due_ms = group.node(1).poll_timeout().unwrap();
    group.node(1).handle_timeout(due_ms);
    assert_eq!((due_ms, group.actions(1)), (10, vec![Action::GiveUpAddress]));
    let packet = group.packet(1, Direction::In, segment(CLIENT.number(6), SERVER.number(0), ACK));
    assert_eq!(group.actions(1), [Action::Verdict { packet, passes: false }]);
}

#[test]
fn a_primary_that_does_not_hand_over_in_the_end_takes_what_has_come() {
    only_finds(Mutant::WithheldAreForgotten, |mutant| {
        [false, true].into_iter().all(|is_late| {
            let (mut group, packet) = handing_over(mutant);
            if is_late {
                group.node(1).handle_timeout(1_000);
            } else {
                group.node(1).keep_on(0);
            }
            group.actions(1).contains(&Action::Verdict { packet, passes: true })
                && !group.node(1).keeps_packets()
        })
    });
}
