//! The memory in which a program's processes write down which of their connections are idle, where the holder sees it. Of
//! atomics alone, and written by processes that are not trusted: the holder takes nothing from it without a look at the
//! connection itself.

mod accepting;
mod shut_down;

pub use accepting::Accepting;
pub use shut_down::ShutDown;

use super::address::Address;
use crate::sys::memfd;
use crate::sys::shared::AllZeroes;
use crate::sys::tcp::Positions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Connections that can be in the table. Those that find no place in it are not kept.
pub const SLOTS: usize = 1 << 16;
/// Of the ring of announcements.
#[allow(clippy::cast_possible_truncation, reason = "it is 65,536")]
const RING_PLACES: u32 = SLOTS as u32;
/// Where so many were announced since, a place that is not written never will be.
const LATE_PLACES: u32 = 64;
/// So many places are looked at for a new connection.
const PROBES: usize = 64;
/// Places for addresses that are in custody.
const ADDRESSES: usize = 1 << 13;

/// Whether anybody waits for an answer on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// A request was read, and its answer is not complete.
    Busy = 0,
    /// The next request is waited for.
    Idle = 1,
    /// What goes on there is not understood: it is not kept.
    Unclear = 2,
    /// It was accepted, and nothing was said there yet, by either side.
    Untouched = 3,
}

impl Phase {
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Busy,
            1 => Self::Idle,
            3 => Self::Untouched,
            _ => Self::Unclear,
        }
    }
}

/// A kind of connections that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NotKept {
    /// Its keys are in the process that has crashed.
    Tls = 1,
    /// What is under way on it, and what was said before, is known to that process alone.
    Http2 = 2,
    /// Of databases, of mail, and whatever else is no HTTP.
    Other = 3,
    /// They were of HTTP/1 at first (WebSocket).
    Switched = 4,
    /// The program forbids itself system calls, also those by which idle connections are known.
    Sandbox = 5,
    /// Another program is executed for each of them.
    Executed = 6,
}

impl NotKept {
    /// As it is noted.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        let all = [Self::Tls, Self::Http2, Self::Other, Self::Switched, Self::Sandbox, Self::Executed];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// Beside the kinds that are not kept: the program has said something on a connection before its client did.
const SPEAKS_FIRST: u32 = 1 << 31;
/// Beside them: a client of the program has sent a request of HTTP/1.
const SPEAKS_HTTP: u32 = 1 << 30;

/// Connections are not kept.
const LISTENERS_ONLY: u32 = 1;
/// The program was told to end, for another one that takes its place.
const IS_REPLACED: u32 = 2;

/// No connection.
pub const FREE: u8 = 0;
/// Of the program alone.
pub const NEW: u8 = 1;
/// The holder has a copy.
pub const TAKEN: u8 = 2;

/// One connection.
///
/// A thread of the program may read the next request while another one still notes that it has written the answer to the last:
/// who answers is ordered to who asks through the client, and not in this memory. So each word is stored by one side alone, by
/// who reads or by who writes, and what somebody waits for is told by both together.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// The socket's (`SO_COOKIE`); 0: none.
    pub cookie: AtomicU64,
    /// The process that serves it.
    pub owner: AtomicU32,
    /// Its descriptor there.
    pub descriptor: AtomicU32,
    /// [`FREE`], [`NEW`] or [`TAKEN`].
    pub state: AtomicU8,
    /// Not 0: it is not kept. Anybody may say so, and nobody takes that back.
    is_unclear: AtomicU8,
    /// Who writes: how many answers are complete, as far as that fits.
    answered: AtomicU8,
    unused: AtomicU8,
    /// Who reads: the phase, as far as reading tells it, in the lowest bits, and above it how many bytes were seen to be read, as
    /// far as that fits.
    phase_and_read_bytes: AtomicU32,
    /// Who writes: how many bytes were seen to be written, as far as that fits.
    written_bytes: AtomicU32,
    /// Who reads: [`Asked`].
    asked: AtomicU32,
    /// How far requests and answers have come, for the program alone. Who reads has the first two, who writes the others.
    sides: [AtomicU64; 4],
}

/// The requests of a connection, as a number: how many there were, as far as that fits; from bit 8 on, which of the last sixteen
/// have an answer without a body; [`LAST`](Asked::LAST).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked(pub u32);

impl Asked {
    /// The connection ends with the answer to one of them.
    pub const LAST: u32 = 1 << 24;

    /// How many there were.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the lowest bits are what is kept")]
    pub fn count(self) -> u8 {
        self.0 as u8
    }
}

/// Of [`Slot`]'s first word.
const PHASE_BITS: u32 = 2;
const PHASE: u32 = (1 << PHASE_BITS) - 1;

#[allow(clippy::cast_possible_truncation, reason = "the lowest bits are what is kept")]
fn low_bits(bytes: u64) -> u32 {
    bytes as u32
}

// One line of the processor's cache: two connections never share one.
const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    /// As it is known now. What is late makes it busy: the answers are asked for first, and the requests last.
    pub fn phase(&self) -> Phase {
        let answered = self.answered.load(Ordering::Acquire);
        let reading = self.reading_phase();
        let asked = self.asked();
        if self.is_unclear.load(Ordering::Acquire) != 0 {
            return Phase::Unclear;
        }
        match reading {
            Phase::Idle if asked.count() != answered => Phase::Busy,
            // Nobody waits for more than its end.
            Phase::Idle if asked.0 & Asked::LAST != 0 => Phase::Unclear,
            reading => reading,
        }
    }

    /// As far as reading tells it: idle when the next thing to be read is a request, whatever was answered.
    pub fn reading_phase(&self) -> Phase {
        Phase::from_number(self.phase_and_read_bytes.load(Ordering::Acquire) & PHASE)
    }

    /// From here on, by who reads; by anybody if it is [unclear](Phase::Unclear). Once for each request: a store that waits for all
    /// that were before it would take longer than all else here. The holder looks whether somebody waits for an answer when the
    /// process has ended, and sees all its stores by then; before that, it takes no more than a copy.
    pub fn set_phase(&self, phase: Phase) {
        if phase == Phase::Unclear {
            self.is_unclear.store(1, Ordering::Release);
        } else {
            self.on_read(phase, 0);
        }
    }

    /// By who reads: so many bytes were, and this is the phase from here on, both at once.
    pub fn on_read(&self, phase: Phase, bytes: usize) {
        if phase == Phase::Unclear {
            self.is_unclear.store(1, Ordering::Release);
        }
        let before = self.phase_and_read_bytes.load(Ordering::Relaxed) >> PHASE_BITS;
        let read_bytes = before.wrapping_add(low_bits(bytes as u64));
        self.phase_and_read_bytes.store(phase as u32 | read_bytes << PHASE_BITS, Ordering::Release);
    }

    /// By who writes: so many bytes were, and so many answers are complete. The answers first: between the two the connection is
    /// not where it is said to be, and not kept.
    pub fn on_write(&self, answered: u8, bytes: usize) {
        self.answered.store(answered, Ordering::Release);
        let written_bytes = self.written_bytes.load(Ordering::Relaxed);
        self.written_bytes.store(written_bytes.wrapping_add(low_bits(bytes as u64)), Ordering::Release);
    }

    /// How far its requests and answers have come, both sides.
    pub fn sides(&self) -> [u64; 4] {
        self.sides.each_ref().map(|number| number.load(Ordering::Relaxed))
    }

    /// The requests.
    pub fn asked(&self) -> Asked {
        Asked(self.asked.load(Ordering::Acquire))
    }

    /// How many answers are complete.
    pub fn answered(&self) -> u8 {
        self.answered.load(Ordering::Acquire)
    }

    /// By who reads, before [`on_read`](Self::on_read).
    pub fn set_asked(&self, request: [u64; 2], asked: Asked) {
        self.set_sides(0, request);
        self.asked.store(asked.0, Ordering::Relaxed);
    }

    /// By who writes, before [`on_write`](Self::on_write).
    pub fn set_answering(&self, answer: [u64; 2]) {
        self.set_sides(2, answer);
    }

    fn set_sides(&self, first: usize, numbers: [u64; 2]) {
        for (place, number) in self.sides.iter().skip(first).zip(numbers) {
            place.store(number, Ordering::Relaxed);
        }
    }

    /// Nothing was said yet, as far as the program knows that has it now: nobody else does.
    pub fn begin(&self) {
        self.set_sides(0, [0; 2]);
        self.set_sides(2, [0; 2]);
        self.asked.store(0, Ordering::Relaxed);
        self.answered.store(0, Ordering::Release);
    }

    /// It has come so far, and this is its phase from here on.
    pub(super) fn begin_at(&self, phase: Phase, at: Positions) {
        self.begin();
        self.is_unclear.store(u8::from(phase == Phase::Unclear), Ordering::Release);
        self.written_bytes.store(low_bits(at.written_bytes), Ordering::Release);
        self.phase_and_read_bytes
            .store(phase as u32 | low_bits(at.read_bytes) << PHASE_BITS, Ordering::Release);
    }

    /// Whether all that has passed through the connection was seen, and more can.
    pub(super) fn is_at(&self, at: Positions) -> bool {
        let read_bytes = self.phase_and_read_bytes.load(Ordering::Acquire) >> PHASE_BITS;
        let written_bytes = self.written_bytes.load(Ordering::Acquire);
        !at.is_shut
            && (read_bytes, written_bytes)
                == (low_bits(at.read_bytes) << PHASE_BITS >> PHASE_BITS, low_bits(at.written_bytes))
    }

    /// From one state to another; false if it is in neither.
    pub fn advance(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// For the next connection.
    pub fn free(&self) {
        self.state.store(FREE, Ordering::SeqCst);
        self.cookie.store(0, Ordering::SeqCst);
    }
}

/// All connections of a program.
#[repr(C)]
pub struct Table {
    /// How the holder has it: bits.
    how: AtomicU32,
    /// Connections that wait to be swapped for one that was accepted.
    pub waiting: AtomicU32,
    /// Not 0: the holder sleeps, and is to be told of what is new.
    pub asleep: AtomicU32,
    /// Connections that have come and are not kept: a bit for each kind. And [`SPEAKS_FIRST`], [`SPEAKS_HTTP`].
    told: AtomicU32,
    /// Not 0: of the listening sockets some may be the holder's alone.
    untaken: AtomicU32,
    /// Not 0: connections were closed of which the holder was not told.
    unheard_closes: AtomicU32,
    /// Not 0: the holder was told of a socket with which the program listens, since it was started last.
    listens: AtomicU32,
    /// The process that has closed a listening socket last, since the holder has looked; or 0.
    closes_listener: AtomicI32,
    tail: AtomicU32,
    /// Slots that were announced, each with 1 added.
    ring: [AtomicU32; SLOTS],
    /// Where the holder may have a listening socket.
    addresses: [AtomicU8; ADDRESSES],
    slots: [Slot; SLOTS],
    /// Who accepts clients.
    pub accepting: Accepting,
    /// Where nobody is to accept any more.
    pub shut_down: ShutDown,
}

// SAFETY: atomics alone, for which zeroes are a value.
unsafe impl AllZeroes for Table {}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Table {
    /// The holder's new one, to be passed on; others see by the mark whose it is.
    ///
    /// # Errors
    /// There is no memory with descriptors here.
    pub fn create(listeners_only: bool, mark: &str) -> io::Result<(OwnedFd, &'static Self)> {
        let mark = std::ffi::CString::new(mark).map_err(io::Error::other)?;
        let memory = memfd::create(&mark, size_of::<Self>())?;
        memfd::keep_size(memory.as_fd());
        let table: &'static Self = memfd::map(memory.as_fd())?;
        table.how.store(if listeners_only { LISTENERS_ONLY } else { 0 }, Ordering::SeqCst);
        Ok((memory, table))
    }

    /// That of a holder.
    ///
    /// # Errors
    /// It is none, or cannot be mapped.
    pub fn map(memory: BorrowedFd<'_>) -> io::Result<&'static Self> {
        memfd::map(memory)
    }

    /// Whether connections are kept.
    #[must_use]
    pub fn keeps_connections(&self) -> bool {
        self.how.load(Ordering::Relaxed) & LISTENERS_ONLY == 0
    }

    /// Whether the program was told to end, and another one is about to take its place: clients wait for that.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.how.load(Ordering::SeqCst) & IS_REPLACED != 0
    }

    pub(super) fn set_replaced(&self, is_replaced: bool) {
        if is_replaced {
            self.how.fetch_or(IS_REPLACED, Ordering::SeqCst);
        } else {
            self.how.fetch_and(!IS_REPLACED, Ordering::SeqCst);
            self.shut_down.clear();
        }
    }

    /// Connections of this kind have come. The holder looks for that, also when who has noted it has ended meanwhile.
    pub fn note_not_kept(&self, kind: NotKept) {
        if !self.is_noted(kind) {
            self.told.fetch_or(1u32 << (kind as u32 % u32::BITS), Ordering::Relaxed);
        }
    }

    /// Whether that was noted.
    #[must_use]
    pub fn is_noted(&self, kind: NotKept) -> bool {
        self.told.load(Ordering::Relaxed) >> (kind as u32 % u32::BITS) & 1 == 1
    }

    /// The kinds that were noted.
    pub fn not_kept(&self) -> impl Iterator<Item = NotKept> + use<> {
        let told = self.told.load(Ordering::Relaxed);
        (0..u32::BITS).filter(move |bit| told >> bit & 1 == 1).filter_map(NotKept::from_number)
    }

    /// The program greets its clients, who wait for that.
    pub fn note_speaks_first(&self) {
        if !self.speaks_first() {
            self.told.fetch_or(SPEAKS_FIRST, Ordering::SeqCst);
        }
    }

    /// Whether it has ever done so.
    #[must_use]
    pub fn speaks_first(&self) -> bool {
        self.told.load(Ordering::Relaxed) & SPEAKS_FIRST != 0
    }

    /// A client of the program has sent a request of HTTP/1.
    pub fn note_speaks_http(&self) {
        if self.told.load(Ordering::Relaxed) & SPEAKS_HTTP == 0 {
            self.told.fetch_or(SPEAKS_HTTP, Ordering::SeqCst);
        }
    }

    /// Whether a client on whose connection nothing was said yet is the one to begin. Where that is not known it may wait for a
    /// greeting, also by a program that is executed for it.
    #[must_use]
    pub fn clients_begin(&self) -> bool {
        let speaks_http = self.told.load(Ordering::Relaxed) & SPEAKS_HTTP != 0;
        speaks_http && !self.speaks_first() && !self.is_noted(NotKept::Executed)
    }

    /// Whether some listening sockets may be the holder's alone: nobody of the program's present start has them.
    #[must_use]
    pub fn has_untaken(&self) -> bool {
        self.untaken.load(Ordering::Relaxed) != 0
    }

    /// A connection was closed, and there was no room to tell the holder.
    pub fn note_unheard_close(&self) {
        self.unheard_closes.store(1, Ordering::SeqCst);
    }

    /// Whether there was such a one since the last time.
    pub(in crate::custody) fn take_unheard_closes(&self) -> bool {
        self.unheard_closes.load(Ordering::Relaxed) != 0 && self.unheard_closes.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether the holder was told of a socket with which the program listens, since it was started last.
    #[must_use]
    pub fn does_listen(&self) -> bool {
        self.listens.load(Ordering::Relaxed) != 0
    }

    /// The holder was, or was not.
    pub(in crate::custody) fn note_listens(&self, listens: bool) {
        self.listens.store(u32::from(listens), Ordering::SeqCst);
    }

    /// This process is about to close a listening socket: it may be about to end.
    pub fn note_closes_listener(&self, pid: i32) {
        self.closes_listener.store(pid, Ordering::SeqCst);
    }

    /// Which one did, since the last time.
    pub(in crate::custody) fn take_closes_listener(&self) -> Option<i32> {
        let pid = self.closes_listener.load(Ordering::Relaxed);
        if pid == 0 { None } else { Some(self.closes_listener.swap(0, Ordering::SeqCst)) }
    }

    /// Notes that. A program notes it when it closes one; the holder looks then.
    pub fn note_untaken(&self, has_some: bool) {
        if self.has_untaken() != has_some {
            self.untaken.store(u32::from(has_some), Ordering::SeqCst);
        }
    }

    /// A slot by its number.
    #[must_use]
    pub fn slot(&self, number: u32) -> Option<&Slot> {
        self.slots.get(number as usize)
    }

    /// Takes a place for a connection, which was accepted, or whose first request is read: the number of its slot. None: there
    /// is none left.
    #[must_use]
    pub fn claim(&self, cookie: u64, owner: u32, descriptor: u32, phase: Phase) -> Option<u32> {
        let first = usize::try_from(cookie).unwrap_or(0) % SLOTS;
        let number = (0..PROBES).map(|probe| (first + probe) % SLOTS).find(|&number| {
            self.slots.get(number).is_some_and(|slot| {
                slot.cookie.compare_exchange(0, cookie, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            })
        })?;
        let slot = self.slots.get(number)?;
        slot.begin_at(phase, Positions::default());
        slot.owner.store(owner, Ordering::SeqCst);
        slot.descriptor.store(descriptor, Ordering::SeqCst);
        slot.state.store(NEW, Ordering::SeqCst);
        let number = u32::try_from(number).ok()?;
        self.announce(number);
        Some(number)
    }

    /// The holder is to look at this slot: it is new, or a client has sent its first request there.
    pub fn announce(&self, number: u32) {
        let place = self.tail.fetch_add(1, Ordering::SeqCst) as usize % SLOTS;
        if let Some(place) = self.ring.get(place) {
            place.store(number.saturating_add(1), Ordering::SeqCst);
        }
    }

    /// The slots that were announced since this was called last with the same `head`.
    ///
    /// A place may be about to be written, or never will: whoever was to was killed. Those behind it do not wait for that.
    pub fn take_new(&self, head: &mut u32, found: &mut Vec<u32>) {
        // Once, and not believed: the program can write there.
        let tail = self.tail.load(Ordering::SeqCst);
        if tail.wrapping_sub(*head) > RING_PLACES {
            *head = tail.wrapping_sub(RING_PLACES);
        }
        let (mut at, mut all_written) = (*head, true);
        while at != tail {
            let Some(place) = self.ring.get(at as usize % SLOTS) else { return };
            match place.swap(0, Ordering::SeqCst) {
                0 => all_written &= tail.wrapping_sub(at) >= LATE_PLACES,
                number => found.push(number - 1),
            }
            at = at.wrapping_add(1);
            if all_written {
                *head = at;
            }
        }
    }

    /// Whether the holder may have a listening socket at this address. If not, it need not be asked.
    #[must_use]
    pub fn may_have(&self, address: &Address) -> bool {
        let place = self.addresses.get(address.place(ADDRESSES));
        place.is_some_and(|place| place.load(Ordering::SeqCst) != 0)
    }

    /// The holder has one at this address now; or at none of those that are not noted again after `clear`.
    pub fn note_address(&self, address: &Address) {
        if let Some(place) = self.addresses.get(address.place(ADDRESSES)) {
            place.store(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests;
