//! Memory that many sessions have given back at once. The allocator keeps it, in pieces between what is still in use, until it is asked to
//! return it to the system.

use super::super::pool::{forget_peak, peak_bytes, pool_bytes};
use crate::sys;
use std::sync::atomic::{AtomicU64, Ordering};

/// Less is not worth the time: the allocator looks at all that it keeps.
const FREED_BYTES_MIN: u64 = 16 << 20;
/// What is returned has to be had again when it is needed: not more often than this.
const PAUSE_MS: u64 = 10_000;

/// When it may be returned the next time.
static NEXT_MS: AtomicU64 = AtomicU64::new(0);

/// Whether so much less is in use than there was at the most that it should be returned: half of it, at the least.
fn is_due(peak_bytes: u64, used_bytes: u64) -> bool {
    peak_bytes.saturating_sub(used_bytes) >= FREED_BYTES_MIN.max(peak_bytes / 2)
}

/// In how many milliseconds there may be something to return, if there is nothing to do before.
pub(in crate::engine) fn due_in_ms() -> Option<u64> {
    let wait_ms = NEXT_MS.load(Ordering::Relaxed).saturating_sub(sys::coarse_now_ms());
    is_due(peak_bytes(), pool_bytes()).then_some(wait_ms)
}

/// Returns it, if it is time. Called by the helper.
pub(in crate::engine) fn look() {
    if due_in_ms() != Some(0) {
        return;
    }
    NEXT_MS.store(sys::coarse_now_ms() + PAUSE_MS, Ordering::Relaxed);
    forget_peak();
    sys::return_free_memory();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_returned_when_most_of_much_is_free() {
        const MIB: u64 = 1 << 20;
        for (peak, used, due) in [
            (0, 0, false),
            (15, 0, false),
            (16, 0, true),
            (100, 51, false),
            (100, 50, true),
            (100, 100, false),
        ] {
            assert_eq!(is_due(peak * MIB, used * MIB), due, "{peak} {used}");
        }
        // Others of this process's tests may have taken and given some meanwhile.
        assert!(!is_due(0, 5 * MIB));
    }
}
