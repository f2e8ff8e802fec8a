//! What people are told while a node runs: changes, each once.

use crate::narrate::{Narrator, grouped};
use outlast_replica::node::group::Group;
use outlast_replica::node::meeting::Waits;
use outlast_replica::node::{Joining, Status, StatusOfNode};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Of servers that answer differently people are told so often: `outlast replicate why` has the last one.
const DIFFERENCES_EVERY: Duration = Duration::from_secs(60);
/// An election takes less than that.
const LEADERLESS: Duration = Duration::from_secs(2);

/// Compares what is with what was told.
pub struct Teller<'a> {
    narrator: &'a Narrator,
    group: &'a Group,
    name: &'a str,
    waits: Option<Waits>,
    epoch: u64,
    has_reported_server: bool,
    was_serving: bool,
    was_excluded: bool,
    was_alone: bool,
    was_without_data: bool,
    differences: u64,
    told_differences_at: Option<Instant>,
    joining: Joining,
    failed: Option<String>,
    /// Nodes that answer, where this one leads the vote.
    heard: BTreeSet<String>,
    has_led: bool,
    was_other_history: bool,
    /// Since when nobody leads the vote, and whether that was said.
    leaderless: Option<(Instant, bool)>,
    joins: bool,
}

const BY_HAND: &str = "To have it as a replica again: `outlast replicate join` gives its server a copy of the data of another one";

impl<'a> Teller<'a> {
    fn how_back(&self) -> &'static str {
        let comes_back = self.joins && !self.was_other_history;
        if comes_back { "It gets a copy of the data of another one" } else { BY_HAND }
    }

    /// `joins`: it comes back by itself.
    pub fn new(narrator: &'a Narrator, group: &'a Group, name: &'a str, joins: bool) -> Self {
        Self {
            narrator,
            joining: Joining::No,
            failed: None,
            heard: BTreeSet::new(),
            has_led: false,
            was_other_history: false,
            leaderless: None,
            joins,
            group,
            name,
            waits: None,
            epoch: 0,
            has_reported_server: false,
            was_serving: false,
            was_excluded: false,
            was_alone: false,
            was_without_data: false,
            differences: 0,
            told_differences_at: None,
        }
    }

    /// Says what is new.
    pub fn look(&mut self, status: &Status) {
        let (narrator, name) = (self.narrator, self.name);
        if status.waits != self.waits {
            self.waits.clone_from(&status.waits);
            for line in status.waits.iter().flat_map(|waits| lines(waits, self.group)) {
                narrator.announce(&format!("node {name}: {line}"));
            }
        }
        if status.epoch != self.epoch {
            self.epoch = status.epoch;
            let members: Vec<&str> =
                status.nodes.iter().filter(|node| node.is_member).map(|node| node.name.as_str()).collect();
            let members = if members.is_empty() { vec!["none that runs"] } else { members };
            let primary = status.primary.as_deref().unwrap_or("nobody");
            narrator.announce(&format!(
                "node {name}: view {}: {primary} is the primary, members are {}",
                status.epoch,
                members.join(", ")
            ));
        }
        if status.is_other_history && !self.was_other_history {
            narrator.warn(&format!(
                "node {name}: the group {} was founded again by `outlast replicate recover` with the data of another node, and this one was a member of later views, so \
                 clients may have been served by both. The server of this node keeps its data until you have looked at them: --join does not replace them, `outlast replicate \
                 join` does",
                self.group.name
            ));
        }
        self.was_other_history = status.is_other_history;
        self.look_at_silent(status);
        self.look_at_leader(status);
        self.look_at_server(status);
        let Some(facts) = &status.facts else { return };
        if facts.is_serving != self.was_serving {
            self.was_serving = facts.is_serving;
            let (portal, connections) = (self.group.portal, facts.connections);
            narrator.announce(&if facts.is_serving {
                format!("node {name} serves clients at {portal}, {connections} connections")
            } else {
                format!("node {name} does not serve clients any more")
            });
        }
        if facts.differences > self.differences {
            self.differences = facts.differences;
            let is_due = self.told_differences_at.is_none_or(|at| at.elapsed() >= DIFFERENCES_EVERY);
            if let Some((differing, what)) = status.differing.as_ref().filter(|_| is_due) {
                self.told_differences_at = Some(Instant::now());
                narrator.warn(&format!(
                    "node {name}: the server of {differing} does not answer as those of the others: {what}"
                ));
            }
        }
        if facts.is_excluded && !self.was_excluded {
            self.was_excluded = true;
            narrator.warn(&format!(
                "node {name} is no member of the group {} any more: its server lacks what clients have sent since. It still has a vote. {}",
                self.group.name, self.how_back()
            ));
        }
        self.was_excluded &= facts.is_excluded;
        self.look_at_joining(&status.joining);
        let members = status.nodes.iter().filter(|node| node.is_member).count();
        let is_alone = status.epoch > 0 && members == 1 && self.group.nodes.len() > 1 && facts.is_serving;
        if is_alone && !std::mem::replace(&mut self.was_alone, is_alone) {
            narrator.warn(&format!(
                "node {name} has the only replica that is left of the group {}",
                self.group.name
            ));
        }
        let is_own = |node: &&StatusOfNode| node.name == name;
        let is_member = status.nodes.iter().find(is_own).is_some_and(|node| node.is_member);
        let is_joining = !matches!(status.joining, Joining::No | Joining::Failed(_));
        let has_no_data =
            !is_joining && status.epoch > 0 && !is_member && !facts.is_excluded && status.waits.is_none();
        if has_no_data && !std::mem::replace(&mut self.was_without_data, has_no_data) {
            narrator.warn(&format!(
                "node {name} has a vote in the group {}, and no data of it: its server is given nothing. {}",
                self.group.name,
                self.how_back()
            ));
        }
        self.was_without_data &= has_no_data;
    }

    fn look_at_server(&mut self, status: &Status) {
        let Some(report) = status.server_report.as_ref().filter(|_| !self.has_reported_server) else {
            return;
        };
        self.has_reported_server = true;
        self.narrator.announce(&format!("node {}: {}", self.name, report.handled));
        if let Some(unsafe_setting) = &report.unsafe_setting {
            self.narrator.warn(&format!("node {}: {unsafe_setting}", self.name));
        }
    }

    /// Where this node leads the vote: who does not answer any more, and who does again.
    fn look_at_silent(&mut self, status: &Status) {
        for node in status.nodes.iter().filter(|node| node.name != self.name) {
            match node.answers {
                Some(false) if node.is_voter && self.heard.remove(&node.name) => {
                    self.narrator.warn(&format!("node {} does not answer any more", node.name));
                }
                Some(true) if self.heard.insert(node.name.clone()) && self.has_led => {
                    self.narrator.announce(&format!("node {} answers", node.name));
                }
                _ => {}
            }
        }
        let leads = status.leader.as_deref() == Some(self.name);
        if !leads {
            self.heard.clear();
        }
        self.has_led = leads && !self.heard.is_empty();
    }

    /// Whether nobody leads for longer than an election takes.
    fn look_at_leader(&mut self, status: &Status) {
        if status.epoch == 0 || status.leader.is_some() {
            if let Some((_, true)) = self.leaderless.take() {
                self.narrator.announce(&format!("node {}: the vote is led again", self.name));
            }
            return;
        }
        let (since, is_said) = self.leaderless.get_or_insert_with(|| (Instant::now(), false));
        if !*is_said && since.elapsed() > LEADERLESS {
            *is_said = true;
            self.narrator.warn(&format!(
                "node {}: it hears nobody that leads the vote. Others may serve clients, if more than half of the nodes reach each other; if too many of them are off for good, \
                 `outlast replicate recover` has those that are left go on",
                self.name
            ));
        }
    }

    fn look_at_joining(&mut self, joining: &Joining) {
        let stage = std::mem::discriminant(joining);
        if stage == std::mem::discriminant(&self.joining) {
            self.joining = joining.clone();
            return;
        }
        let (narrator, name) = (self.narrator, self.name);
        let copied =
            |bytes: u64| format!("node {name}: its server has the data, {} bytes as a copy", grouped(bytes));
        match (&self.joining, joining) {
            (_, Joining::Copies(from, _)) => {
                narrator.announce(&format!("node {name}: its server gets a copy of the data of {from}"));
            }
            (Joining::Copies(_, bytes), Joining::CatchesUp | Joining::No) => {
                narrator.announce(&copied(*bytes))
            }
            // It may be tried again and again.
            (_, Joining::Failed(why)) if self.failed.as_ref() != Some(why) => {
                self.failed = Some(why.clone());
                narrator.warn(&format!("node {name} cannot join: {why}"));
            }
            (_, Joining::No) => self.failed = None,
            _ => {}
        }
        self.joining = joining.clone();
    }
}

/// Why there is no group yet.
fn lines(waits: &Waits, group: &Group) -> Vec<String> {
    let Waits { absent, not_ready, disagree, were_members, in_group } = waits;
    let mut lines = Vec::new();
    if !absent.is_empty() {
        lines.push(format!("waits for {}", absent.join(", ")));
    }
    if !not_ready.is_empty() {
        lines.push(format!("waits for the server of {} to take connections", not_ready.join(", ")));
    }
    for (node, what) in disagree {
        lines.push(format!("{node} has another group file: {what}"));
    }
    if !were_members.is_empty() && !absent.is_empty() {
        lines.push(format!(
            "if {} cannot be started any more, `outlast replicate recover` has the group go on without",
            absent.join(", ")
        ));
    }
    if !were_members.is_empty() && absent.is_empty() {
        let all: Vec<String> =
            were_members.iter().map(|(node, epoch)| format!("{node} (until view {epoch})")).collect();
        lines.push(format!(
            "{} of the group {} ran before, so their data may differ: `outlast replicate recover` has the group go on with the data of the one with \
             the highest view. Where the servers of all nodes have the same data: start each node once with --new-group",
            all.join(", "),
            group.name
        ));
    }
    if !in_group.is_empty() {
        lines.push(format!(
            "waits for the group of {} to let it in: more than half of the nodes that were in it have to run; if no server is left, start those \
             again as well",
            in_group.join(", ")
        ));
    }
    lines
}
