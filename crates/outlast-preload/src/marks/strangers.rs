//! Connections that are not kept, and of which the program's user hears once: what is said there is no HTTP/1.
//!
//! That is seen in processes, too, that have no slots: a child that was made past the C library, one that has forbidden itself
//! system calls. They write to the table, and make no calls.

use super::{ACCEPTED, GREETED, MARKS, Mark, NOTHING, OF_INTERNET, OWN, WATCHED};
use super::{give_up, is_own, is_process_silent, is_silent, mark, slot_of};
use crate::holder;
use crate::http;
use crate::sys;
use outlast_restart::custody::table::{NotKept, Table};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// Whether this is a child with memory of its own that was made past the C library: of what its memory says is its parent's
/// only that which descriptors are connections is so for it, too.
pub(super) fn is_cloned() -> bool {
    OWN.number.load(Ordering::Relaxed) == 0 && holder::table().is_some()
}

/// Whether marks are this process's, and not those of a parent that has made it by `vfork`.
pub(super) fn has_own_marks() -> bool {
    is_process_silent() || is_cloned() || is_own()
}

/// A client hears, or has said, what no HTTP/1 begins with. What processes of the program say to each other is no matter of
/// its users.
pub(super) fn note(descriptor: RawFd, mark: &Mark, kind: Option<NotKept>) {
    let (Some(kind), Some(table)) = (kind, holder::table().filter(|table| table.keeps_connections())) else {
        return;
    };
    if table.is_noted(kind) {
        return;
    }
    let is_clients = if is_silent() {
        slot_of(descriptor).is_some() || mark.cookie.load(Ordering::Relaxed) == OF_INTERNET
    } else {
        !holder::is_within(descriptor)
    };
    if is_clients {
        table.note_not_kept(kind);
    }
}

/// The program is the first to say something on a connection, which begins so.
pub(super) fn on_first_write(descriptor: RawFd, mark: &Mark, head: &[u8]) {
    if mark.beside.load(Ordering::Relaxed) == GREETED {
        return;
    }
    note(descriptor, mark, http::greeting(head));
    if is_own() {
        give_up(descriptor, mark);
    }
    if let Some(table) = holder::table().filter(|_| has_own_marks()) {
        mark.beside.store(GREETED, Ordering::Relaxed);
        // An answer to a client that has asked nothing for long is no greeting.
        if !head.starts_with(b"HTTP/") {
            table.note_speaks_first();
        }
    }
}

/// A connection has another number as well from here on: it is not kept, whatever is said there. What that is is looked at under
/// both.
pub(super) fn duplicated(from: &Mark, descriptor: RawFd, to: RawFd) {
    let is_greeted = from.beside.load(Ordering::Relaxed) == GREETED;
    if is_own() {
        let _errno = sys::Errno::keep();
        give_up(descriptor, from);
    } else if slot_of(descriptor).is_some() {
        from.cookie.store(OF_INTERNET, Ordering::Relaxed);
    }
    let beside = if is_greeted { GREETED } else { WATCHED };
    from.beside.store(beside, Ordering::Relaxed);
    if let Some(mark) = mark(to) {
        mark.cookie.store(from.cookie.load(Ordering::Relaxed), Ordering::Relaxed);
        mark.beside.store(beside, Ordering::Relaxed);
        mark.what.store(ACCEPTED, Ordering::Relaxed);
    }
}

/// Another program is about to be executed in this process. One that was made for a client has the connection as its standard
/// input or output, and nobody can see what it says there.
pub fn on_execute() {
    if is_silent() || holder::table().is_none() {
        return;
    }
    for (mark, descriptor) in MARKS.iter().zip(0..=libc::STDERR_FILENO) {
        let is_watched =
            mark.what.load(Ordering::Relaxed) == ACCEPTED && mark.beside.load(Ordering::Relaxed) == WATCHED;
        if is_watched {
            let _errno = sys::Errno::keep();
            note(descriptor, mark, Some(NotKept::Executed));
        }
    }
}

/// What this process reads first on a connection that has no slot, as this process can have none.
pub(super) fn on_first_read(descriptor: RawFd, mark: &Mark, head: &[u8]) {
    let is_request = http::is_request(head);
    if !is_request {
        note(descriptor, mark, http::stranger(head));
    }
    let shuts_itself_off = |table: &&Table| is_request && is_silent() && table.keeps_connections();
    if let Some(table) = holder::table().filter(shuts_itself_off) {
        table.note_not_kept(NotKept::Sandbox);
    }
    if has_own_marks() {
        mark.what.store(NOTHING, Ordering::Relaxed);
    }
}
