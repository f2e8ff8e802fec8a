//! What the generations remember of each connection: memory that all of them share, found by the number of its
//! descriptor, which is the same in all of them.

use crate::sys::shared::{AllZeroes, share};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Input that a connection can hold which is not dealt with yet: the longest request.
pub(crate) const HELD_BYTES: usize = 64 << 10;
/// Descriptors below this number can be held.
pub(crate) const SLOTS: usize = 4096;

/// How far a connection's requests are dealt with: what was read of them, and what was written for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) consumed_bytes: u64,
    pub(crate) written_bytes: u64,
}

/// One connection.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Which socket this is about; 0: none. Numbers are used again.
    inode: AtomicU64,
    /// The kernel's counters when it began.
    read_base: AtomicU64,
    written_base: AtomicU64,
    /// Two marks, of which the one with this number counts: so both numbers change at once, whenever a process dies.
    current: AtomicU32,
    consumed_bytes: [AtomicU64; 2],
    written_bytes: [AtomicU64; 2],
    /// A ring: byte `n` of the input is at `n % HELD_BYTES`.
    held: [AtomicU8; HELD_BYTES],
}

/// All of them. Only what is used takes memory.
#[repr(C)]
pub(crate) struct Slots([Slot; SLOTS]);

// SAFETY: atomics alone, for which zeroes are a value.
unsafe impl AllZeroes for Slots {}

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
        self.0.get(usize::try_from(descriptor).ok()?)
    }
}

impl Slot {
    /// Whether it is about the socket with this inode.
    pub(crate) fn is_of(&self, inode: u64) -> bool {
        self.inode.load(Ordering::SeqCst) == inode
    }

    /// Begins anew.
    pub(crate) fn begin(&self, inode: u64, read_base: u64, written_base: u64) {
        self.inode.store(0, Ordering::SeqCst);
        self.read_base.store(read_base, Ordering::SeqCst);
        self.written_base.store(written_base, Ordering::SeqCst);
        self.set_mark(Mark::default());
        // From here on it counts.
        self.inode.store(inode, Ordering::SeqCst);
    }

    pub(crate) fn forget(&self) {
        self.inode.store(0, Ordering::SeqCst);
    }

    pub(crate) fn bases(&self) -> (u64, u64) {
        (self.read_base.load(Ordering::SeqCst), self.written_base.load(Ordering::SeqCst))
    }

    pub(crate) fn mark(&self) -> Mark {
        let current = self.current.load(Ordering::SeqCst) as usize & 1;
        let at =
            |numbers: &[AtomicU64; 2]| numbers.get(current).map_or(0, |number| number.load(Ordering::SeqCst));
        Mark { consumed_bytes: at(&self.consumed_bytes), written_bytes: at(&self.written_bytes) }
    }

    /// At once: who comes later finds this mark or the one before, and nothing in between.
    pub(crate) fn set_mark(&self, mark: Mark) {
        let next = (self.current.load(Ordering::SeqCst) as usize & 1) ^ 1;
        if let (Some(consumed), Some(written)) = (self.consumed_bytes.get(next), self.written_bytes.get(next))
        {
            consumed.store(mark.consumed_bytes, Ordering::SeqCst);
            written.store(mark.written_bytes, Ordering::SeqCst);
        }
        self.current.store(u32::try_from(next).unwrap_or(0), Ordering::SeqCst);
    }

    pub(crate) fn held(&self) -> &[AtomicU8; HELD_BYTES] {
        &self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_one_or_the_other() {
        let slots = Slots::new().unwrap();
        let slot = slots.of(7).unwrap();
        assert!(!slot.is_of(5));
        slot.begin(5, 10, 20);
        assert_eq!((slot.is_of(5), slot.bases(), slot.mark()), (true, (10, 20), Mark::default()));
        for number in 1..100 {
            let mark = Mark { consumed_bytes: number, written_bytes: 2 * number };
            slot.set_mark(mark);
            assert_eq!(slot.mark(), mark);
        }
        slot.forget();
        assert!(!slot.is_of(5));
        assert!(slots.of(-1).is_none() && slots.of(1 << 20).is_none());
    }
}
