//! Where a program waits for clients: connections that were left make their listener ready.

use super::hooks;
use crate::listeners::{self, Registered};
use crate::role::{self, Role};
use crate::sys::Errno;
use crate::{left, snapshot, table};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A process that was forked looks so often whether its turn is over, and every one whether what was left is wanted.
const LOOK_MS: i64 = 500;
const FOR_EVER: i64 = -1;
/// A program that has never waited by then never does.
const IN_PASSING: Duration = Duration::from_secs(1);

static PASSES: AtomicBool = AtomicBool::new(false);

/// Whether the program has only looked for events in the middle of something else, such as loading its data: what it
/// does for clients now is not what it does when it has begun. Those that were left can wait.
pub fn is_in_passing() -> bool {
    PASSES.load(Ordering::Relaxed) && left::age() < IN_PASSING
}

/// The program is about to wait for events; `for_clients` tells whether new clients are among them. True if there may be
/// connections that were left.
fn enter(limit_ms: i64, for_clients: impl Fn() -> bool) -> bool {
    if role::role() == Role::Outside {
        return false;
    }
    if snapshot::is_wanted() && listeners::any() && for_clients() {
        let _errno = Errno::keep();
        snapshot::begin();
    }
    if let Some(table) = table::current() {
        table.note_wait();
    }
    if role::is_forked() {
        let _errno = Errno::keep();
        listeners::retire();
    }
    if !left::has_connections() {
        return false;
    }
    let _errno = Errno::keep();
    PASSES.store(limit_ms == 0, Ordering::Relaxed);
    left::close_if_stale();
    left::has_connections() && !is_in_passing()
}

/// A call that waits for clients, as the keeper sees it.
pub fn waiting(call: impl FnOnce() -> c_int) -> c_int {
    match table::current() {
        Some(table) => table.calling(call),
        None => call(),
    }
}

/// Waits for `limit_ms`, in slices where somebody may end the wait from outside, or clients wait in vain. `call` gets the next slice.
fn in_slices(limit_ms: i64, mut call: impl FnMut(i64) -> c_int) -> c_int {
    let is_worker = role::is_forked() && role::role() == Role::Snapshot;
    if !is_worker && !left::has_connections() {
        return call(limit_ms);
    }
    let mut rest_ms = limit_ms;
    loop {
        let slice_ms = if rest_ms < 0 { LOOK_MS } else { rest_ms.min(LOOK_MS) };
        let result = call(slice_ms);
        if result != 0 || slice_ms == rest_ms {
            return result;
        }
        if rest_ms > 0 {
            rest_ms -= slice_ms;
        }
        left::close_if_stale();
        listeners::retire();
    }
}

fn to_int(milliseconds: i64) -> c_int {
    c_int::try_from(milliseconds).unwrap_or(c_int::MAX)
}

fn to_time(milliseconds: i64) -> timespec {
    timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 }
}

/// The listeners of an instance that have connections which were left, written to the program's list.
fn ready_in_epoll(epoll: RawFd, events: *mut epoll_event, room: c_int) -> Vec<Registered> {
    let mut ready = listeners::of_epoll(epoll);
    let readable = |one: &Registered| one.events & libc::EPOLLIN.cast_unsigned() != 0;
    ready.retain(|one| readable(one) && left::has_connection_for(one.listener));
    ready.truncate(usize::try_from(room).unwrap_or(0));
    for (place, one) in ready.iter().enumerate() {
        let event = epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: one.data };
        // SAFETY: the program has given room for `room` of them.
        unsafe { events.add(place).write_unaligned(event) };
    }
    ready
}

/// `call` gets a list, room in it and a time in milliseconds.
fn epoll(
    instance: c_int,
    events: *mut epoll_event,
    room: c_int,
    limit_ms: i64,
    call: impl Fn(*mut epoll_event, c_int, i64) -> c_int,
) -> c_int {
    if enter(limit_ms, || !listeners::of_epoll(instance).is_empty()) && !events.is_null() {
        let _errno = Errno::keep();
        let ready = ready_in_epoll(instance, events, room);
        let count = ready.len();
        if count > 0 {
            let more = room - to_int(i64::try_from(count).unwrap_or(0));
            // SAFETY: within the room that the program has given.
            let rest = unsafe { events.add(count) };
            let found = if more > 0 { usize::try_from(call(rest, more, 0)).unwrap_or(0) } else { 0 };
            let mut kept = count;
            for place in count..count + found {
                // SAFETY: as above; filled by the kernel.
                let event = unsafe { events.add(place).read_unaligned() };
                let data = event.u64;
                // A listener is told of once.
                if ready.iter().all(|one| one.data != data) {
                    // SAFETY: as above.
                    unsafe { events.add(kept).write_unaligned(event) };
                    kept += 1;
                }
            }
            return to_int(i64::try_from(kept).unwrap_or(0));
        }
    }
    waiting(|| in_slices(limit_ms, |slice_ms| call(events, room, slice_ms)))
}

fn polled<'a>(list: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if list.is_null() {
        return &mut [];
    }
    // SAFETY: the program has given that many to the C library.
    unsafe { std::slice::from_raw_parts_mut(list, usize::try_from(count).unwrap_or(0)) }
}

fn poll_with(list: *mut pollfd, count: nfds_t, limit_ms: i64, call: impl Fn(i64) -> c_int) -> c_int {
    let asks = |one: &pollfd| one.events & libc::POLLIN != 0 && listeners::contains(one.fd);
    if enter(limit_ms, || polled(list, count).iter().any(asks)) {
        let _errno = Errno::keep();
        let has = |one: &pollfd| asks(one) && left::has_connection_for(one.fd);
        if polled(list, count).iter().any(has) {
            call(0);
            let all = polled(list, count);
            for one in all.iter_mut().filter(|one| has(one)) {
                one.revents |= libc::POLLIN;
            }
            return to_int(all.iter().filter(|one| one.revents != 0).count().try_into().unwrap_or(0));
        }
    }
    waiting(|| in_slices(limit_ms, call))
}

/// The listeners in a set that have connections which were left.
fn ready_in_set(count: c_int, set: *const fd_set) -> Vec<RawFd> {
    let numbers = (0..count.max(0)).filter(|&number| is_in(set, number) && listeners::contains(number));
    numbers.filter(|&number| left::has_connection_for(number)).collect()
}

fn is_in(set: *const fd_set, number: RawFd) -> bool {
    // SAFETY: a set of the program's with that many numbers, or none.
    !set.is_null() && unsafe { libc::FD_ISSET(number, set) }
}

fn select_with(count: c_int, reads: *mut fd_set, limit_ms: i64, call: impl FnOnce(bool) -> c_int) -> c_int {
    let clients = || (0..count.max(0)).any(|number| is_in(reads, number) && listeners::contains(number));
    if enter(limit_ms, clients) {
        let _errno = Errno::keep();
        let ready = ready_in_set(count, reads);
        if !ready.is_empty() {
            let mut found = call(true).max(0);
            for number in ready.into_iter().filter(|&number| !is_in(reads, number)) {
                // SAFETY: the number was in the set before.
                unsafe { libc::FD_SET(number, reads) };
                found += 1;
            }
            return found;
        }
    }
    waiting(|| call(false))
}

fn milliseconds(time: *const timespec) -> i64 {
    // SAFETY: null, or one that the program has given to the C library.
    unsafe { time.as_ref() }.map_or(FOR_EVER, |time| {
        // Not less than it wants to wait.
        time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000)
    })
}

/// A slice for functions that take a time; the program's own where it is not cut.
fn slice(time: *const timespec, limit_ms: i64, slice_ms: i64, room: &mut timespec) -> *const timespec {
    if slice_ms == limit_ms {
        return time;
    }
    *room = to_time(slice_ms);
    room
}

static NOW: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

hooks! {
    fn epoll_ctl(instance: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int, next => {
        let result = next(instance, what, fd, event);
        if result == 0 && role::role() != Role::Outside {
            let _errno = Errno::keep();
            // SAFETY: null, or one that the program has given to the C library.
            let wanted = unsafe { event.as_ref() }.filter(|_| what != libc::EPOLL_CTL_DEL);
            let wanted = wanted.map(|event| (event.events, event.u64));
            if listeners::contains(fd) {
                listeners::on_epoll_ctl(instance, fd, wanted);
            } else if let Some(slot) = table::current().and_then(|table| table.slot(fd)) {
                let events = wanted.map_or(0, |(events, _)| events);
                let has = |event: c_int| events & event.cast_unsigned() != 0;
                slot.on_interest(has(libc::EPOLLET), has(libc::EPOLLOUT));
            }
        }
        result
    };
    fn epoll_wait(instance: c_int, events: *mut epoll_event, room: c_int, limit: c_int) -> c_int, next =>
        epoll(instance, events, room, limit.into(), |list, room, limit| next(instance, list, room, to_int(limit)));
    fn epoll_pwait(
        instance: c_int, events: *mut epoll_event, room: c_int, limit: c_int, mask: *const sigset_t
    ) -> c_int, next =>
        epoll(instance, events, room, limit.into(), |list, room, limit| {
            next(instance, list, room, to_int(limit), mask)
        });
    fn epoll_pwait2(
        instance: c_int, events: *mut epoll_event, room: c_int, limit: *const timespec, mask: *const sigset_t
    ) -> c_int, next => {
        let limit_ms = milliseconds(limit);
        epoll(instance, events, room, limit_ms, |list, room, slice_ms| {
            let mut time = to_time(0);
            next(instance, list, room, slice(limit, limit_ms, slice_ms, &mut time), mask)
        })
    };

    fn poll(list: *mut pollfd, count: nfds_t, limit: c_int) -> c_int, next =>
        poll_with(list, count, limit.into(), |slice_ms| next(list, count, to_int(slice_ms)));
    fn __poll_chk(list: *mut pollfd, count: nfds_t, limit: c_int, room: size_t) -> c_int, next =>
        poll_with(list, count, limit.into(), |slice_ms| next(list, count, to_int(slice_ms), room));
    fn ppoll(list: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int, next => {
        let limit_ms = milliseconds(limit);
        poll_with(list, count, limit_ms, |slice_ms| {
            let mut time = to_time(0);
            next(list, count, slice(limit, limit_ms, slice_ms, &mut time), mask)
        })
    };
    fn __ppoll_chk(
        list: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t, room: size_t
    ) -> c_int, next => {
        let limit_ms = milliseconds(limit);
        poll_with(list, count, limit_ms, |slice_ms| {
            let mut time = to_time(0);
            next(list, count, slice(limit, limit_ms, slice_ms, &mut time), mask, room)
        })
    };

    // The sets are changed, so that there is no going on with the rest of the time.
    fn select(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, errors: *mut fd_set, limit: *mut timeval
    ) -> c_int, next =>
        // SAFETY: null, or one that the program has given to the C library.
        select_with(count, reads, unsafe { limit.as_ref() }.map_or(FOR_EVER, |limit| limit.tv_sec * 1000 + (limit.tv_usec + 999) / 1000), |now| {
            let mut no_time = timeval { tv_sec: 0, tv_usec: 0 };
            next(count, reads, writes, errors, if now { &raw mut no_time } else { limit })
        });
    fn pselect(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, errors: *mut fd_set, limit: *const timespec,
        mask: *const sigset_t
    ) -> c_int, next =>
        select_with(count, reads, milliseconds(limit), |now| {
            next(count, reads, writes, errors, if now { &raw const NOW } else { limit }, mask)
        });
}
