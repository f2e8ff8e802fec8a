//! What each thread of a generation is about: which connection's request it deals with, and whether it is alive. Written
//! by the threads, read by the zygote, and by the next generation when this one has died.

use crate::sys::pages;
use crate::sys::process::thread_id;
use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Threads beyond that go unwatched.
const THREADS: usize = 4096;

/// One thread.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// 0: none.
    id: AtomicU32,
    /// The descriptor of the connection whose request it deals with, plus 1; 0: none.
    current: AtomicU32,
    /// Odd while it is busy. Counts on with every sign of life.
    beat: AtomicU64,
}

/// Those of one generation.
#[repr(C)]
pub(crate) struct Threads {
    /// Places behind were never taken.
    used: AtomicU32,
    threads: [Thread; THREADS],
}

thread_local! {
    /// That of the calling thread. Without a destructor and lazy initialisation, so that a fault handler can read it.
    static MINE: Cell<Option<&'static Thread>> = const { Cell::new(None) };
    /// What it dealt with when it left its place: who ends the process does so before the exit handlers are called.
    static LEFT: Cell<Option<RawFd>> = const { Cell::new(None) };
    static LEAVES: Leaves = const { Leaves };
}

/// Frees the place of a thread that ends.
struct Leaves;

impl Drop for Leaves {
    fn drop(&mut self) {
        if let Some(thread) = MINE.take() {
            LEFT.set(thread.connection());
            thread.current.store(0, Ordering::Relaxed);
            // It counts on: who has the place next is not to be taken for this one, still at the same piece of work.
            thread.rest();
            thread.id.store(0, Ordering::Release);
        }
    }
}

impl Threads {
    /// For a new generation: nobody is in it.
    pub(crate) fn clear(&self) {
        for thread in self.used() {
            thread.id.store(0, Ordering::Relaxed);
            thread.current.store(0, Ordering::Relaxed);
            thread.beat.store(0, Ordering::Relaxed);
        }
        self.used.store(0, Ordering::Relaxed);
        MINE.set(None);
    }

    /// The first thread's place is about to be used.
    pub(crate) fn rehearse(&self) {
        pages::populate(std::ptr::from_ref(self).addr(), 2 * size_of::<Thread>());
    }

    fn used(&self) -> &[Thread] {
        self.threads.get(..self.used.load(Ordering::Relaxed) as usize).unwrap_or(&self.threads)
    }

    /// The calling thread's place; none if all are taken.
    fn mine(&'static self) -> Option<&'static Thread> {
        if let Some(thread) = MINE.get() {
            return Some(thread);
        }
        let id = thread_id().cast_unsigned();
        let free =
            |thread: &Thread| thread.id.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // A place that nobody has had, as long as there are some.
        let fresh = self.used.fetch_add(1, Ordering::AcqRel) as usize;
        let thread = match self.threads.get(fresh) {
            Some(thread) => Some(thread).filter(|thread| free(thread))?,
            None => {
                self.used.fetch_sub(1, Ordering::AcqRel);
                self.threads.iter().find(|thread| free(thread))?
            }
        };
        MINE.set(Some(thread));
        let _ = LEAVES.try_with(|_| ());
        Some(thread)
    }

    /// The calling thread deals with a request from this descriptor.
    pub(crate) fn deals_with(&'static self, descriptor: RawFd) {
        if let Some(thread) = self.mine() {
            thread.current.store(descriptor.cast_unsigned().wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// It deals with none.
    pub(crate) fn is_through(&'static self) {
        if let Some(thread) = MINE.get() {
            thread.current.store(0, Ordering::Relaxed);
        }
    }

    /// The calling thread works from now on.
    pub(crate) fn busy(&'static self) {
        if let Some(thread) = self.mine() {
            thread.beat.store((thread.beat.load(Ordering::Relaxed) + 2) | 1, Ordering::Relaxed);
        }
    }

    /// It waits from now on.
    pub(crate) fn idle(&'static self) {
        if let Some(thread) = self.mine() {
            thread.rest();
        }
    }

    /// What all of them deal with.
    pub(crate) fn all_current(&self) -> impl Iterator<Item = RawFd> {
        self.used().iter().filter_map(Thread::connection)
    }

    /// Which of them have been busy without a sign of life since `before` was taken, and with what.
    pub(crate) fn stuck(&self, before: &Beats) -> Vec<Option<RawFd>> {
        let stuck = self.used().iter().zip(&before.0).filter(|(thread, before)| {
            let beat = thread.beat.load(Ordering::Relaxed);
            beat & 1 == 1 && beat == **before && thread.id.load(Ordering::Relaxed) != 0
        });
        stuck.map(|(thread, _)| thread.connection()).collect()
    }

    /// For [`stuck`](Self::stuck).
    pub(crate) fn beats(&self) -> Beats {
        Beats(self.used().iter().map(|thread| thread.beat.load(Ordering::Relaxed)).collect())
    }
}

/// The signs of life of all threads at one moment.
pub(crate) struct Beats(Vec<u64>);

impl Thread {
    fn rest(&self) {
        self.beat.store((self.beat.load(Ordering::Relaxed) + 2) & !1, Ordering::Relaxed);
    }

    fn connection(&self) -> Option<RawFd> {
        RawFd::try_from(self.current.load(Ordering::Relaxed).checked_sub(1)?).ok()
    }
}

/// What the calling thread deals with. To be called from a signal handler and an exit handler, too.
pub(crate) fn current() -> Option<RawFd> {
    MINE.get().map_or_else(|| LEFT.get(), Thread::connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_used_again_is_not_taken_for_the_one_who_left_it() {
        let threads: &'static Threads =
            crate::sys::shared::share::<crate::control::Control>().unwrap().threads(0);
        std::thread::spawn(|| threads.busy()).join().unwrap();
        let left = threads.threads.first().unwrap().beat.load(Ordering::Relaxed);
        // As when all places were had before.
        threads.used.store(0, Ordering::Relaxed);
        threads.busy();
        let before = threads.beats();
        assert!(before.0.first().is_some_and(|beat| *beat > left && beat & 1 == 1), "{left} {:?}", before.0);
    }

    #[test]
    fn who_is_busy_and_gives_no_sign_of_life_is_stuck() {
        let threads: &'static Threads =
            crate::sys::shared::share::<crate::control::Control>().unwrap().threads(0);
        threads.idle();
        threads.deals_with(7);
        assert_eq!((threads.stuck(&threads.beats()), current()), (vec![], Some(7)));
        threads.busy();
        let before = threads.beats();
        assert_eq!(threads.stuck(&before), [Some(7)]);
        std::thread::spawn(|| threads.busy()).join().unwrap();
        threads.busy();
        assert_eq!(threads.stuck(&before), []);
        threads.is_through();
        assert_eq!((threads.stuck(&threads.beats()), current()), (vec![None], None));
        threads.clear();
        assert_eq!(threads.stuck(&threads.beats()), []);
    }
}
