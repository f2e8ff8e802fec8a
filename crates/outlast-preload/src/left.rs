//! What a generation that has died left: sorted, put aside, and given out to the next one when that asks for it.

use crate::address::Address;
use crate::listeners;
use crate::settings::Keep;
use crate::sys;
use crate::table::{self, DESCRIPTORS, Slot, Table};
use outlast_restart::parts;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// Whoever has not asked for what is left by then does not want it: its clients are to see an end.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is put aside gets numbers from here on, where programs do not look.
const ASIDE: RawFd = 500;

/// Descriptors that are open before the program begins, and which files those are.
pub type Known = BTreeMap<RawFd, u64>;

/// One socket that is put aside.
#[derive(Debug)]
struct Socket {
    /// Negative: it was given out.
    number: AtomicI32,
    address: Address,
    /// Its type and protocol.
    kind: (i32, i32),
}

/// What is left.
#[derive(Debug, Default)]
pub struct Left {
    listeners: Vec<Socket>,
    connections: Vec<Socket>,
    /// What else the generation before had opened.
    others: usize,
    since_ns: u64,
}

static LEFT: AtomicPtr<Left> = AtomicPtr::new(std::ptr::null_mut());
/// Connections that were not given out yet, and all that was not.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
static ALL: AtomicUsize = AtomicUsize::new(0);
/// By number: not the program's, although open.
static RESERVED: [AtomicBool; DESCRIPTORS] = [const { AtomicBool::new(false) }; DESCRIPTORS];

/// Whether the program is to see this number as not open.
pub fn is_reserved(descriptor: RawFd) -> bool {
    reservation(descriptor).is_some_and(|reserved| reserved.load(Ordering::Relaxed))
}

/// The program is to see this number as not open, or may again.
pub fn reserve(descriptor: RawFd, reserved: bool) {
    if let Some(place) = reservation(descriptor) {
        place.store(reserved, Ordering::Relaxed);
    }
}

/// The first number from `least` on that is [reserved](is_reserved).
pub fn next_reserved(least: u32) -> Option<u32> {
    let place =
        RESERVED.get(least as usize..)?.iter().position(|reserved| reserved.load(Ordering::Relaxed))?;
    least.checked_add(u32::try_from(place).ok()?)
}

/// What is put aside gives way to what the program puts there. False if that is not possible.
pub fn evade(descriptor: RawFd) -> bool {
    let Some(left) = current() else { return false };
    let mut sockets = left.listeners.iter().chain(&left.connections);
    let Some(socket) = sockets.find(|socket| socket.number.load(Ordering::Relaxed) == descriptor) else {
        return false;
    };
    let Some(moved) = sys::move_to(descriptor, descriptor) else { return false };
    reserve(descriptor, false);
    reserve(moved, true);
    if let Some(table) = table::current().filter(|table| table.slot(descriptor).is_some_and(Slot::is_tracked))
    {
        table.slot(descriptor).into_iter().for_each(Slot::forget);
        table.begin(moved, sys::positions(moved));
    }
    socket.number.store(moved, Ordering::Relaxed);
    true
}

fn reservation(descriptor: RawFd) -> Option<&'static AtomicBool> {
    RESERVED.get(usize::try_from(descriptor).ok()?)
}

/// All descriptors that are open now.
pub fn known() -> io::Result<Known> {
    let open = parts::descriptors()?;
    Ok(open.into_iter().filter_map(|number| Some((number, sys::inode(number)?))).collect())
}

impl Left {
    /// Goes through all that is open and not `known`. What is not kept is closed; where somebody waits for an answer,
    /// so that he sees it. The instances of epoll that stay forget what is given out anew, as the program does not know
    /// it any more.
    pub fn sort(table: &Table, known: &Known, keep: Keep, epolls: &[RawFd]) -> io::Result<Self> {
        let (mut left, mut sockets) = (Self::default(), BTreeSet::new());
        for number in parts::descriptors()? {
            let inode = sys::inode(number);
            if inode.is_some() && inode.as_ref() == known.get(&number) {
                continue;
            }
            let listens = sys::is_listener(number);
            let kept = listens || (keep == Keep::Idle && table.is_idle(number));
            // Another number of the same socket would keep it open when the program closes it.
            if !kept || !sockets.insert(inode) {
                left.others += usize::from(!table.is_connection(number));
                sys::close(number, table.is_busy(number));
                continue;
            }
            for &epoll in epolls {
                sys::leave_epoll(epoll, number);
            }
            left.put_aside(number, listens);
        }
        table.clear();
        left.enter(table);
        Ok(left)
    }

    /// From an [upgrade](crate::upgrade), or [passed on](crate::passed): all sockets that are open and not `known`.
    pub fn found(table: &Table, known: &Known) -> io::Result<Self> {
        let mut left = Self::default();
        for number in parts::descriptors()? {
            if known.get(&number).copied() != sys::inode(number) {
                left.put_aside(number, sys::is_listener(number));
            }
        }
        left.enter(table);
        Ok(left)
    }

    /// Should the next generation die before it has asked for them, they are still idle.
    fn enter(&self, table: &Table) {
        for socket in &self.connections {
            let number = socket.number.load(Ordering::Relaxed);
            table.begin(number, sys::positions(number));
        }
    }

    fn put_aside(&mut self, number: RawFd, listens: bool) {
        let Some(address) = Address::of(number) else { return sys::close(number, false) };
        let least = RawFd::try_from(sys::descriptors_limits().0 / 2).unwrap_or(ASIDE);
        let number = sys::move_to(number, ASIDE.min(least)).unwrap_or_else(|| {
            // Without room there it stays where it is.
            sys::set_inherited(number, false);
            number
        });
        let socket = Socket { number: AtomicI32::new(number), address, kind: kind(number) };
        if listens { self.listeners.push(socket) } else { self.connections.push(socket) }
    }

    /// From here on it is given out in this process.
    pub fn give_out(mut self) {
        self.since_ns = sys::monotonic_ns();
        for socket in self.listeners.iter().chain(&self.connections) {
            reserve(socket.number.load(Ordering::Relaxed), true);
        }
        CONNECTIONS.store(self.connections.len(), Ordering::Relaxed);
        ALL.store(self.connections.len() + self.listeners.len(), Ordering::Relaxed);
        LEFT.store(Box::into_raw(Box::new(self)), Ordering::Release);
    }

    /// How many descriptors the generation before had that are neither kept nor connections.
    pub fn others(&self) -> usize {
        self.others
    }

    /// Closes as many connections, or all. Gives how many those were.
    pub fn close_connections(&mut self, count: usize, table: &Table) -> usize {
        let kept = self.connections.len().saturating_sub(count);
        let closed = self.connections.split_off(kept);
        for number in closed.iter().map(|socket| socket.number.load(Ordering::Relaxed)) {
            table.slot(number).into_iter().for_each(Slot::forget);
            sys::close(number, false);
        }
        closed.len()
    }

    /// Numbers that are put aside.
    pub fn numbers(&self) -> impl Iterator<Item = RawFd> + '_ {
        let all = self.listeners.iter().chain(&self.connections);
        all.map(|socket| socket.number.load(Ordering::Relaxed)).filter(|&number| number >= 0)
    }
}

impl Socket {
    /// To the one who asks first.
    fn take(&self) -> Option<RawFd> {
        let number = self.number.swap(-1, Ordering::Relaxed);
        if number < 0 {
            return None;
        }
        ALL.fetch_sub(1, Ordering::Relaxed);
        reserve(number, false);
        if let Some(slot) = table::current().and_then(|table| table.slot(number)) {
            slot.forget();
        }
        Some(number)
    }

    fn is_here(&self) -> bool {
        self.number.load(Ordering::Relaxed) >= 0
    }
}

fn kind(descriptor: RawFd) -> (i32, i32) {
    let option = |name| sys::option(descriptor, name).unwrap_or(0);
    (option(libc::SO_TYPE), option(libc::SO_PROTOCOL))
}

fn current() -> Option<&'static Left> {
    if ALL.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // SAFETY: null, or a box that was given up for good.
    unsafe { LEFT.load(Ordering::Acquire).as_ref() }
}

/// The listener left at this address, for a socket of the program that is to be bound there.
pub fn take_listener(address: &Address, descriptor: RawFd) -> Option<RawFd> {
    let fits = |socket: &&Socket| socket.is_here() && socket.address == *address;
    let mut listeners = current()?.listeners.iter().filter(fits);
    let wanted = kind(descriptor);
    listeners.find(|socket| socket.kind == wanted)?.take()
}

/// Whether a listener that was not given out yet has this file.
pub fn has_path(path: &[u8]) -> bool {
    let Some(left) = current() else { return false };
    left.listeners.iter().any(|socket| socket.is_here() && socket.address.path() == Some(path))
}

/// Whether anything waits to be given out.
pub fn any() -> bool {
    ALL.load(Ordering::Relaxed) > 0
}

/// Whether any connection waits to be given out. Quick.
pub fn has_connections() -> bool {
    CONNECTIONS.load(Ordering::Relaxed) > 0
}

/// Whether one waits that has come to this listener.
pub fn has_connection_for(listener: RawFd) -> bool {
    let Some(address) = has_connections().then(|| listeners::address(listener)).flatten() else {
        return false;
    };
    current().is_some_and(|left| {
        left.connections.iter().any(|socket| socket.is_here() && socket.address.came_to(&address))
    })
}

/// One that has come to this listener.
pub fn take_connection(listener: RawFd) -> Option<RawFd> {
    let address = has_connections().then(|| listeners::address(listener)).flatten()?;
    let fits = |socket: &&Socket| socket.is_here() && socket.address.came_to(&address);
    let number = current()?.connections.iter().filter(fits).find_map(Socket::take)?;
    CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    Some(number)
}

/// Whether what was not given out yet is for a program that this one executes.
pub fn set_inherited(inherited: bool) {
    current().into_iter().flat_map(Left::numbers).for_each(|number| sys::set_inherited(number, inherited));
}

/// How long the rest has waited; nothing, if there is none.
pub fn age() -> Duration {
    let age_ns = current().map_or(0, |left| sys::monotonic_ns().saturating_sub(left.since_ns));
    Duration::from_nanos(age_ns)
}

/// Nobody has asked for the rest for long.
pub fn close_if_stale() {
    if age() > PATIENCE {
        close_all();
    }
}

/// The rest is not given out. Makes only calls that are allowed in a child after `fork`.
pub fn close_all() {
    let Some(left) = current() else { return };
    let take = |socket: &Socket| socket.take().map(|number| sys::close(number, false)).is_some();
    left.listeners.iter().for_each(|socket| _ = take(socket));
    // Each by who has it: another thread may take some.
    let closed = left.connections.iter().filter(|socket| take(socket)).count();
    CONNECTIONS.fetch_sub(closed, Ordering::Relaxed);
}
