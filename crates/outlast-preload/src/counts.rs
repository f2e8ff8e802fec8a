//! How many connections a server has, in all its processes: each counts its own where the keeper sees it.

use crate::sys::{self, Pid};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// Processes that are forked, and whose connections are counted. Those of more are not.
const WORKERS: usize = 1024;

/// One process that was forked, with all its generations.
#[derive(Debug)]
#[repr(C)]
struct Worker {
    /// 0: none.
    keeper: AtomicI32,
    connections: AtomicU32,
}

/// Those of a server: shared memory.
#[derive(Debug)]
#[repr(C)]
pub struct Counts {
    main: AtomicU32,
    workers: [Worker; WORKERS],
}

/// Where this process counts; null: nowhere.
static OWN: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

fn own() -> Option<&'static AtomicU32> {
    // SAFETY: null, or from a reference that is good for ever.
    unsafe { OWN.load(Ordering::Relaxed).as_ref() }
}

fn set_own(count: Option<&'static AtomicU32>) {
    let count = count.map_or(std::ptr::null_mut(), |count| std::ptr::from_ref(count).cast_mut());
    OWN.store(count, Ordering::Relaxed);
}

/// One more.
pub fn add() {
    if let Some(count) = own() {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// One less.
pub fn remove() {
    if let Some(count) = own() {
        let less = |count: u32| Some(count.saturating_sub(1));
        let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// None: what the generation before has counted when it died may be wrong by one.
pub fn reset() {
    if let Some(count) = own() {
        count.store(0, Ordering::Relaxed);
    }
}

impl Counts {
    /// This process and its copies count as the server itself.
    pub fn count_main(&'static self) {
        set_own(Some(&self.main));
    }

    /// This process, which was forked and is about to become the keeper of its copies, counts for itself.
    pub fn count_worker(&'static self) {
        let claims = |worker: &&Worker| {
            worker.keeper.compare_exchange(0, sys::pid(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let worker = self.workers.iter().find(claims);
        set_own(worker.map(|worker| &worker.connections));
        reset();
    }

    /// All of them. In the keeper.
    pub fn sum(&self) -> u32 {
        let forked = self.workers.iter().map(|worker| {
            let keeper: Pid = worker.keeper.load(Ordering::SeqCst);
            if keeper == 0 {
                return 0;
            }
            if !sys::exists(keeper) {
                worker.keeper.store(0, Ordering::SeqCst);
                return 0;
            }
            worker.connections.load(Ordering::Relaxed)
        });
        forked.fold(self.main.load(Ordering::Relaxed), u32::saturating_add)
    }
}
