//! Which view a leader of the consensus proposes.
//!
//! It takes out of the view whom it does not hear any more. Nobody is added here: who is new has to have all stable entries first, and
//! the primary that has sent them asks for the view ([`View::follows`]).

use crate::lease::Lease;
use crate::view::{NodeId, View};
use alloc::vec::Vec;

/// A new leader waits for this part of the promise for members that have not answered it yet, before it takes them out. So does one that was cut off,
/// or did not run for a while, as on a machine that stood still: that others are silent was its own silence.
const FIRST_ANSWERS: u64 = 3;

/// A voter that has a server, as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Which one.
    pub node: NodeId,
    /// When it has last answered in this term; none: not yet. The leader itself has just done so.
    pub answered_ms: Option<u64>,
}

/// How a group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstView {
    /// All that have a server are members of the view 1.
    OfAll,
    /// This node alone has the data, and clients have seen other views before.
    Of {
        /// The only member.
        node: NodeId,
        /// Number of the view: higher than that of each one before.
        epoch: u64,
    },
}

/// What a leader knows when it looks who takes part.
#[derive(Debug)]
pub struct Leader<'a> {
    /// The leader itself.
    pub me: NodeId,
    /// How the group begins, if it has no view yet.
    pub first: FirstView,
    /// Since when it leads.
    pub since_ms: u64,
    /// Since when more than half of the voters answer it, without a gap.
    pub majority_since_ms: u64,
    /// Who has led before, unless it has voted for this one. It has not been heard for the time of a promise, as a rule: nobody waits
    /// for it.
    pub before: Option<NodeId>,
    /// For so long voters promise to elect nobody else: who does not answer for that time is taken out.
    pub promise_ms: u64,
    /// All voters that have a server. A witness has none.
    pub voters: &'a [Heard],
    /// Who may serve until when.
    pub lease: &'a Lease,
}

impl Leader<'_> {
    /// The view that has to follow `view`, if another one has to. None is there before the first.
    #[must_use]
    pub fn next_view(&self, view: Option<&View>, now_ms: u64) -> Option<View> {
        let answers = |heard: &&Heard| {
            heard.node == self.me || heard.answered_ms.is_some_and(|at_ms| now_ms < at_ms + self.promise_ms)
        };
        let live: Vec<NodeId> = self.voters.iter().filter(answers).map(|heard| heard.node).collect();
        let Some(view) = view else {
            if let FirstView::Of { node, epoch } = self.first {
                return live.contains(&node).then(|| View { epoch, primary: node, members: [node].into() });
            }
            // All of them begin together: what they have is nothing.
            let all = live.len() == self.voters.len();
            let primary = live.iter().find(|node| **node == self.me).or(live.iter().min()).copied();
            return Some(View { epoch: 1, primary: primary.filter(|_| all)?, members: live });
        };
        let members: Vec<NodeId> = view.members.iter().copied().filter(|node| live.contains(node)).collect();
        let is_new = now_ms < self.since_ms + self.promise_ms / FIRST_ANSWERS;
        let is_back = now_ms < self.majority_since_ms + self.promise_ms / FIRST_ANSWERS;
        let is_late = |heard: &Heard| {
            let never = Some(heard.node) != self.before;
            heard.answered_ms.map_or(never, |at_ms| at_ms < self.majority_since_ms)
                && view.has(heard.node)
                && heard.node != self.me
        };
        if is_back && !is_new && self.voters.iter().any(is_late) {
            return None;
        }
        let unheard = |heard: &Heard| {
            heard.answered_ms.is_none()
                && view.has(heard.node)
                && heard.node != self.me
                && Some(heard.node) != self.before
        };
        if members == view.members || (is_new && self.voters.iter().any(unheard)) {
            return None;
        }
        // The primary goes on if it lives; else the leader, which needs to borrow no lease.
        let primary = [view.primary, self.me].into_iter().find(|node| members.contains(node));
        let primary = primary.or_else(|| members.iter().min().copied())?;
        self.lease.may_name(primary, now_ms).then_some(View { epoch: view.epoch + 1, primary, members })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const PROMISE_MS: u64 = 100;

    fn ids(nodes: &[u64]) -> Vec<NodeId> {
        nodes.iter().map(|node| NodeId(*node)).collect()
    }

    fn view(epoch: u64, primary: u64, members: &[u64]) -> View {
        View { epoch, primary: NodeId(primary), members: ids(members) }
    }

    /// A leader since 1000 ms, at 2000 ms. `answered` are the other voters with servers.
    fn next(
        me: u64,
        has_server: bool,
        answered: &[(u64, Option<u64>)],
        before: Option<&View>,
    ) -> Option<View> {
        let mut voters: Vec<Heard> = answered
            .iter()
            .map(|(node, answered_ms)| Heard { node: NodeId(*node), answered_ms: *answered_ms })
            .collect();
        if has_server {
            voters.push(Heard { node: NodeId(me), answered_ms: None });
        }
        let lease = Lease::new(NodeId(me), PROMISE_MS);
        let leader = Leader {
            me: NodeId(me),
            first: FirstView::OfAll,
            since_ms: 1000,
            majority_since_ms: 1000,
            before: None,
            promise_ms: PROMISE_MS,
            voters: &voters,
            lease: &lease,
        };
        leader.next_view(before, 2000)
    }

    #[test]
    fn the_first_view_has_all() {
        assert_eq!(next(1, true, &[(2, None)], None), None);
        assert_eq!(next(2, true, &[(1, Some(1990))], None), Some(view(1, 2, &[1, 2])));
        assert_eq!(next(9, false, &[(1, Some(1990)), (2, Some(1850))], None), None);
        assert_eq!(next(9, false, &[(1, Some(1990)), (2, Some(1950))], None), Some(view(1, 1, &[1, 2])));
    }

    #[test]
    fn a_group_that_is_founded_again_begins_with_the_node_that_has_the_data() {
        let lease = Lease::new(NodeId(9), PROMISE_MS);
        let leads = |answered_ms: Option<u64>| {
            let voters = [(1, Some(1990)), (2, answered_ms)]
                .map(|(node, answered_ms)| Heard { node: NodeId(node), answered_ms });
            let leader = Leader {
                me: NodeId(9),
                first: FirstView::Of { node: NodeId(2), epoch: 1_000 },
                since_ms: 1000,
                majority_since_ms: 1000,
                before: None,
                promise_ms: PROMISE_MS,
                voters: &voters,
                lease: &lease,
            };
            [None, Some(view(1_000, 2, &[2]))].map(|before| leader.next_view(before.as_ref(), 2000))
        };
        assert_eq!(leads(Some(1950)), [Some(view(1_000, 2, &[2])), None]);
        // It is waited for.
        assert_eq!(leads(None)[0], None);
    }

    #[test]
    fn who_does_not_answer_is_taken_out_and_nobody_is_put_in() {
        let before = view(7, 1, &[1, 2, 3]);
        assert_eq!(next(1, true, &[(2, Some(1950)), (3, Some(1990))], Some(&before)), None);
        let without = view(8, 1, &[1, 2]);
        assert_eq!(next(1, true, &[(2, Some(1950)), (3, Some(1900))], Some(&before)), Some(without.clone()));
        assert_eq!(next(1, true, &[(2, Some(1950)), (3, Some(1990))], Some(&without)), None);
        assert!(without.follows(&before));
    }

    #[test]
    fn the_primary_stays_and_else_the_leader_is_it() {
        let before = view(7, 1, &[1, 2, 3]);
        let others = [(1, Some(1990)), (3, None)];
        assert_eq!(next(2, true, &others, Some(&before)), Some(view(8, 1, &[1, 2])));
        let others = [(1, None), (3, Some(1990))];
        assert_eq!(next(2, true, &others, Some(&before)), Some(view(8, 2, &[2, 3])));
        // A witness names another one.
        let others = [(1, None), (2, Some(1990)), (3, Some(1990))];
        assert_eq!(next(9, false, &others, Some(&before)), Some(view(8, 2, &[2, 3])));
        // A leader that is no member, as it has come back: it knows nothing.
        let others = [(1, None), (2, None), (3, Some(1990))];
        assert_eq!(next(4, true, &others, Some(&before)), Some(view(8, 3, &[3])));
        assert_eq!(next(9, false, &[(1, None), (2, None), (3, None)], Some(&before)), None);
    }

    #[test]
    fn a_new_leader_waits_a_moment_for_answers_but_not_for_the_one_before() {
        let lease = Lease::new(NodeId(1), PROMISE_MS);
        let voters = [(1, None), (2, None), (3, Some(1001))]
            .map(|(node, answered_ms)| Heard { node: NodeId(node), answered_ms });
        let leads = |before: Option<NodeId>| Leader {
            me: NodeId(1),
            first: FirstView::OfAll,
            since_ms: 1000,
            majority_since_ms: 1000,
            before,
            promise_ms: PROMISE_MS,
            voters: &voters,
            lease: &lease,
        };
        let before = view(7, 2, &[1, 2, 3]);
        let next = Some(view(8, 1, &[1, 3]));
        assert_eq!(leads(None).next_view(Some(&before), 1032), None);
        assert_eq!(leads(None).next_view(Some(&before), 1033), next);
        assert_eq!(leads(Some(NodeId(3))).next_view(Some(&before), 1032), None);
        assert_eq!(leads(Some(NodeId(2))).next_view(Some(&before), 1002), next);
    }

    #[test]
    fn a_leader_that_did_not_run_for_a_while_waits_a_moment_for_those_that_did_not_either() {
        let lease = Lease::new(NodeId(1), PROMISE_MS);
        let before = view(7, 1, &[1, 2, 3]);
        let next = |two: u64, now_ms: u64| {
            let voters = [(1, None), (2, Some(two)), (3, Some(5_000))]
                .map(|(node, answered_ms)| Heard { node: NodeId(node), answered_ms });
            let leader = Leader {
                me: NodeId(1),
                first: FirstView::OfAll,
                since_ms: 1_000,
                majority_since_ms: 5_000,
                before: Some(NodeId(2)),
                promise_ms: PROMISE_MS,
                voters: &voters,
                lease: &lease,
            };
            leader.next_view(Some(&before), now_ms)
        };
        assert_eq!(next(4_000, 5_032), None);
        assert_eq!(next(4_000, 5_033), Some(view(8, 1, &[1, 3])));
        assert_eq!(next(5_020, 5_033), None);
    }

    #[test]
    fn nobody_is_named_while_another_one_has_borrowed_the_lease() {
        let mut lease = Lease::new(NodeId(9), PROMISE_MS);
        lease.handle_voters(vec![ids(&[1, 2, 9])]);
        lease.handle_term(3, true);
        lease.handle_applied(3);
        lease.handle_acked(NodeId(1), 3, 1900);
        let left_ms = lease.lend(NodeId(1), 0, 1910).unwrap();
        let until_ms = 1910 + left_ms;
        let voters =
            [(1, None), (2, Some(1990))].map(|(node, answered_ms)| Heard { node: NodeId(node), answered_ms });
        let leader = Leader {
            me: NodeId(9),
            first: FirstView::OfAll,
            since_ms: 1000,
            majority_since_ms: 1000,
            before: None,
            promise_ms: PROMISE_MS,
            voters: &voters,
            lease: &lease,
        };
        let before = view(7, 1, &[1, 2]);
        assert_eq!(leader.next_view(Some(&before), until_ms - 1), None);
        let after = (until_ms..until_ms + 20).find_map(|now_ms| leader.next_view(Some(&before), now_ms));
        assert_eq!(after, Some(view(8, 2, &[2])));
    }
}
