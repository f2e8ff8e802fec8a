//! The region's lock: one word that says which thread holds it, in any process.
//!
//! Who finds it held looks whether that thread is still alive, and takes it over if not. Robust mutexes of a C library were
//! not chosen: their content cannot be checked at adoption, they take the id of a thread from where a child made by a bare
//! `clone` has its parent's, and the list that the kernel walks can be overwritten by the very crash it is there for. Dead
//! owners are found at once by whoever comes, and within [`LOOK_AGAIN`] by who waits already.

use super::error::{Result, StateError};
use crate::sys::futex;
use crate::sys::region::lower_half;
use crate::sys::thread::{Thread, is_alive, this_thread};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Looks at the word before the owner is looked at, and the caller sleeps: most transactions are over by then.
const SPINS: u32 = 64;
/// Between two looks at whether the owner is alive.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Of the lower half. The rest of that is the id of the owner; the upper half is when that was started.
const WAITERS: u64 = 1 << 31;
const ID: u64 = WAITERS - 1;

/// Held until it is dropped, by the thread that has taken it.
pub(crate) struct Held<'a> {
    word: &'a AtomicU64,
    /// When that thread ends, it is nobody's any more: so it stays there.
    stays: PhantomData<*mut ()>,
}

impl<'a> Held<'a> {
    fn new(word: &'a AtomicU64) -> Self {
        Self { word, stays: PhantomData }
    }
}

/// Waits for it, if need be.
///
/// # Errors
/// [`Nested`](StateError::Nested): the calling thread has it.
#[inline]
pub(crate) fn lock(word: &AtomicU64) -> Result<Held<'_>> {
    let thread = this_thread();
    let mine = u64::from(thread.start) << 32 | u64::from(thread.id);
    match word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Ok(Held::new(word)),
        Err(_) => wait(word, mine),
    }
}

#[cold]
fn wait(word: &AtomicU64, mine: u64) -> Result<Held<'_>> {
    let mut spins_left = SPINS;
    loop {
        let value = word.load(Ordering::Relaxed);
        if value & !WAITERS == mine {
            return Err(StateError::Nested);
        }
        if value != 0 && spins_left > 0 {
            spins_left -= 1;
            std::hint::spin_loop();
            continue;
        }
        if value == 0 || !is_alive(owner(value)) {
            // Others may wait, too.
            if word.compare_exchange(value, mine | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Held::new(word));
            }
            continue;
        }
        let waited = value | WAITERS;
        if value == waited
            || word.compare_exchange(value, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let lower = u32::try_from(waited & u64::from(u32::MAX)).unwrap_or(0);
            futex::wait(lower_half(word), lower, Some(LOOK_AGAIN));
        }
    }
}

fn owner(value: u64) -> Thread {
    let half = |bits: u64| u32::try_from(bits).unwrap_or(0);
    Thread { id: half(value & ID), start: half(value >> 32) }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            // Whoever misses it looks again before long.
            let _ = futex::wake(lower_half(self.word), 1);
        }
    }
}
