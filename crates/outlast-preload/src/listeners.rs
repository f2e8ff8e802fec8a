//! Which descriptors of the program listen, and where it waits for them.

use crate::address::Address;
use crate::left;
use crate::role;
use crate::sys;
use crate::table::{self, DESCRIPTORS};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

static LISTENS: [AtomicBool; DESCRIPTORS] = [const { AtomicBool::new(false) }; DESCRIPTORS];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A listener that an epoll instance looks at.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// The instance.
    pub epoll: RawFd,
    /// The listener.
    pub listener: RawFd,
    /// What the program wants to know of it.
    pub events: u32,
    /// By what the program knows it.
    pub data: u64,
}

static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());
/// Those of a snapshot, and where they are.
static OF_SNAPSHOT: OnceLock<Vec<(RawFd, Address)>> = OnceLock::new();

/// A number is that of a listener.
pub fn add(descriptor: RawFd) {
    if let Some(listens) = place(descriptor)
        && !listens.swap(true, Ordering::Relaxed)
    {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// A number is free.
pub fn remove(descriptor: RawFd) {
    if COUNT.load(Ordering::Relaxed) > 0
        && let Some(listens) = place(descriptor)
        && listens.swap(false, Ordering::Relaxed)
    {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        registered().retain(|registered| registered.listener != descriptor);
    }
}

/// Whether it listens.
pub fn contains(descriptor: RawFd) -> bool {
    place(descriptor).is_some_and(|listens| listens.load(Ordering::Relaxed))
}

/// Before a snapshot is made: all generations know of those that listen now.
pub fn remember() {
    let known = numbers().filter_map(|number| Some((number, Address::of(number)?)));
    let _ = OF_SNAPSHOT.set(known.collect());
}

/// Where a listener is, or was before it was [left to others](retire).
pub fn address(listener: RawFd) -> Option<Address> {
    let known = || OF_SNAPSHOT.get()?.iter().find(|(number, _)| *number == listener);
    Address::of(listener).or_else(|| Some(known()?.1.clone()))
}

/// In a generation of a snapshot: where the one before has left its listeners to others, their numbers stay taken.
pub fn occupy_lost() {
    for number in numbers().filter(|&number| !sys::is_listener(number)) {
        sys::replace_by_nothing(number);
    }
}

fn numbers() -> impl Iterator<Item = RawFd> {
    let last = if any() { RawFd::try_from(DESCRIPTORS).unwrap_or(0) } else { 0 };
    (0..last).filter(|&number| contains(number))
}

/// Whether there is any.
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

fn place(descriptor: RawFd) -> Option<&'static AtomicBool> {
    LISTENS.get(usize::try_from(descriptor).ok()?)
}

fn registered() -> MutexGuard<'static, Vec<Registered>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the program tells `epoll` about a listener; no events: it is not looked at any more.
pub fn on_epoll_ctl(epoll: RawFd, listener: RawFd, wanted: Option<(u32, u64)>) {
    let mut all = registered();
    all.retain(|registered| (registered.epoll, registered.listener) != (epoll, listener));
    if let Some((events, data)) = wanted {
        all.push(Registered { epoll, listener, events, data });
    }
}

/// The listeners that an epoll instance looks at. None also while another thread changes them.
pub fn of_epoll(epoll: RawFd) -> Vec<Registered> {
    let Ok(all) = REGISTERED.try_lock() else { return Vec::new() };
    all.iter().filter(|registered| registered.epoll == epoll).copied().collect()
}

/// Where this process was forked by a generation that has died: leaves the listeners to the next one, and ends when its
/// last connection has ended. True if it is so.
pub fn retire() -> bool {
    if !role::is_retired() {
        return false;
    }
    // Those that the generation before has left come first: through the listeners.
    left::close_if_stale();
    if left::has_connections() {
        return false;
    }
    let all = registered().clone();
    for Registered { epoll, listener, events, data } in all {
        sys::leave_epoll(epoll, listener);
        if sys::is_listener(listener) && sys::is_readable(listener) {
            // It may be this process alone that was woken for it.
            sys::enter_epoll(epoll, listener, events, data);
            return true;
        }
        on_epoll_ctl(epoll, listener, None);
    }
    for listener in numbers() {
        // Somebody has to accept what comes there: it must not be this process that keeps it open. Its number stays
        // taken, as the program will close it.
        sys::replace_by_nothing(listener);
        remove(listener);
    }
    if table::current().is_none_or(|table| table.connections().next().is_none()) {
        left::close_all();
        // SAFETY: as the program would call it.
        unsafe { libc::exit(0) };
    }
    true
}
