//! Copies of idle connections: taken from the processes that serve them, kept when those crash, and given to others.

mod copies;
mod offers;
mod strays;

use super::address::Address;
use super::table::{NEW, Phase, Slot, Table};
use crate::sys::process::Pid;
use crate::sys::tcp::{self, Positions};
use crate::sys::{custody as sys, descriptors, local};
use offers::Loose;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use strays::Strays;

/// A process that is given a connection has it under its number by then.
const SETTLED: Duration = Duration::from_secs(1);
/// As a rule a request follows the connection: one on which nothing is said for so long gets a copy.
const SILENT: Duration = Duration::from_millis(10);
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
    /// How often it was offered in vain.
    tries: u32,
    /// Its key in [`Connections::by_age`].
    age: u64,
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
    /// Of this process.
    network: Option<u64>,
    all: BTreeMap<u32, Connection>,
    /// Those that nobody serves.
    loose: Loose,
    strays: Strays,
    /// All that are served and have a slot, the oldest first.
    by_age: BTreeMap<u64, u32>,
    next_age: u64,
    limit: usize,
    /// For want of descriptors.
    given_up: u64,
    /// The number of the next one without a slot.
    next_untouched: u32,
    /// Slots of which there is no copy yet.
    new: Vec<u32>,
    /// Slots of which there will never be one; some are free, or of other connections, by now. Those that are not are free when
    /// their process ends.
    uncopied: BTreeSet<u32>,
    head: u32,
    looked_at: u32,
    /// Those that looked closed when they were looked at last.
    doubtful: Vec<u32>,
    /// Those on which nothing was said when it was looked last, and the time before that, by their cookies; and when that was.
    silent: [BTreeSet<u64>; 2],
    silent_at: Instant,
}

/// How the peer has ended the connection, or broken it off, if it has.
fn end_of(socket: BorrowedFd<'_>) -> PollFlags {
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    found(socket, PollFlags::RDHUP) & ends
}

/// Whether the peer has sent something, or has ended the connection.
fn has_news(socket: BorrowedFd<'_>) -> bool {
    !found(socket, PollFlags::IN | PollFlags::RDHUP).is_empty()
}

fn found(socket: BorrowedFd<'_>, asked: PollFlags) -> PollFlags {
    let mut asked = [PollFd::new(&socket, asked)];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = poll(&mut asked, Some(&zero));
    asked.iter().fold(PollFlags::empty(), |all, asked| all | asked.revents())
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

impl Connections {
    /// `network`: where this process connects to the program.
    pub(super) fn new(table: &'static Table, network: Option<u64>) -> Self {
        Self {
            table,
            network,
            all: BTreeMap::new(),
            loose: Loose::default(),
            strays: Strays::default(),
            by_age: BTreeMap::new(),
            next_age: 0,
            limit: 0,
            given_up: 0,
            next_untouched: UNTOUCHED,
            new: Vec::new(),
            uncopied: BTreeSet::new(),
            head: 0,
            looked_at: 0,
            doubtful: Vec::new(),
            silent: Default::default(),
            silent_at: Instant::now(),
        }
    }

    /// Holds at most so many from here on, and no more of those that the program has still: the supervisor needs its
    /// descriptors for other things, too.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.give_up_beyond(limit);
    }

    /// How many the limit allows, if some were given up for it.
    pub(super) fn was_too_small(&self) -> Option<usize> {
        (self.given_up > 0).then_some(self.limit)
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// The program closes one. It is kept nevertheless if that is so that another binary can take over. `elsewhere` is asked as
    /// in [`ended`](Self::ended). Whether it is kept.
    pub(super) fn release(
        &mut self,
        (owner, keep): (Pid, bool),
        (number, cookie): (u32, u64),
        epoll: &OwnedFd,
        elsewhere: impl FnOnce(&[u64]) -> Vec<u64>,
    ) -> bool {
        let is_it = |held: &&mut Connection| {
            held.owner == owner && held.cookie == cookie && matches!(held.state, State::Served)
        };
        let Some(held) = self.all.get_mut(&number).filter(is_it) else { return false };
        let is_idle = keep && Self::is_idle(self.table, number, held);
        let is_kept = is_idle && self.at_others(&[number], elsewhere).is_empty();
        if is_kept {
            self.keep(number, epoll);
        } else {
            self.drop(number);
        }
        is_kept
    }

    /// The connections that a process has, by their slots and cookies.
    pub(super) fn served_by(&self, owner: Pid) -> Vec<(u32, u64)> {
        let is_its = |held: &Connection| held.owner == owner && matches!(held.state, State::Served);
        self.all
            .iter()
            .filter(|(_, held)| is_its(held))
            .map(|(number, held)| (*number, held.cookie))
            .collect()
    }

    /// Keeps a connection that a process closes, if it is idle. Whether it is.
    pub(super) fn keep_idle(&mut self, owner: Pid, (number, cookie): (u32, u64), epoll: &OwnedFd) -> bool {
        let is_asked = self.table.slot(number).is_some_and(|slot| slot.phase() == Phase::Idle);
        let is_it = |held: &&Connection| {
            held.owner == owner && held.cookie == cookie && matches!(held.state, State::Served)
        };
        let held = self.all.get(&number).filter(is_it).filter(|_| is_asked);
        let is_kept = held.is_some_and(|held| Self::is_idle(self.table, number, held));
        if is_kept {
            self.rest(number, epoll);
        }
        is_kept
    }

    /// Closes one on which its client has said nothing since nobody has it.
    pub(super) fn let_go_of_resting(&mut self, (number, cookie): (u32, u64)) {
        let held = self.all.get(&number).filter(|held| held.cookie == cookie);
        if held.is_some_and(|held| matches!(held.state, State::Resting { .. })) {
            self.drop(number);
        }
    }

    /// The sockets of those of these connections on which nothing was said yet.
    pub(super) fn untouched(&self, numbers: impl Iterator<Item = u32>) -> Vec<u64> {
        let is_untouched =
            |number: &u32| self.table.slot(*number).is_some_and(|slot| slot.phase() == Phase::Untouched);
        let inode = |number: u32| descriptors::inode(&self.all.get(&number)?.socket).ok();
        numbers.filter(is_untouched).filter_map(inode).collect()
    }

    /// Of connections that are to be kept those on which nothing was said yet, and that other processes have.
    fn at_others(&self, numbers: &[u32], elsewhere: impl FnOnce(&[u64]) -> Vec<u64>) -> Vec<u32> {
        let is_untouched =
            |number: &&u32| self.table.slot(**number).is_some_and(|slot| slot.phase() == Phase::Untouched);
        let inode = |number: &u32| Some((*number, descriptors::inode(&self.all.get(number)?.socket).ok()?));
        let untouched: Vec<(u32, u64)> = numbers.iter().filter(is_untouched).filter_map(inode).collect();
        if untouched.is_empty() {
            return Vec::new();
        }
        let inodes: Vec<u64> = untouched.iter().map(|(_, inode)| *inode).collect();
        let there: BTreeSet<u64> = elsewhere(&inodes).into_iter().collect();
        let there = untouched.into_iter().filter(|(_, inode)| there.contains(inode));
        there.map(|(number, _)| number).collect()
    }

    /// Nobody has it from here on. One on which nothing was said yet is as if it had not been accepted: the program's next
    /// process follows it from its first byte on. Where the program may greet its clients, they may wait for that, and it gets
    /// them at once: nobody else would ever say anything. A client of HTTP begins by itself.
    fn keep(&mut self, number: u32, epoll: &OwnedFd) {
        let is_untouched = self.table.slot(number).is_some_and(|slot| slot.phase() == Phase::Untouched);
        if !is_untouched {
            self.rest(number, epoll);
        } else if let Some(Connection { socket, .. }) = self.take_out(number) {
            if !self.table.clients_begin() {
                self.pass_on(socket);
            } else if let Some(number) = self.add_untouched(socket) {
                self.rest(number, epoll);
            }
        }
    }

    /// Of those that a process has, by their cookies: the idle ones of which there are copies, and others that cannot be kept
    /// yet, as somebody waits for an answer or there is no copy.
    pub(super) fn of(&mut self, owner: Pid) -> (BTreeSet<u64>, BTreeSet<u64>) {
        use std::sync::atomic::Ordering::SeqCst;
        self.table.take_new(&mut self.head, &mut self.new);
        let is_its = |held: &Connection| held.owner == owner && matches!(held.state, State::Served);
        let held = self.all.iter().filter(|(_, held)| is_its(held));
        let (mut idle, mut busy) = (BTreeSet::new(), BTreeSet::new());
        for (slot, held) in held.filter_map(|(number, held)| Some((self.table.slot(*number)?, held))) {
            match slot.phase() {
                // It has read a request just now, and is about to say so.
                Phase::Idle if tcp::positions(held.socket.as_fd()).is_ok_and(|at| !slot.is_at(at)) => {
                    busy.insert(slot.cookie.load(SeqCst));
                }
                Phase::Idle => drop(idle.insert(slot.cookie.load(SeqCst))),
                Phase::Busy => drop(busy.insert(slot.cookie.load(SeqCst))),
                // What was said by ways that are not seen is not known.
                Phase::Untouched if tcp::is_untouched(held.socket.as_fd()) => {
                    idle.insert(slot.cookie.load(SeqCst));
                }
                Phase::Untouched | Phase::Unclear => {}
            }
        }
        let is_new = |slot: &&Slot| {
            slot.state.load(SeqCst) == NEW
                && slot.owner.load(SeqCst) == owner.cast_unsigned()
                && !matches!(slot.phase(), Phase::Unclear | Phase::Untouched)
        };
        let new = self.new.iter().filter_map(|number| self.table.slot(*number)).filter(is_new);
        busy.extend(new.map(|slot| slot.cookie.load(SeqCst)));
        (idle, busy)
    }

    /// A process has ended: with `keep`, its idle connections stay open. Gives how many do, and how many do not. `elsewhere`
    /// says which of these sockets other processes have, by their inodes.
    pub(super) fn ended(
        &mut self,
        owner: Pid,
        keep: bool,
        epoll: &OwnedFd,
        elsewhere: impl FnOnce(&[u64]) -> Vec<u64>,
    ) -> (u32, u32) {
        use std::sync::atomic::Ordering::SeqCst;
        let (mut kept, mut closed) = (0, 0);
        let its: Vec<u32> = self
            .all
            .iter()
            .filter(|(_, held)| held.owner == owner && matches!(held.state, State::Served))
            .map(|(number, _)| *number)
            .collect();
        // Who has a child serve each client has forked for it, or passes it on.
        let at_others = if keep { self.at_others(&its, elsewhere) } else { Vec::new() };
        for number in its {
            let Some(held) = self.all.get_mut(&number) else { continue };
            if at_others.contains(&number) {
                drop(self.take_out(number));
            } else if keep && Self::is_idle(self.table, number, held) {
                self.keep(number, epoll);
                kept += 1;
            } else if let Some(since) = Self::waits_since(held).filter(|_| keep) {
                // The next one is as good for its client.
                self.change(number, State::Ready { since });
                kept += 1;
            } else {
                closed += u32::from(!Self::has_left(self.table, number, held));
                self.drop(number);
            }
        }
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
        self.uncopied.retain(|number| is_lost(number).is_none());
        (kept, closed)
    }

    /// Whether a process may accept clients at a listening socket that another one has made.
    pub(super) fn may_accept(&self, pid: Pid) -> bool {
        self.table.accepting.may(pid)
    }

    /// Whether its process has read all of the requests that it has answered, and nothing behind them: it may have died
    /// within the call that read the next one, or have read in a way that is not seen. The kernel's counters tell. Those of a
    /// UNIX socket do not exist: its process writes down before it reads that it does.
    fn is_idle(table: &Table, number: u32, held: &Connection) -> bool {
        let Some(slot) = table.slot(number) else { return false };
        let waits = match slot.phase() {
            Phase::Idle => tcp::positions(held.socket.as_fd()).map_or(true, |at| slot.is_at(at)),
            Phase::Untouched => tcp::is_untouched(held.socket.as_fd()),
            Phase::Busy | Phase::Unclear => false,
        };
        waits && !is_over(held.socket.as_fd())
    }

    /// Whether its client had left, and loses nothing. One that waits for an answer may have ended its own side.
    fn has_left(table: &Table, number: u32, held: &Connection) -> bool {
        let waits =
            table.slot(number).is_some_and(|slot| !matches!(slot.phase(), Phase::Idle | Phase::Untouched));
        if waits {
            return end_of(held.socket.as_fd()).intersects(PollFlags::HUP | PollFlags::ERR);
        }
        is_over(held.socket.as_fd())
    }

    /// Since when its client waits, if the process that was given it has ended before it read any of what was sent.
    fn waits_since(held: &Connection) -> Option<Instant> {
        let (before, since) = held.given?;
        let is_untouched = tcp::positions(held.socket.as_fd()).ok()? == before;
        (is_untouched && !has_ended(held.socket.as_fd())).then_some(since)
    }

    /// Looks whether some were closed unseen.
    pub(super) fn sweep(&mut self) {
        self.drop_ended();
        let from = self.looked_at;
        let some: Vec<u32> = self.all.range(from..).take(LOOKED_AT).map(|(number, _)| *number).collect();
        self.looked_at = some.last().filter(|_| some.len() == LOOKED_AT).map_or(0, |last| last + 1);
        for number in some {
            self.look_at(number);
        }
    }

    fn look_at(&mut self, number: u32) {
        let Some(held) = self.all.get_mut(&number) else { return };
        // One that has got it just now may be about to put it in its place.
        // A process that dies has lost all of its descriptors at once, and may take long to be gone.
        let closed = matches!(held.state, State::Served)
            && held.got_at.elapsed() >= SETTLED
            && sys::is_copy(held.socket.as_fd(), held.owner, held.number) == Some(false)
            && !sys::is_exiting(held.owner);
        if std::mem::replace(&mut held.looks_closed, closed) && closed {
            self.drop(number);
        } else if closed {
            self.doubtful.push(number);
        }
    }

    /// Some look closed, and are to be looked at again: by `execve` for example, which closes what is marked so. Their clients wait.
    pub(super) fn is_in_doubt(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// Looks at those again.
    pub(super) fn settle_doubts(&mut self) {
        for number in std::mem::take(&mut self.doubtful) {
            self.look_at(number);
        }
    }

    /// Lets go of all.
    pub(super) fn clear(&mut self) {
        let all: Vec<u32> = self.all.keys().copied().collect();
        all.into_iter().for_each(|number| self.drop(number));
    }

    /// Nobody in the program has it any more, so that this closes it.
    fn drop(&mut self, number: u32) {
        if let Some(held) = self.take_out(number) {
            sys::close_at_once(held.socket);
        }
    }

    /// It is none of them any more.
    fn take_out(&mut self, number: u32) -> Option<Connection> {
        let held = self.all.remove(&number)?;
        self.by_age.remove(&held.age);
        self.loose.remove(number, &held.state);
        self.note_waiting();
        self.table.slot(number).map(Slot::free);
        Some(held)
    }

    /// Whether there is room for one more copy: the oldest is given up for it, if need be. The program has that one still.
    fn make_room(&mut self) -> bool {
        self.give_up_beyond(self.limit.saturating_sub(1))
    }

    /// Whether there are no more than these, as far as some could be given up.
    fn give_up_beyond(&mut self, limit: usize) -> bool {
        while self.all.len() > limit {
            self.given_up += 1;
            let Some((_, number)) = self.by_age.pop_first() else { return false };
            drop(self.take_out(number));
        }
        true
    }
}
