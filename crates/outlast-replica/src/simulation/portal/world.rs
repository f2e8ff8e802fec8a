//! Nodes, clients, the network between them and consensus about views, driven by a seed.

use super::client::{Client, ends};
use super::invariants::agreed::Agreed;
use super::invariants::{Watch, clients, differences};
use super::node::{How, Node};
use super::tcp::{Packet, refuse};
use crate::mutant::Mutant;
use crate::simulation::invariants::Violation;
use crate::view::{NodeId, View};
use crate::{AnswerPolicy, Entry, Limits, Message, Protocol, ServerClock};
use outlast_stream::SplitMix64;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;
extern crate std;

pub(super) const LIMITS: Limits = Limits {
    log_bytes_max: 2_000,
    message_bytes_max: 400,
    heartbeat_ms: 20,
    tell_stable_ms: 2,
    lag_timeout_ms: 1_000,
    resent_bytes_max: 40,
    answer_timeout_ms: 400,
    hang_timeout_ms: 60_000,
    lock_wait_timeout_ms: 50_000,
};
/// Of one schedule.
const STEPS: u64 = 700;
const CLIENTS_MAX: u64 = 6;
pub(super) const NODES_MAX: u64 = 6;
/// Clients share so few ports that one is used again.
const PORTS: u64 = 4;

#[derive(Clone, Copy, Debug)]
enum Action {
    Message,
    Packet,
    Act,
    Look,
    Serve,
    Quit,
    Flush,
    RepeatPortal,
    RepeatClient,
    NewClient,
    ResetClient,
    Link,
    LearnView,
    DecideView,
    Lease,
    HandOver,
    Promote,
    Join,
    Hold,
    Resume,
    Kill,
    Restore,
    Timeout,
}

/// What happens more, and what less, from schedule to schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Character {
    weights: [(u64, Action); 23],
    /// Of a hundred packets so many are lost, come twice, or overtake others.
    pub(super) lost: u64,
    pub(super) twice: u64,
    pub(super) overtaking: u64,
}

impl Character {
    fn new(random: &mut SplitMix64) -> Self {
        let mut below = |limit: u64| random.next_u64() % limit;
        let base = [
            (300, Action::Message),
            (400, Action::Packet),
            (150, Action::Act),
            (150, Action::Look),
            (150, Action::Serve),
            (3, Action::Quit),
            (150, Action::Flush),
            (30, Action::RepeatPortal),
            (40, Action::RepeatClient),
            (20, Action::NewClient),
            (2, Action::ResetClient),
            (8, Action::Link),
            (60, Action::LearnView),
            (14, Action::DecideView),
            (6, Action::Lease),
            (6, Action::HandOver),
            (20, Action::Promote),
            (6, Action::Join),
            (6, Action::Hold),
            (20, Action::Resume),
            (4, Action::Kill),
            (60, Action::Restore),
            (40, Action::Timeout),
        ];
        let weights = base.map(|(weight, action)| (weight * [1, 2, 4, 8][below(4) as usize] / 2, action));
        let is_good = below(2) == 0;
        let mut of_hundred = |limit: u64| if is_good { 0 } else { below(limit) };
        Self { weights, lost: of_hundred(15), twice: of_hundred(10), overtaking: of_hundred(30) }
    }
}

/// How a schedule ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Every client has had all.
    Healed,
    /// No member of the last view was alive.
    AllDead,
}

#[derive(Debug)]
pub struct World {
    pub(super) random: SplitMix64,
    pub(super) character: Character,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) links: BTreeMap<(NodeId, NodeId), VecDeque<Message<Entry>>>,
    pub(super) views: Vec<View>,
    /// Who has taken the portal's address, the last one last: the network may still bring packets to an earlier one.
    pub(super) owners: Vec<NodeId>,
    pub(super) nodes_made: u64,
    /// A primary has asked for this node in the view after that epoch, and may.
    pub(super) promoted: BTreeSet<(u64, NodeId)>,
    pub(super) to_portal: VecDeque<Packet>,
    pub(super) to_clients: VecDeque<Packet>,
    /// All that were ever forwarded from one node to another.
    forwarded: Vec<Packet>,
    /// Those that have come there.
    injected: VecDeque<(NodeId, Packet)>,
    pub(super) clients: BTreeMap<u16, Client>,
    pub(super) clients_made: u64,
    pub(super) now_ms: u64,
    pub(super) watch: Watch,
    agreed: Agreed,
    pub(super) traces: bool,
    /// Nodes whose servers were found to say something else, and who leads without them.
    pub(super) differing: BTreeMap<NodeId, NodeId>,
}

impl World {
    /// One schedule.
    pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<Outcome, Violation> {
        let mut world = Self::new(seed, mutant);
        for _ in 0..STEPS {
            world.step()?;
        }
        world.heal()
    }

    fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut random = SplitMix64::new(seed);
        let character = Character::new(&mut random);
        let count = 2 + random.next_u64() % 3;
        let members: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let view = View { epoch: 1, primary: NodeId(1), members: members.clone() };
        let protocol = match random.next_u64() % 4 {
            0 | 1 => Protocol::Counted,
            2 => Protocol::CountedAsked,
            _ => Protocol::CountedTurns,
        };
        // A server has to say when it has looked at the time.
        let is_ordered = protocol != Protocol::Counted && !random.next_u64().is_multiple_of(4);
        let clock = if is_ordered { ServerClock::Order } else { ServerClock::Machine };
        let answers = match seed / 2 % 4 {
            0 => AnswerPolicy::All,
            1 => AnswerPolicy::Majority,
            _ => AnswerPolicy::First,
        };
        let how = How { protocol, clock, answers, kernel_filters: seed.is_multiple_of(2) };
        let nodes =
            members.iter().map(|node| (*node, Node::new(*node, view.clone(), LIMITS, how, mutant))).collect();
        let mut world = Self {
            random,
            character,
            nodes,
            links: BTreeMap::new(),
            views: std::vec![view],
            owners: Vec::new(),
            nodes_made: count,
            promoted: BTreeSet::new(),
            to_portal: VecDeque::new(),
            to_clients: VecDeque::new(),
            forwarded: Vec::new(),
            injected: VecDeque::new(),
            clients: BTreeMap::new(),
            clients_made: 0,
            now_ms: 0,
            watch: Watch::default(),
            agreed: Agreed::default(),
            traces: std::env::var_os("OUTLAST_TRACE").is_some(),
            differing: BTreeMap::new(),
        };
        world.link_all();
        for node in members {
            world.replica(node, |node, now_ms| node.set_lease(true, now_ms)).ok();
        }
        world
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    pub(super) fn pick<T: Copy>(&mut self, among: &[T]) -> Option<T> {
        (!among.is_empty()).then(|| among[self.below(among.len() as u64) as usize])
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> std::string::String) {
        if self.traces {
            std::println!("{}", what());
        }
    }

    fn step(&mut self) -> Result<(), Violation> {
        self.now_ms += self.below(2);
        let total = self.character.weights.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(total);
        let weights = self.character.weights;
        let mut chosen = Action::Packet;
        for (weight, action) in weights {
            if at < weight {
                chosen = action;
                break;
            }
            at -= weight;
        }
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let Some(node) = self.pick(&nodes) else { return Ok(()) };
        match chosen {
            Action::Message => self.deliver_message(),
            Action::Packet => self.deliver_packet(),
            Action::Act => self.client_acts(),
            Action::RepeatClient => self.client_repeats(),
            Action::NewClient => {
                self.new_client();
                Ok(())
            }
            Action::ResetClient => self.client_resets(),
            Action::Look => self.with(node, Node::look),
            Action::Serve => self.with(node, Node::serve),
            Action::Quit => self.with(node, Node::quit),
            Action::RepeatPortal => self.with(node, Node::repeat),
            Action::Restore => self.with(node, Node::restore),
            Action::Flush => self.replica(node, |node, now_ms| node.replica.flush(now_ms)),
            Action::Timeout => self.replica(node, |node, now_ms| node.replica.handle_timeout(now_ms)),
            Action::LearnView => self.learn_view(node),
            Action::Lease => self.lease(node),
            Action::HandOver => self.hand_over(node, &nodes),
            Action::Promote => self.promote(),
            Action::Join => self.join(node),
            Action::Hold => self.replica(node, Node::hold),
            Action::Resume => self.replica(node, Node::resume),
            Action::DecideView => {
                self.decide_view();
                Ok(())
            }
            Action::Link => self.link_or_unlink(node, &nodes),
            Action::Kill => {
                self.kill(node);
                Ok(())
            }
        }
    }

    /// Something happens at a node; what comes of it is done.
    pub(super) fn with(
        &mut self,
        node: NodeId,
        happens: impl FnOnce(&mut Node, &mut SplitMix64, &mut Watch, u64) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let Some(state) = self.nodes.get_mut(&node) else { return Ok(()) };
        happens(state, &mut self.random, &mut self.watch, self.now_ms)?;
        for (to, message) in state.out.messages.drain(..) {
            if let Some(link) = self.links.get_mut(&(node, to)) {
                link.push_back(message);
            }
        }
        self.to_clients.extend(state.out.packets.drain(..));
        for (to, packet) in state.out.forwarded.drain(..) {
            let number = self.forwarded.len() as u64;
            self.forwarded.push(packet);
            if let Some(link) = self.links.get_mut(&(node, to)) {
                link.push_back(Message::Forwarded { bytes: number.to_be_bytes()[..].into() });
            }
        }
        for number in state.out.injected.drain(..) {
            self.injected.extend(self.forwarded.get(number).map(|packet| (node, packet.clone())));
        }
        let fed = core::mem::take(&mut state.out.fed);
        if core::mem::take(&mut state.out.takes_address) {
            self.owners.retain(|owner| *owner != node);
            self.owners.push(node);
        }
        for (differing, successor) in state.out.differing.drain(..) {
            differences::check(&self.watch, differing)?;
            self.differing.insert(differing, successor);
        }
        if state.differs {
            self.kill(node);
        }
        self.agreed.check(&self.nodes, node, &fed)
    }

    pub(super) fn replica(
        &mut self,
        node: NodeId,
        happens: impl FnOnce(&mut Node, u64),
    ) -> Result<(), Violation> {
        self.with(node, |node, random, _, now_ms| {
            happens(node, now_ms);
            node.act(random, now_ms)
        })
    }

    pub(super) fn deliver_message(&mut self) -> Result<(), Violation> {
        let busy: Vec<(NodeId, NodeId)> =
            self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(ends, _)| *ends).collect();
        let Some((from, to)) = self.pick(&busy) else { return Ok(()) };
        let Some(message) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        self.trace(|| std::format!("{from:?} to {to:?}: {message:?}"));
        self.replica(to, |node, now_ms| node.replica.handle_message(from, message, now_ms))
    }

    pub(super) fn deliver_packet(&mut self) -> Result<(), Violation> {
        if !self.injected.is_empty()
            && self.below(2) == 0
            && let Some((node, packet)) = self.injected.pop_front()
        {
            self.trace(|| std::format!("injected at {node:?}: {packet:?}"));
            return self
                .with(node, |node, random, watch, now_ms| node.packet_in(packet, random, watch, now_ms));
        }
        let to_portal = self.below(2) == 0;
        let waiting = if to_portal { self.to_portal.len() } else { self.to_clients.len() };
        if waiting == 0 {
            return Ok(());
        }
        let Character { lost, twice, overtaking, .. } = self.character;
        let (is_lost, is_twice, overtakes) =
            (self.below(100) < lost, self.below(100) < twice, self.below(100) < overtaking);
        let at = if overtakes { self.below(waiting as u64) as usize } else { 0 };
        let queue = if to_portal { &mut self.to_portal } else { &mut self.to_clients };
        let Some(packet) = (if is_twice { queue.get(at).cloned() } else { queue.remove(at) }) else {
            return Ok(());
        };
        if is_lost {
            return Ok(());
        }
        if to_portal { self.reach_portal(packet) } else { self.reach_client(&packet) }
    }

    fn reach_portal(&mut self, packet: Packet) -> Result<(), Violation> {
        let living: Vec<NodeId> =
            self.owners.iter().copied().filter(|owner| self.nodes.contains_key(owner)).collect();
        let is_late = self.below(20) == 0;
        let owner = if is_late { self.pick(&living) } else { self.owners.last().copied() };
        let Some(owner) = owner else { return Ok(()) };
        self.trace(|| std::format!("to {owner:?}: {packet:?}"));
        self.with(owner, |node, random, watch, now_ms| node.packet_in(packet, random, watch, now_ms))
    }

    fn reach_client(&mut self, packet: &Packet) -> Result<(), Violation> {
        self.trace(|| std::format!("to client: {packet:?}"));
        let port = packet.segment.ends.client.port();
        let answers = match self.clients.get_mut(&port) {
            Some(client) if !client.has_reset => {
                let answers = client.tcp.receive(packet);
                if let Some(client) = self.clients.get(&port) {
                    clients::check(&self.watch, client)?;
                }
                answers
            }
            _ => refuse(packet).into_iter().collect(),
        };
        self.to_portal.extend(answers);
        Ok(())
    }

    fn pick_client(&mut self) -> Option<u16> {
        let ports: Vec<u16> = self.clients.keys().copied().collect();
        self.pick(&ports)
    }

    pub(super) fn client_acts(&mut self) -> Result<(), Violation> {
        let Some(port) = self.pick_client() else { return Ok(()) };
        let serving = self.nodes.values().filter(|node| node.replica.is_serving());
        let is_waited_for = serving.clone().any(|node| node.replica.is_waited_for(&ends(port)));
        let Some(client) = self.clients.get_mut(&port) else { return Ok(()) };
        if client.awaits_answers() && is_waited_for {
            client.hear();
        } else {
            self.to_portal.extend(client.act(&mut self.random));
        }
        clients::check(&self.watch, client)
    }

    fn client_repeats(&mut self) -> Result<(), Violation> {
        let Some(port) = self.pick_client() else { return Ok(()) };
        let Some(client) = self.clients.get_mut(&port) else { return Ok(()) };
        self.to_portal.extend(client.tcp.repeat());
        Ok(())
    }

    fn client_resets(&mut self) -> Result<(), Violation> {
        let Some(port) = self.pick_client() else { return Ok(()) };
        let Some(client) = self.clients.get_mut(&port).filter(|client| !client.is_over()) else {
            return Ok(());
        };
        self.to_portal.push_back(client.reset());
        Ok(())
    }

    /// A new one, from a port that may have been used before by one that is over.
    fn new_client(&mut self) {
        if self.clients_made >= CLIENTS_MAX {
            return;
        }
        let port = 40_000 + self.below(PORTS) as u16;
        if self.clients.get(&port).is_some_and(|client| !client.is_over()) {
            return;
        }
        self.clients_made += 1;
        let client = Client::new(self.clients_made, port, &mut self.random);
        self.trace(|| std::format!("client {} at {:?}", client.number, ends(port)));
        self.to_portal.push_back(client.tcp.hello());
        self.clients.insert(port, client);
    }

    fn link_or_unlink(&mut self, node: NodeId, nodes: &[NodeId]) -> Result<(), Violation> {
        let Some(other) = self.pick(nodes).filter(|other| *other != node) else { return Ok(()) };
        if self.links.contains_key(&(node, other)) {
            self.trace(|| std::format!("unlink {node:?} {other:?}"));
            self.links.remove(&(node, other));
            self.links.remove(&(other, node));
            self.replica(node, |node, _| node.replica.handle_unlinked(other))?;
            self.replica(other, |other, _| other.replica.handle_unlinked(node))
        } else {
            self.link(node, other)
        }
    }

    pub(super) fn link(&mut self, node: NodeId, other: NodeId) -> Result<(), Violation> {
        self.links.insert((node, other), VecDeque::new());
        self.links.insert((other, node), VecDeque::new());
        self.replica(node, |node, now_ms| node.replica.handle_linked(other, now_ms))?;
        self.replica(other, |other, now_ms| other.replica.handle_linked(node, now_ms))
    }

    pub(super) fn link_all(&mut self) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for (at, node) in nodes.iter().enumerate() {
            for other in &nodes[at + 1..] {
                if !self.links.contains_key(&(*node, *other)) {
                    self.link(*node, *other).ok();
                }
            }
        }
    }

    pub(super) fn kill(&mut self, node: NodeId) {
        self.trace(|| std::format!("kill {node:?}"));
        self.nodes.remove(&node);
        self.links.retain(|(from, to), _| *from != node && *to != node);
        for other in self.nodes.values_mut() {
            other.replica.handle_unlinked(node);
        }
    }
}
