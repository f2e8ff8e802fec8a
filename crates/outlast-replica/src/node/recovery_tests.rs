#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use super::super::group::tests::group;
use super::super::meeting::{Data, Meeting};
use super::*;
use crate::view::NodeId;

/// Node a of the list a, b, w, which waits after it was a member until view 3, and the same of others.
fn said(name: &str, last_epoch: Option<u64>) -> (String, Introduction) {
    let run = NodeId(u64::from(name.as_bytes()[0]));
    let data = Data { last_epoch, ..Data::of_new_group() };
    let mut meeting = Meeting::new(group(), name, run, data, None);
    meeting.set_ready(true);
    (name.to_owned(), meeting.introduction())
}

fn in_group(name: &str, last_epoch: Option<u64>, known_epoch: u64) -> (String, Introduction) {
    let (name, said) = said(name, last_epoch);
    (
        name,
        Introduction { has_group: true, has_run_since: true, known_epoch, group_epoch: known_epoch, ..said },
    )
}

type Said<const N: usize> = [(String, Introduction); N];

fn planned<const N: usize>(heard: Said<N>, from: Option<&str>) -> Result<Plan, String> {
    plan(&group(), &heard.into(), from, 0)
}

fn names<'a>(nodes: impl Iterator<Item = &'a PlannedNode>) -> Vec<&'a str> {
    nodes.map(|node| node.name.as_str()).collect()
}

#[test]
fn the_data_are_those_of_a_member_of_the_last_view() {
    let plan = planned([said("a", Some(3)), said("b", Some(5)), said("w", None)], None).unwrap();
    assert_eq!(
        (plan.recovery.from.as_str(), plan.recovery.epoch % GROUP_EPOCHS, plan.last_epoch),
        ("b", 0, 5)
    );
    assert!(plan.recovery.epoch >= GROUP_EPOCHS);
    assert_eq!(plan.recovery.nodes.keys().collect::<Vec<_>>(), ["a", "b", "w"]);
    assert!(names(plan.newer()).is_empty() && names(plan.unknown()).is_empty());
    // As people want it: it is said that others have more.
    let plan = planned([said("a", Some(3)), said("b", Some(5)), said("w", None)], Some("a")).unwrap();
    assert_eq!((plan.recovery.from.as_str(), plan.last_epoch, plan.known_epoch), ("a", 3, 5));
    assert_eq!(names(plan.newer()), ["b"]);
    // The same view: the primary, or one whose server still runs.
    let (name, b) = said("b", Some(5));
    let plan = planned([said("a", Some(5)), (name, Introduction { was_primary: true, ..b })], None).unwrap();
    assert_eq!((plan.recovery.from.as_str(), names(plan.equal())), ("b", vec!["a"]));
    let plan = planned([said("a", Some(5)), in_group("b", Some(5), 5)], None).unwrap();
    assert_eq!((plan.recovery.from.as_str(), names(plan.equal())), ("b", vec!["a"]));
    assert_eq!(plan.recovery.nodes.keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn what_is_not_known_is_said() {
    let plan = planned([said("a", Some(3)), said("w", None)], None).unwrap();
    assert_eq!(names(plan.unknown()), ["b"]);
    // Who was out in the last view knows that there was one.
    let plan = planned([in_group("a", Some(3), 4), in_group("w", None, 4)], None).unwrap();
    assert_eq!((plan.last_epoch, plan.known_epoch), (3, 4));
    assert!(names(plan.newer()).is_empty());
    // A second recovery has a higher number.
    let plan = planned([said("a", Some(GROUP_EPOCHS + 7)), said("b", Some(9))], None).unwrap();
    assert!(plan.recovery.from == "a" && plan.recovery.epoch >= 2 * GROUP_EPOCHS);
    // So has one that nobody here knows of: it was at another time.
    let plan = super::plan(&group(), &[said("a", Some(3))].into(), None, BEGINNING_MIN + 77).unwrap();
    assert_eq!(plan.recovery.epoch / GROUP_EPOCHS / PLANS, 77);
}

#[test]
fn a_group_that_works_is_left_alone() {
    let leads = |node: &str, leader: &str| {
        let (name, said) = in_group(node, Some(5), 5);
        let hears_member = node == leader;
        (name, Introduction { leader: Some(u64::from(leader.as_bytes()[0])), hears_member, ..said })
    };
    let refused = planned([leads("a", "a"), leads("b", "a")], None).unwrap_err();
    assert!(refused.contains("the group works"), "{refused}");
    // The leader is not reached from here.
    let refused = planned([leads("b", "a"), said("w", None)], None).unwrap_err();
    assert!(
        refused.contains("b hears the node that leads the vote, which does not answer here"),
        "{refused}"
    );
    // It leads, and says that less than half of the nodes answer it.
    let heard = [in_group("a", Some(5), 5), leads("b", "a")];
    let recovery = planned(heard.clone(), None).unwrap().recovery;
    assert!(heard.iter().all(|(_, own)| may_follow(own, &recovery) == Ok(())));
    // It leads, and nobody answers who is a member: all that were have been started again.
    let (name, b) = leads("b", "b");
    let alone = (name, Introduction { hears_member: false, ..b });
    let heard = [said("a", Some(5)), alone];
    let recovery = planned(heard.clone(), None).unwrap().recovery;
    assert!(heard.iter().all(|(_, own)| may_follow(own, &recovery) == Ok(())));
}

#[test]
fn nobody_is_recovered_from_who_has_not_the_data() {
    let refused = |heard: Said<2>, from: Option<&str>| planned(heard, from).unwrap_err();
    for (heard, from, why) in [
        ([said("a", None), said("w", None)], None, "no node answers whose server has the data"),
        ([said("a", Some(3)), said("w", None)], Some("w"), "w is a witness"),
        ([said("a", Some(3)), said("w", None)], Some("b"), "b cannot take part: does not answer"),
        ([said("a", Some(3)), said("b", None)], Some("b"), "b was never a member"),
        ([said("a", Some(3)), said("b", None)], Some("z"), "the group has no node z"),
    ] {
        let refused = refused(heard, from);
        assert!(refused.contains(why), "{refused}");
    }
    // One that was to get a copy has got a part.
    let (name, part) = said("b", Some(7));
    let before = vec![Recovered { epoch: 2, data_epoch: 1 }];
    let part = (name, Introduction { has_data: false, recovered: before, ..part });
    let plan = planned([said("a", Some(3)), part.clone()], None).unwrap();
    assert_eq!(plan.recovery.from, "a");
    assert!(plan.has_data && plan.recovery.nodes.contains_key("b") && plan.known_epoch == 7);
    // But where people want it: it is said.
    let plan = planned([said("a", Some(3)), part], Some("b")).unwrap();
    assert!(!plan.has_data);
    // What others have is more.
    let recovered = |plan: &Plan, data_epoch| vec![Recovered { epoch: plan.recovery.epoch, data_epoch }];
    assert_eq!(plan.recovery.recovered, recovered(&plan, 0));
    // A server that is not up takes no part, and is waited for where it has newer data.
    let (name, other) = said("b", Some(9));
    let starting = (name, Introduction { is_ready: false, ..other });
    let heard = [said("a", Some(3)), starting];
    let refused = planned(heard.clone(), None).unwrap_err();
    assert!(refused.contains("the server of b takes no connections yet, and has newer data"), "{refused}");
    let plan = planned(heard, Some("a")).unwrap();
    assert_eq!(plan.recovery.recovered, recovered(&plan, 3));
    assert_eq!((plan.recovery.from.as_str(), plan.nodes[1].found.clone()), ("a", Found::NotReady));
    assert_eq!(names(plan.newer()), ["b"]);
}

#[test]
fn a_plan_that_is_not_the_same_any_more_has_another_number() {
    let number = |heard: Said<2>| planned(heard, None).unwrap().recovery.id;
    let before = number([said("a", Some(3)), said("w", None)]);
    assert_eq!(before, number([said("a", Some(3)), said("w", None)]));
    assert_ne!(before, number([said("a", Some(4)), said("w", None)]));
    assert_ne!(before, number([said("a", Some(3)), said("b", None)]));
    let (name, again) = said("w", None);
    assert_ne!(before, number([said("a", Some(3)), (name, Introduction { node: 1, ..again })]));
}

#[test]
fn a_node_that_was_cut_off_sees_that_its_group_was_founded_again() {
    let leads = |known_epoch: u64| {
        let (name, b) = in_group("b", Some(known_epoch), known_epoch);
        [(name, Introduction { leader: Some(b.node), ..b })].into()
    };
    let (_, a) = in_group("a", Some(5), 5);
    let none = BTreeSet::new();
    assert!(is_superseded(&group(), &a, &leads(GROUP_EPOCHS), &none));
    // Its own leader knows of a view a little before.
    assert!(!is_superseded(&group(), &a, &leads(GROUP_EPOCHS), &[98].into()));
    // The same group, in which it is not heard yet.
    assert!(!is_superseded(&group(), &a, &leads(7), &none));
    // Both work: one of them ends.
    let hears = Introduction { leader: Some(1), ..a.clone() };
    assert!(is_superseded(&group(), &hears, &leads(GROUP_EPOCHS), &none));
    assert!(!is_superseded(&group(), &hears, &leads(7), &none));
    assert!(!is_superseded(&group(), &a, &[in_group("b", Some(GROUP_EPOCHS), GROUP_EPOCHS)].into(), &none));
}

#[test]
fn a_node_follows_no_plan_that_is_not_for_it() {
    let recovery = planned([said("a", Some(3)), said("w", None)], None).unwrap().recovery;
    assert_eq!(may_follow(&said("a", Some(3)).1, &recovery), Ok(()));
    assert!(may_follow(&said("b", None).1, &recovery).unwrap_err().contains("no node of the plan"));
    let later = in_group("w", None, recovery.epoch).1;
    assert!(may_follow(&later, &recovery).unwrap_err().contains("a later view"));
    let (_, w) = in_group("w", None, 3);
    let hears = Introduction { leader: Some(1), ..w };
    assert!(may_follow(&hears, &recovery).unwrap_err().contains("hears a leader again"));
    // It was started again; or it follows already.
    let again = Introduction { node: 5, ..said("w", None).1 };
    assert!(may_follow(&again, &recovery).unwrap_err().contains("was started again since"));
    assert_eq!(may_follow(&Introduction { recovery: Some(recovery.id), ..again }, &recovery), Ok(()));
}
