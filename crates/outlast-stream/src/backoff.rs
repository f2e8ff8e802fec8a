//! How long to wait before the next attempt at reconnecting.

use core::time::Duration;

use crate::SplitMix64;

/// Back-off in proportion to the outage, with a cap and full jitter.
///
/// The first delay is zero: most broken links can be replaced at once. From then on the bound is half of what was
/// waited so far, between `delay_min` and `delay_max`: an outage of two seconds, such as a restart of the server, is
/// prolonged by one at the most. (Bounds that double with every attempt are ahead of the outage, up to four times as long as it.)
/// The delay is drawn evenly between zero and the bound, so that ten thousand
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
/// assert!(backoff.next_delay() < Duration::from_millis(50));
/// backoff.reset();
/// assert_eq!(backoff.next_delay(), Duration::ZERO);
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    delay_min: Duration,
    delay_max: Duration,
    attempts: u32,
    waited: Duration,
    random: SplitMix64,
}

impl Backoff {
    /// Delays bounded by `delay_min` after the first failure and by `delay_max` in the long run.
    ///
    /// A `delay_max` below `delay_min` wins. Give every client its own `seed`, or they all wait alike.
    pub const fn new(delay_min: Duration, delay_max: Duration, seed: u64) -> Self {
        Self { delay_min, delay_max, attempts: 0, waited: Duration::ZERO, random: SplitMix64::new(seed) }
    }

    /// How long to wait before the attempt that comes next; counts that attempt.
    pub fn next_delay(&mut self) -> Duration {
        let bound = self.bound();
        self.attempts = self.attempts.saturating_add(1);
        let bound_nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        let delay = Duration::from_nanos(self.random.below(bound_nanos));
        self.waited = self.waited.saturating_add(delay);
        delay
    }

    /// What the next delay stays below; zero when the next attempt is the first.
    pub fn bound(&self) -> Duration {
        if self.attempts == 0 {
            return Duration::ZERO;
        }
        (self.waited / 2).max(self.delay_min).min(self.delay_max)
    }

    /// Attempts counted since the start or the last [`reset`](Self::reset).
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The link is up again: the next failure starts over with a delay of zero.
    pub const fn reset(&mut self) {
        self.attempts = 0;
        self.waited = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use core::time::Duration;

    /// However long an outage lasts, at its end nobody waits for more than half of that, or the cap.
    #[test]
    fn the_bound_is_half_of_the_outage_between_the_limits() {
        let (least, cap) = (Duration::from_millis(50), Duration::from_secs(5));
        for seed in 0..100 {
            let mut backoff = Backoff::new(least, cap, seed);
            assert_eq!(backoff.next_delay(), Duration::ZERO);
            let mut waited = Duration::ZERO;
            while waited < Duration::from_secs(60) {
                let delay = backoff.next_delay();
                assert!(delay < (waited / 2).max(least) && delay < cap, "{delay:?} after {waited:?}");
                waited += delay;
            }
            // Some 25 until the cap, and one every 2.5 s from there on.
            assert!((35..100).contains(&backoff.attempts()), "{} in a minute", backoff.attempts());
        }
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
