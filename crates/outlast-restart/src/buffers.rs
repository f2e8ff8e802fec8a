//! Where input is held until its requests are dealt with: memory that all generations share, lent to connections that
//! have any, and to those only.
//!
//! Who has which buffer is in the connections' [marks](crate::slots); which are free follows from that, and each
//! generation finds out for itself. So that it need not look at all connections, every buffer knows who may have it.

use crate::slots::{BUFFER_BYTES_MAX, Slots};
use crate::sys::shared::{AllZeroes, bytes, bytes_mut, share};
use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Enough for nearly every request, and little enough to stay in a cache.
const SMALL_BYTES: usize = 64 << 10;
const SMALL_COUNT: u32 = 1 << 14;
/// For the others: the longest request.
const LARGE_BYTES: usize = BUFFER_BYTES_MAX;
const LARGE_COUNT: u32 = 64;
/// Buffers that a thread keeps for its next request.
const KEPT: usize = 4;

/// All of them. Only what is used takes memory.
#[repr(C)]
struct Memory {
    /// Those behind were never lent.
    used: AtomicU32,
    /// The descriptor that has it, or had it last, plus 1; 0: none has. By the number of the buffer.
    borrowers: [AtomicU32; (SMALL_COUNT + LARGE_COUNT + 1) as usize],
    _aligned: Aligned,
    small: [[AtomicU8; SMALL_BYTES]; SMALL_COUNT as usize],
    large: [[AtomicU8; LARGE_BYTES]; LARGE_COUNT as usize],
}

/// What follows begins with a page.
#[repr(C, align(4096))]
struct Aligned;

// SAFETY: atomics alone, for which zeroes are a value.
unsafe impl AllZeroes for Memory {}

/// The buffers, and which of them are free in this generation.
pub(crate) struct Buffers {
    memory: &'static Memory,
    free: Mutex<Option<Free>>,
}

/// The last one that was given back is the first to be lent: it is in the cache.
struct Free {
    small: Vec<u32>,
    large: Vec<u32>,
    /// Numbers from here on were never lent.
    next_small: u32,
}

thread_local! {
    /// Given back by this thread. Lost for this generation when the thread ends with some, but for what `Drop` saves.
    static MINE: RefCell<Mine> = const { RefCell::new(Mine { buffers: None, numbers: Vec::new() }) };
}

struct Mine {
    buffers: Option<&'static Buffers>,
    numbers: Vec<u32>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(buffers) = self.buffers {
            for number in self.numbers.drain(..) {
                buffers.give_back_to_all(number);
            }
        }
    }
}

/// How long one is.
pub(crate) fn length(number: u32) -> usize {
    match number {
        0 => 0,
        1..=SMALL_COUNT => SMALL_BYTES,
        _ => LARGE_BYTES,
    }
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

impl Buffers {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { memory: share()?, free: Mutex::new(None) })
    }

    /// Whether children that are made from now on have the memory.
    pub(crate) fn set_inherited(&self, inherited: bool) -> io::Result<()> {
        crate::sys::shared::set_inherited(self.memory, inherited)
    }

    /// Finds out what is free, before any connection of this generation gives something back.
    pub(crate) fn prepare(&self, slots: &Slots) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.get_or_insert_with(|| self.find_free(slots));
    }

    /// A buffer for `length` bytes, for a descriptor.
    pub(crate) fn lend(&'static self, length: usize, descriptor: RawFd) -> io::Result<u32> {
        let number = self.any(length)?;
        if let Some(borrower) = self.memory.borrowers.get(number as usize) {
            // Before its mark says so.
            borrower.store(descriptor.cast_unsigned().wrapping_add(1), Ordering::Release);
        }
        Ok(number)
    }

    /// Whether it was lent to this descriptor last, and was not given back.
    pub(crate) fn is_lent_to(&self, number: u32, descriptor: RawFd) -> bool {
        let mine = descriptor.cast_unsigned().wrapping_add(1);
        number != 0
            && self
                .memory
                .borrowers
                .get(number as usize)
                .is_some_and(|borrower| borrower.load(Ordering::Acquire) == mine)
    }

    /// Another binary has lent it.
    pub(crate) fn note_lent(&self, number: u32, descriptor: RawFd) {
        if let Some(borrower) = self.memory.borrowers.get(number as usize) {
            borrower.store(descriptor.cast_unsigned().wrapping_add(1), Ordering::Release);
            self.memory.used.fetch_max(number + 1, Ordering::AcqRel);
        }
    }

    fn any(&'static self, length: usize) -> io::Result<u32> {
        if length <= SMALL_BYTES {
            let mine = MINE.try_with(|mine| mine.borrow_mut().numbers.pop());
            if let Ok(Some(number)) = mine {
                return Ok(number);
            }
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = free.as_mut().filter(|_| length <= LARGE_BYTES) {
            let list = if length <= SMALL_BYTES { &mut free.small } else { &mut free.large };
            if let Some(number) = list.pop() {
                self.memory.used.fetch_max(number + 1, Ordering::AcqRel);
                return Ok(number);
            }
            if length <= SMALL_BYTES && free.next_small <= SMALL_COUNT {
                free.next_small += 1;
                self.memory.used.fetch_max(free.next_small, Ordering::AcqRel);
                return Ok(free.next_small - 1);
            }
        }
        let why = "all memory for requests that are not dealt with is in use";
        Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
    }

    /// Those that no mark refers to.
    fn find_free(&self, slots: &Slots) -> Free {
        let used = self.memory.used.load(Ordering::Acquire);
        let is_free = |number: &u32| {
            let borrower = self.memory.borrowers.get(*number as usize);
            let borrower = borrower.and_then(|borrower| borrower.load(Ordering::Acquire).checked_sub(1));
            let slot = borrower.and_then(|borrower| slots.of(RawFd::try_from(borrower).ok()?));
            slot.is_none_or(|slot| !slot.uses(*number))
        };
        let next_small = used.clamp(1, SMALL_COUNT + 1);
        Free {
            small: (1..next_small).rev().filter(is_free).collect(),
            large: (SMALL_COUNT + 1..=SMALL_COUNT + LARGE_COUNT).filter(is_free).collect(),
            next_small,
        }
    }

    /// Nothing refers to it any more.
    pub(crate) fn give_back(&'static self, number: u32) {
        if let Some(borrower) = self.memory.borrowers.get(number as usize) {
            borrower.store(0, Ordering::Release);
        }
        if (1..=SMALL_COUNT).contains(&number) {
            let kept = MINE.try_with(|mine| {
                let mut mine = mine.borrow_mut();
                mine.buffers = Some(self);
                let room = mine.numbers.len() < KEPT;
                if room {
                    mine.numbers.push(number);
                }
                room
            });
            if kept == Ok(true) {
                return;
            }
        }
        self.give_back_to_all(number);
    }

    fn give_back_to_all(&self, number: u32) {
        if number > SMALL_COUNT {
            // Such requests are rare, and their memory is large.
            crate::sys::shared::forget(self.whole(number));
        }
        if let Some(free) = self.free.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            match number {
                0 => {}
                1..=SMALL_COUNT => free.small.push(number),
                _ => free.large.push(number),
            }
        }
    }

    fn whole(&self, number: u32) -> &[AtomicU8] {
        let place = (number as usize).wrapping_sub(1);
        match number {
            0 => &[],
            1..=SMALL_COUNT => self.memory.small.get(place).map_or(&[], |buffer| buffer.as_slice()),
            _ => self.memory.large.get(place - SMALL_COUNT as usize).map_or(&[], |buffer| buffer.as_slice()),
        }
    }

    /// What a buffer holds.
    ///
    /// # Safety
    /// The caller has been lent this buffer, or whoever has does not run, and nobody changes these bytes as long as the
    /// result is used.
    pub(crate) unsafe fn bytes(&self, number: u32, begin: usize, length: usize) -> &[u8] {
        // SAFETY: as the caller says.
        unsafe { bytes(self.whole(number), begin, length) }
    }

    /// Room in a buffer, for the kernel to fill.
    ///
    /// # Safety
    /// The caller has been lent this buffer, and nobody uses these bytes as long as the result is used.
    #[allow(clippy::mut_from_ref, reason = "shared memory is changed through shared references")]
    pub(crate) unsafe fn room(&self, number: u32, begin: usize, length: usize) -> &mut [u8] {
        // SAFETY: as the caller says.
        unsafe { bytes_mut(self.whole(number), begin, length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Mark;
    use std::collections::BTreeSet;

    #[test]
    fn what_a_connection_has_is_not_lent_to_another_one() {
        let slots = Slots::new().unwrap();
        let generation = |memory| -> &'static Buffers {
            let buffers = Box::leak(Box::new(Buffers { memory, free: Mutex::new(None) }));
            buffers.prepare(slots);
            buffers
        };
        let memory = share().unwrap();
        let buffers = generation(memory);
        let lent: Vec<u32> = (10..13).map(|descriptor| buffers.lend(1, descriptor).unwrap()).collect();
        assert_eq!(lent, [1, 2, 3]);
        let large = buffers.lend(SMALL_BYTES + 1, 13).unwrap();
        assert_eq!(length(large), LARGE_BYTES);
        // It dies. Of the four, two are in use.
        for (descriptor, buffer) in [(11, 2), (13, large)] {
            slots.to_use(descriptor).unwrap().begin(1, 1, 0, 0);
            slots.of(descriptor).unwrap().set_mark(&Mark { buffer, ..Mark::BEGIN });
        }
        let buffers = generation(memory);
        let lent: Vec<u32> = (14..17).map(|descriptor| buffers.lend(1, descriptor).unwrap()).collect();
        assert_eq!(lent, [1, 3, 4]);
        buffers.give_back(3);
        assert_eq!(buffers.lend(SMALL_BYTES, 17).unwrap(), 3);
        // SAFETY: it was lent to this test, which uses it nowhere else.
        unsafe { buffers.room(large, LARGE_BYTES - 4, 4) }.copy_from_slice(b"last");
        // SAFETY: as above.
        assert_eq!(unsafe { buffers.bytes(large, LARGE_BYTES - 4, 4) }, b"last");
        assert!(buffers.lend(LARGE_BYTES + 1, 18).is_err());
        let others: BTreeSet<u32> = std::iter::from_fn(|| buffers.lend(LARGE_BYTES, 18).ok()).collect();
        assert_eq!((others.len(), others.contains(&large)), (LARGE_COUNT as usize - 1, false));
        buffers.give_back(large);
        // SAFETY: nobody else is here.
        let bytes = unsafe { buffers.bytes(large, LARGE_BYTES - 4, 4) };
        assert_eq!(bytes, [0; 4], "given back to the system");
    }
}
