//! When a node stands for election.
//!
//! The consensus itself elects nobody: it is told when to begin. A node that has not heard the leader for the time of its promise asks the others
//! first whether they would vote for it (pre-vote: Ongaro 2014, section 9.6), and begins only if a majority would: so a node that was cut
//! off alone deposes nobody when it comes back. Each time it waits for another random while before, so that two do not stand in each other's
//! way for ever; a witness, which has no server, waits longer than those that have one.

use crate::is_mutant;
use crate::view::NodeId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use outlast_stream::SplitMix64;

/// A node waits for up to so long before it asks. Answers take less than a millisecond between machines of one place.
const DELAY_MAX_MS: u64 = 20;
/// A witness waits for so much longer.
const WITNESS_DELAY_MS: u64 = 25;
/// Answers that take longer do not count.
const ANSWER_MS: u64 = 30;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask all other voters whether they would vote for this node: [`Elector::handle_answer`], with this number.
    Ask {
        /// Answers to earlier questions do not count.
        round: u64,
    },
    /// Have the consensus begin an election.
    Stand,
}

/// One node's part in elections. All times are its own clock's.
#[derive(Debug)]
pub struct Elector {
    me: NodeId,
    is_witness: bool,
    promise_ms: u64,
    random: SplitMix64,
    leads: bool,
    /// When it asks or stands next, if it hears of no leader before.
    due_ms: u64,
    round: u64,
    /// Who would vote for this node, while it waits for answers.
    would: Option<BTreeSet<NodeId>>,
    #[cfg(test)]
    pub(crate) mutant: Option<crate::mutant::Mutant>,
}

impl Elector {
    /// A node that has just been started: there may be a leader. `seed` has to differ from node to node.
    #[must_use]
    pub fn new(me: NodeId, is_witness: bool, promise_ms: u64, seed: u64, now_ms: u64) -> Self {
        let mut elector = Self {
            me,
            is_witness,
            promise_ms,
            random: SplitMix64::new(seed),
            leads: false,
            due_ms: 0,
            round: 0,
            would: None,
            #[cfg(test)]
            mutant: None,
        };
        elector.wait(now_ms + promise_ms);
        elector
    }

    /// There is a leader, or this node has voted for one that may become it.
    pub fn handle_heard(&mut self, now_ms: u64) {
        self.wait(now_ms + self.promise_ms);
    }

    /// Whether this node leads.
    pub fn handle_leads(&mut self, leads: bool, now_ms: u64) {
        if self.leads != leads {
            self.leads = leads;
            self.wait(now_ms + self.promise_ms);
        }
    }

    /// Another voter would vote for this node, or would not.
    pub fn handle_answer(&mut self, voter: NodeId, round: u64, would_vote: bool) {
        if let Some(would) = self.would.as_mut().filter(|_| would_vote && round == self.round) {
            would.insert(voter);
        }
    }

    /// When [`step`](Self::step) has something to do, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        (!self.leads).then_some(self.due_ms)
    }

    /// What is to be done now. `may_vote` says whether this node has promised nothing itself ([`Lease::may_vote`](crate::Lease::may_vote));
    /// `voters` are the sets that each have to have a majority.
    pub fn step(&mut self, may_vote: bool, voters: &[Vec<NodeId>], now_ms: u64) -> Option<Step> {
        if self.leads || !may_vote {
            return None;
        }
        if self.would.as_ref().is_some_and(|would| is_majority(would, voters)) {
            // Should nothing come of it, it asks again.
            self.wait(now_ms + ANSWER_MS);
            return Some(Step::Stand);
        }
        if now_ms < self.due_ms {
            return None;
        }
        self.wait(now_ms + ANSWER_MS);
        if is_mutant!(self, StandsUnasked) {
            return Some(Step::Stand);
        }
        self.round += 1;
        self.would = Some(BTreeSet::from([self.me]));
        Some(Step::Ask { round: self.round })
    }

    /// Until then, and for a while that is another one each time.
    fn wait(&mut self, from_ms: u64) {
        let witness_ms = if self.is_witness { WITNESS_DELAY_MS } else { 0 };
        let random_ms = if is_mutant!(self, SameDelay) { 0 } else { self.random.next_u64() % DELAY_MAX_MS };
        (self.due_ms, self.would) = (from_ms + witness_ms + random_ms, None);
    }
}

fn is_majority(would: &BTreeSet<NodeId>, voters: &[Vec<NodeId>]) -> bool {
    let has = |set: &Vec<NodeId>| set.iter().filter(|voter| would.contains(voter)).count() > set.len() / 2;
    !voters.is_empty() && voters.iter().all(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::Mutant;
    use alloc::vec;

    const PROMISE_MS: u64 = 100;

    fn elector(me: u64, is_witness: bool, mutant: Option<Mutant>) -> Elector {
        let mut elector = Elector::new(NodeId(me), is_witness, PROMISE_MS, me, 0);
        elector.mutant = mutant;
        elector.handle_heard(0);
        elector
    }

    fn voters() -> Vec<Vec<NodeId>> {
        vec![(1..=3).map(NodeId).collect()]
    }

    /// Whether this goes wrong with the fault, and not without it.
    fn only_finds(mutant: Mutant, goes_well: impl Fn(Option<Mutant>) -> bool) {
        assert!(goes_well(None));
        assert!(!goes_well(Some(mutant)), "{mutant:?} is not found");
    }

    #[test]
    fn a_node_that_is_cut_off_stands_never() {
        only_finds(Mutant::StandsUnasked, |mutant| {
            let mut elector = elector(1, false, mutant);
            let steps = (0..5_000).filter_map(|now_ms| elector.step(true, &voters(), now_ms));
            steps.into_iter().all(|step| step != Step::Stand)
        });
    }

    #[test]
    fn a_node_stands_when_a_majority_of_each_set_would_vote_for_it() {
        let mut elector = elector(1, false, None);
        assert_eq!(elector.step(true, &voters(), PROMISE_MS - 1), None);
        let asked_ms = PROMISE_MS + DELAY_MAX_MS;
        assert_eq!(elector.step(true, &voters(), asked_ms), Some(Step::Ask { round: 1 }));
        // An answer to an earlier question, a refusal, and somebody who has no vote.
        elector.handle_answer(NodeId(2), 0, true);
        elector.handle_answer(NodeId(2), 1, false);
        elector.handle_answer(NodeId(9), 1, true);
        assert_eq!(elector.step(true, &voters(), asked_ms + 1), None);
        elector.handle_answer(NodeId(2), 1, true);
        let changing = [voters(), vec![[3, 4, 5].map(NodeId).to_vec()]].concat();
        assert_eq!(elector.step(true, &changing, asked_ms + 1), None);
        assert_eq!(elector.step(false, &voters(), asked_ms + 1), None);
        assert_eq!(elector.step(true, &voters(), asked_ms + 1), Some(Step::Stand));
        assert_eq!(elector.step(true, &voters(), asked_ms + 1), None);
    }

    #[test]
    fn who_hears_of_a_leader_asks_nobody() {
        let mut elector = elector(1, false, None);
        for now_ms in 0..2_000 {
            if now_ms % 90 == 0 {
                elector.handle_heard(now_ms);
            }
            assert_eq!(elector.step(true, &voters(), now_ms), None);
        }
    }

    #[test]
    fn nodes_wait_for_other_times_and_a_witness_waits_longer() {
        only_finds(Mutant::SameDelay, |mutant| {
            let due: BTreeSet<_> = (1..=20).map(|me| elector(me, false, mutant).poll_timeout()).collect();
            due.len() > 8
        });
        let (one, witness) = (elector(1, false, None), elector(1, true, None));
        assert_eq!(witness.poll_timeout(), one.poll_timeout().map(|due_ms| due_ms + WITNESS_DELAY_MS));
    }
}
