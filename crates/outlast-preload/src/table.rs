//! What all generations know of the connections: shared memory, found by the number of the descriptor.
//!
//! It is written by the hooks, in any thread, without locks; and read when the process that wrote it is dead.

use crate::counts::{self, Counts};
use crate::http::{self, Exchange, Verdict};
use crate::memory::Parts;
use crate::sys;
use crate::traffic::{Left, Phase, Written};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Descriptors below this number are known. Those above are closed in a crash, as ever.
pub const DESCRIPTORS: usize = 65_536;
/// Threads whose waiting is known, but for the last number, which all others share.
const THREADS: usize = 1024;

/// One connection.
#[repr(C, align(64))]
pub struct Slot {
    phase: AtomicU8,
    edge_triggered: AtomicBool,
    wants_room: AtomicBool,
    /// A read is under way.
    reads: AtomicBool,
    /// The kernel counts.
    is_tcp: AtomicBool,
    /// Who wrote last, and how often that had waited before.
    thread: AtomicU16,
    waits: AtomicU32,
    /// It speaks HTTP: what was read and written was looked at.
    is_http: AtomicBool,
    exchange: [AtomicU64; 3],
    /// Which socket this is about.
    inode: AtomicU64,
    /// Since it was made, as far as the hooks have seen.
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The memory.
#[repr(C)]
pub struct Table {
    /// Generations that have died.
    pub deaths: AtomicU32,
    /// A generation has come as far as to listen.
    pub listens: AtomicBool,
    /// The next generations come from a snapshot, and not from the keeper.
    pub has_snapshot: AtomicBool,
    /// The process said that it exits, with this code and 1 more.
    pub exit_code: AtomicU32,
    /// The one before has died then, in nanoseconds of the monotonic clock.
    pub died_ns: AtomicU64,
    /// The generation's number on the board.
    pub number: AtomicU32,
    /// Calls that may wait, for clients or on connections: how many have begun, and how many are over.
    begun: AtomicU32,
    over: AtomicU32,
    /// No connection has a greater number: what is not used takes no memory.
    highest: AtomicU32,
    /// How many connections there are, here and in the processes that were forked.
    pub counts: Counts,
    waits: [AtomicU32; THREADS],
    slots: [Slot; DESCRIPTORS],
}

/// That of this process: none where its connections are not looked after.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
static NEXT_THREAD: AtomicU16 = AtomicU16::new(0);

thread_local! {
    /// Counts from 0.
    static THREAD: Cell<Option<u16>> = const { Cell::new(None) };
}

/// That of this process.
pub fn current() -> Option<&'static Table> {
    // SAFETY: null, or set from a reference that is good for ever.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// From here on the connections of this process are looked after, or no longer.
pub fn set_current(table: Option<&'static Table>) {
    TABLE.store(
        table.map_or(std::ptr::null_mut(), |table| std::ptr::from_ref(table).cast_mut()),
        Ordering::Release,
    );
}

fn thread() -> u16 {
    THREAD.with(|thread| match thread.get() {
        Some(number) => number,
        None => {
            let last = u16::try_from(THREADS - 1).unwrap_or(u16::MAX);
            let next = |number: u16| Some(number.saturating_add(1).min(last));
            let number = NEXT_THREAD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(last);
            thread.set(Some(number));
            number
        }
    })
}

impl Table {
    /// Memory that processes made from now on share.
    pub fn new() -> std::io::Result<&'static Self> {
        let memory = sys::share(size_of::<Self>())?;
        // SAFETY: as large as a table, aligned to a page, never unmapped; atomics alone, for which zeroes are a value.
        Ok(unsafe { memory.cast::<Self>().as_ref() })
    }

    /// That of a descriptor.
    pub fn slot(&self, descriptor: RawFd) -> Option<&Slot> {
        self.slots.get(usize::try_from(descriptor).ok()?)
    }

    /// A call that may wait. Not counted as over in a thread that is cancelled in it.
    pub fn calling<T>(&self, call: impl FnOnce() -> T) -> T {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let result = call();
        self.over.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// While the process is busy with something that was asked of it, and waits for nothing that is known: a number that
    /// changes whenever it does something else.
    pub fn busy_with(&self) -> Option<u32> {
        let over = self.over.load(Ordering::Relaxed);
        let waits = self.begun.load(Ordering::Relaxed) != over;
        (!waits && self.connections().any(|number| self.is_busy(number))).then_some(over)
    }

    /// The calling thread waits for events.
    pub fn note_wait(&self) {
        let thread = usize::from(thread());
        // The last number is not one thread's: nothing follows from its waiting.
        if let Some(waits) = self.waits.get(thread).filter(|_| thread + 1 < THREADS) {
            waits.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn has_waited(&self, slot: &Slot) -> bool {
        let waits = self.waits.get(usize::from(slot.thread.load(Ordering::Relaxed)));
        waits.is_some_and(|waits| waits.load(Ordering::Relaxed) != slot.waits.load(Ordering::Relaxed))
    }

    /// A descriptor is a connection from now on: one that was accepted by this program, or by the one before, when so
    /// much had been read and written; without counters if that is not known.
    pub fn begin(&self, descriptor: RawFd, positions: Option<(u64, u64)>) {
        let Some(slot) = self.slot(descriptor) else { return };
        slot.forget();
        let Some(inode) = sys::inode(descriptor) else { return };
        self.highest.fetch_max(descriptor.unsigned_abs(), Ordering::Relaxed);
        let (read_bytes, written_bytes) = positions.unwrap_or_default();
        slot.is_tcp.store(positions.is_some(), Ordering::Relaxed);
        slot.read_bytes.store(read_bytes, Ordering::Relaxed);
        slot.written_bytes.store(written_bytes, Ordering::Relaxed);
        slot.edge_triggered.store(false, Ordering::Relaxed);
        slot.wants_room.store(false, Ordering::Relaxed);
        slot.reads.store(false, Ordering::Relaxed);
        slot.is_http.store(false, Ordering::Relaxed);
        slot.set_exchange(Exchange::default());
        slot.inode.store(inode, Ordering::Relaxed);
        slot.phase.store(Phase::Fresh as u8, Ordering::Release);
        counts::add();
    }

    /// Something was written, or tried: `parts`, as far as they can be seen, of which `result` is what the kernel took.
    pub fn on_write(&self, slot: &Slot, parts: Option<Parts<'_>>, wanted: usize, result: isize) {
        let count = usize::try_from(result).unwrap_or(0);
        slot.written_bytes.fetch_add(count as u64, Ordering::Relaxed);
        if slot.is_http.load(Ordering::Relaxed) && slot.phase() == Phase::Busy {
            let mut exchange = slot.exchange();
            let verdict = match parts {
                Some(parts) => exchange.on_write(parts.until(count)),
                None => exchange.on_write_unseen(count as u64),
            };
            slot.set_exchange(exchange);
            slot.set(Phase::after(verdict));
            return;
        }
        let head = parts.map_or(&[][..], |parts| parts.head(wanted));
        let written =
            Written { head, complete: result >= 0 && count == wanted, waited: self.has_waited(slot) };
        let phase = slot.phase().on_write(written);
        let thread = thread();
        let waits = self.waits.get(usize::from(thread)).map_or(0, |waits| waits.load(Ordering::Relaxed));
        slot.thread.store(thread, Ordering::Relaxed);
        slot.waits.store(waits, Ordering::Relaxed);
        slot.set(phase);
    }

    /// Whether a descriptor is a connection on which nobody waits for anything. Nobody uses it now.
    pub fn is_idle(&self, descriptor: RawFd) -> bool {
        let Some(slot) = self.slot(descriptor).filter(|slot| slot.phase() != Phase::Untracked) else {
            return false;
        };
        if sys::inode(descriptor) != Some(slot.inode.load(Ordering::Relaxed)) {
            return false;
        }
        let counted = if slot.is_tcp.load(Ordering::Relaxed) {
            let seen = (slot.read_bytes.load(Ordering::Relaxed), slot.written_bytes.load(Ordering::Relaxed));
            sys::positions(descriptor) == Some(seen)
        } else {
            !slot.reads.load(Ordering::Relaxed)
        };
        let left = Left {
            phase: slot.phase(),
            waited: self.has_waited(slot),
            edge_triggered: slot.edge_triggered.load(Ordering::Relaxed),
            wants_room: slot.wants_room.load(Ordering::Relaxed),
            counted,
        };
        left.is_idle()
    }

    /// Whether something was read on it that is not answered: its client is to see that nothing will be.
    pub fn is_busy(&self, descriptor: RawFd) -> bool {
        self.slot(descriptor).is_some_and(|slot| slot.phase() == Phase::Busy)
    }

    /// Whether it is one that clients have opened.
    pub fn is_connection(&self, descriptor: RawFd) -> bool {
        self.slot(descriptor).is_some_and(Slot::is_tracked)
    }

    /// The descriptors that are connections.
    pub fn connections(&self) -> impl Iterator<Item = RawFd> + '_ {
        let used = self.used().iter().enumerate().filter(|(_, slot)| slot.is_tracked());
        used.filter_map(|(number, _)| RawFd::try_from(number).ok())
    }

    /// Nothing is known of any connection.
    pub fn clear(&self) {
        self.used().iter().filter(|slot| slot.is_tracked()).for_each(Slot::forget);
        counts::reset();
    }

    fn used(&self) -> &[Slot] {
        self.slots.get(..=self.highest.load(Ordering::Relaxed) as usize).unwrap_or_default()
    }
}

impl Slot {
    fn phase(&self) -> Phase {
        Phase::from_number(self.phase.load(Ordering::Acquire))
    }

    fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Whether it is a connection at all.
    pub fn is_tracked(&self) -> bool {
        self.phase.load(Ordering::Relaxed) != Phase::Untracked as u8
    }

    /// It is no connection any more.
    pub fn forget(&self) {
        if self.phase.swap(Phase::Untracked as u8, Ordering::AcqRel) != Phase::Untracked as u8 {
            counts::remove();
        }
    }

    /// It ends with the process, whatever happens.
    pub fn never(&self) {
        self.set(Phase::Never);
    }

    /// A read begins.
    pub fn on_look(&self) {
        self.reads.store(true, Ordering::Relaxed);
        self.set(self.phase().on_look());
    }

    /// A read is over: `parts` were filled, as far as they can be seen, with `result` bytes.
    pub fn on_read(&self, parts: Option<Parts<'_>>, result: isize) {
        if let Ok(count) = usize::try_from(result) {
            self.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
            let head = parts.map_or(&b"?"[..], |parts| parts.head(count));
            let is_first = self.phase() == Phase::Fresh;
            let phase = if count == 0 { Phase::Never } else { self.phase().on_read(head) };
            self.set(phase);
            if is_first && http::is_request(head) {
                self.is_http.store(true, Ordering::Relaxed);
            }
            if phase == Phase::Busy && self.is_http.load(Ordering::Relaxed) {
                let mut exchange = self.exchange();
                let verdict = parts.map_or(Verdict::Unclear, |parts| exchange.on_read(parts.until(count)));
                self.set_exchange(exchange);
                self.set(Phase::after(verdict));
            }
        }
        self.reads.store(false, Ordering::Relaxed);
    }

    fn exchange(&self) -> Exchange {
        Exchange::from_numbers(self.exchange.each_ref().map(|number| number.load(Ordering::Relaxed)))
    }

    fn set_exchange(&self, exchange: Exchange) {
        for (place, number) in self.exchange.iter().zip(exchange.to_numbers()) {
            place.store(number, Ordering::Relaxed);
        }
    }

    /// What the program wants to be told of it.
    pub fn on_interest(&self, edge_triggered: bool, wants_room: bool) {
        self.edge_triggered.store(edge_triggered, Ordering::Relaxed);
        self.wants_room.store(wants_room, Ordering::Relaxed);
    }
}
