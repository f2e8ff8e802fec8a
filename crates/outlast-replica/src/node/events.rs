//! What has happened to the group, as this node has seen it, and why: for people who ask afterwards.

use super::group::NODES_MAX;
use crate::consensus::Why;
use crate::portal::machine::Facts;
use crate::view::{NodeId, View};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

/// The oldest are forgotten.
const EVENTS_MAX: usize = 1_000;
/// Other reasons for which a node could not join, in one view, are in its log alone.
const FAILED_JOINS_MAX: usize = 20;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, by this machine's clock.
    pub at: SystemTime,
    /// In which view; 0: before the first.
    pub epoch: u64,
    /// What.
    pub what: String,
    /// Why, as far as is known.
    pub why: String,
    /// How long clients had no primary, as far as this node knows.
    pub pause: Option<Duration>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Events {
    events: VecDeque<Event>,
    leader: Option<String>,
    /// Number of the view with which the group has begun.
    first_epoch: Option<u64>,
    take_overs: u64,
    fences: u64,
    differences: u64,
    /// In the present view: each once.
    failed_joins: BTreeSet<String>,
    failed_joins_epoch: u64,
}

impl Events {
    /// Goes on with those of the node that this process was before a recovery.
    pub(super) fn after(earlier: Vec<Event>) -> Self {
        Self { events: earlier.into(), ..Self::default() }
    }

    pub(super) fn all(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }

    fn note(&mut self, epoch: u64, what: String, why: String, pause: Option<Duration>) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { at: SystemTime::now(), epoch, what, why, pause });
    }

    /// A view is decided.
    pub(super) fn note_view(
        &mut self,
        before: Option<&View>,
        view: &View,
        why: Why,
        name: impl Fn(NodeId) -> String,
    ) {
        let names = |nodes: Vec<NodeId>| {
            let mut names: Vec<String> = nodes.into_iter().map(&name).collect();
            names.sort();
            names.join(", ")
        };
        let primary = name(view.primary);
        let mut what = format!("{primary} is the primary, members are {}", names(view.members.clone()));
        let missing = |other: &View, from: &View| {
            names(from.members.iter().copied().filter(|node| !other.has(*node)).collect())
        };
        let left = before.map(|before| missing(view, before)).unwrap_or_default();
        let new = before.map(|before| missing(before, view)).unwrap_or_default();
        let begins = view.epoch == 1 || why == Why::Recovered;
        if begins {
            self.first_epoch = Some(view.epoch);
        }
        let skipped = before.map_or(!begins, |before| view.epoch > before.epoch + 1);
        if skipped {
            what.push_str(" (this node has not seen all views before)");
        }
        // Of views that were not seen the reasons are not known, either.
        let who = if left.is_empty() || skipped { "a node" } else { &left };
        let why = match why {
            Why::Begins => "the group begins: all nodes of the list are there".to_owned(),
            Why::Silent => format!("{who} did not answer for the detection time"),
            Why::Lags => format!("{who} acknowledged nothing for a while, and kept the others waiting"),
            Why::Switchover => "switchover was asked for".to_owned(),
            Why::Forced => "switchover was asked for, and the primary before did not answer".to_owned(),
            Why::Evicted => format!("{who} was evicted on request"),
            Why::Leaves => format!("{who} has ended in an orderly way (SIGTERM, drain)"),
            Why::ServerLost => format!("the server of {who} takes no connections any more"),
            Why::ServerHangs => format!("the server of {who} does not answer as those of the others do"),
            Why::LacksData => format!("the server of {who} has no data of the group any more"),
            Why::Differs => format!("the server of {who} has answered otherwise than those of the others"),
            Why::Joins if new.is_empty() => "a node has caught up".to_owned(),
            Why::Joins => format!("{new} has a copy of the data, and has caught up"),
            Why::Recovered => {
                format!("recover was asked for: the group begins again, with the data of {primary}")
            }
            Why::GaveUpJoining => "a node was about to join, and fell silent".to_owned(),
        };
        self.note(view.epoch, what, why, None);
    }

    /// Which node leads the consensus.
    pub(super) fn note_leader(&mut self, leader: Option<String>, epoch: u64) {
        if leader == self.leader {
            return;
        }
        let (what, why) = match (&leader, &self.leader) {
            (Some(leader), None) => (format!("{leader} leads the vote"), String::new()),
            (Some(leader), Some(before)) => {
                (format!("{leader} leads the vote"), format!("{before} did not answer, or has ended"))
            }
            (None, _) => {
                let why = "more than half of the nodes have to answer each other".to_owned();
                ("nobody leads the vote".to_owned(), why)
            }
        };
        self.note(epoch, what, why, None);
        self.leader = leader;
    }

    /// How this node's portal is.
    pub(super) fn note_facts(
        &mut self,
        me: &str,
        epoch: u64,
        facts: &Facts,
        name: impl Fn(NodeId) -> String,
    ) {
        if facts.differences > self.differences {
            self.differences = facts.differences;
            if let Some((node, what)) = &facts.last_difference {
                let server = format!("the server of {} answers otherwise", name(*node));
                // Others are not to be forgotten for many of them.
                let recent = self.events.len().saturating_sub(NODES_MAX);
                let is_same = |(at, event): (usize, &Event)| at >= recent && event.what == server;
                if let Some(at) = self.events.iter().enumerate().position(is_same) {
                    self.events.remove(at);
                }
                let count = facts.differences;
                let times = if count > 1 { format!(" ({count} times so far)") } else { String::new() };
                self.note(epoch, server, format!("{what}{times}"), None);
            }
        }
        if facts.fences > self.fences {
            self.fences = facts.fences;
            let why = "its lease is over: the leader of the vote has changed, or is not reached".to_owned();
            self.note(epoch, format!("{me} serves nobody for now"), why, None);
        }
        if facts.take_overs > self.take_overs {
            self.take_overs = facts.take_overs;
            let what = format!("{me} serves clients, {} connections", facts.connections);
            // Of what was before a recovery a node that begins knows nothing.
            let is_first = facts.take_overs == 1 && self.first_epoch == Some(epoch);
            let pause = facts.paused.filter(|_| !is_first);
            self.note(epoch, what, String::new(), pause);
        }
    }

    /// This node has joined.
    pub(super) fn forget_failed_joins(&mut self) {
        self.failed_joins.clear();
    }

    /// This node could not join. Once for each reason in each view: it may be tried again and again.
    pub(super) fn note_failed_join(&mut self, me: &str, epoch: u64, why: &str) {
        if epoch != self.failed_joins_epoch {
            (self.failed_joins, self.failed_joins_epoch) = (BTreeSet::new(), epoch);
        }
        if self.failed_joins.len() < FAILED_JOINS_MAX && self.failed_joins.insert(why.to_owned()) {
            self.note(epoch, format!("{me} cannot join"), why.to_owned(), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(epoch: u64, primary: u64, members: &[u64]) -> View {
        View { epoch, primary: NodeId(primary), members: members.iter().copied().map(NodeId).collect() }
    }

    #[test]
    fn each_view_is_explained_with_the_names_of_those_who_left_and_came() {
        let mut events = Events::default();
        let name = |node: NodeId| {
            ["a", "b", "c"]
                .into_iter()
                .zip(1..)
                .find(|(_, number)| *number == node.0)
                .map_or("?", |(name, _)| name)
                .to_owned()
        };
        let mut note = |before: Option<&View>, view: &View, why| {
            events.note_view(before, view, why, name);
            events.events.back().map(|event| (event.what.clone(), event.why.clone()))
        };
        let (all, two) = (view(1, 1, &[1, 2, 3]), view(2, 2, &[2, 3]));
        let said = |what: &str, why: &str| Some((what.to_owned(), why.to_owned()));
        let members = "b is the primary, members are b, c";
        assert_eq!(
            note(None, &all, Why::Begins),
            said(
                "a is the primary, members are a, b, c",
                "the group begins: all nodes of the list are there"
            )
        );
        assert_eq!(
            note(Some(&all), &two, Why::Silent),
            said(members, "a did not answer for the detection time")
        );
        assert_eq!(
            note(Some(&two), &view(3, 2, &[2, 3, 1]), Why::Joins),
            said("b is the primary, members are a, b, c", "a has a copy of the data, and has caught up")
        );
        let skipped = format!("{members} (this node has not seen all views before)");
        assert_eq!(
            note(Some(&all), &view(9, 2, &[2, 3]), Why::ServerLost),
            said(&skipped, "the server of a node takes no connections any more")
        );
        for number in 0..2 * EVENTS_MAX as u64 {
            events.note_leader(Some(number.to_string()), 9);
        }
        assert_eq!(events.all().len(), EVENTS_MAX);
    }
}
