//! A node of a group of replicas.

use serde::{Deserialize, Serialize};

/// `outlast replicate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Replica {
    /// Name of the group.
    pub group: String,
    /// Name of this node.
    pub node: String,
    /// Where clients connect to.
    pub portal: String,
    /// This node's server; empty: it is a witness.
    pub server: String,
    /// Why there is no group yet; none: there is one.
    pub waits: Option<Waits>,
    /// How it comes back into the group; none: it does not.
    pub joining: Option<Joining>,
    /// The server of this node has data that the group does not have, as it was founded again with those of another one while this one went on.
    /// They are kept until people have them replaced.
    #[serde(default)]
    pub other_history: bool,
    /// Number of the view; 0 before the first.
    pub epoch: u64,
    /// The primary of the view.
    pub primary: Option<String>,
    /// Who leads the consensus, as far as this node has heard a moment ago; none: less than half of the nodes answer each other.
    pub leader: Option<String>,
    /// All nodes of the list.
    pub nodes: Vec<Node>,
    /// This node serves clients.
    pub serving: bool,
    /// It was a member of the view, and is none any more.
    pub excluded: bool,
    /// Its server takes no connections any more.
    pub server_lost: bool,
    /// Its server does not answer, or ends what the others' servers do not.
    pub server_hangs: bool,
    /// Connections of clients that it knows.
    pub connections: u64,
    /// Log index of the last entry that it has.
    pub last_index: u64,
    /// Log index of the last one that its server was given.
    pub delivered_index: u64,
    /// Log index of the last entry up to which its server's answers were compared with those of the primary's, or could not be.
    pub compared_index: u64,
    /// So many times they could not be.
    pub not_compared: u64,
    /// So many times this node, as the primary, has found that the server of a member answers otherwise.
    pub differences: u64,
    /// How many times it has become the primary.
    pub take_overs: u64,
    /// How long the last take-over took, in microseconds.
    pub take_over_us: Option<u64>,
    /// How many times the kernel had no room for packets.
    pub overflows: u64,
    /// Packets of clients that this node has passed on to another primary.
    pub forwarded_packets: u64,
    /// Packets of clients that another node has passed on to this one.
    pub injected_packets: u64,
}

/// Why a group is not there yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waits {
    /// These nodes do not answer.
    pub absent: Vec<String>,
    /// The servers of these take no connections.
    pub not_ready: Vec<String>,
    /// These have another list.
    pub disagree: Vec<Disagreement>,
    /// Earlier runs of these were in the group.
    pub were_members: Vec<Earlier>,
    /// These are in a group, and do not let this node in yet.
    pub in_group: Vec<String>,
}

/// How far a node is that comes back into the group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Joining {
    /// Its server gets the data of this node.
    pub from: Option<String>,
    /// So much has come.
    pub copied_bytes: u64,
    /// It has all, and catches up with what has happened since.
    pub catching_up: bool,
    /// Why the last try has failed.
    pub failed: Option<String>,
}

/// A node that was in the group before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Earlier {
    /// Its name.
    pub node: String,
    /// The last view of which it was a member.
    pub epoch: u64,
}

/// A node with another list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disagreement {
    /// Its name.
    pub node: String,
    /// What differs.
    pub what: String,
}

/// One of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Where it listens for others.
    pub address: String,
    /// It has no server.
    pub witness: bool,
    /// It has a vote.
    pub voter: bool,
    /// It takes part in the view.
    pub member: bool,
    /// It is linked with this node.
    pub linked: bool,
    /// Where the instance that answers leads the vote: whether this node answers it.
    pub answers: Option<bool>,
    /// Where the instance that answers is the primary: the log index of the last entry that this node has.
    pub acked_index: Option<u64>,
    /// The same of the last one up to which it has compared its server's answers.
    pub compared_index: Option<u64>,
}

/// Another node is the primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// Which one.
    pub primary: String,
}

/// A node is no member any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Which one.
    pub evicted: String,
}

/// This node gets the data of another one: [`Replica::joining`] says how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joins {
    /// Its name.
    pub joins: String,
}

/// What has happened to a group, as one of its nodes has seen it, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The node.
    pub node: String,
    /// What has happened.
    pub events: Vec<Event>,
}

/// Something that has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// When, in milliseconds since 1970, by that node's clock.
    pub at_ms: u64,
    /// In which view; 0: before the first.
    pub epoch: u64,
    /// What.
    pub what: String,
    /// Why, as far as is known.
    pub why: String,
    /// For how many milliseconds clients had no primary, as far as that node knows.
    pub pause_ms: Option<u64>,
}

/// How a group that decides nothing any more could be founded again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecoveryPlan {
    /// Name of the group.
    pub group: String,
    /// Of this plan: another one where anything is different.
    pub plan: u64,
    /// The node whose data the group goes on with.
    pub from: String,
    /// The last view of which it was a member.
    pub last_epoch: u64,
    /// Number of the first view.
    pub epoch: u64,
    /// All nodes of the list.
    pub nodes: Vec<RecoveryNode>,
    /// Other nodes that were members of the same view at last.
    pub equal: Vec<String>,
    /// What is lost, and what may be.
    pub lost: Vec<String>,
}

/// A node in such a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecoveryNode {
    /// Its name.
    pub name: String,
    /// Where it listens for others.
    pub address: String,
    /// It has no server.
    pub witness: bool,
    /// It is among the nodes that found the group.
    pub takes_part: bool,
    /// It has said how it is.
    pub answers: bool,
    /// How it is, in words.
    pub found: String,
    /// The last view of which it was a member, if that is known.
    pub last_epoch: Option<u64>,
}

/// The nodes that answer found the group again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovers {
    /// The node that was asked.
    pub recovers: String,
}

/// This node leaves the group, and ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drains {
    /// Its name.
    pub drains: String,
}
