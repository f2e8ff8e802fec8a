//! A crash before a chosen store, for tests: nothing is stored from there on, and the operation ends as a panic.

use std::cell::Cell;

thread_local! {
    static STORES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The marker of this panic.
pub(super) struct Crash;

/// Whether a store is lost, as the process is dead by then.
pub(super) fn burn() -> bool {
    match STORES_LEFT.get() {
        // What is dropped on the way out.
        Some(0) if std::thread::panicking() => return true,
        Some(0) => std::panic::resume_unwind(Box::new(Crash)),
        Some(left) => STORES_LEFT.set(Some(left - 1)),
        None => {}
    }
    false
}

/// Runs `work` and crashes it before store number `stores`. None if it did not have so many.
pub(super) fn crash_after<T>(stores: u64, work: impl FnOnce() -> T) -> Option<T> {
    STORES_LEFT.set(Some(stores));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    STORES_LEFT.set(None);
    match result {
        Ok(value) => Some(value),
        Err(panic) if panic.is::<Crash>() => None,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
