//! What is known of a node and its group.

use super::meeting::Waits;
use super::{Joining, ServerReport, Shared};
use crate::portal::machine::Facts;

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Of the group.
    pub group: String,
    /// This node.
    pub name: String,
    /// It has no group yet, and this is why.
    pub waits: Option<Waits>,
    /// How far it is with a copy of the data.
    pub joining: Joining,
    /// The server of this node has data that the group does not have, of views that were decided beside it. They are kept until people have them
    /// [replaced](super::Node::begin_to_join).
    pub is_other_history: bool,
    /// Counts up with each view; 0 before the first.
    pub epoch: u64,
    /// The primary of the view.
    pub primary: Option<String>,
    /// Who leads the consensus, if that one was heard a moment ago; this node itself: if more than half of the nodes answer it.
    pub leader: Option<String>,
    /// All nodes that are listed.
    pub nodes: Vec<StatusOfNode>,
    /// At the primary: whose server was found to answer otherwise, the last time, and how.
    pub differing: Option<(String, String)>,
    /// How this node deals with its server, as soon as that is known.
    pub server_report: Option<ServerReport>,
    /// Of this node's portal; none: a witness.
    pub facts: Option<Facts>,
}

/// Of one that is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusOfNode {
    /// What people call it.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// It has no server.
    pub is_witness: bool,
    /// It has a vote.
    pub is_voter: bool,
    /// It takes part in the view: it has all that is stable.
    pub is_member: bool,
    /// There is a link between it and this node.
    pub is_linked: bool,
    /// Where this node leads the vote: whether that one answers.
    pub answers: Option<bool>,
    /// Where this node is the primary: the log index of the last entry that that one has.
    pub acked: Option<u64>,
    /// The same: how far that one has compared its server's answers.
    pub compared: Option<u64>,
}

impl Status {
    pub(super) fn of(shared: &Shared) -> Self {
        let members = shared.consensus.members();
        let view = shared.view();
        let voters = shared.consensus.voters();
        let facts = shared.machine.as_ref().map(|machine| machine.facts());
        let nodes = shared.group.nodes.iter().map(|listed| {
            let runs =
                || members.iter().filter(|(_, member)| member.name == listed.name).map(|(node, _)| *node);
            StatusOfNode {
                name: listed.name.clone(),
                address: listed.address.to_string(),
                is_witness: listed.is_witness,
                is_voter: runs().any(|node| voters.contains(&node)),
                is_member: view.as_ref().is_some_and(|view| runs().any(|node| view.has(node))),
                is_linked: facts
                    .as_ref()
                    .is_some_and(|facts| runs().any(|node| facts.linked.contains(&node))),
                answers: runs().filter_map(|node| shared.consensus.hears(node)).max(),
                compared: facts
                    .as_ref()
                    .and_then(|facts| runs().filter_map(|node| facts.compared_by.get(&node).copied()).max()),
                acked: facts
                    .as_ref()
                    .and_then(|facts| runs().filter_map(|node| facts.acked.get(&node).copied()).max()),
            }
        });
        let name_of = |node| {
            let name = shared.name_of(node, &members);
            if name == shared.name && node != shared.me { format!("an earlier run of {name}") } else { name }
        };
        let differing = facts.as_ref().and_then(|facts| facts.last_difference.clone());
        Self {
            differing: differing.map(|(node, what)| (name_of(node), what)),
            group: shared.group.name.clone(),
            name: shared.name.clone(),
            waits: shared.waits.lock().clone().filter(|_| !voters.contains(&shared.me)),
            joining: shared.joins.lock().clone(),
            is_other_history: shared.has_other_history(),
            epoch: view.as_ref().map_or(0, |view| view.epoch),
            primary: view.as_ref().map(|view| name_of(view.primary)),
            leader: shared.consensus.heard_leader().map(name_of),
            nodes: nodes.collect(),
            server_report: shared.server_report.lock().clone(),
            facts,
        }
    }
}
