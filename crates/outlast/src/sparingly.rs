//! Warnings that strangers can cause: a few at once, then one in a while that counts those in between.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// As many are given at once.
const AT_ONCE: u32 = 10;
/// Then one in so long.
const EVERY: Duration = Duration::from_secs(10);

/// Decides which warnings of one kind are given.
#[derive(Debug)]
pub struct Sparingly(Mutex<State>);

#[derive(Debug)]
struct State {
    /// How many may be given now.
    left: u32,
    /// When the last was added to those.
    refilled: Option<Instant>,
    skipped: u64,
}

impl Sparingly {
    /// Nothing was warned of yet.
    pub const fn new() -> Self {
        Self(Mutex::new(State { left: AT_ONCE, refilled: None, skipped: 0 }))
    }

    /// Something is to be warned of at `now`. If it is: how many were not since the last one.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refilled = *state.refilled.get_or_insert(now);
        let whole = now.saturating_duration_since(refilled).as_secs() / EVERY.as_secs();
        let more = u32::try_from(whole).unwrap_or(u32::MAX);
        if more > 0 {
            state.left = state.left.saturating_add(more).min(AT_ONCE);
            state.refilled = Some(now);
        }
        if state.left == 0 {
            state.skipped += 1;
            return None;
        }
        state.left -= 1;
        Some(std::mem::take(&mut state.skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_a_rare_one_is_always_told() {
        let sparingly = Sparingly::new();
        let start = Instant::now();
        let told = (0..1000).filter(|_| sparingly.due(start).is_some()).count();
        assert_eq!(told, 10);
        assert_eq!(sparingly.due(start + EVERY), Some(990));
        assert_eq!(sparingly.due(start + EVERY), None);
        for hour in 1..100 {
            assert!(sparingly.due(start + EVERY + hour * Duration::from_secs(3600)).is_some());
        }
    }
}
