//! What the generations remember of each connection: memory that all of them share, found by the number of its
//! descriptor, which is the same in all of them.

use crate::buffers;
use crate::sys::pages;
use crate::sys::shared::{AllZeroes, bytes, copy, share, write};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Descriptors below this number can be held.
pub(crate) const SLOTS: usize = 1 << 16;
/// Bytes that an application can leave to the next generation with each connection.
pub const NOTE_BYTES: usize = 64;

/// Of the longest buffer, which those of all others divide: so it does not matter to a place in one of them how often input
/// has gone around it.
pub(crate) const BUFFER_BYTES_MAX: usize = 16 << 20;

/// How far a connection's requests are dealt with, and where what is not is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Of the input, from when the connection was held.
    pub(crate) consumed_bytes: u64,
    /// Of the output.
    pub(crate) written_bytes: u64,
    /// The number of the buffer that holds the input from `begin_bytes` on, or was lent for it last; 0: none was.
    pub(crate) buffer: u32,
    pub(crate) begin_bytes: u64,
    /// The buffer with the last bytes written, and how many, that may not have been sent; 0: everything was.
    pub(crate) outbox: u32,
    pub(crate) outbox_bytes: u32,
    /// How long the [note](Notes) is that goes with it.
    pub(crate) note_bytes: u8,
}

impl Mark {
    pub(crate) const BEGIN: Self = Self {
        consumed_bytes: 0,
        written_bytes: 0,
        buffer: 0,
        begin_bytes: 0,
        outbox: 0,
        outbox_bytes: 0,
        note_bytes: 0,
    };

    /// Whether it can be that of a connection that has received so much: it was in memory that others may have written to, or
    /// comes from another binary.
    pub(crate) fn is_possible(&self, received_bytes: u64) -> bool {
        let held_bytes = received_bytes.checked_sub(self.consumed_bytes);
        held_bytes.is_some_and(|held| held <= buffers::length(self.buffer) as u64)
            && (self.outbox == 0 || self.outbox_bytes as usize <= buffers::length(self.outbox))
    }
}

/// A [`Mark`] in shared memory.
#[repr(C)]
struct SharedMark {
    consumed_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// Where in the buffer the first byte of the input is that is not consumed.
    begin: AtomicU32,
    buffer: AtomicU32,
    outbox: AtomicU32,
    /// Of the outbox, and in the lowest byte of the note.
    lengths: AtomicU32,
}

impl SharedMark {
    fn get(&self) -> Mark {
        let lengths = self.lengths.load(Ordering::Relaxed);
        let consumed_bytes = self.consumed_bytes.load(Ordering::Relaxed);
        Mark {
            consumed_bytes,
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            buffer: self.buffer.load(Ordering::Relaxed),
            begin_bytes: consumed_bytes.wrapping_sub(self.begin.load(Ordering::Relaxed).into()),
            outbox: self.outbox.load(Ordering::Relaxed),
            outbox_bytes: lengths >> 8,
            note_bytes: lengths.to_le_bytes()[0],
        }
    }

    fn set(&self, mark: &Mark) {
        let begin = mark.consumed_bytes.wrapping_sub(mark.begin_bytes) % BUFFER_BYTES_MAX as u64;
        self.consumed_bytes.store(mark.consumed_bytes, Ordering::Relaxed);
        self.written_bytes.store(mark.written_bytes, Ordering::Relaxed);
        self.begin.store(u32::try_from(begin).unwrap_or(0), Ordering::Relaxed);
        self.buffer.store(mark.buffer, Ordering::Relaxed);
        self.outbox.store(mark.outbox, Ordering::Relaxed);
        self.lengths.store(mark.outbox_bytes << 8 | u32::from(mark.note_bytes), Ordering::Relaxed);
    }
}

/// What the application has left with a connection: one note for each of its marks, and one that is to go with the next.
/// Apart from the slots, as many connections have none.
#[repr(C)]
pub(crate) struct Notes([[AtomicU8; NOTE_BYTES]; 3]);

// SAFETY: atomics alone, for which zeroes are a value.
unsafe impl AllZeroes for Notes {}

impl std::fmt::Debug for Notes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notes").finish_non_exhaustive()
    }
}

impl Notes {
    const NEXT: usize = 2;

    /// That of the mark with this number.
    ///
    /// # Safety
    /// Nobody [carries](Self::carry) a note to that mark as long as the result is used: the caller serves the connection.
    pub(crate) unsafe fn of_mark(&self, mark: u32, length: u8) -> &[u8] {
        // SAFETY: as the caller says.
        self.0.get(mark as usize).map_or(&[], |note| unsafe { bytes(note, 0, length.into()) })
    }

    /// Puts the one aside that is to go with the next mark.
    pub(crate) fn set_next(&self, content: &[u8]) {
        let [.., next] = &self.0;
        write(next, content);
    }

    /// Before the mark `to` counts: it has the one that was put aside, or the other mark's.
    pub(crate) fn carry(&self, to: u32, is_next: bool, length: u8) {
        let from = if is_next { Self::NEXT } else { to as usize ^ 1 };
        if let (Some(from), Some(to)) = (self.0.get(from), self.0.get(to as usize)) {
            copy(from, to, length.into());
        }
    }
}

/// One connection.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Which socket this is about; 0: none. Numbers are used again.
    inode: AtomicU64,
    /// The kernel's counters when it began; for what has no counters, see [`transport`](crate::transport).
    pub(crate) read_base: AtomicU64,
    pub(crate) written_base: AtomicU64,
    pub(crate) next_base: AtomicU64,
    /// A private pipe, for transports that need one: the numbers of its ends, plus 1.
    pub(crate) pipe: [AtomicU32; 2],
    /// Two marks, of which the one with this number counts: so all of it changes at once, whenever a process dies.
    current: AtomicU32,
    /// What it is, by the number of its [`Transport`](crate::transport::Transport), and above that whether it [rests](Slot::rests),
    /// [has ended](Slot::has_ended) or [is refused](Slot::is_refused).
    kind: AtomicU32,
    /// How much is held, for whoever looks at it from outside.
    held_bytes: AtomicU32,
    /// A mark that counts from when a transaction does: the transaction's number, and in the last bit the mark's; 0: none.
    pending: AtomicU64,
    marks: [SharedMark; 2],
}

/// In [`Slot::kind`]: nothing is received or sent now, and everything that was is dealt with.
const RESTS: u32 = 1 << 8;
/// There too: the server has closed it, or is about to.
const ENDED: u32 = 1 << 9;
/// There too: the server refuses the request of its client.
const REFUSED: u32 = 1 << 10;

/// What the goal for the memory of a connection is.
const _: () = assert!(size_of::<Slot>() <= 128);

/// All of them. Only what is used takes memory.
#[repr(C)]
pub(crate) struct Slots {
    /// Those behind were never used.
    used: AtomicU32,
    slots: [Slot; SLOTS],
    notes: [Notes; SLOTS],
}

// SAFETY: atomics alone, for which zeroes are a value.
unsafe impl AllZeroes for Slots {}
// SAFETY: as above; without padding, as the words fill it in order of their size but for its end.
unsafe impl AllZeroes for Slot {}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("inode", &self.inode).field("mark", &self.mark()).finish_non_exhaustive()
    }
}

impl Slots {
    pub(crate) fn new() -> io::Result<&'static Self> {
        share()
    }

    /// That of a descriptor.
    pub(crate) fn of(&self, descriptor: RawFd) -> Option<&Slot> {
        self.slots.get(usize::try_from(descriptor).ok()?)
    }

    /// The notes of a descriptor's connection.
    pub(crate) fn notes_of(&self, descriptor: RawFd) -> Option<&Notes> {
        self.notes.get(usize::try_from(descriptor).ok()?)
    }

    /// As [`of`](Self::of), to be used from now on.
    pub(crate) fn to_use(&self, descriptor: RawFd) -> Option<&Slot> {
        let slot = self.of(descriptor)?;
        let used = u32::try_from(descriptor).ok()? + 1;
        if self.used.load(Ordering::Relaxed) < used {
            self.used.fetch_max(used, Ordering::SeqCst);
        }
        Some(slot)
    }

    /// A new generation is about to look at those that are used.
    pub(crate) fn rehearse(&self) {
        pages::populate(std::ptr::from_ref(self).addr(), self.used_bytes());
    }

    /// With the first word, and no more than there is: who crashes may have written anything there.
    fn used_bytes(&self) -> usize {
        let used = (self.used.load(Ordering::Relaxed) as usize).min(SLOTS);
        (used + 1) * size_of::<Slot>()
    }

    /// Those that are about something, with the numbers of their descriptors.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (RawFd, &Slot)> {
        let used = self.used.load(Ordering::SeqCst) as usize;
        let numbered = self.slots.iter().take(used).enumerate();
        numbered.filter_map(|(number, slot)| {
            (slot.inode.load(Ordering::SeqCst) != 0).then_some((RawFd::try_from(number).ok()?, slot))
        })
    }
}

impl Slots {
    /// Those whose descriptors are gone, with the last process that had them, are about nothing.
    pub(crate) fn forget_lost(&self, inode: impl Fn(RawFd) -> Option<u64>) {
        for (number, slot) in self.in_use() {
            if !inode(number).is_some_and(|inode| slot.is_of(inode)) {
                slot.forget();
                slot.note_held(0);
            }
        }
    }
}

impl Slot {
    /// Of the socket that it is about, if any.
    pub(crate) fn inode(&self) -> Option<u64> {
        Some(self.inode.load(Ordering::SeqCst)).filter(|inode| *inode != 0)
    }

    /// Whether it is about the socket with this inode.
    pub(crate) fn is_of(&self, inode: u64) -> bool {
        self.inode.load(Ordering::SeqCst) == inode
    }

    /// Those that its marks refer to; 0: none.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = u32> {
        self.marks.iter().map(SharedMark::get).flat_map(|mark| [mark.buffer, mark.outbox])
    }

    /// Whether a buffer is its own, or will be if a transaction is committed.
    pub(crate) fn uses(&self, buffer: u32) -> bool {
        let uses = |mark: Mark| mark.buffer == buffer || mark.outbox == buffer;
        self.inode.load(Ordering::SeqCst) != 0
            && !self.has_ended()
            && (uses(self.mark())
                || self.pending().is_some() && self.marks.iter().any(|mark| uses(mark.get())))
    }

    /// Begins again.
    pub(crate) fn begin(&self, kind: u8, inode: u64, read_base: u64, written_base: u64) {
        self.inode.store(0, Ordering::SeqCst);
        self.kind.store(kind.into(), Ordering::Relaxed);
        self.read_base.store(read_base, Ordering::Relaxed);
        self.written_base.store(written_base, Ordering::Relaxed);
        self.next_base.store(0, Ordering::Relaxed);
        self.pending.store(0, Ordering::Relaxed);
        self.set_mark(&Mark::BEGIN);
        self.note_held(0);
        // From here on it counts.
        self.inode.store(inode, Ordering::SeqCst);
    }

    /// As it was [begun](Self::begin) with; 0 where it never was.
    pub(crate) fn kind(&self) -> u8 {
        self.kind.load(Ordering::Relaxed).to_le_bytes()[0]
    }

    /// Whether the mark says all there is to say: who comes later need not ask the kernel how far the connection has come.
    pub(crate) fn rests(&self) -> bool {
        self.kind.load(Ordering::SeqCst) & RESTS != 0 && self.pending().is_none()
    }

    /// To be said before something is received or sent, and when what that has led to is written down.
    pub(crate) fn set_rests(&self, rests: bool) {
        self.kind.store(u32::from(self.kind()) | if rests { RESTS } else { 0 }, Ordering::Release);
    }

    /// About nothing from now on.
    pub(crate) fn forget(&self) {
        self.inode.store(0, Ordering::SeqCst);
        self.pipe.iter().for_each(|end| end.store(0, Ordering::SeqCst));
    }

    /// Whether the server has closed it: whoever finds it open finishes that.
    pub(crate) fn has_ended(&self) -> bool {
        self.kind.load(Ordering::SeqCst) & ENDED != 0
    }

    /// To be said before it is closed.
    pub(crate) fn set_ended(&self) {
        self.kind.fetch_or(ENDED, Ordering::SeqCst);
    }

    /// Whether what was sent behind the mark is of a refusal: the next process sends the rest of that, and closes the connection.
    pub(crate) fn is_refused(&self) -> bool {
        self.kind.load(Ordering::SeqCst) & REFUSED != 0
    }

    /// To be said before the refusal is sent.
    pub(crate) fn set_refused(&self) {
        self.kind.fetch_or(REFUSED, Ordering::SeqCst);
    }

    /// To be called when the descriptor with this inode is closed. Its number may have been reused: clear the entry only if the
    /// inode matches.
    pub(crate) fn forget_ended(&self, inode: Option<u64>) {
        if let Some(inode) = inode {
            let _ = self.inode.compare_exchange(inode, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        self.marks.get(self.current() as usize).map_or(Mark::BEGIN, SharedMark::get)
    }

    /// The number of the mark that counts.
    pub(crate) fn current(&self) -> u32 {
        self.current.load(Ordering::SeqCst) & 1
    }

    /// The number of the one that will be written next.
    pub(crate) fn next(&self) -> u32 {
        (self.current.load(Ordering::Relaxed) & 1) ^ 1
    }

    /// At once: who comes later finds this mark or the one before, and nothing in between.
    ///
    /// The one that writes is the only one that does, and who reads it after its death sees what it has written in this
    /// order; so that releases will do, which cost nothing.
    pub(crate) fn set_mark(&self, mark: &Mark) {
        let next = self.prepare(mark);
        self.current.store(next, Ordering::Release);
    }

    /// As [`set_mark`](Self::set_mark), from when the transaction with this number is committed, if it is. That is to be
    /// [settled](Self::settle) before another mark is set.
    pub(crate) fn set_mark_with(&self, mark: &Mark, transaction: u64) {
        let next = self.prepare(mark);
        self.pending.store(transaction << 1 | u64::from(next), Ordering::Release);
    }

    /// Which transaction a mark depends on, if one does.
    pub(crate) fn pending(&self) -> Option<u64> {
        Some(self.pending.load(Ordering::SeqCst) >> 1).filter(|transaction| *transaction != 0)
    }

    /// The transaction was committed, or was not.
    pub(crate) fn settle(&self, committed: bool) {
        let pending = self.pending.load(Ordering::Relaxed);
        if pending != 0 {
            let next = u32::from(pending & 1 == 1);
            self.current.store(if committed { next } else { next ^ 1 }, Ordering::Release);
            self.pending.store(0, Ordering::Release);
        }
    }

    /// Writes the mark that does not count. Gives its number.
    fn prepare(&self, mark: &Mark) -> u32 {
        let next = self.next();
        if let Some(place) = self.marks.get(next as usize) {
            place.set(mark);
        }
        next
    }

    pub(crate) fn note_held(&self, bytes: usize) {
        self.held_bytes.store(u32::try_from(bytes).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn held_bytes(&self) -> u32 {
        self.held_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_can_depend_on_a_transaction() {
        let slot = Slots::new().unwrap().to_use(7).unwrap();
        slot.begin(1, 5, 0, 0);
        let mark = Mark { consumed_bytes: 1, ..Mark::BEGIN };
        for (transaction, committed) in [(1, false), (2, true), (3, true), (4, false)] {
            let before = slot.mark();
            let mark = Mark { consumed_bytes: transaction, ..mark };
            slot.set_mark_with(&mark, transaction);
            assert_eq!((slot.pending(), slot.mark()), (Some(transaction), before));
            slot.settle(committed);
            slot.settle(!committed);
            assert_eq!((slot.pending(), slot.mark()), (None, if committed { mark } else { before }));
        }
    }

    #[test]
    fn a_note_goes_with_its_mark() {
        let notes = Slots::new().unwrap().notes_of(7).unwrap();
        notes.set_next(b"first");
        notes.carry(1, true, 5);
        notes.set_next(b"second");
        notes.carry(0, false, 5);
        // SAFETY: nobody else has them.
        let of_mark = |mark, length| unsafe { notes.of_mark(mark, length) }.to_vec();
        assert_eq!((of_mark(1, 5), of_mark(0, 5)), (b"first".to_vec(), b"first".to_vec()));
        notes.carry(0, true, 6);
        assert_eq!((of_mark(1, 5), of_mark(0, 6)), (b"first".to_vec(), b"second".to_vec()));
    }

    #[test]
    fn a_mark_is_one_or_the_other() {
        let slots = Slots::new().unwrap();
        assert_eq!(slots.in_use().count(), 0);
        let slot = slots.to_use(7).unwrap();
        assert!(!slot.is_of(5));
        slot.begin(1, 5, 10, 20);
        assert_eq!((slot.is_of(5), slot.mark()), (true, Mark::BEGIN));
        for number in 1..100u64 {
            let word = u32::try_from(number).unwrap();
            let mark = Mark {
                consumed_bytes: 3 * number,
                written_bytes: 2 * number,
                buffer: word,
                begin_bytes: number,
                outbox: word,
                outbox_bytes: (1 << 24) - word,
                note_bytes: u8::try_from(number).unwrap(),
            };
            slot.set_mark(&mark);
            assert_eq!(slot.mark(), mark);
        }
        assert_eq!(slots.in_use().map(|(number, _)| number).collect::<Vec<_>>(), [7]);
        slots.forget_lost(|number| (number == 7).then_some(5));
        assert!(slot.is_of(5));
        slots.forget_lost(|_| None);
        assert!(!slot.is_of(5));
        assert!(slots.of(-1).is_none() && slots.of(1 << 20).is_none());
        assert_eq!(slots.in_use().count(), 0);
    }

    #[test]
    fn what_others_have_overwritten_is_not_believed() {
        let slots = Slots::new().unwrap();
        slots.used.store(u32::MAX, Ordering::SeqCst);
        assert!(slots.used_bytes() < size_of::<Slots>());
        slots.rehearse();
        assert_eq!(slots.in_use().count(), 0);
        let mark = Mark { consumed_bytes: 10, buffer: 1, ..Mark::BEGIN };
        assert!(mark.is_possible(10) && mark.is_possible(10 + (64 << 10)));
        assert!(!mark.is_possible(9) && !mark.is_possible(11 + (64 << 10)));
        assert!(!Mark { buffer: 0, ..mark }.is_possible(11));
        assert!(Mark { outbox: 1, outbox_bytes: 64 << 10, ..mark }.is_possible(10));
        assert!(!Mark { outbox: 1, outbox_bytes: 1 << 17, ..mark }.is_possible(10));
    }
}
