//! The end of a schedule: nothing breaks any more, and all has to become well.

use super::client::Client;
use super::invariants::{acknowledged, differences, progress};
use super::node::Node;
use super::world::{Outcome, World};
use crate::simulation::invariants::Violation;
use crate::view::{NodeId, View};
use std::vec::Vec;
extern crate std;

/// Rounds after all is whole again, before it counts as standing still.
const HEALING_ROUNDS: u64 = 3_000;
/// So long afterwards packets are lost as before.
const LOSING_ROUNDS: u64 = 30;

impl World {
    /// Nothing breaks from now on, and a member that lives leads the others. Every client has to get all, and every server the same.
    pub(super) fn heal(mut self) -> Result<Outcome, Violation> {
        let differing = self.nodes.values().filter(|node| node.may_differ()).map(|node| node.me);
        for node in differing.collect::<Vec<_>>() {
            self.kill(node);
        }
        let Some(before) = self.views.last().cloned() else { return Ok(Outcome::AllDead) };
        let mut members: Vec<NodeId> =
            before.members.iter().copied().filter(|node| self.nodes.contains_key(node)).collect();
        let Some(primary) = self.pick(&members) else { return Ok(Outcome::AllDead) };
        let view = View { epoch: before.epoch + 1, primary, members: members.clone() };
        self.trace(|| std::format!("healing: {view:?}"));
        self.views.push(view);
        self.link_all();
        for node in members.clone() {
            self.replica(node, |node, now_ms| node.set_lease(true, now_ms))?;
        }
        let mut differs = None;
        for round in 0..HEALING_ROUNDS {
            if round == LOSING_ROUNDS {
                (self.character.lost, self.character.twice, self.character.overtaking) = (0, 0, 0);
                differs = self.alter_a_server(&members);
            }
            self.now_ms += 5;
            for node in self.nodes.keys().copied().collect::<Vec<_>>() {
                if self.below(4) > 0 {
                    self.learn_view(node)?;
                }
                self.replica(node, Node::resume)?;
                self.with(node, Node::restore)?;
                self.with(node, Node::look)?;
                self.with(node, Node::serve)?;
                self.replica(node, |node, now_ms| node.replica.flush(now_ms))?;
                self.replica(node, |node, now_ms| node.replica.handle_timeout(now_ms))?;
            }
            for _ in 0..8 {
                self.deliver_message()?;
                self.deliver_packet()?;
            }
            self.client_acts()?;
            if round % 16 == 15 {
                for node in members.clone() {
                    self.with(node, Node::repeat)?;
                    self.with(node, Node::announce)?;
                }
                let clients: Vec<u16> = self.clients.keys().copied().collect();
                for port in clients {
                    let repeated = self.clients.get_mut(&port).and_then(|client| client.tcp.repeat());
                    self.to_portal.extend(repeated);
                }
            }
            self.take_out_differing(&mut members);
            let is_left = |node: NodeId| !self.differing.contains_key(&node) && self.watch.has_differed(node);
            let found = !differs.is_some_and(is_left);
            if round > LOSING_ROUNDS
                && self.clients.values().all(Client::is_over)
                && found
                && self.is_quiet(&members)
            {
                break;
            }
        }
        differences::has_found(&self.watch, &self.differing)?;
        for client in self.clients.values() {
            progress::check(client)?;
            acknowledged::check(&self.watch, client, &members)?;
        }
        Ok(Outcome::Healed)
    }

    /// The group goes on without a node whose server says something else.
    fn take_out_differing(&mut self, members: &mut Vec<NodeId>) {
        let Some(newest) = self.views.last() else { return };
        let is_in = |(node, _): &(&NodeId, &NodeId)| newest.has(**node);
        let Some((node, successor)) = self.differing.iter().find(is_in).map(|(node, next)| (*node, *next))
        else {
            return;
        };
        members.retain(|member| *member != node);
        let primary = if newest.primary == node { successor } else { newest.primary };
        let view = View { epoch: newest.epoch + 1, primary, members: members.clone() };
        self.trace(|| std::format!("without {node:?}: {view:?}"));
        self.views.push(view);
        for member in members.iter() {
            let _ = self.replica(*member, |node, now_ms| node.set_lease(true, now_ms));
        }
    }

    /// The data of a server are others from now on, in some schedules: who compares answers has to find that. Only with three members is a
    /// primary the one that is wrong.
    fn alter_a_server(&mut self, members: &[NodeId]) -> Option<NodeId> {
        let newest = self.views.last()?;
        let knows = |node: &NodeId| self.nodes[node].replica.order().view() == newest;
        let may = |node: &NodeId| knows(node) && (*node != newest.primary || members.len() > 2);
        let among: Vec<NodeId> = members.iter().copied().filter(may).collect();
        let node = self.pick(&among).filter(|_| self.below(3) == 0)?;
        self.trace(|| std::format!("the data of {node:?} are others"));
        self.nodes.get_mut(&node)?.server.alter();
        let leads = self.views.last().is_some_and(|view| view.primary == node);
        self.watch.alter(node, leads, leads && !self.nodes[&node].answers_wait());
        Some(node)
    }

    /// The members have delivered the same, and their servers have worked it off.
    pub(super) fn is_quiet(&self, members: &[NodeId]) -> bool {
        let mut delivered = members.iter().map(|node| self.nodes[node].replica.order().delivered());
        let first = delivered.next();
        delivered.all(|index| Some(index) == first)
            && members
                .iter()
                .all(|node| self.nodes[node].server.is_idle() && self.nodes[node].replica.has_given_all())
    }
}
