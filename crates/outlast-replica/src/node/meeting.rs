//! How nodes that were started find each other: who is there, whether all have the same list, and whether there is a group already.
//!
//! A group is founded once, by one node, when all are there and none has been in a group: two foundings would make two groups. What decides is
//! pure: what others have said goes in, and what is to be done comes out.

use super::group::{Group, difference};
use super::recovery::Recovery;
use crate::consensus::Member;
use crate::history::{Recovered, is_other, recoveries};
use crate::view::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// With what a connection begins on which nodes introduce themselves.
pub(super) const MAGIC: [u8; 8] = *b"outlast\x1c";
/// What a node has said for so long counts.
const HEARD_MS: u64 = 1_000;
/// A recovery that comes to nothing in this time is given up.
const RECOVER_WITHIN_MS: u64 = 30_000;

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
    /// The last view of which it, or an earlier run, was a member, if it was in a group: its server may have data that others have not, or lack
    /// some.
    pub last_epoch: Option<u64>,
    /// It was the primary of that view.
    pub was_primary: bool,
    /// It has run since then, and so has its server, which has all in memory: no earlier run of it was the member.
    pub has_run_since: bool,
    /// Its server has the data of that view. Not where it was to get a copy of others, and has got a part.
    pub has_data: bool,
    /// The last view that it knows, as a member or not, of this group or one before it. 0: none.
    pub known_epoch: u64,
    /// The view of the group that it is in. 0: none yet.
    pub group_epoch: u64,
    /// The run of a node that leads the vote, as far as this one has heard it a moment ago; of itself: if more than half of the voters answer it.
    pub leader: Option<u64>,
    /// At such a leader: whether a member of the view answers it, or is it.
    pub hears_member: bool,
    /// The plan by which it waits for a group to be founded again: [`Recovery::id`].
    pub recovery: Option<u64>,
    /// Through what its data have come.
    pub recovered: Vec<Recovered>,
    /// Through what the group has come that it is in.
    pub group_recovered: Vec<Recovered>,
}

/// What the server of a node has, that has no group yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// As [`Introduction::last_epoch`].
    pub last_epoch: Option<u64>,
    /// As [`Introduction::was_primary`].
    pub was_primary: bool,
    /// As [`Introduction::has_run_since`].
    pub has_run_since: bool,
    /// As [`Introduction::has_data`].
    pub is_whole: bool,
    /// As [`Introduction::known_epoch`].
    pub known_epoch: u64,
    /// As [`Introduction::recovered`].
    pub recovered: Vec<Recovered>,
}

impl Data {
    /// The same as at all other servers: of a group that is new.
    #[must_use]
    pub fn of_new_group() -> Self {
        let recovered = Vec::new();
        Self {
            last_epoch: None,
            was_primary: false,
            has_run_since: false,
            is_whole: true,
            known_epoch: 0,
            recovered,
        }
    }

    /// Of a node in whose place another one begins, whose server runs on.
    #[must_use]
    pub fn of(own: &Introduction) -> Self {
        let Introduction { last_epoch, was_primary, has_run_since, has_data: is_whole, known_epoch, .. } =
            *own;
        let recovered = own.recovered.clone();
        Self { last_epoch, was_primary, has_run_since, is_whole, known_epoch, recovered }
    }
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
    /// It asks these nodes of a group, at these addresses, for the vote of its earlier run: the one that leads can give it. The group was
    /// founded again last then: a node that has asked one of before has to begin as another one.
    Enter(BTreeMap<String, String>, u64),
}

/// What a node has heard of the others.
#[derive(Debug)]
pub struct Meeting {
    group: Group,
    me: Introduction,
    recovery: Option<Recovery>,
    /// By the names of the addresses that were asked, and when.
    heard: BTreeMap<String, (Introduction, u64)>,
}

impl Introduction {
    /// Whether the server of this node has data that its group does not have, of views that were decided before or beside the one with which that began.
    #[must_use]
    pub fn has_other_history(&self) -> bool {
        let is_in_group = self.has_group && self.group_epoch > 0 && self.has_data;
        is_in_group && self.last_epoch.is_some_and(|epoch| is_other(epoch, &self.group_recovered))
    }
}

impl Meeting {
    /// Of one that has no group, whose server has these data. With a plan it follows that, from the beginning.
    #[must_use]
    pub fn new(group: Group, name: &str, me: NodeId, data: Data, recovery: Option<Recovery>) -> Self {
        let Data { last_epoch, was_primary, has_run_since, is_whole: has_data, known_epoch, recovered } =
            data;
        let me = Introduction {
            name: name.to_owned(),
            node: me.0,
            group: group.text(),
            has_group: false,
            is_ready: false,
            last_epoch,
            was_primary,
            has_run_since,
            has_data,
            known_epoch,
            group_epoch: 0,
            leader: None,
            hears_member: false,
            recovery: recovery.as_ref().map(|recovery| recovery.id),
            recovered,
            group_recovered: Vec::new(),
        };
        Self { group, me, recovery, heard: BTreeMap::new() }
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

    /// Whether it has followed a plan of which nothing comes for too long. Others wait for the node with the data, which founds nothing any more then.
    #[must_use]
    pub fn gives_up_recovery(&self, now_ms: u64) -> bool {
        let within_ms = |recovery: &Recovery| {
            if recovery.from == self.me.name { RECOVER_WITHIN_MS } else { 2 * RECOVER_WITHIN_MS }
        };
        self.recovery.as_ref().is_some_and(|recovery| now_ms >= within_ms(recovery))
    }

    /// Its server was started again, and has lost what it had in memory.
    pub fn note_restart(&mut self) {
        self.me.has_run_since = false;
    }

    /// What is to be done now.
    #[must_use]
    pub fn next(&self, now_ms: u64) -> Next {
        if let Some(recovery) = &self.recovery {
            return self.next_in(recovery, now_ms);
        }
        let mut waits = Waits::default();
        let (mut voters, mut with_group) = (BTreeMap::new(), BTreeMap::new());
        for listed in &self.group.nodes {
            let Some(heard) = self.heard(&listed.name, now_ms) else {
                waits.absent.push(listed.name.clone());
                continue;
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
                with_group.insert(listed.name.clone(), (address.clone(), heard));
            }
            let name = listed.name.clone();
            voters.insert(NodeId(heard.node), Member { name, address, is_witness: listed.is_witness });
        }
        // One that has no view yet lets nobody in.
        let with_view = with_group.values().map(|(_, heard)| *heard).filter(|heard| heard.group_epoch > 0);
        if let Some(newest) = with_view.max_by_key(|heard| heard.group_epoch).filter(|_| self.me.is_ready) {
            let recovered = recoveries(newest.group_epoch);
            with_group
                .retain(|_, (_, heard)| heard.group_epoch > 0 && recoveries(heard.group_epoch) == recovered);
            let addresses = with_group.into_iter().map(|(name, (address, _))| (name, address)).collect();
            return Next::Enter(addresses, recovered);
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

    /// What a node has said a moment ago.
    fn heard(&self, name: &str, now_ms: u64) -> Option<&Introduction> {
        let is_recent = |heard: &&(Introduction, u64)| now_ms < heard.1 + HEARD_MS;
        match name == self.me.name {
            true => Some(&self.me),
            false => self.heard.get(name).filter(is_recent).map(|(heard, _)| heard),
        }
    }

    /// The node with the data founds the group, when all that follow the plan are there. Nobody else is asked.
    fn next_in(&self, recovery: &Recovery, now_ms: u64) -> Next {
        let mut waits = Waits::default();
        let mut voters = BTreeMap::new();
        for listed in self.group.nodes.iter().filter(|listed| recovery.nodes.contains_key(&listed.name)) {
            let heard = self.heard(&listed.name, now_ms);
            let name = listed.name.clone();
            match heard.filter(|heard| heard.recovery == Some(recovery.id) && heard.name == name) {
                None => waits.absent.push(name),
                Some(heard) if !heard.is_ready => waits.not_ready.push(name),
                // It has founded the group, with this node among its voters.
                Some(heard) if heard.has_group => waits.in_group.push(name),
                Some(heard) => {
                    let (address, is_witness) = (listed.address.to_string(), listed.is_witness);
                    voters.insert(NodeId(heard.node), Member { name, address, is_witness });
                }
            }
        }
        let all = voters.len() == recovery.nodes.len();
        if all && recovery.from == self.me.name { Next::Found(voters) } else { Next::Wait(waits) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a failed expectation is the message of a test")]
    use super::super::group::tests::group;
    use super::*;
    use crate::view::GROUP_EPOCHS;

    fn meeting(name: &str) -> Meeting {
        meeting_of(name, Data::of_new_group(), None)
    }

    fn meeting_of(name: &str, data: Data, recovery: Option<Recovery>) -> Meeting {
        let mut meeting = Meeting::new(group(), name, NodeId(u64::from(name.as_bytes()[0])), data, recovery);
        meeting.set_ready(true);
        meeting
    }

    fn member_of(epoch: u64) -> Data {
        Data { last_epoch: Some(epoch), ..Data::of_new_group() }
    }

    fn said_by(name: &str) -> Introduction {
        meeting(name).introduction()
    }

    #[test]
    fn a_group_is_founded_again_by_those_of_the_plan_alone() {
        let nodes = [("b".to_owned(), 98), ("w".to_owned(), 119)].into();
        let recovered = vec![Recovered { epoch: GROUP_EPOCHS, data_epoch: 3 }];
        let recovery = Recovery { id: 7, epoch: GROUP_EPOCHS, from: "b".to_owned(), nodes, recovered };
        let recovering = |name: &str| meeting_of(name, member_of(3), Some(recovery.clone()));
        let (mut b, mut w) = (recovering("b"), recovering("w"));
        b.handle_introduction("a", Introduction { has_group: true, ..said_by("a") }, 10);
        // It may not know of the plan yet.
        b.handle_introduction("w", said_by("w"), 10);
        assert_eq!(waits(b.next(10)).absent, ["w"]);
        b.handle_introduction("w", w.introduction(), 20);
        let Next::Found(voters) = b.next(20) else { panic!("not founded") };
        assert_eq!(voters.values().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["b", "w"]);
        w.handle_introduction("b", b.introduction(), 20);
        assert_eq!(waits(w.next(20)), Waits::default());
        // Where nothing comes of it, they begin as before.
        assert!(!b.gives_up_recovery(RECOVER_WITHIN_MS - 1) && b.gives_up_recovery(RECOVER_WITHIN_MS));
        assert!(!w.gives_up_recovery(RECOVER_WITHIN_MS) && w.gives_up_recovery(2 * RECOVER_WITHIN_MS));
        assert!(!meeting("a").gives_up_recovery(RECOVER_WITHIN_MS));
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
        assert_eq!(waits(a.next(10)).in_group, Vec::<String>::new());
        a.handle_introduction("b", Introduction { has_group: true, group_epoch: 1, ..said_by("b") }, 10);
        let b = |recovered| Next::Enter([("b".to_owned(), "10.0.0.2:7400".to_owned())].into(), recovered);
        assert_eq!(a.next(10), b(0));
        a.handle_introduction("w", said_by("w"), 10);
        assert_eq!(a.next(10), b(0));
        // One of them was cut off when the group was founded again.
        let in_group = |name| Introduction { has_group: true, group_epoch: 7, ..said_by(name) };
        a.handle_introduction("w", in_group("w"), 10);
        assert!(matches!(a.next(10), Next::Enter(nodes, 0) if nodes.len() == 2));
        a.handle_introduction("b", Introduction { group_epoch: GROUP_EPOCHS + 3, ..in_group("b") }, 10);
        assert_eq!(a.next(10), b(1));
    }

    #[test]
    fn data_of_views_that_were_decided_beside_the_group_are_another_history() {
        let group_recovered = vec![Recovered { epoch: GROUP_EPOCHS, data_epoch: 3 }];
        let group_epoch = GROUP_EPOCHS + 3;
        let part = Data { is_whole: false, ..member_of(4) };
        let all =
            [(member_of(3), false), (member_of(4), true), (part, false), (member_of(group_epoch), false)];
        for (data, expected) in all {
            let own = meeting_of("a", data.clone(), None).introduction();
            // It knows of no group yet.
            assert!(!own.has_other_history());
            let own = Introduction {
                has_group: true,
                group_epoch,
                group_recovered: group_recovered.clone(),
                ..own
            };
            assert_eq!(own.has_other_history(), expected, "{data:?}");
        }
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
        let other = Meeting::new(other, "b", NodeId(98), Data::of_new_group(), None).introduction();
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
