//! Nodes, the links between them, and consensus about views, driven by a seed.

use super::invariants::{Violation, Watch, progress, same_logs};
use crate::mutant::Mutant;
use crate::view::{NodeId, View};
use crate::{Limits, Message, Order, Output};
use outlast_stream::SplitMix64;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;
extern crate std;

/// Twelve entries.
pub const LOG_BYTES_MAX: usize = 96;
const LIMITS: Limits = Limits {
    log_bytes_max: LOG_BYTES_MAX,
    message_bytes_max: 24,
    heartbeat_ms: 20,
    tell_stable_ms: 2,
    lag_timeout_ms: 1_000,
    resent_bytes_max: 0,
    answer_timeout_ms: 400,
    hang_timeout_ms: 60_000,
    lock_wait_timeout_ms: 50_000,
};
/// Of one schedule.
const STEPS: u64 = 300;
const NODES_MAX: u64 = 7;
/// Rounds of a few messages after all is whole again, before it counts as standing still; in the first ones more is ordered.
const HEALING_ROUNDS: u64 = 2_000;
const HEALING_ENTRIES_MAX: u64 = 60;
/// So long afterwards messages are lost as before.
const LOSING_ROUNDS: u64 = 30;

/// What may happen.
#[derive(Clone, Copy, Debug)]
enum Action {
    Message,
    Propose,
    Flush,
    Link,
    LearnView,
    DecideView,
    Promote,
    Join,
    Kill,
    Timeout,
}

/// What happens more, and what less: it differs from schedule to schedule, so that rare things meet.
#[derive(Clone, Copy, Debug)]
struct Character {
    weights: [(u64, Action); 10],
    /// Of a hundred messages so many are lost, come twice, or overtake others: as datagrams do. Links of TCP have none of that.
    lost: u64,
    twice: u64,
    overtaking: u64,
}

impl Character {
    fn new(random: &mut SplitMix64) -> Self {
        let mut below = |limit: u64| random.next_u64() % limit;
        let base = [
            (400, Action::Message),
            (150, Action::Propose),
            (100, Action::Flush),
            (30, Action::Link),
            (60, Action::LearnView),
            (15, Action::DecideView),
            (30, Action::Promote),
            (20, Action::Join),
            (3, Action::Kill),
            (40, Action::Timeout),
        ];
        let weights = base.map(|(weight, action)| (weight * [1, 2, 4, 8][below(4) as usize] / 2, action));
        let is_datagrams = below(3) == 0;
        let mut of_hundred = |limit: u64| if is_datagrams { below(limit) } else { 0 };
        Self { weights, lost: of_hundred(10), twice: of_hundred(10), overtaking: of_hundred(20) }
    }
}

/// How a schedule ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Somebody could lead in the end.
    Healed,
    /// No member of the last view was alive.
    AllDead,
}

#[derive(Debug)]
struct Node {
    order: Order<u64>,
    /// It knows so many of the views.
    views: usize,
    excluded: bool,
    was_member: bool,
}

/// All of it.
#[derive(Debug)]
pub struct Cluster {
    random: SplitMix64,
    character: Character,
    mutant: Option<Mutant>,
    nodes: BTreeMap<NodeId, Node>,
    nodes_made: u64,
    /// What is under way from one node to another, where there is a link.
    links: BTreeMap<(NodeId, NodeId), VecDeque<Message<u64>>>,
    /// What consensus has decided.
    views: Vec<View>,
    /// A primary has asked for this node in the view after that epoch, and may.
    promoted: BTreeSet<(u64, NodeId)>,
    entries: u64,
    now_ms: u64,
    watch: Watch,
    /// Every event is printed (`OUTLAST_TRACE`): for a schedule that has gone wrong.
    traces: bool,
}

impl Cluster {
    /// One schedule.
    pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<Outcome, Violation> {
        let mut cluster = Self::new(seed, mutant);
        for _ in 0..STEPS {
            cluster.step()?;
            let watch = core::mem::take(&mut cluster.watch);
            let checked = watch.check(&cluster);
            cluster.watch = watch;
            checked?;
        }
        cluster.heal()
    }

    fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut random = SplitMix64::new(seed);
        let character = Character::new(&mut random);
        let mut cluster = Self {
            random,
            character,
            mutant,
            nodes: BTreeMap::new(),
            nodes_made: 0,
            links: BTreeMap::new(),
            views: Vec::new(),
            promoted: BTreeSet::new(),
            entries: 0,
            now_ms: 0,
            watch: Watch::default(),
            traces: std::env::var_os("OUTLAST_TRACE").is_some(),
        };
        let count = 2 + cluster.below(2);
        let members: Vec<NodeId> = (1..=count).map(NodeId).collect();
        cluster.views.push(View { epoch: 1, primary: NodeId(1), members });
        for _ in 0..count {
            cluster.add_node(0, 1);
        }
        // Most schedules begin with all links.
        if cluster.below(4) > 0 {
            cluster.link_all().ok();
        }
        cluster
    }

    fn link_all(&mut self) -> Result<(), Violation> {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for node in &nodes {
            for other in nodes.iter().filter(|other| *other > node) {
                if !self.links.contains_key(&(*node, *other)) {
                    self.link(*node, *other)?;
                }
            }
        }
        Ok(())
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len().max(1) as u64) as usize;
        from.get(at).copied()
    }

    /// A node with the state after `index`, which knows that many views.
    fn add_node(&mut self, index: u64, views: usize) -> NodeId {
        self.nodes_made += 1;
        let node = NodeId(self.nodes_made);
        let mut order = Order::new(node, index, self.views[views - 1].clone(), LIMITS);
        order.mutant = self.mutant;
        let was_member = order.view().has(node);
        self.watch.joined(node, index);
        self.nodes.insert(node, Node { order, views, excluded: false, was_member });
        node
    }

    pub fn living(&self) -> impl Iterator<Item = (NodeId, &Order<u64>)> {
        self.nodes.iter().map(|(node, state)| (*node, &state.order))
    }

    pub fn was_member(&self, node: NodeId) -> bool {
        self.nodes[&node].was_member
    }

    pub fn is_excluded(&self, node: NodeId) -> bool {
        self.nodes[&node].excluded
    }

    /// The primary of the last view, if it is alive.
    pub fn primary(&self) -> Option<&Order<u64>> {
        let view = self.views.last()?;
        self.nodes.get(&view.primary).map(|node| &node.order)
    }

    fn step(&mut self) -> Result<(), Violation> {
        self.now_ms += self.random.next_u64() % 20;
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let Some(node) = self.pick(&nodes) else { return Ok(()) };
        let weights = self.character.weights;
        let mut at = self.below(weights.iter().map(|(weight, _)| weight).sum());
        let action = weights.iter().find(|(weight, _)| {
            let is_it = at < *weight;
            at = at.saturating_sub(*weight);
            is_it
        });
        match action.map_or(Action::Message, |(_, action)| *action) {
            Action::Message => self.deliver_message(),
            Action::Propose => self.propose(node),
            Action::Flush => self.with(node, |order, now_ms| order.flush(true, now_ms)),
            Action::Link => self.link_or_unlink(node, &nodes),
            Action::LearnView => self.learn_view(node),
            Action::DecideView => self.decide_view(),
            Action::Promote => self.promote(),
            Action::Join => self.join(node),
            Action::Kill => {
                self.kill(node);
                Ok(())
            }
            Action::Timeout => self.with(node, |order, now_ms| order.handle_timeout(now_ms)),
        }
    }

    /// Something happens at a node; what comes of it is done.
    fn with(&mut self, node: NodeId, happens: impl FnOnce(&mut Order<u64>, u64)) -> Result<(), Violation> {
        let Some(state) = self.nodes.get_mut(&node) else { return Ok(()) };
        happens(&mut state.order, self.now_ms);
        while let Some(output) = state.order.poll_output() {
            if self.traces {
                std::println!("    {node:?}: {output:?}");
            }
            match output {
                Output::Send { to, message } => {
                    if let Some(link) = self.links.get_mut(&(node, to)) {
                        link.push_back(message);
                    }
                }
                Output::Deliver { index, entry } => self.watch.delivered(node, index, entry)?,
                Output::Excluded { .. } => state.excluded = true,
                Output::TooFar { .. } | Output::Outdated | Output::Lags { .. } => {}
            }
        }
        Ok(())
    }

    fn trace(&self, what: impl FnOnce() -> std::string::String) {
        if self.traces {
            std::println!("{}", what());
        }
    }

    fn deliver_message(&mut self) -> Result<(), Violation> {
        let busy: Vec<(NodeId, NodeId)> =
            self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(ends, _)| *ends).collect();
        let Some((from, to)) = self.pick(&busy) else { return Ok(()) };
        let Character { lost, twice, overtaking, .. } = self.character;
        let (is_lost, is_twice, overtakes) =
            (self.below(100) < lost, self.below(100) < twice, self.below(100) < overtaking);
        let waiting = self.links.get(&(from, to)).map_or(1, VecDeque::len);
        let at = if overtakes { self.below(waiting as u64) as usize } else { 0 };
        let Some(link) = self.links.get_mut(&(from, to)) else { return Ok(()) };
        let Some(message) = (if is_twice { link.get(at).cloned() } else { link.remove(at) }) else {
            return Ok(());
        };
        if is_lost {
            return Ok(());
        }
        self.trace(|| std::format!("{from:?} to {to:?}: {message:?}"));
        self.with(to, |order, now_ms| order.handle_message(from, message, now_ms))
    }

    fn propose(&mut self, node: NodeId) -> Result<(), Violation> {
        self.entries += 1;
        let entry = self.entries;
        self.trace(|| std::format!("propose {entry} at {node:?}"));
        self.with(node, |order, now_ms| {
            order.propose(entry, now_ms).ok();
        })
    }

    fn link_or_unlink(&mut self, node: NodeId, nodes: &[NodeId]) -> Result<(), Violation> {
        let Some(other) = self.pick(nodes).filter(|other| *other != node) else { return Ok(()) };
        if self.links.contains_key(&(node, other)) {
            self.unlink(node, other)
        } else {
            self.link(node, other)
        }
    }

    fn link(&mut self, node: NodeId, other: NodeId) -> Result<(), Violation> {
        self.trace(|| std::format!("link {node:?} {other:?}"));
        self.links.insert((node, other), VecDeque::new());
        self.links.insert((other, node), VecDeque::new());
        self.with(node, |order, _| order.handle_linked(other))?;
        self.with(other, |order, _| order.handle_linked(node))
    }

    /// What is under way is lost, at both ends or in part.
    fn unlink(&mut self, node: NodeId, other: NodeId) -> Result<(), Violation> {
        self.trace(|| std::format!("unlink {node:?} {other:?}"));
        self.links.remove(&(node, other));
        self.links.remove(&(other, node));
        self.with(node, |order, _| order.handle_unlinked(other))?;
        self.with(other, |order, _| order.handle_unlinked(node))
    }

    fn kill(&mut self, node: NodeId) {
        self.trace(|| std::format!("kill {node:?}"));
        self.nodes.remove(&node);
        let ends: Vec<(NodeId, NodeId)> =
            self.links.keys().copied().filter(|(one, other)| *one == node || *other == node).collect();
        for (one, other) in ends {
            self.links.remove(&(one, other));
            if let Some(state) = self.nodes.get_mut(&other) {
                state.order.handle_unlinked(node);
            }
        }
    }

    /// A node hears of the next view that it does not know.
    fn learn_view(&mut self, node: NodeId) -> Result<(), Violation> {
        let Some(state) = self.nodes.get_mut(&node) else { return Ok(()) };
        let Some(view) = self.views.get(state.views).cloned() else { return Ok(()) };
        state.views += 1;
        state.was_member |= view.has(node);
        self.trace(|| std::format!("{node:?} learns {view:?}"));
        self.with(node, |order, _| order.handle_view(view))
    }

    /// Consensus decides: with any members, for any reason, also while the primary is well.
    fn decide_view(&mut self) -> Result<(), Violation> {
        let Some(before) = self.views.last().cloned() else { return Ok(()) };
        let mut members: Vec<NodeId> = Vec::new();
        for node in before.members.clone() {
            if self.below(8) > 0 {
                members.push(node);
            }
        }
        let stays = self.below(2) == 0;
        let primary = if stays { Some(before.primary) } else { self.pick(&members) };
        let Some(primary) = primary else { return Ok(()) };
        if !members.contains(&primary) {
            members.push(primary);
        }
        if primary == before.primary {
            let promoted = self.promoted.iter().filter(|(epoch, _)| *epoch == before.epoch);
            members.extend(promoted.map(|(_, node)| *node).filter(|node| !before.has(*node)));
        }
        self.decide(View { epoch: before.epoch + 1, primary, members });
        Ok(())
    }

    fn decide(&mut self, view: View) {
        let before = self.views.last().unwrap();
        assert!(view.follows(before), "{view:?} after {before:?}");
        self.trace(|| std::format!("decided {view:?}"));
        self.views.push(view);
    }

    /// A primary that has a node which has caught up may ask for it.
    fn promote(&mut self) -> Result<(), Violation> {
        let leading = self.nodes.iter().filter(|(_, state)| state.order.is_primary());
        let pairs: Vec<(NodeId, NodeId)> = leading
            .flat_map(|(node, state)| {
                let others = self.nodes.keys().filter(|other| !state.order.view().has(**other));
                others.map(|other| (*node, *other))
            })
            .collect();
        let Some((node, other)) = self.pick(&pairs) else { return Ok(()) };
        let mut asked = None;
        self.with(node, |order, now_ms| {
            if order.promote(other, now_ms) {
                asked = Some(order.view().epoch);
            }
        })?;
        if asked.is_some() {
            self.trace(|| std::format!("{node:?} asks for {other:?}"));
        }
        self.promoted.extend(asked.map(|epoch| (epoch, other)));
        Ok(())
    }

    /// A new node begins with a snapshot of this one, and knows what it knows of views, or less.
    fn join(&mut self, donor: NodeId) -> Result<(), Violation> {
        if self.nodes_made >= NODES_MAX {
            return Ok(());
        }
        let (node, is_expected) = (NodeId(self.nodes_made + 1), self.below(4) > 0);
        let leading: Vec<NodeId> =
            self.nodes.iter().filter(|(_, state)| state.order.is_primary()).map(|(node, _)| *node).collect();
        for primary in leading.into_iter().filter(|_| is_expected) {
            self.with(primary, |order, _| _ = order.expect(node))?;
        }
        let Some(state) = self.nodes.get(&donor) else { return Ok(()) };
        let (index, known) = (state.order.delivered(), state.views as u64);
        let views = if self.below(4) > 0 { known } else { 1 + self.below(known) };
        let node = self.add_node(index, views as usize);
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|other| *other != node).collect();
        for other in others {
            if self.below(4) > 0 {
                self.link(node, other)?;
            }
        }
        self.trace(|| std::format!("{node:?} joins with {index} of {donor:?}, {views} views"));
        Ok(())
    }

    /// The links hold from now on, and a primary that lives leads whoever lives of its view. Then all that it takes has to arrive.
    fn heal(mut self) -> Result<Outcome, Violation> {
        let Some(before) = self.views.last().cloned() else { return Ok(Outcome::AllDead) };
        let members: Vec<NodeId> =
            before.members.iter().copied().filter(|node| self.nodes.contains_key(node)).collect();
        let Some(primary) = self.pick(&members) else { return Ok(Outcome::AllDead) };
        self.decide(View { epoch: before.epoch + 1, primary, members });
        self.link_all()?;
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let entries = if self.below(2) == 0 { 0 } else { self.below(HEALING_ENTRIES_MAX) };
        for round in 0..HEALING_ROUNDS {
            if round == entries + LOSING_ROUNDS {
                (self.character.lost, self.character.twice, self.character.overtaking) = (0, 0, 0);
            }
            for node in &nodes {
                self.learn_view(*node)?;
                self.with(*node, |order, now_ms| order.flush(true, now_ms))?;
            }
            if round < entries {
                self.propose(primary)?;
            }
            let is_quiet = self.links.values().all(VecDeque::is_empty);
            if is_quiet
                && round > entries + LOSING_ROUNDS
                && self.all_know()
                && progress::check(&self).is_ok()
            {
                break;
            }
            // What was lost before comes with the next heartbeat.
            self.now_ms += 1;
            for node in &nodes {
                self.with(*node, |order, now_ms| order.handle_timeout(now_ms))?;
            }
            for _ in 0..6 {
                self.deliver_message()?;
            }
        }
        progress::check(&self)?;
        same_logs::check(&self)?;
        Ok(Outcome::Healed)
    }

    fn all_know(&self) -> bool {
        self.nodes.values().all(|node| node.views == self.views.len())
    }
}
