//! What is known of this process's descriptors: which of them are connections with clients. In memory of this process alone;
//! only those on which HTTP is spoken have a slot in the table.

use crate::holder;
use crate::http::{self, Exchange, Verdict};
use crate::memory::Parts;
use crate::sys;
use outlast_restart::custody::message::{Message, Verb};
use outlast_restart::custody::table::{FREE, NEW, NotKept, Phase, Slot, Table};
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Descriptors beyond are not looked at.
const DESCRIPTORS: usize = 1 << 16;
/// It is no connection with a client, or one that is not kept.
const NOTHING: u32 = 0;
/// A connection of which nothing was read.
const ACCEPTED: u32 = 1;
/// The first slot, and from there on.
const SLOT: u32 = 2;
/// It listens.
const LISTENS: u32 = u32::MAX;

struct Mark {
    /// [`NOTHING`], [`ACCEPTED`], [`LISTENS`], or a slot.
    what: AtomicU32,
    /// Of the connection in that slot.
    cookie: AtomicU64,
}

static MARKS: [Mark; DESCRIPTORS] =
    [const { Mark { what: AtomicU32::new(NOTHING), cookie: AtomicU64::new(0) } }; DESCRIPTORS];
/// Of this process.
static PID: AtomicI32 = AtomicI32::new(0);

/// See [`fall_silent`].
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// The program is about to forbid itself system calls: from here on this library makes none of its own, as it may be killed
/// for any. What is held stays held, and what was idle by now is kept; nothing more is.
pub fn fall_silent() {
    // While that is allowed: what is not kept is noted there.
    holder::attach();
    IS_SILENT.store(true, Ordering::SeqCst);
}

/// Whether this process makes no system calls but the program's.
pub fn is_silent() -> bool {
    IS_SILENT.load(Ordering::Relaxed)
}

/// This process, and those that it forks, speak with the holder from here on.
pub fn begin() {
    static FORK: Once = Once::new();
    FORK.call_once(|| {
        PID.store(sys::pid(), Ordering::Relaxed);
        sys::on_fork(forked);
    });
}

extern "C" fn forked() {
    if is_silent() {
        // None of its parent's slots is its own, and it cannot ask for others.
        PID.store(-1, Ordering::Relaxed);
        holder::forget_number();
        return;
    }
    PID.store(sys::pid(), Ordering::Relaxed);
    holder::forked();
}

/// Whether this is the process that its memory says it is, and not one that `vfork` has made, which uses its parent's.
pub fn is_own() -> bool {
    let known = PID.load(Ordering::Relaxed);
    !is_silent() && (known == 0 || known == sys::pid())
}

fn mark(descriptor: RawFd) -> Option<&'static Mark> {
    MARKS.get(usize::try_from(descriptor).ok()?)
}

/// Whether anything is known of it.
pub fn is_marked(descriptor: RawFd) -> bool {
    mark(descriptor).is_some_and(|mark| mark.what.load(Ordering::Relaxed) != NOTHING)
}

/// A client has come.
pub fn accepted(descriptor: RawFd) {
    forget(descriptor);
    if let Some(mark) = mark(descriptor) {
        mark.what.store(ACCEPTED, Ordering::Relaxed);
    }
}

/// The program listens on it.
pub fn listens(descriptor: RawFd) {
    if let Some(mark) = mark(descriptor) {
        mark.what.store(LISTENS, Ordering::Relaxed);
    }
}

/// A connection that was held has come, which has this slot.
pub fn given(descriptor: RawFd, slot: u32, cookie: u64) {
    if let Some(mark) = mark(descriptor) {
        mark.cookie.store(cookie, Ordering::Relaxed);
        mark.what.store(slot.saturating_add(SLOT), Ordering::Relaxed);
    }
    if let Some(slot) = slot_of(descriptor) {
        set_exchange(slot, Exchange::default());
    }
}

/// The slot of a connection that is this process's.
fn slot_of(descriptor: RawFd) -> Option<&'static Slot> {
    let mark = mark(descriptor)?;
    let number = mark.what.load(Ordering::Relaxed).checked_sub(SLOT)?;
    let slot = holder::table()?.slot(number)?;
    let is_its = slot.cookie.load(Ordering::Relaxed) == mark.cookie.load(Ordering::Relaxed)
        && slot.owner.load(Ordering::Relaxed).cast_signed() == holder::number();
    is_its.then_some(slot)
}

fn exchange(slot: &Slot) -> Exchange {
    Exchange::from_numbers(slot.exchange.each_ref().map(|number| number.load(Ordering::Relaxed)))
}

fn set_exchange(slot: &Slot, exchange: Exchange) {
    for (place, number) in slot.exchange.iter().zip(exchange.to_numbers()) {
        place.store(number, Ordering::Relaxed);
    }
}

fn phase(verdict: Verdict) -> Phase {
    match verdict {
        Verdict::Busy => Phase::Busy,
        Verdict::Answered => Phase::Idle,
        Verdict::Unclear | Verdict::Switched => Phase::Unclear,
    }
}

/// So much was read. `filled`: what was filled by it, if that can be seen.
pub fn on_read(descriptor: RawFd, filled: Option<Parts<'_>>, result: isize) {
    let Some(count) = usize::try_from(result).ok().filter(|count| *count > 0) else { return };
    let Some(mark) = mark(descriptor) else { return };
    if mark.what.load(Ordering::Relaxed) == ACCEPTED {
        let _errno = sys::Errno::keep();
        let head = filled.map(|filled| filled.head(count)).unwrap_or_default();
        mark.what.store(NOTHING, Ordering::Relaxed);
        if is_silent() {
            let is_kept_elsewhere = |table: &&Table| table.keeps_connections() && http::is_request(head);
            if let Some(table) = holder::table().filter(is_kept_elsewhere) {
                table.note_not_kept(NotKept::Sandbox);
            }
            return;
        }
        if !is_own() {
            return;
        }
        let Some(table) = holder::table().filter(|table| table.keeps_connections()) else { return };
        if !http::is_request(head) {
            if let Some(kind) = http::stranger(head) {
                table.note_not_kept(kind);
            }
            return;
        }
        let (cookie, pid) = (sys::cookie(descriptor), holder::ask_number().cast_unsigned());
        let claimed = Some(cookie).filter(|cookie| *cookie != 0 && pid != 0);
        let Some(number) = claimed.and_then(|cookie| table.claim(cookie, pid, descriptor.cast_unsigned()))
        else {
            return;
        };
        mark.cookie.store(cookie, Ordering::Relaxed);
        mark.what.store(number.saturating_add(SLOT), Ordering::Relaxed);
        if let Some(slot) = table.slot(number) {
            set_exchange(slot, Exchange::default());
        }
        if table.asleep.load(Ordering::Relaxed) != 0 && table.asleep.swap(0, Ordering::SeqCst) != 0 {
            holder::say(&Message::new(Verb::Look), &[], false);
        }
    }
    let Some(slot) = slot_of(descriptor).filter(|slot| slot.phase() != Phase::Unclear) else { return };
    let mut exchange = exchange(slot);
    let verdict = filled.map_or(Verdict::Unclear, |filled| exchange.on_read(filled.until(count)));
    set_exchange(slot, exchange);
    slot.set_phase(phase(verdict));
    if verdict == Verdict::Unclear
        && !exchange.has_begun()
        && let Some(table) = holder::table()
    {
        table.note_not_kept(NotKept::Other);
    }
}

/// So much was written of `parts`, if those can be seen.
pub fn on_write(descriptor: RawFd, parts: Option<Parts<'_>>, result: isize) {
    let Some(count) = usize::try_from(result).ok().filter(|count| *count > 0) else { return };
    let Some(slot) = slot_of(descriptor).filter(|slot| slot.phase() != Phase::Unclear) else { return };
    let mut exchange = exchange(slot);
    let verdict = match parts {
        Some(parts) => exchange.on_write(parts.until(count)),
        None => exchange.on_write_unseen(count as u64),
    };
    set_exchange(slot, exchange);
    slot.set_phase(phase(verdict));
    if verdict == Verdict::Switched
        && let Some(table) = holder::table()
    {
        table.note_not_kept(NotKept::Switched);
    }
}

/// What goes on there cannot be followed.
pub fn never(descriptor: RawFd) {
    let Some(mark) = mark(descriptor) else { return };
    if let Some(slot) = slot_of(descriptor).filter(|_| is_own()) {
        slot.set_phase(Phase::Unclear);
    } else if mark.what.load(Ordering::Relaxed) == ACCEPTED && is_own() {
        mark.what.store(NOTHING, Ordering::Relaxed);
    }
}

/// The number is free, or stands for something else, in a moment.
pub fn forget(descriptor: RawFd) {
    // Of most numbers nothing is known: that is all that it costs them.
    if !is_marked(descriptor) {
        return;
    }
    if is_silent() {
        // The holder finds out by itself that it is closed. Until then it is not to be kept.
        if let Some(slot) = slot_of(descriptor) {
            slot.set_phase(Phase::Unclear);
        }
        if let Some(mark) = mark(descriptor) {
            mark.what.store(NOTHING, Ordering::Relaxed);
        }
        return;
    }
    if !is_own() {
        return;
    }
    let _errno = sys::Errno::keep();
    let slot = slot_of(descriptor);
    let Some(mark) = mark(descriptor) else { return };
    let what = mark.what.swap(NOTHING, Ordering::Relaxed);
    if let Some(table) = holder::table().filter(|_| what == LISTENS) {
        // The holder may be the only one now who has it.
        table.note_untaken(true);
        return;
    }
    let Some(slot) = slot else { return };
    let cookie = mark.cookie.load(Ordering::Relaxed);
    if slot.advance(NEW, FREE) {
        slot.cookie.store(0, Ordering::SeqCst);
    } else {
        let slot = what.saturating_sub(SLOT);
        holder::say(&Message { slot, cookie, ..Message::new(Verb::Release) }, &[], false);
    }
}

/// The same, of all of these numbers.
pub fn forget_range(first: u32, last: u32) {
    if holder::table().is_none() {
        return;
    }
    for number in first..=last.min(u32::try_from(DESCRIPTORS).unwrap_or(0)) {
        forget(number.cast_signed());
    }
}
