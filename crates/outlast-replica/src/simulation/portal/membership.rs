//! Consensus decides about views, at any time and for any reason; nodes join.

use super::node::Node;
use super::world::{LIMITS, NODES_MAX, World};
use crate::simulation::invariants::Violation;
use crate::view::{NodeId, View};
use std::vec::Vec;
extern crate std;

impl World {
    pub(super) fn learn_view(&mut self, node: NodeId) -> Result<(), Violation> {
        let Some(state) = self.nodes.get_mut(&node) else { return Ok(()) };
        let Some(view) = self.views.get(state.views).cloned() else { return Ok(()) };
        state.views += 1;
        self.trace(|| std::format!("{node:?} learns {view:?}"));
        self.replica(node, |node, now_ms| node.replica.handle_view(view, now_ms))
    }

    /// The lease is over, or there again: here it is not asked who has it, as any node may lose it at any time.
    pub(super) fn lease(&mut self, node: NodeId) -> Result<(), Violation> {
        let has_lease = self.below(3) > 0;
        self.trace(|| std::format!("{node:?} has the lease: {has_lease}"));
        self.replica(node, |node, now_ms| node.set_lease(has_lease, now_ms))
    }

    /// A primary prepares that another node leads, or does so no more.
    pub(super) fn hand_over(&mut self, node: NodeId, nodes: &[NodeId]) -> Result<(), Violation> {
        let Some(to) = self.pick(nodes) else { return Ok(()) };
        if to == node {
            return self.replica(node, Node::prepare_to_fence);
        }
        self.trace(|| std::format!("{node:?} hands over to {to:?}, or keeps on"));
        self.replica(node, |node, now_ms| node.hand_over(to, now_ms))
    }

    /// Consensus decides: with any members, for any reason, also while the primary is well.
    pub(super) fn decide_view(&mut self) {
        let Some(before) = self.views.last().cloned() else { return };
        let mut members: Vec<NodeId> = Vec::new();
        for node in before.members.clone() {
            if self.below(6) > 0 {
                members.push(node);
            }
        }
        let living: Vec<NodeId> =
            members.iter().copied().filter(|node| self.nodes.contains_key(node)).collect();
        let stays = self.below(2) == 0 && living.contains(&before.primary);
        let leading = self.nodes.get(&before.primary).filter(|node| node.replica.is_handed_over());
        let successor = leading.and_then(|node| node.hands_over_to).filter(|node| living.contains(node));
        let chosen = if stays { Some(before.primary) } else { self.pick(&living) };
        let Some(primary) = successor.filter(|_| !stays).or(chosen) else { return };
        if primary == before.primary {
            let promoted = self.promoted.iter().filter(|(epoch, _)| *epoch == before.epoch);
            members.extend(promoted.map(|(_, node)| *node));
        }
        members.sort_unstable();
        members.dedup();
        let view = View { epoch: before.epoch + 1, primary, members };
        self.trace(|| std::format!("decided {view:?}"));
        self.views.push(view);
    }

    /// A primary that has a node which has caught up may ask for it.
    pub(super) fn promote(&mut self) -> Result<(), Violation> {
        let leading = self.nodes.values().filter(|node| node.replica.order().is_primary());
        let pairs: Vec<(NodeId, NodeId)> = leading
            .flat_map(|node| {
                let others = self.nodes.keys().filter(|other| !node.replica.order().view().has(**other));
                others.map(|other| (node.me, *other))
            })
            .collect();
        let Some((node, other)) = self.pick(&pairs) else { return Ok(()) };
        let mut asked = None;
        self.replica(node, |node, now_ms| {
            asked = node.replica.promote(other, now_ms).then(|| node.replica.order().view().epoch);
        })?;
        self.promoted.extend(asked.map(|epoch| (epoch, other)));
        Ok(())
    }

    /// A node begins with a snapshot of this one, if its server has worked off all: a new one, or one that is out and has no links for now.
    pub(super) fn join(&mut self, donor: NodeId) -> Result<(), Violation> {
        if self.nodes.get(&donor).is_none_or(|node| node.is_busy()) {
            return Ok(());
        }
        let is_out =
            |node: &&Node| node.me != donor && (node.excluded || !node.replica.order().view().has(node.me));
        let out: Vec<NodeId> = self.nodes.values().filter(is_out).map(|node| node.me).collect();
        let mut back = if self.below(2) == 0 { self.pick(&out) } else { None };
        if let Some(node) = back {
            // A node under its old number asks the primary of the newest view that it knows.
            let newest = self.nodes.get(&node).and_then(|node| self.views.get(node.views - 1));
            let mut is_expected = newest.and_then(|view| view.source_for(node)) == Some(donor);
            self.replica(donor, |donor, _| is_expected &= donor.replica.expect(node).is_some())?;
            back = back.filter(|_| is_expected);
        }
        // It knows of the view without it, whatever the other one knows.
        let mut views = self.nodes.get(&donor).map_or(1, |node| node.views);
        let me = match back {
            Some(node) => {
                views = views.max(self.nodes.get(&node).map_or(1, |node| node.views));
                self.kill(node);
                node
            }
            None if self.nodes_made >= NODES_MAX => return Ok(()),
            None => {
                self.nodes_made += 1;
                NodeId(self.nodes_made)
            }
        };
        let leading =
            self.nodes.values().filter(|node| node.replica.order().is_primary()).map(|node| node.me);
        for primary in leading.collect::<Vec<_>>() {
            self.replica(primary, |node, _| _ = node.replica.expect(me))?;
        }
        let Some(state) = self.nodes.get(&donor) else { return Ok(()) };
        let Some(view) = self.views.get(views - 1).cloned() else { return Ok(()) };
        let node = state.join(me, (view, views), LIMITS, self.now_ms)?;
        self.trace(|| std::format!("{me:?} joins with {} of {donor:?}", node.replica.order().delivered()));
        self.watch.join(me, donor);
        self.nodes.insert(me, node);
        self.replica(me, |node, now_ms| node.set_lease(true, now_ms))?;
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|other| *other != me).collect();
        for other in others {
            self.link(me, other)?;
        }
        Ok(())
    }
}
