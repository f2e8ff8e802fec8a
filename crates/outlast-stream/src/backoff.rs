//! How long to wait before the next attempt at reconnecting.

use core::time::Duration;

use crate::SplitMix64;

/// Exponential back-off with a cap and full jitter.
///
/// The first delay is zero: most broken links can be replaced at once. From then on the bound doubles from
/// `delay_min` to `delay_max` and the delay is drawn evenly between zero and the bound, so that ten thousand
/// clients that lost the same server come back spread out rather than in waves ("full jitter" in Brooker,
/// "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
///
/// ```
/// use core::time::Duration;
/// use outlast_stream::Backoff;
///
/// let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5), 7);
/// assert_eq!(backoff.next_delay(), Duration::ZERO);
/// assert!(backoff.next_delay() < Duration::from_millis(50));
/// assert!(backoff.next_delay() < Duration::from_millis(100));
/// backoff.reset();
/// assert_eq!(backoff.next_delay(), Duration::ZERO);
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    delay_min: Duration,
    delay_max: Duration,
    attempts: u32,
    random: SplitMix64,
}

impl Backoff {
    /// Delays bounded by `delay_min` after the first failure and by `delay_max` in the long run.
    ///
    /// A `delay_max` below `delay_min` wins. Give every client its own `seed`, or they all wait alike.
    pub const fn new(delay_min: Duration, delay_max: Duration, seed: u64) -> Self {
        Self { delay_min, delay_max, attempts: 0, random: SplitMix64::new(seed) }
    }

    /// How long to wait before the attempt that comes next; counts that attempt.
    pub fn next_delay(&mut self) -> Duration {
        let bound = self.bound();
        self.attempts = self.attempts.saturating_add(1);
        let bound_nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.random.below(bound_nanos))
    }

    /// What the next delay stays below; zero when the next attempt is the first.
    pub fn bound(&self) -> Duration {
        let Some(doublings) = self.attempts.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.delay_min.saturating_mul(factor).min(self.delay_max)
    }

    /// Attempts counted since the start or the last [`reset`](Self::reset).
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The link is up again: the next failure starts over with a delay of zero.
    pub const fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use core::time::Duration;

    #[test]
    fn the_bound_doubles_up_to_the_cap_and_never_overflows() {
        let cap = Duration::from_secs(10);
        let mut backoff = Backoff::new(Duration::from_millis(100), cap, 1);
        let mut expected = Duration::ZERO;
        for attempt in 0..200 {
            assert_eq!(backoff.bound(), expected, "attempt {attempt}");
            let delay = backoff.next_delay();
            assert!(delay < expected || delay == Duration::ZERO);
            expected = if attempt == 0 { Duration::from_millis(100) } else { (expected * 2).min(cap) };
        }
        assert_eq!(backoff.attempts(), 200);
    }

    #[test]
    fn extreme_durations_are_survived() {
        let mut backoff = Backoff::new(Duration::MAX, Duration::MAX, 1);
        for _ in 0..100 {
            backoff.next_delay();
        }
        let mut zero = Backoff::new(Duration::ZERO, Duration::ZERO, 1);
        for _ in 0..100 {
            assert_eq!(zero.next_delay(), Duration::ZERO);
        }
    }

    #[test]
    fn jitter_covers_the_whole_range_and_follows_the_seed() {
        let draw = |seed| {
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1), seed);
            backoff.next_delay();
            backoff.next_delay()
        };
        let delays: alloc::vec::Vec<_> = (0..1000).map(draw).collect();
        assert!(delays.iter().any(|delay| *delay < Duration::from_millis(50)));
        assert!(delays.iter().any(|delay| *delay > Duration::from_millis(950)));
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
