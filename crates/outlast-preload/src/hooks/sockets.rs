//! Where sockets come from, and where they go.

use super::hooks;
use crate::bound::Freed;
use crate::{accepted, bound, marks, sys, watches};
use libc::{FILE, c_int, c_long, c_uint, c_ulong, epoll_event, sockaddr, socklen_t};

/// What is known of one is not of the other.
fn duplicated(from: c_int, to: c_int) -> c_int {
    if to >= 0 && to != from && marks::is_marked(from) {
        let _errno = sys::Errno::keep();
        marks::duplicated(from, to);
    }
    to
}

/// What this number stands for is closed in a moment, unless the call fails.
fn replaced(by: c_int, descriptor: c_int, flags: c_int) {
    let fails = || flags & !libc::O_CLOEXEC != 0 || (!marks::is_silent() && !sys::is_open(by));
    let is_known = || marks::is_marked(descriptor) || watches::is_lent(descriptor);
    if by != descriptor && is_known() && !fails() {
        marks::forget(descriptor);
    }
}

/// The same, by a request of fcntl(2).
fn duplicated_by(request: c_int, from: c_int, result: c_int) -> c_int {
    match request {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(from, result),
        _ => result,
    }
}

/// What seccomp(2) is asked for to forbid system calls; its other operations ask.
const STRICT: u32 = libc::SECCOMP_SET_MODE_STRICT;
const FILTER: u32 = libc::SECCOMP_SET_MODE_FILTER;

/// What the program has given as an address. Nothing is asked about that once the program is not to be disturbed.
fn given<'a>(address: *const sockaddr, length: socklen_t) -> &'a [u8] {
    if marks::is_silent() { &[] } else { sys::address(address, length) }
}

/// As an argument of a system call, if it is not negative.
fn integer(argument: c_long) -> c_int {
    c_int::try_from(argument & 0x7fff_ffff).unwrap_or(-1)
}

/// An epoll was told what to watch. Nothing is done that the program's own call does not do.
fn watched<T: Default + PartialEq>(epoll: c_int, operation: c_int, descriptor: c_int, result: T) -> T {
    if result == T::default() {
        watches::changed(epoll, operation, descriptor);
    }
    result
}

/// A new descriptor of the program, which is no connection of a client.
fn other(descriptor: c_int) -> c_int {
    marks::new(descriptor);
    descriptor
}

hooks! {
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int, next => other(next(family, kind, protocol));
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, next => {
        if bound::on_connect(fd, given(address, length)) {
            sys::set_errno(libc::ECONNREFUSED);
            return -1;
        }
        next(fd, address, length)
    };
    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, next =>
{
        let at = given(address, length);
        if bound::on_bind(fd, at) {
            return 0;
        }
        let result = next(fd, address, length);
        let is_taken = result < 0 && sys::errno() == libc::EADDRINUSE;
        match if is_taken { bound::on_bind_failed(fd, at) } else { Freed::Nothing } {
            Freed::Nothing => result,
            Freed::Adopted => 0,
            Freed::Address => next(fd, address, length),
        }
    };
    fn listen(fd: c_int, backlog: c_int) -> c_int, next => {
        bound::before_listen(fd);
        let result = next(fd, backlog);
        if result == 0 {
            bound::on_listen(fd);
        }
        result
    };
    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int, next => {
        let its = sys::waiting::length_of(address, length);
        let room = sys::waiting::room(its);
        let accepted = accepted::accept(fd, (its, room), || next(fd, address, length));
        accepted::on_accept(fd, accepted, address, its, room);
        accepted
    };
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int, next => {
        let its = sys::waiting::length_of(address, length);
        let room = sys::waiting::room(its);
        let accepted = accepted::accept(fd, (its, room), || next(fd, address, length, flags));
        accepted::on_accept(fd, accepted, address, its, room);
        accepted
    };

    fn dup(fd: c_int) -> c_int, next => duplicated(fd, next(fd));
    fn dup2(fd: c_int, to: c_int) -> c_int, next => {
        replaced(fd, to, 0);
        duplicated(fd, next(fd, to))
    };
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, next => {
        replaced(fd, to, flags);
        duplicated(fd, next(fd, to, flags))
    };
    // Of most requests there are fewer arguments: what is passed on then is not looked at.
    fn fcntl(fd: c_int, request: c_int, one: c_ulong) -> c_int, next =>
        duplicated_by(request, fd, next(fd, request, one));
    fn fcntl64(fd: c_int, request: c_int, one: c_ulong) -> c_int, next =>
        duplicated_by(request, fd, next(fd, request, one));
    // Before the number is free for something else.
    fn close(fd: c_int) -> c_int, next => {
        marks::forget(fd);
        next(fd)
    };
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int, next =>
        watched(epoll, operation, fd, next(epoll, operation, fd, event));
    // There may be fewer arguments here, too.
    fn prctl(option: c_int, two: c_ulong, three: c_ulong, four: c_ulong, five: c_ulong) -> c_int, next => {
        let call = || next(option, two, three, four, five);
        if option == libc::PR_SET_SECCOMP {
            return marks::forbid(call, |result| *result < 0);
        }
        call()
    };
    // By which libuv closes, and with it Node. There may be fewer arguments: then what is passed on is not looked at.
    fn syscall(
        number: c_long, one: c_long, two: c_long, three: c_long, four: c_long, five: c_long, six: c_long
    ) -> c_long, next => {
        let call = || next(number, one, two, three, four, five, six);
        if number == libc::SYS_close {
            marks::forget(integer(one));
        } else if number == libc::SYS_epoll_ctl {
            return watched(integer(one), integer(two), integer(three), call());
        } else if number == libc::SYS_seccomp && matches!(u32::try_from(one), Ok(STRICT | FILTER)) {
            // A positive number may say that it has failed (SECCOMP_FILTER_FLAG_TSYNC): then nothing is risked.
            return marks::forbid(call, |result| *result < 0);
        }
        call()
    };
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, next => {
        if flags == 0 {
            marks::forget_range(first, last);
        }
        next(first, last, flags)
    };
    fn fclose(file: *mut FILE) -> c_int, next => {
        let number = sys::number_of(file);
        if marks::is_marked(number) {
            sys::flush(file);
            marks::forget(number);
        }
        next(file)
    };
    fn shutdown(fd: c_int, how: c_int) -> c_int, next => {
        if bound::on_shutdown(fd, how) {
            return 0;
        }
        // It is about to end.
        marks::never(fd);
        let result = next(fd, how);
        if result == 0 && how != libc::SHUT_WR {
            bound::after_shutdown(fd, || {
                next(fd, how);
            });
        }
        result
    };
}
