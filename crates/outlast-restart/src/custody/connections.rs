//! Copies of idle connections: taken from the processes that serve them, kept when those crash, and given to others.

mod strays;

use super::address::Address;
use super::listeners::Listeners;
use super::table::{NEW, Phase, Slot, TAKEN, Table};
use crate::sys::process::Pid;
use crate::sys::tcp::{self, Positions};
use crate::sys::{custody as sys, local};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use strays::Strays;

/// A connection whose process has crashed waits so long for its client's next request: as servers do.
const REST: Duration = Duration::from_secs(75);
/// And so long for the program to accept it.
const OFFER: Duration = Duration::from_secs(30);
/// Before it is offered once more.
const AGAIN: Duration = Duration::from_millis(50);
/// So many are offered at a time: clients wait in the same queue.
const OFFERS: usize = 16;
/// A process that is given a connection has it under its number by then.
const SETTLED: Duration = Duration::from_secs(1);
/// In one look for connections that were closed unseen.
const LOOKED_AT: usize = 2000;

#[derive(Debug)]
enum State {
    /// A process has it.
    Served,
    /// Nobody has, and its client is silent.
    Resting { since: Instant },
    /// Its client has sent something.
    Ready { since: Instant },
    /// This socket was connected to the program, to be swapped for it.
    Offered { socket: OwnedFd, name: Option<Address>, since: Instant, at: Instant },
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    cookie: u64,
    owner: Pid,
    number: RawFd,
    address: Option<Address>,
    /// When a process has got it last.
    got_at: Instant,
    /// As long as a process that was given it may not have read from it: how far it had come then, and since when its client
    /// waits.
    given: Option<(Positions, Instant)>,
    /// When it was last looked at, its process did not have it.
    looks_closed: bool,
    state: State,
}

/// Numbers of connections that have no slot, as nothing was read of them yet.
const UNTOUCHED: u32 = 1 << 31;

/// A connection that is given to a program in place of what it has accepted.
pub(super) struct Given {
    pub(super) socket: OwnedFd,
    pub(super) slot: u32,
    /// 0: it has no slot, and is as if it had just been accepted.
    pub(super) cookie: u64,
}

/// All of a program, by the slots of the table.
#[derive(Debug)]
pub(super) struct Connections {
    table: &'static Table,
    all: BTreeMap<u32, Connection>,
    /// Those that nobody serves.
    loose: BTreeSet<u32>,
    strays: Strays,
    /// All that are served, the oldest copies first; and some that are over.
    by_age: VecDeque<(u32, u64)>,
    limit: usize,
    /// For want of descriptors.
    given_up: u64,
    /// The number of the next one without a slot.
    next_untouched: u32,
    /// Slots of which there is no copy yet.
    new: Vec<u32>,
    /// Slots of which there will never be one; some are free, or of other connections, by now.
    unclear: BTreeSet<u32>,
    head: u32,
    looked_at: u32,
}

/// How the peer has ended the connection, or broken it off, if it has.
fn end_of(socket: BorrowedFd<'_>) -> PollFlags {
    let mut asked = [PollFd::new(&socket, PollFlags::RDHUP)];
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = poll(&mut asked, Some(&zero));
    asked.iter().fold(PollFlags::empty(), |all, asked| all | asked.revents()) & ends
}

/// Whether it has.
fn has_ended(socket: BorrowedFd<'_>) -> bool {
    !end_of(socket).is_empty()
}

/// Whether nobody waits for an answer: a client may end its side behind a request.
fn is_over(socket: BorrowedFd<'_>) -> bool {
    match end_of(socket) {
        PollFlags::RDHUP => local::unread(socket.as_raw_fd()).unwrap_or(0) == 0,
        end => !end.is_empty(),
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
    pub(super) fn new(table: &'static Table) -> Self {
        Self {
            table,
            all: BTreeMap::new(),
            loose: BTreeSet::new(),
            strays: Strays::default(),
            by_age: VecDeque::new(),
            limit: 0,
            given_up: 0,
            next_untouched: UNTOUCHED,
            new: Vec::new(),
            unclear: BTreeSet::new(),
            head: 0,
            looked_at: 0,
        }
    }

    /// Holds at most so many from here on.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// How many the limit allows, if some were given up for it.
    pub(super) fn was_too_small(&self) -> Option<usize> {
        (self.given_up > 0).then_some(self.limit)
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether the table has connections of which there may soon be a copy.
    pub(super) fn has_new(&mut self) -> bool {
        self.table.take_new(&mut self.head, &mut self.new);
        !self.new.is_empty()
    }

    /// Whether some wait for the program.
    pub(super) fn has_waiting(&self) -> bool {
        self.table.waiting.load(std::sync::atomic::Ordering::SeqCst) > 0
    }

    /// The processes that have those of which there is no copy yet, as they say.
    pub(super) fn owners(&mut self) -> Vec<Pid> {
        self.table.take_new(&mut self.head, &mut self.new);
        let owner =
            |number: &u32| Some(self.table.slot(*number)?.owner.load(std::sync::atomic::Ordering::SeqCst));
        let mut owners: Vec<Pid> = self.new.iter().filter_map(owner).map(u32::cast_signed).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Copies those that have become idle. `known` gives the process of this number, if it is one of the program's.
    pub(super) fn take<'a>(&mut self, known: impl FnMut(Pid) -> Option<BorrowedFd<'a>>) -> bool {
        self.take_of(None, known)
    }

    /// The same, of one process alone if it is given.
    pub(super) fn take_of<'a>(
        &mut self,
        only: Option<Pid>,
        mut known: impl FnMut(Pid) -> Option<BorrowedFd<'a>>,
    ) -> bool {
        use std::sync::atomic::Ordering::SeqCst;
        self.table.take_new(&mut self.head, &mut self.new);
        let before = self.new.len();
        let mut new = std::mem::take(&mut self.new);
        new.retain(|&number| {
            let Some(slot) = self.table.slot(number) else { return false };
            if slot.state.load(SeqCst) != NEW {
                return false;
            }
            match slot.phase() {
                Phase::Unclear => {
                    self.unclear.insert(number);
                    return false;
                }
                Phase::Busy => return true,
                Phase::Idle => {}
            }
            let owner = slot.owner.load(SeqCst).cast_signed();
            if only.is_some_and(|only| only != owner) {
                return true;
            }
            let (at, cookie) = (slot.descriptor.load(SeqCst).cast_signed(), slot.cookie.load(SeqCst));
            let Some(process) = known(owner).filter(|_| self.make_room()) else { return false };
            let copy = sys::copy_of(process, at).ok();
            // Closed meanwhile, the number may stand for another one.
            let copy = copy.filter(|copy| cookie != 0 && sys::cookie(copy.as_fd()) == cookie);
            if let Some(socket) = copy
                && slot.advance(NEW, TAKEN)
            {
                let address = Address::parse(&sys::local_address(socket.as_fd()));
                let state = State::Served;
                let got_at = Instant::now();
                let connection = Connection {
                    socket,
                    cookie,
                    owner,
                    number: at,
                    address,
                    got_at,
                    given: None,
                    looks_closed: false,
                    state,
                };
                self.all.insert(number, connection);
                self.by_age.push_back((number, cookie));
            }
            false
        });
        let taken = new.len() < before;
        new.append(&mut self.new);
        self.new = new;
        taken
    }

    /// The program closes one. It is kept nevertheless if that is so that another binary can take over.
    pub(super) fn release(&mut self, owner: Pid, number: u32, cookie: u64, keep: bool, epoll: &OwnedFd) {
        let is_it = |held: &&mut Connection| {
            held.owner == owner && held.cookie == cookie && matches!(held.state, State::Served)
        };
        let Some(held) = self.all.get_mut(&number).filter(is_it) else { return };
        if keep && Self::is_idle(self.table, number, held) {
            rest(number, held, epoll);
            self.loose.insert(number);
        } else {
            self.drop(number);
        }
    }

    /// Of those that a process has, by their cookies: the idle ones of which there are copies, and others that cannot be kept
    /// yet, as somebody waits for an answer or there is no copy.
    pub(super) fn of(&mut self, owner: Pid) -> (BTreeSet<u64>, BTreeSet<u64>) {
        use std::sync::atomic::Ordering::SeqCst;
        self.table.take_new(&mut self.head, &mut self.new);
        let is_its = |held: &Connection| held.owner == owner && matches!(held.state, State::Served);
        let held = self.all.iter().filter(|(_, held)| is_its(held)).map(|(number, _)| *number);
        let (mut idle, mut busy) = (BTreeSet::new(), BTreeSet::new());
        for slot in held.filter_map(|number| self.table.slot(number)) {
            match slot.phase() {
                Phase::Idle => drop(idle.insert(slot.cookie.load(SeqCst))),
                Phase::Busy => drop(busy.insert(slot.cookie.load(SeqCst))),
                Phase::Unclear => {}
            }
        }
        let is_new = |slot: &&Slot| {
            slot.state.load(SeqCst) == NEW
                && slot.owner.load(SeqCst) == owner.cast_unsigned()
                && slot.phase() != Phase::Unclear
        };
        let new = self.new.iter().filter_map(|number| self.table.slot(*number)).filter(is_new);
        busy.extend(new.map(|slot| slot.cookie.load(SeqCst)));
        (idle, busy)
    }

    /// A process has ended: with `keep`, its idle connections stay open. Gives how many do, and how many do not.
    pub(super) fn ended(&mut self, owner: Pid, keep: bool, epoll: &OwnedFd) -> (u32, u32) {
        use std::sync::atomic::Ordering::SeqCst;
        let (mut kept, mut closed) = (0, 0);
        let its: Vec<u32> = self
            .all
            .iter()
            .filter(|(_, held)| held.owner == owner && matches!(held.state, State::Served))
            .map(|(number, _)| *number)
            .collect();
        for number in its {
            let Some(held) = self.all.get_mut(&number) else { continue };
            if keep && Self::is_idle(self.table, number, held) {
                rest(number, held, epoll);
                self.loose.insert(number);
                kept += 1;
            } else if let Some(since) = Self::waits_since(held).filter(|_| keep) {
                // The next one is as good for its client.
                held.state = State::Ready { since };
                self.loose.insert(number);
                kept += 1;
            } else {
                self.drop(number);
                closed += 1;
            }
        }
        self.note_waiting();
        self.table.take_new(&mut self.head, &mut self.new);
        let mut is_lost = |number: &u32| {
            let slot = self.table.slot(*number)?;
            let lost = slot.state.load(SeqCst) == NEW && slot.owner.load(SeqCst) == owner.cast_unsigned();
            lost.then(|| {
                slot.free();
                closed += 1;
            })
        };
        self.new.retain(|number| is_lost(number).is_none());
        self.unclear.retain(|number| is_lost(number).is_none());
        (kept, closed)
    }

    fn is_idle(table: &Table, number: u32, held: &Connection) -> bool {
        let unread = || local::unread(held.socket.as_raw_fd()).unwrap_or(0);
        table.slot(number).is_some_and(|slot| slot.phase() == Phase::Idle)
            && !has_ended(held.socket.as_fd())
            && tcp::waits_for_request(held.socket.as_fd(), unread)
    }

    /// Since when its client waits, if the process that was given it has ended before it read any of what was sent.
    fn waits_since(held: &Connection) -> Option<Instant> {
        let (before, since) = held.given?;
        let is_untouched = tcp::positions(held.socket.as_fd()).ok()? == before;
        (is_untouched && !has_ended(held.socket.as_fd())).then_some(since)
    }

    /// One that a process has accepted and nothing else: others are to have it.
    pub(super) fn pass_on(&mut self, socket: OwnedFd) {
        if !self.make_room() {
            return;
        }
        let number = self.next_untouched;
        self.next_untouched = number.checked_add(1).unwrap_or(UNTOUCHED);
        let address = Address::parse(&sys::local_address(socket.as_fd()));
        let (cookie, since) = (sys::cookie(socket.as_fd()), Instant::now());
        let connection = Connection {
            socket,
            cookie,
            owner: 0,
            number: -1,
            address,
            got_at: since,
            given: None,
            looks_closed: false,
            state: State::Ready { since },
        };
        self.all.insert(number, connection);
        self.loose.insert(number);
        self.note_waiting();
    }

    /// The client of one that nobody has sends something, or ends it.
    pub(super) fn on_event(&mut self, number: u32, epoll: &OwnedFd, now: Instant) {
        let Some(held) = self.all.get_mut(&number) else { return };
        if !matches!(held.state, State::Resting { .. }) {
            return;
        }
        let _ = epoll::delete(epoll, &held.socket);
        if is_over(held.socket.as_fd()) {
            self.drop(number);
        } else {
            held.state = State::Ready { since: now };
            self.note_waiting();
        }
    }

    /// Connects to the program for those whose clients have sent something, and gives up those that nobody wants.
    pub(super) fn offer(&mut self, listeners: &Listeners, now: Instant) {
        if self.loose.is_empty() {
            return;
        }
        let is_offered = |number: &&u32| {
            self.all.get(number).is_some_and(|held| matches!(held.state, State::Offered { .. }))
        };
        let mut offered = self.loose.iter().filter(is_offered).count();
        let mut over = Vec::new();
        for &number in &self.loose {
            let Some(held) = self.all.get_mut(&number) else { continue };
            let late = |since: &Instant, limit: Duration| now.duration_since(*since) >= limit;
            match &held.state {
                State::Resting { since } if late(since, REST) => over.push(number),
                State::Ready { since } if late(since, OFFER) => over.push(number),
                State::Offered { since, .. } if late(since, OFFER) => over.push(number),
                // Whoever has accepted it was killed before it could ask what it stands for.
                State::Offered { socket, since, at, .. } if late(at, AGAIN) && has_ended(socket.as_fd()) => {
                    held.state = State::Ready { since: *since };
                }
                // A request that nobody has read yet may be a whole one.
                State::Ready { .. } if number < UNTOUCHED && is_over(held.socket.as_fd()) => {
                    over.push(number)
                }
                State::Ready { since } if offered < OFFERS => {
                    let since = *since;
                    let origin = held.address.as_ref().and_then(|address| listeners.origin(address));
                    let connected =
                        origin.and_then(|(bytes, deferred)| Some((sys::connect(&bytes).ok()?, deferred)));
                    if let Some((socket, deferred)) = connected {
                        if deferred {
                            // Whoever waits for a first byte is not woken up without one.
                            let _ = rustix::net::send(&socket, b"\n", rustix::net::SendFlags::NOSIGNAL);
                        }
                        let name = Address::parse(&sys::local_address(socket.as_fd()));
                        held.state = State::Offered { socket, name, since, at: now };
                        offered += 1;
                    }
                }
                _ => {}
            }
        }
        over.into_iter().for_each(|number| self.drop(number));
        self.note_waiting();
    }

    /// The process `owner` has accepted a connection from `peer`: if that is one that was offered, what it stands for. Ports
    /// alone do not say that: clients of other machines have the same ones.
    pub(super) fn swap(
        &mut self,
        (owner, process): (Pid, BorrowedFd<'_>),
        at: RawFd,
        peer: &Address,
    ) -> Option<Given> {
        let is_it = |held: &Connection| match &held.state {
            State::Offered { name: Some(name), .. } => name.is_same(peer),
            _ => false,
        };
        let number = *self.loose.iter().find(|number| self.all.get(number).is_some_and(is_it))?;
        let State::Offered { socket: offered, .. } = &self.all.get(&number)?.state else { return None };
        // Whoever asks has it in hand: only who has the program's listening socket can have accepted it.
        let accepted = sys::copy_of(process, at).ok()?;
        if !is_other_end(accepted.as_fd(), offered.as_fd()) {
            return None;
        }
        if number >= UNTOUCHED {
            let socket = self.all.remove(&number)?.socket;
            self.drop(number);
            return Some(Given { socket, slot: number, cookie: 0 });
        }
        let slot = self.table.slot(number)?;
        slot.owner.store(owner.cast_unsigned(), std::sync::atomic::Ordering::SeqCst);
        slot.descriptor.store(at.cast_unsigned(), std::sync::atomic::Ordering::SeqCst);
        slot.set_phase(Phase::Busy);
        let held = self.all.get_mut(&number)?;
        if let State::Offered { since, .. } = held.state {
            held.given = tcp::positions(held.socket.as_fd()).ok().map(|positions| (positions, since));
        }
        (held.owner, held.number, held.state) = (owner, at, State::Served);
        (held.got_at, held.looks_closed) = (Instant::now(), false);
        self.by_age.push_back((number, held.cookie));
        self.loose.remove(&number);
        self.note_waiting();
        let held = self.all.get(&number)?;
        let socket = held.socket.try_clone().ok()?;
        Some(Given { socket, slot: number, cookie: held.cookie })
    }

    /// Looks whether some were closed unseen.
    pub(super) fn sweep(&mut self) {
        let from = self.looked_at;
        let some: Vec<u32> = self.all.range(from..).take(LOOKED_AT).map(|(number, _)| *number).collect();
        self.looked_at = some.last().filter(|_| some.len() == LOOKED_AT).map_or(0, |last| last + 1);
        for number in some {
            let Some(held) = self.all.get_mut(&number) else { continue };
            // One that has got it just now may be about to put it in its place.
            let closed = matches!(held.state, State::Served)
                && held.got_at.elapsed() >= SETTLED
                && sys::is_copy(held.socket.as_fd(), held.owner, held.number) == Some(false);
            // A process that dies just now has lost all of its descriptors, and will be heard of before the next look.
            if std::mem::replace(&mut held.looks_closed, closed) && closed {
                self.drop(number);
            }
        }
    }

    /// Lets go of all.
    pub(super) fn clear(&mut self) {
        let all: Vec<u32> = self.all.keys().copied().collect();
        all.into_iter().for_each(|number| self.drop(number));
    }

    fn drop(&mut self, number: u32) {
        if let (Some(_), Some(slot)) = (self.all.remove(&number), self.table.slot(number)) {
            slot.free();
        }
        if self.loose.remove(&number) {
            self.note_waiting();
        }
        if self.by_age.len() > 2 * self.all.len() + 64 {
            let all = &self.all;
            self.by_age.retain(|(number, cookie)| all.get(number).is_some_and(|held| held.cookie == *cookie));
        }
    }

    /// Whether there is room for one more copy: the oldest is given up for it, if need be. The program has that one still.
    fn make_room(&mut self) -> bool {
        while self.all.len() >= self.limit {
            self.given_up += 1;
            let Some((number, cookie)) = self.by_age.pop_front() else { return false };
            let is_it = |held: &Connection| held.cookie == cookie && matches!(held.state, State::Served);
            if self.all.get(&number).is_some_and(is_it) {
                self.drop(number);
            }
        }
        true
    }

    fn note_waiting(&self) {
        let waits = |held: &&Connection| matches!(held.state, State::Ready { .. } | State::Offered { .. });
        let loose = self.loose.iter().filter_map(|number| self.all.get(number));
        let waiting = u32::try_from(loose.filter(waits).count()).unwrap_or(u32::MAX);
        self.table.waiting.store(waiting, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Nobody has it from here on.
fn rest(number: u32, held: &mut Connection, epoll: &OwnedFd) {
    held.state = State::Resting { since: Instant::now() };
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
    let data = epoll::EventData::new_u64(super::holder::of_connection(number));
    let _ = epoll::add(epoll, &held.socket, data, flags);
}
