//! How a group goes on whose nodes are dead or cut off in such a number that those that are left decide nothing, or that was down as a whole: people
//! have it founded again, by the nodes that answer, with the data of one of them.
//!
//! What decides is pure: what nodes have said goes in, and the plan comes out. People see the plan first, with what may be lost.

use super::group::{Group, Listed, difference};
use super::meeting::Introduction;
use crate::history::{self, Recovered, recoveries};
use crate::view::GROUP_EPOCHS;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// With what a connection begins on which a node is asked to follow a plan.
pub(super) const MAGIC: [u8; 8] = *b"outlast\x1b";
/// What the first view after a recovery has as its number, in multiples of [`GROUP_EPOCHS`],
/// counts the minutes since 2025, with three more digits of the plan's own: so it is higher than that of each view that was decided by nodes that do not
/// answer, and another one than that of a recovery that nobody here knows of.
const PLANS: u64 = 1_000;
/// The beginning of 2025, in minutes since 1970.
const BEGINNING_MIN: u64 = 28_927_680;

/// What the nodes that take part have to know.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recovery {
    /// Of this plan: another one where anything is different, or a node was started again.
    pub id: u64,
    /// Number of the first view.
    pub epoch: u64,
    /// The node whose server has the data.
    pub from: String,
    /// All that take part, and their runs: they found the group.
    pub nodes: BTreeMap<String, u64>,
    /// Through what the group will have come then, this recovery as the last.
    pub recovered: Vec<Recovered>,
}

/// How a node is that is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It does not answer.
    Absent,
    /// It has another list, and what differs.
    Differs(String),
    /// Its server takes no connections.
    NotReady,
    /// It has no group, and waits.
    Waits,
    /// It is in the group, and hears no leader whom more than half of the nodes answer.
    HasNoMajority,
}

/// A node of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNode {
    /// What people call it.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// It has no server.
    pub is_witness: bool,
    /// How it is.
    pub found: Found,
    /// The last view of which it was a member, if that is known.
    pub last_epoch: Option<u64>,
    /// Its server has the data of that view.
    pub has_data: bool,
}

/// What is to be done, and what is lost by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For the nodes.
    pub recovery: Recovery,
    /// All of the list.
    pub nodes: Vec<PlannedNode>,
    /// The last view of which the node with the data was a member.
    pub last_epoch: u64,
    /// The last view that is known.
    pub known_epoch: u64,
    /// Its server has all data of that view; else it has begun to get a copy of others.
    pub has_data: bool,
}

impl Plan {
    /// Nodes that were members of later views than the one with the data.
    pub fn newer(&self) -> impl Iterator<Item = &PlannedNode> {
        let is_newer = |epoch| epoch > self.last_epoch;
        self.nodes.iter().filter(move |node| node.has_data && node.last_epoch.is_some_and(is_newer))
    }

    /// Other nodes that were members of the same view at last.
    pub fn equal(&self) -> impl Iterator<Item = &PlannedNode> {
        let is_equal = |node: &&PlannedNode| {
            node.has_data && node.last_epoch == Some(self.last_epoch) && node.name != self.recovery.from
        };
        self.nodes.iter().filter(is_equal)
    }

    /// Nodes with servers of which nobody knows what they were members of.
    pub fn unknown(&self) -> impl Iterator<Item = &PlannedNode> {
        let is_unknown =
            |node: &&PlannedNode| !node.is_witness && matches!(node.found, Found::Absent | Found::Differs(_));
        self.nodes.iter().filter(is_unknown)
    }
}

/// The plan, by what nodes say. `from`: whose data it is to be; none: of one that was a member of the last view. `now_min`: the time of day, in minutes
/// since 1970.
///
/// # Errors
/// There is nothing to recover, or nobody to recover from, in a sentence.
pub fn plan(
    group: &Group,
    heard: &BTreeMap<String, Introduction>,
    from: Option<&str>,
    now_min: u64,
) -> Result<Plan, String> {
    let nodes: Vec<PlannedNode> = group.nodes.iter().map(|listed| look_at(group, listed, heard)).collect();
    let takes_part = |node: &&PlannedNode| matches!(node.found, Found::Waits | Found::HasNoMajority);
    let parts: Vec<&PlannedNode> = nodes.iter().filter(takes_part).collect();
    let said = |node: &&PlannedNode| heard.get(&node.name);
    let runs: BTreeMap<u64, &str> =
        parts.iter().filter_map(|node| Some((said(node)?.node, node.name.as_str()))).collect();
    for node in &parts {
        // The leader itself knows whether more than half of the nodes answer it.
        let leader = said(node).and_then(|said| said.leader);
        let is_own = |leader: &u64| runs.get(leader) == Some(&node.name.as_str());
        match leader {
            // It is of no use where nobody answers who has the data.
            Some(leader) if is_own(&leader) && said(node).is_some_and(|said| !said.hears_member) => {}
            Some(leader) if is_own(&leader) => {
                return Err(format!(
                    "the group works: more than half of its nodes answer {}, which leads the vote. A node that is out comes back by `outlast replicate \
                     join`, and one that does not run when it is started again",
                    node.name
                ));
            }
            Some(leader) if !runs.contains_key(&leader) => {
                return Err(format!(
                    "{} hears the node that leads the vote, which does not answer here: look at the network between them",
                    node.name
                ));
            }
            _ => {}
        }
    }
    let with_data = |node: &&&PlannedNode| node.has_data && node.last_epoch.is_some();
    let newest = parts.iter().filter(with_data).max_by_key(|node| {
        // Of several that were members of the same view one that still runs, whose server has all; then the primary, whose server had worked off what clients
        // were answered, and others perhaps not yet; then the first of the list.
        let at = nodes.iter().position(|other| other.name == node.name);
        let (has_run_since, was_primary) =
            said(node).map_or((false, false), |said| (said.has_run_since, said.was_primary));
        (node.last_epoch, has_run_since, was_primary, std::cmp::Reverse(at))
    });
    let newer = |node: &&PlannedNode| {
        node.found == Found::NotReady
            && node.has_data
            && node.last_epoch > newest.and_then(|newest| newest.last_epoch)
    };
    if let (Some(newest), None, Some(starting)) = (newest, from, nodes.iter().find(newer)) {
        return Err(format!(
            "the server of {} takes no connections yet, and has newer data than that of {}: wait for it, or name the node whose data are to be taken",
            starting.name, newest.name
        ));
    }
    let Some(newest) = newest else {
        let starting = nodes.iter().find(|node| node.found == Found::NotReady);
        let starting =
            starting.map(|node| format!(" (the server of {} takes no connections yet)", node.name));
        return Err(format!(
            "no node answers whose server has the data of the group{}: start one that was a member. A group that is new begins by itself, when all \
             nodes of the list are there",
            starting.unwrap_or_default()
        ));
    };
    let source = match from {
        None => newest,
        Some(from) => match nodes.iter().find(|node| node.name == from) {
            None => return Err(format!("the group has no node {from}")),
            Some(node) if node.is_witness => return Err(format!("{from} is a witness, and has no data")),
            Some(node) if !takes_part(&node) => {
                return Err(format!("{from} cannot take part: {}", describe(&node.found)));
            }
            Some(node) if node.last_epoch.is_none() => {
                return Err(format!(
                    "{from} was never a member of the group, so its server has no data of it"
                ));
            }
            Some(node) => node,
        },
    };
    let known_epoch = parts.iter().filter_map(said).map(|said| said.known_epoch);
    let known_epoch = known_epoch.chain(nodes.iter().filter_map(|node| node.last_epoch)).max().unwrap_or(0);
    let names: BTreeMap<String, u64> =
        parts.iter().filter_map(|node| Some((node.name.clone(), said(node)?.node))).collect();
    let mut hasher = DefaultHasher::new();
    (&runs, known_epoch, &source.name, source.last_epoch, source.has_data).hash(&mut hasher);
    let id = hasher.finish();
    let stamp = now_min.saturating_sub(BEGINNING_MIN) * PLANS + id % PLANS;
    let epoch = stamp.max(recoveries(known_epoch) + 1) * GROUP_EPOCHS;
    let (last_epoch, has_data) = (source.last_epoch.unwrap_or(0), source.has_data);
    // What others have is more than a part of a copy, whatever they were members of.
    let next = Recovered { epoch, data_epoch: if has_data { last_epoch } else { 0 } };
    let before = said(&source).map_or(&[][..], |said| said.recovered.as_slice());
    let recovered = history::with(if has_data { before } else { &[] }, next);
    let recovery = Recovery { id, epoch, from: source.name.clone(), nodes: names, recovered };
    Ok(Plan { recovery, nodes, last_epoch, known_epoch, has_data })
}

fn look_at(group: &Group, listed: &Listed, heard: &BTreeMap<String, Introduction>) -> PlannedNode {
    let said = heard.get(&listed.name);
    let differs = said.and_then(|said| {
        difference(&group.text(), &said.group).or_else(|| {
            (said.name != listed.name).then(|| format!("at {} is node {}", listed.address, said.name))
        })
    });
    let found = match (said, differs) {
        (None, _) => Found::Absent,
        (Some(_), Some(differs)) => Found::Differs(differs),
        (Some(said), None) if !said.is_ready => Found::NotReady,
        (Some(said), None) if said.has_group => Found::HasNoMajority,
        (Some(_), None) => Found::Waits,
    };
    let is_known = !matches!(found, Found::Absent | Found::Differs(_));
    PlannedNode {
        name: listed.name.clone(),
        address: listed.address.to_string(),
        is_witness: listed.is_witness,
        found,
        last_epoch: said.filter(|_| is_known && !listed.is_witness).and_then(|said| said.last_epoch),
        has_data: said.is_some_and(|said| is_known && !listed.is_witness && said.has_data),
    }
}

/// How a node is, in words.
#[must_use]
pub fn describe(found: &Found) -> String {
    match found {
        Found::Absent => "does not answer".to_owned(),
        Found::Differs(what) => format!("has another group file: {what}"),
        Found::NotReady => "runs, its server takes no connections".to_owned(),
        Found::Waits => "runs, waits for the group to begin".to_owned(),
        Found::HasNoMajority => "runs, waits for more than half of the nodes".to_owned(),
    }
}

/// Whether a node of a group hears of one that was founded again without it, and works. Its own may have served since, where more of its nodes were cut off
/// than people knew: then two groups serve. `voters`: those of its own.
pub(super) fn is_superseded(
    group: &Group,
    own: &Introduction,
    heard: &BTreeMap<String, Introduction>,
    voters: &BTreeSet<u64>,
) -> bool {
    let is_newer = |said: &Introduction| {
        said.has_group
            && said.leader == Some(said.node)
            && said.group == group.text()
            && recoveries(said.group_epoch) > recoveries(own.group_epoch)
            // It has heard of a view of its own group a little later.
            && !voters.contains(&said.node)
    };
    own.has_group && heard.values().any(is_newer)
}

/// Whether a node may follow a plan, by what it says of itself.
///
/// # Errors
/// It may not, and why.
pub(super) fn may_follow(own: &Introduction, recovery: &Recovery) -> Result<(), String> {
    if !recovery.nodes.contains_key(&own.name) || !recovery.nodes.contains_key(&recovery.from) {
        return Err(format!("{} is no node of the plan", own.name));
    }
    if own.recovery == Some(recovery.id) {
        return Ok(());
    }
    if recovery.nodes.get(&own.name) != Some(&own.node) {
        return Err(format!("{} was started again since", own.name));
    }
    let is_of_plan = |leader: &u64| recovery.nodes.values().any(|run| run == leader);
    if own.hears_member || own.leader.is_some_and(|leader| !is_of_plan(&leader)) {
        return Err(format!("{} hears a leader again", own.name));
    }
    if own.known_epoch.max(own.last_epoch.unwrap_or(0)) >= recovery.epoch {
        return Err(format!("{} knows of a later view", own.name));
    }
    Ok(())
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
