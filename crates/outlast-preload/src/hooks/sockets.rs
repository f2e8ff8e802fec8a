//! Where sockets come from, and where they go.

use super::{hooks, waits};
use crate::address::Address;
use crate::left;
use crate::role::{self, Role};
use crate::sys::{self, Errno};
use crate::{keeper, listeners, snapshot, table};
use libc::{c_int, c_uint, sockaddr, socklen_t};
use std::os::fd::RawFd;

/// A number is free, or stands for something else from now on.
fn forget(descriptor: c_int) {
    if role::role() == Role::Outside {
        return;
    }
    let slot = table::current().and_then(|table| table.slot(descriptor)).filter(|slot| slot.is_tracked());
    // In a child made by `vfork` this is the parent's memory, but not the parent's descriptor.
    if (slot.is_some() || listeners::contains(descriptor)) && role::is_own() {
        if let Some(slot) = slot {
            slot.forget();
        }
        listeners::remove(descriptor);
    }
}

/// A new descriptor of the program, which is no connection of a client.
fn other(descriptor: c_int) -> c_int {
    if descriptor >= 0 {
        let _errno = Errno::keep();
        forget(descriptor);
    }
    descriptor
}

/// Whether a number is not the program's. It is as if it were not open.
fn refuse(descriptor: c_int) -> bool {
    let refused = left::is_reserved(descriptor) && role::is_own();
    if refused {
        sys::set_errno(libc::EBADF);
    }
    refused
}

/// A program may put what it likes under a number that only seems to be free.
fn make_room(descriptor: c_int) -> bool {
    !left::is_reserved(descriptor) || !role::is_own() || left::evade(descriptor)
}

/// Duplicates answer for each other: that is not followed.
fn duplicated(from: c_int, to: c_int) -> c_int {
    let _errno = Errno::keep();
    if to >= 0 && to != from {
        forget(to);
        if let Some(slot) =
            table::current().and_then(|table| table.slot(from)).filter(|slot| slot.is_tracked())
            && role::is_own()
        {
            slot.never();
        }
        if listeners::contains(from) {
            listeners::add(to);
        }
    }
    to
}

fn address_of(address: *const sockaddr, length: socklen_t) -> Option<Address> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the program has given as many bytes to the C library.
    let bytes: &[u8] = unsafe { std::slice::from_raw_parts(address.cast(), length as usize) };
    Address::parse(bytes)
}

/// A listener that was left at the address takes the place of the program's socket.
fn adopt(descriptor: RawFd, address: *const sockaddr, length: socklen_t) -> bool {
    let _errno = Errno::keep();
    let taken = address_of(address, length).and_then(|address| left::take_listener(&address, descriptor));
    let Some(listener) = taken else { return false };
    let closes = sys::inheritance_flags(descriptor) & libc::FD_CLOEXEC != 0;
    sys::set_status_flags(listener, sys::status_flags(descriptor));
    let adopted = sys::duplicate_onto(listener, descriptor, if closes { libc::O_CLOEXEC } else { 0 });
    sys::close(listener, false);
    if adopted {
        listeners::add(descriptor);
        // It does already, and some programs look whether it does before they call `listen`.
        keeper::note_listening();
    }
    adopted
}

/// Gives the program a connection, or what the C library gives.
fn accept_with(
    listener: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    if role::role() == Role::Outside {
        return call();
    }
    if snapshot::is_wanted() {
        snapshot::begin();
    }
    if let Some(table) = table::current() {
        table.note_wait();
    }
    while listeners::retire() && !listeners::contains(listener) {
        sys::pause();
    }
    if left::has_connections() && !waits::is_in_passing() {
        let _errno = Errno::keep();
        left::close_if_stale();
        if let Some(number) = left::take_connection(listener) {
            return give(number, address, length, flags);
        }
    }
    let accepted = waits::waiting(call);
    if accepted >= 0
        && let Some(table) = table::current()
    {
        let _errno = Errno::keep();
        let counts = sys::option(accepted, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
        table.begin(accepted, counts.then_some((0, 0)));
    }
    accepted
}

/// As if it had just been accepted.
fn give(number: RawFd, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    let closes = flags & libc::SOCK_CLOEXEC != 0;
    let given = sys::lowest(number, closes).unwrap_or(number);
    let other = sys::status_flags(given) & !libc::O_NONBLOCK;
    let blocks = flags & libc::SOCK_NONBLOCK == 0;
    sys::set_status_flags(given, other | if blocks { 0 } else { libc::O_NONBLOCK });
    if !address.is_null() && !length.is_null() {
        sys::peer(given, address, length);
    }
    if let Some(table) = table::current() {
        table.begin(given, sys::positions(given));
    }
    given
}

hooks! {
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int, next => other(next(family, kind, protocol));
    fn socketpair(family: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int, next => {
        let result = next(family, kind, protocol, pair);
        if result == 0 {
            // SAFETY: the C library has filled two.
            for number in unsafe { [*pair, *pair.add(1)] } {
                other(number);
            }
        }
        result
    };
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, next => {
        other(fd);
        next(fd, address, length)
    };
    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, next =>
        if role::role() != Role::Outside && adopt(fd, address, length) { 0 } else { next(fd, address, length) };
    fn listen(fd: c_int, backlog: c_int) -> c_int, next => {
        let result = next(fd, backlog);
        if result == 0 && role::role() != Role::Outside {
            let _errno = Errno::keep();
            listeners::add(fd);
            keeper::note_listening();
        }
        result
    };
    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int, next =>
        accept_with(fd, address, length, 0, || next(fd, address, length));
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int, next =>
        accept_with(fd, address, length, flags, || next(fd, address, length, flags));

    fn dup(fd: c_int) -> c_int, next => duplicated(fd, next(fd));
    fn dup2(fd: c_int, to: c_int) -> c_int, next =>
        if make_room(to) { duplicated(fd, next(fd, to)) } else { -1 };
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, next =>
        if make_room(to) { duplicated(fd, next(fd, to, flags)) } else { -1 };
    fn close(fd: c_int) -> c_int, next => {
        if refuse(fd) {
            return -1;
        }
        // Before the number is free for something else.
        forget(fd);
        next(fd)
    };
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, next => {
        if role::role() == Role::Outside || !role::is_own() {
            return next(first, last, flags);
        }
        let mut begin = first;
        // Around what is not the program's.
        while let Some(reserved) = left::next_reserved(begin).filter(|&reserved| reserved <= last) {
            if reserved > begin {
                next(begin, reserved - 1, flags);
            }
            begin = reserved + 1;
        }
        if begin > last { 0 } else { next(begin, last, flags) }
    };
    fn shutdown(fd: c_int, how: c_int) -> c_int, next => {
        if let Some(slot) = table::current().and_then(|table| table.slot(fd)).filter(|slot| slot.is_tracked()) {
            // It is about to end.
            slot.never();
        }
        next(fd, how)
    };
}
