//! Who is next where many have much to do and few can be served at a time.
//!
//! Start-time fair queuing (Goyal, Vin and Cheng, "Start-time Fair Queuing", SIGCOMM 1996, section 2): each service is numbered by
//! where its client stands, in units of cost, and the lowest number goes first. Who has cost little is next when it comes; who
//! has cost much waits until the others have cost as much.
//!
//! Two things are different. Who has left some of its share to others stands before all that are served now, by [`LEAD_COST_MAX`]
//! at the most: those that have had as much as each other have one number, and it would be behind them all. And the number that
//! newcomers get rises with all that services cost, shared among those that want some, as in weighted fair queuing (Demers, Keshav and
//! Shenker, "Analysis and Simulation of a Fair Queueing Algorithm", SIGCOMM 1989): newcomers without end do not go before those that are
//! there.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::task::Waker;

/// How much of its share a client can save: some turns that copy 64 KiB. In nanoseconds of a processor. Many that come back at once have it
/// one after the other.
const LEAD_COST_MAX: u64 = 300_000;

/// Where a client stands: its services so far, in units of cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Where the next service begins at the earliest. None before the first.
    finish_cost: Option<NonZero<u64>>,
}

/// A client that waits, or that may be served: by where its service begins, and by when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    start_cost: u64,
    number: u64,
}

/// The queue before some places.
#[derive(Debug)]
pub(super) struct Queue {
    places: usize,
    free_places: usize,
    /// Where newcomers stand. Never falls.
    virtual_cost: u64,
    waiting: BTreeMap<Ticket, Waker>,
    /// Given a place while they waited; they have not come for it yet.
    called: BTreeSet<Ticket>,
    next_number: u64,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It has a place.
    Served(Ticket),
    /// It is woken when there is one.
    Waits(Ticket),
}

impl Queue {
    pub(super) fn new(places: usize) -> Self {
        Self {
            places,
            free_places: places,
            virtual_cost: 0,
            waiting: BTreeMap::new(),
            called: BTreeSet::new(),
            next_number: 0,
        }
    }

    /// How many who come now need not wait.
    pub(super) fn free_places(&self) -> usize {
        self.free_places
    }

    /// Asks for a place, after something that has cost `cost` without one. Whoever has one gives it back with
    /// [`leave`](Self::leave), or asks for it again with [`renew`](Self::renew).
    pub(super) fn enter(&mut self, account: Account, cost: u64, waker: &Waker) -> Entry {
        let mut ticket = self.ticket(account);
        ticket.start_cost = ticket.start_cost.saturating_add(cost);
        // Nobody waits while a place is free.
        if self.free_places > 0 {
            self.free_places -= 1;
            self.began(ticket);
            return Entry::Served(ticket);
        }
        self.waiting.insert(ticket, waker.clone());
        Entry::Waits(ticket)
    }

    /// Asks again. Whether it has a place now.
    pub(super) fn ask(&mut self, ticket: Ticket, waker: &Waker) -> bool {
        if self.called.remove(&ticket) {
            return true;
        }
        if let Some(known) = self.waiting.get_mut(&ticket) {
            known.clone_from(waker);
        }
        false
    }

    /// Somebody who was served for `cost` gives the place back. Where that one stands now, and who is to be woken.
    pub(super) fn leave(&mut self, ticket: Ticket, cost: u64) -> (Account, Option<Waker>) {
        let account = self.served(ticket, cost);
        (account, self.call_next())
    }

    /// Somebody who was served for `cost` wants to be served on: it keeps the place unless another one stands before it. Who is to
    /// be woken then.
    pub(super) fn renew(&mut self, ticket: Ticket, cost: u64, waker: &Waker) -> (Entry, Option<Waker>) {
        let account = self.served(ticket, cost);
        let next = self.ticket(account);
        if self.waiting.first_key_value().is_none_or(|(other, _)| next < *other) {
            self.began(next);
            return (Entry::Served(next), None);
        }
        self.waiting.insert(next, waker.clone());
        (Entry::Waits(next), self.call_next())
    }

    /// Somebody who waits, or was called, goes away. Who is to be woken instead.
    pub(super) fn give_up(&mut self, ticket: Ticket) -> Option<Waker> {
        self.waiting.remove(&ticket);
        if self.called.remove(&ticket) { self.call_next() } else { None }
    }

    fn ticket(&mut self, account: Account) -> Ticket {
        let finish_cost = account.finish_cost.map_or(self.virtual_cost, NonZero::get);
        let start_cost = finish_cost.max(self.virtual_cost.saturating_sub(LEAD_COST_MAX));
        let number = self.next_number;
        self.next_number += 1;
        Ticket { start_cost, number }
    }

    fn served(&mut self, ticket: Ticket, cost: u64) -> Account {
        let wanted = u64::try_from(self.waiting.len() + self.places - self.free_places).unwrap_or(u64::MAX);
        self.virtual_cost = self.virtual_cost.saturating_add(cost / wanted.max(1));
        Account { finish_cost: NonZero::new(ticket.start_cost.saturating_add(cost)) }
    }

    fn call_next(&mut self) -> Option<Waker> {
        let Some((ticket, waker)) = self.waiting.pop_first() else {
            self.free_places += 1;
            return None;
        };
        self.began(ticket);
        self.called.insert(ticket);
        Some(waker)
    }

    fn began(&mut self, ticket: Ticket) {
        self.virtual_cost = self.virtual_cost.max(ticket.start_cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTLY: u64 = 3000;

    /// Serves all of `crowd` for `COSTLY` again and again, and one that comes for `cost` after so many services `between`; how many others were served
    /// while that one waited, at most. The first time does not count: it has not left anything to others before.
    fn most_before_a_modest_one(crowd: usize, between: usize, cost: u64) -> usize {
        let mut queue = Queue::new(1);
        let Entry::Served(mut served) = enter(&mut queue, Account::default()) else {
            panic!("there is a place")
        };
        for _ in 1..crowd {
            assert!(matches!(enter(&mut queue, Account::default()), Entry::Waits(_)));
        }
        let (mut modest, mut most) = (Account::default(), 0);
        for time in 0..20 {
            for _ in 0..between {
                served = serve(&mut queue, served);
            }
            let Entry::Waits(ticket) = enter(&mut queue, modest) else { panic!("all places are taken") };
            let mut before = 0;
            served = serve(&mut queue, served);
            while served != ticket {
                before += 1;
                served = serve(&mut queue, served);
            }
            most = if time == 0 { 0 } else { most.max(before) };
            modest = queue.leave(ticket, cost).0;
            served = take_place(&mut queue);
        }
        most
    }

    fn enter(queue: &mut Queue, account: Account) -> Entry {
        queue.enter(account, 0, Waker::noop())
    }

    /// The one that is served has cost `COSTLY` and wants more. Who is served now.
    fn serve(queue: &mut Queue, served: Ticket) -> Ticket {
        match queue.renew(served, COSTLY, Waker::noop()).0 {
            Entry::Served(ticket) => ticket,
            Entry::Waits(_) => take_place(queue),
        }
    }

    /// The one that is called takes its place.
    fn take_place(queue: &mut Queue) -> Ticket {
        let next = *queue.called.first().expect("somebody is called");
        assert!(queue.ask(next, Waker::noop()));
        next
    }

    #[test]
    fn who_has_cost_little_is_next() {
        assert_eq!(most_before_a_modest_one(1000, 50, 20), 0, "it stands before all that have cost more");
    }

    #[test]
    fn who_has_cost_as_much_as_others_waits_as_they_do() {
        let most = most_before_a_modest_one(100, 0, COSTLY);
        assert!((50..=101).contains(&most), "{most} of 100");
    }

    /// With one place for two, each of the two is the next of the other: who stands before the other keeps it nevertheless.
    #[test]
    fn two_have_as_much_of_one_place_as_each_other_whatever_their_turns_take() {
        let mut queue = Queue::new(1);
        let Entry::Served(mut served) = enter(&mut queue, Account::default()) else {
            panic!("a place is free")
        };
        let Entry::Waits(mut modest) = enter(&mut queue, Account::default()) else { panic!("it is taken") };
        let mut had = [0; 2];
        let mut is_modest = false;
        for _ in 0..10_000 {
            let cost = if is_modest { 40 } else { COSTLY };
            had[usize::from(is_modest)] += cost;
            match queue.renew(served, cost, Waker::noop()).0 {
                Entry::Served(ticket) => served = ticket,
                Entry::Waits(ticket) => {
                    served = take_place(&mut queue);
                    assert_eq!(served, modest);
                    (modest, is_modest) = (ticket, !is_modest);
                }
            }
        }
        let [flooded, little] = had;
        assert!(flooded <= little + 2 * COSTLY && little <= flooded + 2 * COSTLY, "{had:?}");
    }

    #[test]
    fn newcomers_without_end_do_not_go_before_one_that_goes_on() {
        let mut queue = Queue::new(1);
        let Entry::Served(mut served) = enter(&mut queue, Account::default()) else {
            panic!("a place is free")
        };
        let waits = |queue: &mut Queue| assert!(matches!(enter(queue, Account::default()), Entry::Waits(_)));
        waits(&mut queue);
        // It has been served once, and wants more.
        let Entry::Waits(goes_on) = queue.renew(served, COSTLY, Waker::noop()).0 else {
            panic!("others wait")
        };
        served = take_place(&mut queue);
        let mut before = 0;
        while served != goes_on {
            before += 1;
            waits(&mut queue);
            assert!(queue.leave(served, COSTLY).1.is_some());
            served = take_place(&mut queue);
        }
        assert!(before <= 4, "{before} newcomers");
    }

    #[test]
    fn a_place_goes_on_to_the_next_when_the_one_that_was_called_for_it_goes_away() {
        let mut queue = Queue::new(1);
        let waker = Waker::noop();
        let Entry::Served(first) = enter(&mut queue, Account::default()) else { panic!("a place is free") };
        let [second, third, fourth] = std::array::from_fn(|_| match enter(&mut queue, Account::default()) {
            Entry::Waits(ticket) => ticket,
            Entry::Served(_) => panic!("there is one place"),
        });
        assert!(queue.leave(first, 1).1.is_some());
        assert!(!queue.ask(third, waker));
        assert!(queue.give_up(third).is_none(), "it had no place");
        assert!(queue.give_up(second).is_some(), "the fourth is woken");
        assert!(queue.ask(fourth, waker));
        assert_eq!(queue.free_places(), 0);
        assert!(queue.leave(fourth, 1).1.is_none());
        assert_eq!(queue.free_places(), 1);
    }

    #[test]
    fn nobody_saves_more_than_a_little() {
        let mut queue = Queue::new(1);
        let Entry::Served(ticket) = enter(&mut queue, Account::default()) else { panic!("a place is free") };
        let early = queue.leave(ticket, 1).0;
        let mut busy = Account::default();
        for _ in 0..100 {
            let Entry::Served(ticket) = enter(&mut queue, busy) else { panic!("a place is free") };
            busy = queue.leave(ticket, 2 * LEAD_COST_MAX).0;
        }
        let virtual_cost = queue.virtual_cost;
        let Entry::Served(ticket) = enter(&mut queue, early) else { panic!("a place is free") };
        assert_eq!(ticket.start_cost, virtual_cost - LEAD_COST_MAX);
        assert_eq!(queue.virtual_cost, virtual_cost, "it never falls");
    }

    #[test]
    fn a_newcomer_has_the_same_right_as_one_that_has_had_much() {
        let mut queue = Queue::new(1);
        let mut greedy = Account::default();
        for _ in 0..100 {
            let Entry::Served(ticket) = enter(&mut queue, greedy) else { panic!("a place is free") };
            greedy = queue.leave(ticket, 10).0;
        }
        let Entry::Served(ticket) = enter(&mut queue, Account::default()) else { panic!("a place is free") };
        assert!(ticket.start_cost + 10 >= greedy.finish_cost.map_or(0, NonZero::get));
    }
}
