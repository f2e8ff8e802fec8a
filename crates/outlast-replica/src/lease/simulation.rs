//! Voters with clocks of their own, which are stopped and cut off at any time. A small Raft is around the product's type: elections, one value that
//! is decided (the primary), and heartbeats. Nobody serves beside another.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a failed expectation is the message of a test"
)]

use super::Lease;
use crate::election::{Elector, Step};
use crate::mutant::Mutant;
use crate::simulation::{first_seed, number};
use crate::view::NodeId;
use outlast_stream::SplitMix64;
use std::collections::{BTreeMap, BTreeSet};
use std::{format, println, string::String, vec::Vec};
extern crate std;

/// In one run of the tests. `OUTLAST_SCHEDULES` says another number.
const SCHEDULES: u64 = 1_000;
/// Within so many schedules each fault has to be found.
const MUTANT_SCHEDULES: u64 = 20_000;
const STEPS: u64 = 3_000;
const PROMISE_MS: u64 = 100;
/// So long an election may take, with promises to others that are in force before, and one that is not settled.
const HEALED_US: u64 = 600_000;

/// What is decided: a leader proposes it in its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Value {
    term: u64,
    epoch: u64,
    primary: NodeId,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Ask {
        round: u64,
        last: Value,
    },
    Answer {
        round: u64,
    },
    Vote {
        term: u64,
        last: Value,
    },
    Voted {
        term: u64,
    },
    /// To a leader of an earlier term: it is none any more.
    Newer {
        term: u64,
    },
    Append {
        term: u64,
        value: Value,
        committed: u64,
        sent_ms: u64,
    },
    Appended {
        term: u64,
        value: Value,
        sent_ms: u64,
    },
    Lend {
        asked_ms: u64,
    },
    Return {
        returned_ms: u64,
    },
    Lent {
        asked_ms: u64,
        left_ms: u64,
    },
}

#[derive(Debug)]
struct Voter {
    lease: Lease,
    elector: Elector,
    /// Its clock is ahead by so much, and runs faster by so many thousandths.
    ahead_ms: u64,
    faster: i64,
    stopped: bool,
    term: u64,
    voted: u64,
    leads: bool,
    votes: BTreeSet<NodeId>,
    value: Value,
    acks: BTreeSet<NodeId>,
    /// Of the last value that it knows to be decided.
    epoch: u64,
    primary: NodeId,
}

struct World {
    random: SplitMix64,
    now_us: u64,
    voters: BTreeMap<NodeId, Voter>,
    cut: BTreeSet<(NodeId, NodeId)>,
    under_way: Vec<(NodeId, NodeId, Message)>,
    served: u64,
    elections: u64,
    traces: bool,
}

impl World {
    fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut random = SplitMix64::new(seed);
        let count = 3 + 2 * (random.next_u64() % 2);
        let ids: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let mut voters = BTreeMap::new();
        for id in &ids {
            let mut lease = Lease::new(*id, PROMISE_MS);
            lease.mutant = mutant;
            lease.handle_voters(std::vec![ids.clone()]);
            let (ahead_ms, faster) = (random.next_u64() % 1_000_000, (random.next_u64() % 41) as i64 - 20);
            let mut elector = Elector::new(*id, id.0 == count, PROMISE_MS, random.next_u64(), ahead_ms);
            elector.mutant = mutant;
            let value = Value { term: 0, epoch: 0, primary: NodeId(0) };
            let (votes, acks) = (BTreeSet::new(), BTreeSet::new());
            let voter = Voter {
                lease,
                elector,
                ahead_ms,
                faster,
                stopped: false,
                term: 0,
                voted: 0,
                leads: false,
                votes,
                value,
                acks,
                epoch: 0,
                primary: NodeId(0),
            };
            voters.insert(*id, voter);
        }
        let traces = std::env::var_os("OUTLAST_TRACE").is_some();
        let (cut, under_way) = (BTreeSet::new(), Vec::new());
        Self { random, now_us: 0, voters, cut, under_way, served: 0, elections: 0, traces }
    }

    fn run(seed: u64, mutant: Option<Mutant>) -> Result<(u64, u64), String> {
        let mut world = Self::new(seed, mutant);
        for _ in 0..STEPS {
            world.step();
            world.check()?;
        }
        world.heal()?;
        Ok((world.served, world.elections))
    }

    /// Nobody is stopped or cut off any more: there is a primary that serves soon, and it stays.
    fn heal(&mut self) -> Result<(), String> {
        self.cut.clear();
        let ids: Vec<NodeId> = self.voters.keys().copied().collect();
        self.voters.values_mut().for_each(|voter| voter.stopped = false);
        let began_us = self.now_us;
        for round in 0..4 * HEALED_US / 500 {
            self.now_us += 500;
            for id in &ids {
                self.tick(*id);
                if round.is_multiple_of(40) {
                    self.heartbeat(*id);
                    self.ask(*id);
                }
            }
            // Each message takes half a millisecond.
            for (from, to, message) in core::mem::take(&mut self.under_way) {
                self.handle(from, to, message);
            }
            self.check()?;
            let serves = ids.iter().any(|id| {
                let voter = &self.voters[id];
                voter.primary == *id && voter.lease.may_serve(self.clock_ms(*id))
            });
            if !serves && self.now_us > began_us + HEALED_US {
                return Err(format!("nobody serves {} us after all was well", self.now_us - began_us));
            }
        }
        Ok(())
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    fn clock_ms(&self, id: NodeId) -> u64 {
        let voter = &self.voters[&id];
        let gained_us = self.now_us as i64 / 1000 * voter.faster;
        voter.ahead_ms + (self.now_us as i64 + gained_us) as u64 / 1000
    }

    /// Nobody serves beside another, whatever anybody knows.
    fn check(&mut self) -> Result<(), String> {
        let serving = self
            .voters
            .iter()
            .filter(|(id, voter)| voter.primary == **id && voter.lease.may_serve(self.clock_ms(**id)));
        let serving: Vec<NodeId> = serving.map(|(id, _)| *id).collect();
        self.served += serving.len() as u64;
        if serving.len() > 1 { Err(format!("{serving:?} serve at {} us", self.now_us)) } else { Ok(()) }
    }

    fn step(&mut self) {
        // Mostly a little, so that messages arrive in time; now and then long enough for a promise to end.
        let (kind, share) = (self.below(100), self.below(100));
        self.now_us += share
            * [2, 10, 100, 1_500]
                [usize::from(kind >= 60) + usize::from(kind >= 90) + usize::from(kind >= 98)];
        let ids: Vec<NodeId> = self.voters.keys().copied().collect();
        let (id, other) =
            (ids[self.below(ids.len() as u64) as usize], ids[self.below(ids.len() as u64) as usize]);
        match self.below(1_000) {
            0..600 => self.deliver(),
            600..850 => self.heartbeat(id),
            850..900 => self.ask(id),
            900..940 => self.tick(id),
            940..955 => self.name(id, other),
            955..960 => self.give_back(id),
            // Those that are stopped go on sooner than others are stopped.
            960..985 => {
                let goes_on = self.below(4) > 0;
                let voter = self.voters.get_mut(&id).unwrap();
                voter.stopped = !voter.stopped && !goes_on;
            }
            _ => {
                if self.below(3) == 0 {
                    self.cut.insert((id, other));
                } else {
                    self.cut.clear();
                }
            }
        }
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: Message) {
        if self.traces {
            println!("{} {from:?} to {to:?}: {message:?}", self.now_us);
        }
        self.under_way.push((from, to, message));
    }

    fn send_all(&mut self, from: NodeId, message: Message) {
        let others: Vec<NodeId> = self.voters.keys().copied().filter(|to| *to != from).collect();
        for to in others {
            self.send(from, to, message);
        }
    }

    fn heartbeat(&mut self, id: NodeId) {
        let sent_ms = self.clock_ms(id);
        let voter = &self.voters[&id];
        if !voter.stopped && voter.leads {
            let (term, value, committed) = (voter.term, voter.value, voter.epoch);
            self.send_all(id, Message::Append { term, value, committed, sent_ms });
        }
    }

    /// A node may stand for election.
    fn tick(&mut self, id: NodeId) {
        let now_ms = self.clock_ms(id);
        let ids: Vec<NodeId> = self.voters.keys().copied().collect();
        let voter = self.voters.get_mut(&id).unwrap();
        if voter.stopped {
            return;
        }
        voter.elector.handle_leads(voter.leads, now_ms);
        match voter.elector.step(voter.lease.may_vote(now_ms), &[ids], now_ms) {
            Some(Step::Ask { round }) => {
                let last = voter.value;
                self.send_all(id, Message::Ask { round, last });
            }
            Some(Step::Stand) => self.campaign(id),
            None => {}
        }
    }

    fn campaign(&mut self, id: NodeId) {
        let voter = self.voters.get_mut(&id).unwrap();
        voter.term += 1;
        voter.voted = voter.term;
        voter.votes = BTreeSet::from([id]);
        voter.lease.handle_term(voter.term, false);
        let (term, last) = (voter.term, voter.value);
        self.send_all(id, Message::Vote { term, last });
    }

    /// The leader wants another primary.
    fn name(&mut self, id: NodeId, primary: NodeId) {
        let now_ms = self.clock_ms(id);
        let voter = self.voters.get_mut(&id).unwrap();
        let is_settled = voter.leads && voter.value.term == voter.term && voter.epoch == voter.value.epoch;
        if !voter.stopped && is_settled && voter.lease.may_name(primary, now_ms) {
            voter.value = Value { term: voter.term, epoch: voter.value.epoch + 1, primary };
            voter.acks = BTreeSet::from([id]);
            // From now on it may be decided at any time: this node does not serve any more, if it did.
            voter.primary = if primary == id { voter.primary } else { NodeId(0) };
        }
    }

    /// A primary that does not lead asks everybody for what is left.
    fn ask(&mut self, id: NodeId) {
        let asked_ms = self.clock_ms(id);
        if !self.voters[&id].stopped && self.voters[&id].primary == id {
            self.send_all(id, Message::Lend { asked_ms });
        }
    }

    /// A primary that does not lead hands over.
    fn give_back(&mut self, id: NodeId) {
        let returned_ms = self.clock_ms(id);
        let voter = self.voters.get_mut(&id).unwrap();
        if !voter.stopped && voter.primary == id && !voter.leads {
            voter.lease.give_back(returned_ms);
            self.send_all(id, Message::Return { returned_ms });
        }
    }

    fn deliver(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let at = self.below(self.under_way.len() as u64) as usize;
        let (from, to, message) = self.under_way[at];
        if self.voters[&to].stopped {
            return;
        }
        self.under_way.swap_remove(at);
        if !self.cut.contains(&(from, to)) {
            self.handle(from, to, message);
        }
    }

    fn handle(&mut self, from: NodeId, to: NodeId, message: Message) {
        let (now_ms, majority) = (self.clock_ms(to), self.voters.len() / 2 + 1);
        let voter = self.voters.get_mut(&to).unwrap();
        let newest = |value: Value| (value.term, value.epoch);
        match message {
            Message::Ask { round, last }
                if newest(last) >= newest(voter.value) && voter.lease.may_vote(now_ms) =>
            {
                self.send(to, from, Message::Answer { round });
            }
            Message::Answer { round } => {
                voter.elector.handle_answer(from, round, true);
                self.tick(to);
            }
            Message::Vote { term, last }
                if term > voter.term
                    && newest(last) >= newest(voter.value)
                    && voter.lease.may_vote(now_ms) =>
            {
                (voter.term, voter.voted, voter.leads) = (term, term, false);
                voter.lease.handle_term(term, false);
                voter.elector.handle_heard(now_ms);
                self.send(to, from, Message::Voted { term });
            }
            Message::Voted { term } if term == voter.term && voter.voted == term && !voter.leads => {
                voter.votes.insert(from);
                if voter.votes.len() >= majority {
                    voter.leads = true;
                    voter.lease.handle_term(term, true);
                    voter.value = Value { term, ..voter.value };
                    if voter.value.primary == NodeId(0) {
                        (voter.value.primary, voter.value.epoch) = (to, 1);
                    }
                    voter.acks = BTreeSet::from([to]);
                    self.elections += 1;
                }
            }
            Message::Newer { term } if term > voter.term => {
                (voter.term, voter.leads) = (term, false);
                voter.lease.handle_term(term, false);
            }
            Message::Append { term, .. } if term < voter.term => {
                let term = voter.term;
                self.send(to, from, Message::Newer { term });
            }
            Message::Append { term, value, committed, sent_ms } => {
                if term > voter.term {
                    (voter.term, voter.leads) = (term, false);
                }
                voter.lease.handle_heard(term, now_ms);
                voter.elector.handle_heard(now_ms);
                if value >= voter.value {
                    voter.value = value;
                }
                if committed == value.epoch && committed >= voter.epoch {
                    (voter.epoch, voter.primary) = (committed, value.primary);
                }
                self.send(to, from, Message::Appended { term, value, sent_ms });
            }
            Message::Appended { term, value, sent_ms } if term == voter.term && voter.leads => {
                voter.lease.handle_acked(from, term, sent_ms);
                if value == voter.value {
                    voter.acks.insert(from);
                    if voter.acks.len() >= majority {
                        (voter.epoch, voter.primary) = (value.epoch, value.primary);
                        voter.lease.handle_applied(term);
                    }
                }
            }
            Message::Lend { asked_ms } if voter.primary == from => {
                if let Some(left_ms) = voter.lease.lend(from, asked_ms, now_ms) {
                    self.send(to, from, Message::Lent { asked_ms, left_ms });
                }
            }
            Message::Return { returned_ms } => voter.lease.handle_returned(from, returned_ms),
            Message::Lent { asked_ms, left_ms } => voter.lease.handle_borrowed(asked_ms, left_ms),
            _ => {}
        }
    }
}

#[test]
fn nobody_serves_beside_another_whatever_stops() {
    let (first, count) = (first_seed(), number("OUTLAST_SCHEDULES", SCHEDULES));
    let (mut served, mut elections) = (0, 0);
    for seed in first..first + count {
        let (steps, terms) = World::run(seed, None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        (served, elections) = (served + steps, elections + terms);
    }
    println!("{count} schedules from seed {first}: served in {served} steps, {elections} elections");
    // Where nobody ever serves, nothing is proven.
    assert!(served > count * STEPS / 20 && elections > count * 2, "{served} {elections}");
}

/// Rarer ones have tests of their own.
const MUTANTS: [Mutant; 4] =
    [Mutant::HalfIsEnough, Mutant::NamesTwo, Mutant::GivesBackAndServes, Mutant::TakesOldReturns];

#[test]
fn every_fault_of_the_lease_is_found() {
    let first = first_seed();
    let mut unfound = Vec::new();
    for mutant in MUTANTS {
        let found = (first..first + MUTANT_SCHEDULES).find(|seed| World::run(*seed, Some(mutant)).is_err());
        match found {
            Some(seed) => println!("{mutant:?}: after {} schedules", seed - first + 1),
            None => unfound.push(mutant),
        }
    }
    assert!(unfound.is_empty(), "{unfound:?}");
}
