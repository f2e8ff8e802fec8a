//! Memory that many sessions have given back at once. The allocator keeps it, in pieces between what is still in use, until it is asked to
//! return it to the system. That holds up whoever asks for memory meanwhile, and looks at all of the process's memory: only a program
//! whose memory is sessions' has it done ([`Memory::return_when_free`](super::Memory::return_when_free)).

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Less is not worth the time. The pool keeps half of it for the next sessions.
const FREED_BYTES_MIN: u64 = 32 << 20;
/// While more is given back, it is waited for.
const SETTLES: Duration = Duration::from_secs(1);
/// Given back in that time, this is more.
const MORE_BYTES: u64 = 1 << 20;
/// What is returned has to be had again when it is needed: not more often than this.
const PAUSE: Duration = Duration::from_secs(10);

/// Whether this process wants it.
static WANTED: AtomicBool = AtomicBool::new(false);
/// The helper knows that there is something to return.
static TOLD: AtomicBool = AtomicBool::new(false);
/// The most that was in use since it was returned.
static PEAK_BYTES: AtomicU64 = AtomicU64::new(0);

pub(super) fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// So much is in use, after more was taken.
pub(in crate::engine) fn note_taken(used_bytes: u64) {
    if used_bytes > PEAK_BYTES.load(Ordering::Relaxed) {
        PEAK_BYTES.fetch_max(used_bytes, Ordering::Relaxed);
    }
}

/// So much is in use, after some was given back. True if the helper has to hear of it.
pub(in crate::engine) fn note_given(used_bytes: u64) -> bool {
    WANTED.load(Ordering::Relaxed)
        && is_due(PEAK_BYTES.load(Ordering::Relaxed), used_bytes)
        && !TOLD.load(Ordering::Relaxed)
        && !TOLD.swap(true, Ordering::Relaxed)
}

/// Whether so much less is in use than there was at the most that it should be returned: half of it, at the least.
fn is_due(peak_bytes: u64, used_bytes: u64) -> bool {
    peak_bytes.saturating_sub(used_bytes) >= FREED_BYTES_MIN.max(peak_bytes / 2)
}

/// When it is returned: the helper's.
#[derive(Debug, Default)]
pub(in crate::engine) struct Trim {
    /// When to look, and what was in use at the look before.
    next: Option<(Instant, u64)>,
    last: Option<Instant>,
}

impl Trim {
    /// There is something to return.
    pub(in crate::engine) fn plan(&mut self, used_bytes: u64, now: Instant) {
        let not_before = self.last.map_or(now, |last| last + PAUSE);
        self.next = Some(((now + SETTLES).max(not_before), used_bytes));
    }

    /// When there may be something to do.
    pub(in crate::engine) fn next(&self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }

    /// Whether it is to be returned now.
    fn is_now(&mut self, used_bytes: u64, now: Instant) -> bool {
        let Some((_, before_bytes)) = self.next.filter(|(at, _)| now >= *at) else { return false };
        if used_bytes + MORE_BYTES <= before_bytes {
            self.next = Some((now + SETTLES, used_bytes));
            return false;
        }
        (self.next, self.last) = (None, Some(now));
        true
    }

    /// Returns it, if it is time.
    pub(in crate::engine) fn look(&mut self, used_bytes: impl Fn() -> u64) {
        if self.next.is_some() && self.is_now(used_bytes(), Instant::now()) {
            PEAK_BYTES.store(used_bytes(), Ordering::Relaxed);
            TOLD.store(false, Ordering::Relaxed);
            sys::return_free_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_is_returned_when_most_of_much_is_free() {
        for (peak, used, due) in [
            (0, 0, false),
            (31, 0, false),
            (32, 0, true),
            (100, 51, false),
            (100, 50, true),
            (100, 100, false),
            (0, 5, false),
        ] {
            assert_eq!(is_due(peak * MIB, used * MIB), due, "{peak} {used}");
        }
    }

    #[test]
    fn it_is_returned_once_nobody_gives_more_back_and_not_again_and_again() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut trim = Trim::default();
        assert!(!trim.is_now(0, at(100)), "nothing was planned");
        trim.plan(500 * MIB, at(0));
        assert_eq!(trim.next(), Some(at(1)));
        assert!(!trim.is_now(300 * MIB, at(1)), "there is more to come");
        assert!(!trim.is_now(100 * MIB, at(2)));
        assert!(trim.is_now(100 * MIB, at(3)));
        assert_eq!(trim.next(), None);
        trim.plan(50 * MIB, at(4));
        assert_eq!(trim.next(), Some(at(13)));
        assert!(!trim.is_now(50 * MIB, at(12)));
        assert!(trim.is_now(50 * MIB, at(13)));
    }
}
