//! How nodes that were started find each other: who is there, whether all have the same list, and whether there is a group already.
//!
//! A group is founded once, by one node, when all are there and none has been in a group: two foundings would make two groups. What decides is
//! pure: what others have said goes in, and what is to be done comes out.

use super::group::{Group, difference};
use crate::consensus::Member;
use crate::view::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// With what a connection begins on which nodes introduce themselves.
pub(super) const MAGIC: [u8; 8] = *b"outlast\x0e";
/// What a node has said for so long counts.
const HEARD_MS: u64 = 1_000;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// What people call it.
    pub name: String,
    /// This run of it.
    pub node: u64,
    /// [`Group::text`].
    pub group: String,
    /// It is in a group.
    pub has_group: bool,
    /// Its server takes connections; a witness has none, and is ready at once.
    pub is_ready: bool,
    /// The last view of which an earlier run was a member, if it was in a group: its server may have data that others have not, or lack some.
    pub last_epoch: Option<u64>,
}

/// Why a group is not founded yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// These do not answer.
    pub absent: Vec<String>,
    /// The servers of these take no connections yet.
    pub not_ready: Vec<String>,
    /// These have another list, and what differs.
    pub disagree: Vec<(String, String)>,
    /// Earlier runs of these were in the group, in that view at last.
    pub were_members: Vec<(String, u64)>,
    /// These are in a group, and do not let this node in yet.
    pub in_group: Vec<String>,
}

/// What a node that has no group does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It waits.
    Wait(Waits),
    /// It founds the group, with these voters.
    Found(BTreeMap<NodeId, Member>),
    /// It asks these nodes of a group, at these addresses, for the vote of its earlier run: the one that leads can give it.
    Enter(BTreeMap<String, String>),
}

/// What a node has heard of the others.
#[derive(Debug)]
pub struct Meeting {
    group: Group,
    me: Introduction,
    /// By the names of the addresses that were asked, and when.
    heard: BTreeMap<String, (Introduction, u64)>,
}

impl Meeting {
    /// Of one that has no group.
    #[must_use]
    pub fn new(group: Group, name: &str, me: NodeId, last_epoch: Option<u64>) -> Self {
        let me = Introduction {
            name: name.to_owned(),
            node: me.0,
            group: group.text(),
            has_group: false,
            is_ready: false,
            last_epoch,
        };
        Self { group, me, heard: BTreeMap::new() }
    }

    /// What this node says of itself.
    #[must_use]
    pub fn introduction(&self) -> Introduction {
        self.me.clone()
    }

    /// Whether this node's server takes connections.
    pub fn set_ready(&mut self, is_ready: bool) {
        self.me.is_ready = is_ready;
    }

    /// At the address of this node somebody has said that.
    pub fn handle_introduction(&mut self, name: &str, said: Introduction, now_ms: u64) {
        self.heard.insert(name.to_owned(), (said, now_ms));
    }

    /// What is to be done now.
    #[must_use]
    pub fn next(&self, now_ms: u64) -> Next {
        let mut waits = Waits::default();
        let (mut voters, mut with_group) = (BTreeMap::new(), BTreeMap::new());
        for listed in &self.group.nodes {
            let heard = if listed.name == self.me.name {
                &self.me
            } else {
                match self.heard.get(&listed.name).filter(|(_, at_ms)| now_ms < at_ms + HEARD_MS) {
                    Some((heard, _)) => heard,
                    None => {
                        waits.absent.push(listed.name.clone());
                        continue;
                    }
                }
            };
            let differs = difference(&self.me.group, &heard.group).or_else(|| {
                (heard.name != listed.name).then(|| format!("at {} is node {}", listed.address, heard.name))
            });
            if let Some(differs) = differs {
                waits.disagree.push((listed.name.clone(), differs));
                continue;
            }
            if !heard.is_ready {
                waits.not_ready.push(listed.name.clone());
            }
            if let Some(epoch) = heard.last_epoch {
                waits.were_members.push((listed.name.clone(), epoch));
            }
            let address = listed.address.to_string();
            if heard.has_group {
                with_group.insert(listed.name.clone(), address.clone());
            }
            let name = listed.name.clone();
            voters.insert(NodeId(heard.node), Member { name, address, is_witness: listed.is_witness });
        }
        if !with_group.is_empty() && self.me.is_ready {
            return Next::Enter(with_group);
        }
        let all = voters.len() == self.group.nodes.len();
        let all = all && waits.were_members.is_empty() && waits.not_ready.is_empty() && with_group.is_empty();
        if !with_group.is_empty() {
            // It will be let in: nothing is founded.
            waits.were_members.clear();
        }
        let founder =
            self.group.nodes.iter().filter(|listed| !listed.is_witness).map(|listed| &listed.name).min();
        if all && founder == Some(&self.me.name) { Next::Found(voters) } else { Next::Wait(waits) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a failed expectation is the message of a test")]
    use super::super::group::tests::group;
    use super::*;

    fn meeting(name: &str) -> Meeting {
        let mut meeting = Meeting::new(group(), name, NodeId(u64::from(name.as_bytes()[0])), None);
        meeting.set_ready(true);
        meeting
    }

    fn said_by(name: &str) -> Introduction {
        meeting(name).introduction()
    }

    fn waits(next: Next) -> Waits {
        match next {
            Next::Wait(waits) => waits,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_node_founds_the_group_when_all_are_there() {
        let mut a = meeting("a");
        assert_eq!(waits(a.next(0)).absent, ["b", "w"]);
        a.handle_introduction("b", said_by("b"), 10);
        assert_eq!(waits(a.next(10)).absent, ["w"]);
        a.handle_introduction("w", said_by("w"), 20);
        let Next::Found(voters) = a.next(20) else { panic!("not founded") };
        assert_eq!(voters.values().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["a", "b", "w"]);
        assert!(voters.values().all(|member| member.is_witness == (member.name == "w")));
        // What was heard long ago does not count.
        assert_eq!(waits(a.next(10 + HEARD_MS)).absent, ["b"]);
        // Nobody else does.
        let mut b = meeting("b");
        b.handle_introduction("a", said_by("a"), 10);
        b.handle_introduction("w", said_by("w"), 10);
        assert_eq!(waits(b.next(10)), Waits::default());
    }

    #[test]
    fn a_group_that_is_there_is_entered_and_no_other_one_founded() {
        let mut a = meeting("a");
        a.handle_introduction("b", Introduction { has_group: true, ..said_by("b") }, 10);
        assert_eq!(a.next(10), Next::Enter(BTreeMap::from([("b".to_owned(), "10.0.0.2:7400".to_owned())])));
        a.handle_introduction("w", said_by("w"), 10);
        assert_eq!(a.next(10), Next::Enter(BTreeMap::from([("b".to_owned(), "10.0.0.2:7400".to_owned())])));
    }

    #[test]
    fn no_group_is_founded_where_one_has_been() {
        let mut a = meeting("a");
        a.handle_introduction("b", Introduction { last_epoch: Some(7), ..said_by("b") }, 10);
        a.handle_introduction("w", said_by("w"), 10);
        assert_eq!(waits(a.next(10)).were_members, [("b".to_owned(), 7)]);
    }

    #[test]
    fn a_server_that_takes_no_connections_is_waited_for() {
        let mut a = meeting("a");
        a.handle_introduction("b", Introduction { is_ready: false, ..said_by("b") }, 10);
        a.handle_introduction("w", said_by("w"), 10);
        assert_eq!(waits(a.next(10)).not_ready, ["b"]);
        a.handle_introduction("b", Introduction { is_ready: false, has_group: true, ..said_by("b") }, 10);
        a.set_ready(false);
        assert_eq!(waits(a.next(10)).not_ready, ["a", "b"]);
    }

    #[test]
    fn who_has_another_list_or_another_name_is_named() {
        let mut a = meeting("a");
        let mut other = group();
        other.portal.set_port(6380);
        let other = Meeting::new(other, "b", NodeId(98), None).introduction();
        a.handle_introduction("b", other, 10);
        a.handle_introduction("w", said_by("b"), 10);
        let differs = |name: &str, what: &str| (name.to_owned(), what.to_owned());
        assert_eq!(
            waits(a.next(10)).disagree,
            [
                differs("b", "here the portal is 10.0.0.250:6379; there the portal is 10.0.0.250:6380"),
                differs("w", "at 10.0.0.3:7400 is node b")
            ]
        );
    }
}
