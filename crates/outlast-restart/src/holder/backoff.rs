//! How long to leave a holder alone that is not there.

use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Doubles with every failure in a row, from 10 ms to a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    /// In milliseconds of the caller's clock.
    not_before_ms: u64,
}

impl Backoff {
    pub(super) fn may_try(&self, now_ms: u64) -> bool {
        now_ms >= self.not_before_ms
    }

    pub(super) fn note_failure(&mut self, now_ms: u64) {
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.not_before_ms = now_ms.saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
    }

    pub(super) fn note_success(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_double_up_to_a_second_and_begin_anew_after_a_success() {
        let (mut backoff, mut now_ms) = (Backoff::default(), 5);
        assert!(backoff.may_try(0));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            backoff.note_failure(now_ms);
            pauses.push(backoff.not_before_ms - now_ms);
            assert!(!backoff.may_try(backoff.not_before_ms - 1));
            now_ms = backoff.not_before_ms;
            assert!(backoff.may_try(now_ms));
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.note_success();
        assert!(backoff.may_try(0));
    }
}
