//! What is read from and written to connections.

use super::hooks;
use crate::accepted;
use crate::marks;
use crate::memory::Parts;
use crate::sys;
use libc::{
    c_int, c_uint, c_void, iovec, loff_t, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec,
};

/// A call that reads. `filled` gives what it fills, as far as that can be seen.
fn reading<'a>(
    descriptor: c_int,
    flags: c_int,
    call: impl FnOnce() -> ssize_t,
    filled: impl FnOnce() -> Option<Parts<'a>>,
) -> ssize_t {
    let takes = flags & libc::MSG_PEEK == 0;
    let is_noted = takes && marks::before_read(descriptor, flags);
    let result = call();
    if is_noted && result <= 0 {
        marks::has_read_nothing(descriptor);
    } else if takes && marks::is_marked(descriptor) {
        // With these the kernel gives other bytes than the next ones, or throws them away and leaves the buffer as it was: there need not
        // even be one (tcp(7), MSG_TRUNC).
        let is_ordinary = flags & (libc::MSG_TRUNC | libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
        // Asked behind it: the program may have named memory that is not there.
        marks::on_read(descriptor, if is_ordinary && result > 0 { filled() } else { None }, result);
    }
    result
}

/// A call that writes. `parts` gives what it has written, as far as that can be seen: asked behind it, as the program may have named
/// memory that is not there.
fn writing<'a>(
    descriptor: c_int,
    call: impl FnOnce() -> ssize_t,
    parts: impl FnOnce() -> Option<Parts<'a>>,
) -> ssize_t {
    let result = call();
    if result > 0 && marks::is_marked(descriptor) {
        marks::on_write(descriptor, parts(), result);
    }
    result
}

fn list<'a>(list: *const iovec, count: c_int) -> Parts<'a> {
    Parts::several(list, usize::try_from(count).unwrap_or(0))
}

hooks! {
    fn read(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t, next =>
        reading(fd, 0, || next(fd, buffer, size), || Some(Parts::one(buffer, size)));
    fn __read_chk(fd: c_int, buffer: *mut c_void, size: size_t, room: size_t) -> ssize_t, next =>
        reading(fd, 0, || next(fd, buffer, size, room), || Some(Parts::one(buffer, size)));
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t, next =>
        reading(fd, 0, || next(fd, list, count),
            || Some(self::list(list, count)));
    fn recv(fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int) -> ssize_t, next =>
        reading(fd, flags, || next(fd, buffer, size, flags), || Some(Parts::one(buffer, size)));
    fn __recv_chk(fd: c_int, buffer: *mut c_void, size: size_t, room: size_t, flags: c_int) -> ssize_t, next =>
        reading(fd, flags, || next(fd, buffer, size, room, flags), || Some(Parts::one(buffer, size)));
    fn recvfrom(
        fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t
    ) -> ssize_t, next =>
        reading(fd, flags, || next(fd, buffer, size, flags, from, length), || Some(Parts::one(buffer, size)));
    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, size: size_t, room: size_t, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t
    ) -> ssize_t, next =>
        reading(fd, flags, || next(fd, buffer, size, room, flags, from, length), || Some(Parts::one(buffer, size)));
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, next => {
        let result = reading(fd, flags, || next(fd, message, flags), || Some(Parts::of_message(message)));
        // A process that accepts for others passes connections on so.
        if result > 0 && sys::has_more(message) {
            let _errno = sys::Errno::keep();
            sys::received(message).into_iter().for_each(accepted::on_receive);
        }
        result
    };
    fn recvmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, time: *mut timespec) -> c_int, next => {
        // Hardly for streams: what it reads is not counted, so that the connection is not kept.
        marks::never(fd);
        next(fd, list, count, flags, time)
    };

    fn write(fd: c_int, buffer: *const c_void, size: size_t) -> ssize_t, next =>
        writing(fd, || next(fd, buffer, size), || Some(Parts::one(buffer, size)));
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t, next => {
        writing(fd, || next(fd, list, count), || Some(self::list(list, count)))
    };
    fn send(fd: c_int, buffer: *const c_void, size: size_t, flags: c_int) -> ssize_t, next =>
        writing(fd, || next(fd, buffer, size, flags), || Some(Parts::one(buffer, size)));
    fn sendto(
        fd: c_int, buffer: *const c_void, size: size_t, flags: c_int, to: *const sockaddr, length: socklen_t
    ) -> ssize_t, next =>
        writing(fd, || next(fd, buffer, size, flags, to, length), || Some(Parts::one(buffer, size)));
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, next => {
        let result = writing(fd, || next(fd, message, flags), || Some(Parts::of_message(message)));
        if result >= 0 && sys::has_more(message) {
            sys::received(message).into_iter().for_each(marks::passed_on);
        }
        result
    };
    fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, next => {
        marks::never(fd);
        next(fd, list, count, flags)
    };
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, size: size_t) -> ssize_t, next =>
        writing(to, || next(to, from, offset, size), || None);
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, size: size_t) -> ssize_t, next =>
        writing(to, || next(to, from, offset, size), || None);
    fn splice(
        from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, size: size_t, flags: c_uint
    ) -> ssize_t, next =>
        writing(
            to,
            // What it is cannot be seen.
            || reading(from, 0, || next(from, from_at, to, to_at, size, flags), || None),
            || None,
        );
}
