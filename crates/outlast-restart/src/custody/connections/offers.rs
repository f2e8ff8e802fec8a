//! Connections that nobody serves: until their clients send something, and from then on until the program takes them.

use super::{Connection, Connections, Given, State, UNTOUCHED, has_ended, has_news, is_over};
use crate::custody::address::Address;
use crate::custody::listeners::{Listeners, Origin};
use crate::custody::table::Phase;
use crate::sys::process::Pid;
use crate::sys::{custody as sys, tcp};
use rustix::event::epoll;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A connection whose process has crashed waits so long for its client's next request: as servers do.
const REST: Duration = Duration::from_secs(75);
/// And so long for the program to accept it.
const OFFER: Duration = Duration::from_secs(30);
/// Before it is offered once more.
const AGAIN: Duration = Duration::from_millis(50);
/// A process that has accepted one asks sooner what it stands for. Where listening sockets share their port (SO_REUSEPORT) a process that
/// is not the program's may have it, and [`AGAIN`] counts; twice as much each time.
const UNCLAIMED: Duration = Duration::from_secs(3);
/// So many are offered at a time: clients wait in the same queue.
const OFFERS: usize = 16;

/// Connections that nobody serves, by their numbers, and since when. There may be thousands: nothing is done for each of them
/// when one changes.
#[derive(Debug, Default)]
pub(super) struct Loose {
    /// Their clients are silent.
    resting: BTreeSet<(Instant, u32)>,
    /// Their clients wait, the first ones longest.
    ready: BTreeSet<(Instant, u32)>,
    /// They are connected to the program.
    offered: BTreeSet<u32>,
}

impl Loose {
    fn add(&mut self, number: u32, state: &State) {
        match state {
            State::Served => {}
            State::Resting { since } => drop(self.resting.insert((*since, number))),
            State::Ready { since } => drop(self.ready.insert((*since, number))),
            State::Offered { .. } => drop(self.offered.insert(number)),
        }
    }

    /// It was in this state, and is none of them any more.
    pub(super) fn remove(&mut self, number: u32, state: &State) {
        match state {
            State::Served => {}
            State::Resting { since } => drop(self.resting.remove(&(*since, number))),
            State::Ready { since } => drop(self.ready.remove(&(*since, number))),
            State::Offered { .. } => drop(self.offered.remove(&number)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.resting.is_empty() && self.ready.is_empty() && self.offered.is_empty()
    }

    /// All of them.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        let timed = self.resting.iter().chain(&self.ready).map(|(_, number)| *number);
        timed.chain(self.offered.iter().copied())
    }

    fn next_ready(&self, behind: Option<(Instant, u32)>) -> Option<(Instant, u32)> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.ready.range((from, Bound::Unbounded)).next().copied()
    }
}

/// Whether two sockets are the ends of one connection: no other in this network has both of its addresses.
fn is_other_end(accepted: BorrowedFd<'_>, offered: BorrowedFd<'_>) -> bool {
    let [here, there] = [sys::local_address, sys::peer_address]
        .map(|address| [accepted, offered].map(|socket| Address::parse(&address(socket))));
    let ([here, from], [there, to]) = (here, there);
    let is_one = |one: Option<Address>, other: Option<Address>| {
        one.zip(other).is_some_and(|(one, other)| one.is_same(&other))
    };
    is_one(here, to) && is_one(there, from) && sys::network(accepted) == sys::network(offered)
}

impl Connections {
    /// Whether some wait for the program.
    pub(in crate::custody) fn has_waiting(&self) -> bool {
        self.table.waiting.load(SeqCst) > 0
    }

    /// From here on it is in this state.
    pub(super) fn change(&mut self, number: u32, state: State) {
        let Some(held) = self.all.get_mut(&number) else { return };
        let before = std::mem::replace(&mut held.state, state);
        self.loose.remove(number, &before);
        self.loose.add(number, &held.state);
        self.by_age.remove(&held.age);
        if matches!(held.state, State::Served) && number < UNTOUCHED {
            self.next_age += 1;
            held.age = self.next_age;
            self.by_age.insert(held.age, number);
        }
        self.note_waiting();
    }

    /// Nobody has it from here on.
    pub(super) fn rest(&mut self, number: u32, epoll: &OwnedFd) {
        self.change(number, State::Resting { since: Instant::now() });
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        let data = epoll::EventData::new_u64(crate::custody::holder::of_connection(number));
        let watched = self.all.get(&number).map(|held| epoll::add(epoll, &held.socket, data, flags));
        if watched.is_some_and(|watched| watched.is_err_and(|error| error != rustix::io::Errno::EXIST)) {
            // Its client would never be heard again.
            self.drop(number);
        }
    }

    /// One that a process has accepted and nothing else: others are to have it.
    pub(in crate::custody) fn pass_on(&mut self, socket: OwnedFd) {
        if let Some(number) = self.add_untouched(socket) {
            self.change(number, State::Ready { since: Instant::now() });
        }
    }

    /// Clients that wait at listening sockets which are about to be closed: the program's others are to have them.
    pub(in crate::custody) fn pass_on_all(&mut self, closed: &[OwnedFd]) {
        self.pass_on_accepted(closed.iter().flat_map(sys::accept_all));
    }

    /// Clients that have waited there.
    pub(in crate::custody) fn pass_on_accepted(&mut self, all: impl IntoIterator<Item = OwnedFd>) {
        for accepted in all {
            // One of ours stands for a connection that is held.
            match self.offered_by(accepted.as_fd()) {
                Some((number, since)) => self.change(number, State::Ready { since }),
                None => self.pass_on(accepted),
            }
        }
    }

    /// The connection that was offered by the one of which this is the other end.
    fn offered_by(&self, accepted: BorrowedFd<'_>) -> Option<(u32, Instant)> {
        self.loose.offered.iter().find_map(|number| match &self.all.get(number)?.state {
            State::Offered { socket, since, .. } if is_other_end(accepted, socket.as_fd()) => {
                Some((*number, *since))
            }
            _ => None,
        })
    }

    /// Whether the program can be connected to where this connection has come to: the same address is another one in another
    /// network namespace.
    pub(super) fn can_be_offered(&self, connection: BorrowedFd<'_>) -> bool {
        let is_unix = Address::parse(&sys::local_address(connection)).is_some_and(|own| own.path().is_some());
        is_unix || sys::network(connection).zip(self.network).is_none_or(|(its, own)| its == own)
    }

    /// Its number, which is no slot's. None: there is no room for it, or it cannot be offered.
    pub(super) fn add_untouched(&mut self, socket: OwnedFd) -> Option<u32> {
        if !self.can_be_offered(socket.as_fd()) || !self.make_room() {
            return None;
        }
        let number = self.next_untouched;
        self.next_untouched = number.checked_add(1).unwrap_or(UNTOUCHED);
        let address = Address::parse(&sys::local_address(socket.as_fd()));
        let (cookie, got_at) = (sys::cookie(socket.as_fd()), Instant::now());
        let connection = Connection {
            socket,
            cookie,
            tries: 0,
            age: 0,
            owner: 0,
            number: -1,
            address,
            got_at,
            given: None,
            looks_closed: false,
            state: State::Served,
        };
        self.all.insert(number, connection);
        Some(number)
    }

    /// The client of one that nobody has sends something, or ends it.
    pub(in crate::custody) fn on_event(&mut self, number: u32, epoll: &OwnedFd, now: Instant) {
        let Some(held) = self.all.get(&number) else { return };
        // It may be about an earlier connection in that slot, which another process still has.
        if !matches!(held.state, State::Resting { .. }) || !has_news(held.socket.as_fd()) {
            return;
        }
        let _ = epoll::delete(epoll, &held.socket);
        if is_over(held.socket.as_fd()) {
            self.drop(number);
        } else {
            self.change(number, State::Ready { since: now });
        }
    }

    /// Connects to the program for those whose clients have sent something, and gives up those that nobody wants: that counts
    /// as long as the program serves, which it does since then.
    pub(in crate::custody) fn offer(
        &mut self,
        listeners: &Listeners,
        serves_since: Option<Instant>,
        now: Instant,
    ) {
        if self.loose.is_empty() {
            return;
        }
        self.give_up(serves_since, now);
        self.take_unclaimed(listeners, now);
        // Those that could not be connected to: their queues are full, or nobody listens there.
        let (mut behind, mut full) = (None, BTreeSet::<Vec<u8>>::new());
        while self.loose.offered.len() < OFFERS
            && let Some((since, number)) = self.loose.next_ready(behind)
        {
            behind = Some((since, number));
            let Some(held) = self.all.get(&number) else { continue };
            // A request that nobody has read yet may be a whole one.
            if number < UNTOUCHED && is_over(held.socket.as_fd()) {
                self.drop(number);
                continue;
            }
            let origin = held.address.as_ref().map(|address| listeners.origin(address, held.socket.as_fd()));
            let Origin { mut ways, deferred, device } = origin.unwrap_or_default();
            if !ways.is_empty() {
                // One of them may lead to another program alone.
                let by = held.tries as usize % ways.len();
                ways.rotate_left(by);
            }
            let open = ways.into_iter().filter(|address| !full.contains(address));
            let mut refused = Vec::new();
            let connected = open
                .into_iter()
                .find_map(|address| sys::connect(&address, device).map_err(|_| refused.push(address)).ok());
            full.extend(refused);
            let Some(socket) = connected else { continue };
            if deferred {
                // Whoever waits for a first byte is not woken up without one.
                let _ = rustix::net::send(&socket, b"\n", rustix::net::SendFlags::NOSIGNAL);
            }
            let name = Address::parse(&sys::local_address(socket.as_fd()));
            self.change(number, State::Offered { socket, name, since, at: now });
        }
    }

    /// Lets go of those that have waited too long. A program may take its time until it serves: so have its new clients to
    /// wait, and they do.
    fn give_up(&mut self, serves_since: Option<Instant>, now: Instant) {
        let Some(serves_since) = serves_since else { return };
        let is_late = |since: Instant, limit: Duration| now.duration_since(since.max(serves_since)) >= limit;
        let first = |set: &BTreeSet<(Instant, u32)>, limit: Duration| {
            set.first().filter(|(since, _)| is_late(*since, limit)).map(|(_, number)| *number)
        };
        while let Some(number) = first(&self.loose.resting, REST).or_else(|| first(&self.loose.ready, OFFER))
        {
            self.drop(number);
        }
        let all = &self.all;
        let is_over = |number: &u32| match all.get(number).map(|held| &held.state) {
            Some(State::Offered { since, .. }) => is_late(*since, OFFER),
            _ => false,
        };
        let over: Vec<u32> = self.loose.offered.iter().copied().filter(is_over).collect();
        over.into_iter().for_each(|number| self.drop(number));
    }

    /// Of those that were offered: the process that has accepted one was killed before it could ask what that stands for, or has asked
    /// in vain as this process did not answer; or another program listens at the same port and has it; or it found the queue full, and
    /// the kernel would try again after a second, three and seven.
    fn take_unclaimed(&mut self, listeners: &Listeners, now: Instant) {
        let all = &self.all;
        let lost = self.loose.offered.iter().filter_map(|number| {
            let held = all.get(number)?;
            let State::Offered { socket, since, at, .. } = &held.state else { return None };
            let age = now.duration_since(*at);
            let has_ended = has_ended(socket.as_fd());
            let pause = if has_ended { AGAIN } else { (AGAIN * (1 << held.tries.min(6))).min(UNCLAIMED) };
            if age < pause {
                return None;
            }
            let address = held.address.as_ref()?;
            let is_queued = || !listeners.is_queue_empty(address);
            let is_due =
                || age >= UNCLAIMED || listeners.shares_port(address) || tcp::is_connecting(socket.as_fd());
            (has_ended || is_due() && !is_queued()).then_some((*number, *since))
        });
        let lost: Vec<(u32, Instant)> = lost.collect();
        for (number, since) in lost {
            if let Some(held) = self.all.get_mut(&number) {
                held.tries = held.tries.saturating_add(1);
            }
            self.change(number, State::Ready { since });
        }
    }

    /// The process `owner` has accepted a connection from `peer`: if that is one that was offered, what it stands for. Ports
    /// alone do not say that: clients of other machines have the same ones. What one user's server has accepted is not for
    /// others.
    pub(in crate::custody) fn swap(
        &mut self,
        listeners: &Listeners,
        (owner, process): (Pid, BorrowedFd<'_>),
        at: RawFd,
        peer: &Address,
    ) -> Option<Given> {
        let all = &self.all;
        let (number, offered, since) =
            self.loose.offered.iter().find_map(|number| match &all.get(number)?.state {
                State::Offered { socket, name: Some(name), since, .. } if name.is_same(peer) => {
                    Some((*number, socket, *since))
                }
                _ => None,
            })?;
        // Whoever asks has it in hand: only who has the program's listening socket can have accepted it.
        let accepted = match sys::copy_of(process, at) {
            Ok(accepted) => accepted,
            // For want of a descriptor, perhaps. To who has accepted it this is a client that leaves.
            Err(_) => {
                self.change(number, State::Ready { since });
                return None;
            }
        };
        if !is_other_end(accepted.as_fd(), offered.as_fd()) {
            return None;
        }
        // It may have come to somebody else's socket.
        let address = Address::parse(&sys::local_address(accepted.as_fd()))?;
        if !listeners.may_give(owner, &address, &self.all.get(&number)?.socket) {
            return None;
        }
        if number >= UNTOUCHED {
            self.change(number, State::Served);
            let socket = self.all.remove(&number)?.socket;
            return Some(Given { socket, slot: number, cookie: 0 });
        }
        let (slot, held) = (self.table.slot(number)?, self.all.get(&number)?);
        let Ok(socket) = held.socket.try_clone() else {
            self.change(number, State::Ready { since });
            return None;
        };
        self.change(number, State::Served);
        slot.owner.store(owner.cast_unsigned(), SeqCst);
        slot.descriptor.store(at.cast_unsigned(), SeqCst);
        let held = self.all.get_mut(&number)?;
        let positions = tcp::positions(held.socket.as_fd()).ok();
        slot.begin_at(Phase::Busy, positions.unwrap_or_default());
        held.given = positions.map(|positions| (positions, since));
        (held.owner, held.number, held.tries) = (owner, at, 0);
        (held.got_at, held.looks_closed) = (Instant::now(), false);
        Some(Given { socket, slot: number, cookie: held.cookie })
    }

    /// Lets go of those whose clients have gone while they waited for the program. Asks for each: not often.
    pub(super) fn drop_ended(&mut self) {
        let all = &self.all;
        let is_gone = |number: &u32| {
            *number < UNTOUCHED && all.get(number).is_some_and(|held| is_over(held.socket.as_fd()))
        };
        let gone: Vec<u32> = self.loose.ready.iter().map(|(_, number)| *number).filter(is_gone).collect();
        gone.into_iter().for_each(|number| self.drop(number));
    }

    /// The process that was to have it has not received it: others are to have it.
    pub(in crate::custody) fn take_back(&mut self, given: Given) {
        if given.cookie == 0 {
            self.pass_on(given.socket);
        } else if let Some((_, since)) = self.all.get(&given.slot).and_then(|held| held.given) {
            self.change(given.slot, State::Ready { since });
        }
    }

    pub(super) fn note_waiting(&self) {
        let waiting = self.loose.ready.len() + self.loose.offered.len();
        self.table.waiting.store(u32::try_from(waiting).unwrap_or(u32::MAX), SeqCst);
    }
}

#[cfg(test)]
mod tests;
