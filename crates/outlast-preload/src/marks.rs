//! What is known of this process's descriptors: which of them are connections with clients. In memory of this process alone;
//! only those on which nothing was said yet, or HTTP is spoken, have a slot in the table.

mod exchanges;
mod strangers;

use crate::holder;
use crate::http::{self, Verdict};
use crate::memory::Parts;
use crate::{sys, watches};
use exchanges::Written;
use outlast_restart::custody::message::{Message, Verb};
use outlast_restart::custody::table::{FREE, NEW, NotKept, Phase, Slot, TAKEN, Table};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
pub use strangers::on_execute;

/// Descriptors beyond are not looked at.
pub const DESCRIPTORS: usize = 1 << 16;
/// It is no connection with a client, or one that is not kept.
const NOTHING: u32 = 0;
/// A connection of which nothing was read.
const ACCEPTED: u32 = 1;
/// The first slot, and from there on.
const SLOT: u32 = 2;
/// It listens.
const LISTENS: u32 = u32::MAX;
/// The same, at a UNIX socket: who waits there for clients is not followed.
const LISTENS_UNIX: u32 = u32::MAX - 3;
/// The program was the first to say something there.
const GREETED: u32 = u32::MAX;
/// It has other numbers, too: it gets no slot, and what is said there first is looked at.
const WATCHED: u32 = u32::MAX - 1;
/// It is a connection of the internet.
const OF_INTERNET: u64 = 1;
/// It has a slot, and is no connection of the internet: the kernel does not count what passes through it.
const OF_UNIX: u32 = u32::MAX - 2;

struct Mark {
    /// [`NOTHING`], [`ACCEPTED`], [`LISTENS`], [`LISTENS_UNIX`], or a slot.
    what: AtomicU32,
    /// With [`ACCEPTED`]: 0, [`GREETED`], [`WATCHED`], or its slot with 1 added. With a slot: [`OF_UNIX`], or anything else.
    /// With [`LISTENS`]: the process that has accepted clients there.
    beside: AtomicU32,
    /// Of the connection in that slot; without one, [`OF_INTERNET`] if that is known; for one that listens, [`FORKS`] when it
    /// began.
    cookie: AtomicU64,
}

static MARKS: [Mark; DESCRIPTORS] =
    [const { Mark { what: AtomicU32::new(NOTHING), beside: AtomicU32::new(0), cookie: AtomicU64::new(0) } };
        DESCRIPTORS];
/// Of this process. 0: the program has not begun yet, or this is a child that was made past the C library (by `clone`).
static PID: &AtomicI32 = &OWN.number;
static OWN: sys::children::Wiped = sys::children::Wiped::new();
/// How often this process, and those that it comes from, have forked.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// The same, when this process was forked.
static FORKS_AT_BIRTH: AtomicU64 = AtomicU64::new(0);
/// The process that has noted that it accepts clients at another one's socket: this one, or one that it comes from.
static ACCEPTS: AtomicI32 = AtomicI32::new(0);

/// How many calls that forbid this process system calls have not failed.
static FORBIDDING: AtomicU32 = AtomicU32::new(0);
/// A child made by `vfork` that has forbidden itself system calls. 0: none.
static SILENT_CHILD: AtomicI32 = AtomicI32::new(0);

/// Makes a call by which the program may forbid itself system calls, and says whether it has failed. If it has not, this
/// library makes no call of its own from there on, as the program may be killed for any. What is held stays held, and what
/// was idle by now is kept; nothing more is.
///
/// Programs also make this call to find out whether the kernel knows it: then it fails, and forbids nothing.
pub fn forbid<T>(call: impl FnOnce() -> T, has_failed: impl FnOnce(&T) -> bool) -> T {
    let is_shared = !is_silent() && !is_own();
    if is_shared {
        // The memory is the parent's, and what is forbidden is so for the child alone.
        SILENT_CHILD.store(sys::pid(), Ordering::SeqCst);
    } else {
        let _errno = sys::Errno::keep();
        if !is_silent() {
            // While that is allowed: what is not kept is noted there.
            holder::attach();
        }
        // Before the call: another thread's may be forbidden in it, too. Counted, as several threads may make one.
        FORBIDDING.fetch_add(1, Ordering::SeqCst);
    }
    let result = call();
    if has_failed(&result) {
        if is_shared {
            SILENT_CHILD.store(0, Ordering::SeqCst);
        } else {
            FORBIDDING.fetch_sub(1, Ordering::SeqCst);
        }
    }
    result
}

/// Whether the program listens where the holder cannot be told any more.
static LISTENS_UNTOLD: AtomicBool = AtomicBool::new(false);

/// The program has begun to listen, after it has forbidden itself system calls.
pub fn listens_untold() {
    LISTENS_UNTOLD.store(true, Ordering::Relaxed);
}

/// Whether this process makes no system calls but the program's.
pub fn is_silent() -> bool {
    is_process_silent() || is_silent_child()
}

fn is_process_silent() -> bool {
    FORBIDDING.load(Ordering::Relaxed) > 0
}

fn is_silent_child() -> bool {
    let child = SILENT_CHILD.load(Ordering::Relaxed);
    child != 0 && child == sys::pid()
}

/// The linker calls it before the program begins, in which a child made by `vfork` may be the first to do anything: its memory
/// is its parent's, and it is told from that by its number.
pub fn begin() {
    OWN.wipe_in_children();
    PID.store(sys::pid(), Ordering::Relaxed);
    sys::children::on_fork(has_forked, forked);
}

extern "C" fn has_forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn forked() {
    has_forked();
    FORKS_AT_BIRTH.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
    if is_silent() {
        // None of its parent's slots is its own, and it cannot ask for others.
        PID.store(-1, Ordering::Relaxed);
        holder::forget_number();
        return;
    }
    PID.store(sys::pid(), Ordering::Relaxed);
    holder::forked();
    // Another process may have had its number.
    if let Some(table) = holder::table() {
        table.accepting.forget(holder::number());
    }
}

/// Tells this process from those that it comes from.
pub fn generation() -> u32 {
    let bits = FORKS_AT_BIRTH.load(Ordering::Relaxed) & u64::from(u32::MAX);
    u32::try_from(bits).unwrap_or_default()
}

/// Whether this is the process that its memory says it is, and not one that `vfork` has made, which uses its parent's.
pub fn is_own() -> bool {
    let known = PID.load(Ordering::Relaxed);
    // What is known of a parent is not so for a child of `clone`.
    !is_silent() && if known == 0 { holder::table().is_none() } else { known == sys::pid() }
}

/// It has the table.
pub fn attached() {
    if PID.load(Ordering::Relaxed) == 0 {
        PID.store(sys::pid(), Ordering::Relaxed);
    }
}

fn mark(descriptor: RawFd) -> Option<&'static Mark> {
    MARKS.get(usize::try_from(descriptor).ok()?)
}

/// Whether anything is known of it.
pub fn is_marked(descriptor: RawFd) -> bool {
    mark(descriptor).is_some_and(|mark| mark.what.load(Ordering::Relaxed) != NOTHING)
}

/// A new socket has this number, which another one may have had that was closed unseen.
pub fn new(descriptor: RawFd) {
    watches::begin(descriptor);
    forget(descriptor);
}

/// A client has come.
pub fn accepted(descriptor: RawFd) {
    new(descriptor);
    if let Some(mark) = mark(descriptor) {
        mark.beside.store(0, Ordering::Relaxed);
        mark.cookie.store(0, Ordering::Relaxed);
        mark.what.store(ACCEPTED, Ordering::Relaxed);
    }
}

/// Nothing was said yet on a connection that this process has accepted: it gets a slot, so that another process can have it.
pub fn awaits_first(descriptor: RawFd, table: &Table) {
    let Some(mark) = mark(descriptor).filter(|mark| mark.what.load(Ordering::Relaxed) == ACCEPTED) else {
        return;
    };
    mark.cookie.store(OF_INTERNET, Ordering::Relaxed);
    if table.keeps_connections()
        && !is_silent()
        && is_own()
        && let Some(number) = claim(descriptor, mark, table, Phase::Untouched)
    {
        mark.beside.store(number.saturating_add(1), Ordering::Relaxed);
    }
}

/// Takes a slot. None: there is none.
fn claim(descriptor: RawFd, mark: &Mark, table: &Table, phase: Phase) -> Option<u32> {
    let (cookie, pid) = (sys::cookie(descriptor), holder::ask_number().cast_unsigned());
    let claimed = Some(cookie).filter(|cookie| *cookie != 0 && pid != 0);
    let number = claimed.and_then(|cookie| table.claim(cookie, pid, descriptor.cast_unsigned(), phase))?;
    mark.cookie.store(cookie, Ordering::Relaxed);
    watches::lend(descriptor);
    wake(table);
    Some(number)
}

/// The holder is to look at what was announced.
fn wake(table: &Table) {
    if table.asleep.load(Ordering::Relaxed) != 0 && table.asleep.swap(0, Ordering::SeqCst) != 0 {
        holder::say(&Message::new(Verb::Look), &[], false);
    }
}

/// Another process may have a connection from here on: it is not kept, unless that one keeps it.
pub fn passed_on(descriptor: RawFd) {
    let Some(mark) = mark(descriptor).filter(|_| is_own()) else { return };
    if mark.what.load(Ordering::Relaxed) == ACCEPTED {
        let _errno = sys::Errno::keep();
        give_up(descriptor, mark);
    } else if let Some(slot) = slot_of(descriptor) {
        slot.set_phase(Phase::Unclear);
    }
}

/// The slot of a connection on which nothing was said yet is given back.
fn give_up(descriptor: RawFd, mark: &Mark) {
    if let Some(slot) = slot_of(descriptor) {
        // Whatever is done with such connections now.
        slot.set_phase(Phase::Unclear);
        if !is_silent() {
            release(slot, mark.beside.load(Ordering::Relaxed).saturating_sub(1), mark);
        }
        mark.cookie.store(OF_INTERNET, Ordering::Relaxed);
    }
    mark.beside.store(0, Ordering::Relaxed);
}

/// A slot is free for the next connection; the holder may have a copy of this one.
fn release(slot: &Slot, number: u32, mark: &Mark) {
    let cookie = mark.cookie.load(Ordering::Relaxed);
    if slot.advance(NEW, FREE) {
        slot.cookie.store(0, Ordering::SeqCst);
        return;
    }
    let said = holder::say(&Message { slot: number, cookie, ..Message::new(Verb::Release) }, &[], false);
    if let Some(table) = holder::table().filter(|_| !said) {
        table.note_unheard_close();
    }
}

/// The program listens on it.
pub fn listens(descriptor: RawFd) {
    watches::lend(descriptor);
    if let Some(mark) = mark(descriptor) {
        mark.beside.store(0, Ordering::Relaxed);
        mark.cookie.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
        mark.what.store(LISTENS, Ordering::Relaxed);
    }
}

/// The same, at a UNIX socket.
pub fn listens_unix(descriptor: RawFd) {
    watches::lend(descriptor);
    if let Some(mark) = mark(descriptor) {
        mark.cookie.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
        mark.what.store(LISTENS_UNIX, Ordering::Relaxed);
    }
}

/// This process accepts a client there: noted once, if another process has made that socket.
pub fn accepts_at(descriptor: RawFd, table: &Table) {
    let own = PID.load(Ordering::Relaxed);
    if own != 0 && own == ACCEPTS.load(Ordering::Relaxed) {
        return;
    }
    let is_its = |mark: &Mark| {
        mark.what.load(Ordering::Relaxed) == LISTENS
            && mark.cookie.load(Ordering::Relaxed) >= FORKS_AT_BIRTH.load(Ordering::Relaxed)
    };
    // A child that was made past the C library (by `clone`) takes all for its own.
    if let Some(mark) = mark(descriptor).filter(|mark| own != 0 && is_its(mark)) {
        mark.beside.store(own.cast_unsigned(), Ordering::Relaxed);
        table.accepting.note_any();
        return;
    }
    ACCEPTS.store(own, Ordering::Relaxed);
    table.accepting.note(if own == 0 { 0 } else { holder::ask_number() });
}

/// Whether this process alone may wait for clients there: it listens, and has not forked since.
pub fn listens_alone(descriptor: RawFd) -> bool {
    mark(descriptor).is_some_and(|mark| {
        mark.what.load(Ordering::Relaxed) == LISTENS
            && mark.cookie.load(Ordering::Relaxed) == FORKS.load(Ordering::Relaxed)
    })
}

/// Whether this process accepts clients there, and nobody is known to accept any at another one's socket: those that it has
/// forked serve clients whom it has accepted.
pub fn accepts_alone(descriptor: RawFd, table: &Table) -> bool {
    let own = PID.load(Ordering::Relaxed);
    own > 0
        && !table.accepting.has_shared()
        && mark(descriptor).is_some_and(|mark| {
            mark.what.load(Ordering::Relaxed) == LISTENS
                && mark.beside.load(Ordering::Relaxed) == own.cast_unsigned()
        })
}

/// Whether it listens at an address of the internet.
pub fn is_listening(descriptor: RawFd) -> bool {
    mark(descriptor).is_some_and(|mark| mark.what.load(Ordering::Relaxed) == LISTENS)
}

/// Whether others may wait for clients there, too: it listens, and this process has forked since.
pub fn has_shared(descriptor: RawFd) -> bool {
    mark(descriptor).is_some_and(|mark| mark.what.load(Ordering::Relaxed) == LISTENS)
        && !listens_alone(descriptor)
}

/// A connection that was held has come, which has this slot.
pub fn given(descriptor: RawFd, slot: u32, cookie: u64) {
    watches::lend(descriptor);
    if let Some(mark) = mark(descriptor) {
        let beside = if sys::is_internet(descriptor) { 0 } else { OF_UNIX };
        mark.beside.store(beside, Ordering::Relaxed);
        mark.cookie.store(cookie, Ordering::Relaxed);
        mark.what.store(slot.saturating_add(SLOT), Ordering::Relaxed);
    }
    if let Some(slot) = slot_of(descriptor) {
        slot.begin();
    }
}

fn number_of(mark: &Mark) -> Option<u32> {
    match mark.what.load(Ordering::Relaxed) {
        ACCEPTED => mark.beside.load(Ordering::Relaxed).checked_sub(1),
        what => what.checked_sub(SLOT),
    }
}

/// The slot of a connection that is this process's.
fn slot_of(descriptor: RawFd) -> Option<&'static Slot> {
    let mark = mark(descriptor)?;
    let slot = holder::table()?.slot(number_of(mark)?)?;
    let is_its = slot.cookie.load(Ordering::Relaxed) == mark.cookie.load(Ordering::Relaxed)
        && slot.owner.load(Ordering::Relaxed).cast_signed() == holder::number();
    is_its.then_some(slot)
}

/// A call is about to read from a connection that waits for a request. Of one of the internet the kernel counts what it takes;
/// of another one it is noted before, as the process may end within the call. A call that waits for the next request is as good
/// as none: only if that comes, and the process ends before the call has returned, nobody knows. Whether it was noted:
/// [`has_read_nothing`] is to follow, or [`on_read`].
pub fn before_read(descriptor: RawFd, flags: libc::c_int) -> bool {
    let Some(mark) = mark(descriptor).filter(|mark| mark.beside.load(Ordering::Relaxed) == OF_UNIX) else {
        return false;
    };
    let has_slot = !matches!(mark.what.load(Ordering::Relaxed), NOTHING | ACCEPTED | LISTENS | LISTENS_UNIX);
    let Some(slot) = slot_of(descriptor).filter(|slot| has_slot && exchanges::waits_for_request(slot)) else {
        return false;
    };
    let is_noted = !is_silent() && is_own() && sys::may_read_now(descriptor, flags);
    if is_noted {
        slot.set_phase(Phase::Busy);
    }
    is_noted
}

/// It has not.
pub fn has_read_nothing(descriptor: RawFd) {
    if let Some(slot) = slot_of(descriptor) {
        exchanges::note_nothing_read(slot);
    }
}

/// So much was read. `filled`: what was filled by it, if that can be seen.
pub fn on_read(descriptor: RawFd, filled: Option<Parts<'_>>, result: isize) {
    let Some(count) = usize::try_from(result).ok().filter(|count| *count > 0) else { return };
    let Some(mark) = mark(descriptor) else { return };
    if mark.what.load(Ordering::Relaxed) == ACCEPTED {
        let _errno = sys::Errno::keep();
        let head = filled.map(|filled| filled.head(count)).unwrap_or_default();
        let is_never_kept = [GREETED, WATCHED].contains(&mark.beside.load(Ordering::Relaxed));
        let early = number_of(mark).zip(slot_of(descriptor));
        if !is_own() {
            if let Some((_, slot)) = early.filter(|_| is_silent()) {
                slot.set_phase(Phase::Unclear);
            }
            // If it listens untold, its user would hear that what listens is kept. The holder finds out that it is not.
            if !LISTENS_UNTOLD.load(Ordering::Relaxed) {
                strangers::on_first_read(descriptor, mark, head);
            }
            return;
        }
        mark.what.store(NOTHING, Ordering::Relaxed);
        let Some(table) = holder::table().filter(|table| table.keeps_connections()) else { return };
        if is_never_kept || !http::is_request(head) {
            if let Some((number, slot)) = early {
                slot.set_phase(Phase::Unclear);
                release(slot, number, mark);
            }
            if !http::is_request(head) {
                strangers::note(descriptor, mark, http::stranger(head));
            }
            return;
        }
        table.note_speaks_http();
        let claim = || claim(descriptor, mark, table, Phase::Busy);
        let Some(number) = early.map(|(number, _)| number).or_else(claim) else { return };
        if early.is_none() && !sys::is_internet(descriptor) {
            mark.beside.store(OF_UNIX, Ordering::Relaxed);
        }
        mark.what.store(number.saturating_add(SLOT), Ordering::Relaxed);
        if let Some(slot) = table.slot(number) {
            slot.begin();
        }
        if let Some((_, slot)) = early {
            slot.set_phase(Phase::Busy);
            if slot.state.load(Ordering::Relaxed) == TAKEN {
                // A program that has a client serves, as the holder knows it.
                table.announce(number);
                wake(table);
            }
        }
    }
    let Some(slot) = slot_of(descriptor).filter(|slot| slot.phase() != Phase::Unclear) else { return };
    let (verdict, exchange) = exchanges::note_read(slot, filled, count);
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
    if let Some(mark) = mark(descriptor).filter(|mark| mark.what.load(Ordering::Relaxed) == ACCEPTED) {
        let _errno = sys::Errno::keep();
        let head = parts.map(|parts| parts.head(count)).unwrap_or_default();
        strangers::on_first_write(descriptor, mark, head);
        return;
    }
    let Some(slot) = slot_of(descriptor).filter(|slot| slot.phase() != Phase::Unclear) else { return };
    let written = Written::new(slot, parts, count);
    written.note(slot);
    if written.verdict == Verdict::Switched
        && let Some(table) = holder::table()
    {
        table.note_not_kept(NotKept::Switched);
    }
}

/// It has another number as well: duplicates answer for each other, which is not followed.
pub fn duplicated(descriptor: RawFd, to: RawFd) {
    match mark(descriptor) {
        Some(mark) if mark.what.load(Ordering::Relaxed) == ACCEPTED => {
            if strangers::has_own_marks() {
                strangers::duplicated(mark, descriptor, to);
            }
        }
        _ => never(descriptor),
    }
}

/// What goes on there cannot be followed.
pub fn never(descriptor: RawFd) {
    let Some(mark) = mark(descriptor) else { return };
    if mark.what.load(Ordering::Relaxed) == ACCEPTED {
        if is_own() {
            let _errno = sys::Errno::keep();
            give_up(descriptor, mark);
            mark.what.store(NOTHING, Ordering::Relaxed);
        }
    } else if let Some(slot) = slot_of(descriptor).filter(|_| is_own()) {
        slot.set_phase(Phase::Unclear);
    }
}

/// The number is free, or stands for something else, in a moment.
pub fn forget(descriptor: RawFd) {
    // Of most numbers nothing is known: that is all that it costs them.
    if !is_marked(descriptor) {
        // The holder may have what the program has shut down, say.
        if watches::is_lent(descriptor) && !is_process_silent() && !strangers::is_cloned() && is_own() {
            let _errno = sys::Errno::keep();
            watches::end(descriptor);
        }
        return;
    }
    if is_process_silent() || strangers::is_cloned() {
        // The holder finds out by itself that it is closed. Until then it is not to be kept. Slots are a parent's.
        if let Some(slot) = slot_of(descriptor).filter(|_| !strangers::is_cloned()) {
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
    let Some(mark) = mark(descriptor) else { return };
    let slot = number_of(mark).zip(slot_of(descriptor));
    let what = mark.what.swap(NOTHING, Ordering::Relaxed);
    let has_listened = matches!(what, LISTENS | LISTENS_UNIX);
    // A child may go by the epoll that this process has made for both.
    let is_shared = has_listened && mark.cookie.load(Ordering::Relaxed) != FORKS.load(Ordering::Relaxed);
    if watches::is_lent(descriptor) && !is_shared {
        watches::end(descriptor);
    }
    if let Some(table) = holder::table().filter(|_| has_listened) {
        // The holder may be the only one now who has it.
        table.note_untaken(true);
        table.note_closes_listener(holder::number());
        // Other workers' clients would wait there.
        if sys::shares_port(descriptor) {
            holder::say(&Message { descriptor, ..Message::new(Verb::Look) }, &[], false);
        }
        return;
    }
    if let Some((number, slot)) = slot {
        release(slot, number, mark);
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
