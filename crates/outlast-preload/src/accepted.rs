//! Connections that the program accepts, or that others of its processes pass to it.

use crate::bound;
use crate::holder;
use crate::marks;
use crate::shut;
use crate::sys;
use outlast_restart::custody::message::{AddressBytes, Message, Verb};
use outlast_restart::custody::table::Table;
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::Ordering;

/// Accepts by `accept`, unless the program has shut `listener` down: what was accepted, or -1 with `errno`. The length of the
/// program's `room` for an address is as it was, if `accept` is called once more.
pub fn accept(
    listener: RawFd,
    (length, room): (*mut libc::socklen_t, libc::socklen_t),
    accept: impl Fn() -> RawFd,
) -> RawFd {
    loop {
        let Some(table) = holder::table() else { return accept() };
        if shut::is_shut_down(listener, table) {
            sys::set_errno(libc::EINVAL);
            return -1;
        }
        let accepted = accept();
        if accepted < 0 || !shut::was_wake_up(accepted, table) {
            return accepted;
        }
        sys::waiting::set_room(length, room);
    }
}

/// One that was accepted from `listener`, of whose peer the program is told in `address`, where there was so much `room`.
pub fn on_accept(
    listener: RawFd,
    descriptor: RawFd,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
    room: libc::socklen_t,
) {
    if descriptor < 0 {
        return;
    }
    let _errno = sys::Errno::keep();
    let Some(table) = holder::attach() else { return };
    marks::accepts_at(listener, table);
    if !table.does_listen() && !marks::is_silent() {
        bound::on_inherited(listener);
    }
    on_connection(table, descriptor, address, length, room);
    // Of UNIX sockets the kernel does not tell whether anything was said.
    if marks::is_listening(listener) || !marks::is_silent() && sys::is_internet(descriptor) {
        marks::awaits_first(descriptor, table);
    }
}

/// One that this process has from here on.
fn on_connection(
    table: &Table,
    descriptor: RawFd,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
    room: libc::socklen_t,
) {
    marks::accepted(descriptor);
    // A connection that is held may be behind it: its client has sent something.
    if table.waiting.load(Ordering::SeqCst) == 0 || marks::is_silent() {
        return;
    }
    if swap(descriptor) {
        sys::tell_peer(descriptor, address, length, room);
    }
}

/// One that has come from another process.
pub fn on_receive(descriptor: RawFd) {
    let is_connection = !marks::is_silent()
        && sys::is_stream(descriptor)
        && sys::option(descriptor, libc::SO_ACCEPTCONN) == Some(0)
        && sys::is_internet(descriptor);
    if !is_connection {
        return;
    }
    let _errno = sys::Errno::keep();
    // Whoever has accepted it is another process.
    if let Some(table) = holder::attach() {
        on_connection(table, descriptor, std::ptr::null_mut(), std::ptr::null_mut(), 0);
        marks::awaits_first(descriptor, table);
    }
}

/// Puts a connection that is held in the place of what was accepted, if that stands for one.
fn swap(descriptor: RawFd) -> bool {
    // The kernel would throw it away. Without a question it is offered again.
    if !sys::has_room_for_one_more(descriptor) {
        return false;
    }
    let Some(address) = AddressBytes::new(sys::name(descriptor, true).as_ref()) else { return false };
    let question = Message { descriptor, address, ..Message::new(Verb::Swap) };
    let Some((answer, Some(held))) = holder::ask(&question, None) else { return false };
    if answer.verb != Verb::Yes || !sys::replace(descriptor, held.as_fd()) {
        return false;
    }
    // Without that it is one that nobody has read from.
    if answer.cookie != 0 {
        marks::given(descriptor, answer.slot, answer.cookie);
    }
    true
}
