//! Links that a server welcomes and that carry nothing: as good as none, however often they come. Pure.

use outlast_stream::Backoff;
use std::time::{Duration, Instant};

/// A link that was there for so long and had nothing to carry has broken for another reason.
const SETTLED: Duration = Duration::from_secs(1);

/// Bytes of both streams that are known to have passed: of the own one, and of the peer's.
pub(super) type Passed = (u64, u64);

/// What a client knows of its last links.
#[derive(Debug, Default)]
pub(crate) struct Fruitless {
    /// When the last link was lost.
    passed: Option<Passed>,
    linked_at: Option<Instant>,
    /// When the last passed that is known to have, before the first of those that carried nothing.
    since: Option<Instant>,
    /// The last of them carried nothing.
    is_fruitless: bool,
    /// How far the attempts before it had got.
    backoff: Option<Backoff>,
}

impl Fruitless {
    /// There is a link. Nothing had passed since then, if that is known.
    pub(super) fn linked(&mut self, paused_at: Option<Instant>, now: Instant) {
        self.linked_at = Some(now);
        if !self.is_fruitless {
            self.since = paused_at;
        }
    }

    /// An attempt has made a link; the next one, if it has to follow at once, goes on from there.
    pub(super) fn attempted(&mut self, backoff: Backoff) {
        self.backoff = Some(backoff);
    }

    /// It is lost, after nothing had passed for so long that should have. The time before, in which there was nothing to carry, is no
    /// part of an outage: such a link was a good one.
    ///
    /// `notices_after`: what the peer still owes, or owed, is missed only after so long; none if it owes nothing.
    pub(super) fn lost(
        &mut self,
        passed: Passed,
        stuck_for: Duration,
        notices_after: Option<Duration>,
        now: Instant,
    ) {
        let well_max = notices_after.unwrap_or_default().max(SETTLED);
        let is_same = self.passed.replace(passed) == Some(passed);
        let age = self.linked_at.map_or(Duration::ZERO, |at| now.duration_since(at));
        self.is_fruitless = is_same && age.saturating_sub(stuck_for) < well_max;
        if !self.is_fruitless {
            (self.since, self.backoff) = (None, None);
        }
    }

    /// Since when nothing has passed, if links that carried nothing were there in between.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since.filter(|_| self.is_fruitless)
    }

    /// The back-off to go on with, if the last link carried nothing.
    pub(super) fn backoff(&self) -> Option<Backoff> {
        self.backoff.clone().filter(|_| self.is_fruitless)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn links_that_carry_nothing_are_one_outage() {
        let (mut links, now) = (Fruitless::default(), Instant::now());
        links.linked(None, now);
        links.lost((5, 7), SECOND, None, now + SECOND);
        assert!(links.since().is_none() && links.backoff().is_none(), "what passed before is not known");
        let paused_at = Some(now + SECOND);
        for second in 2..9 {
            links.attempted(Backoff::new(SECOND, SECOND, 1));
            links.linked(paused_at, now + second * SECOND);
            links.lost((5, 7), 6 * SECOND, Some(4 * SECOND), now + second * SECOND + 9 * SECOND);
            assert_eq!(links.since(), paused_at);
            assert!(links.backoff().is_some());
        }
        links.linked(Some(now + 20 * SECOND), now + 20 * SECOND);
        links.lost((6, 7), SECOND, None, now + 20 * SECOND);
        assert!(links.since().is_none() && links.backoff().is_none(), "one byte has passed");
    }

    #[test]
    fn a_link_without_anything_to_carry_is_none_of_those_unless_it_was_short() {
        let (mut links, now) = (Fruitless::default(), Instant::now());
        let mut lives_for = |time: Duration, stuck_for: Duration| {
            links.linked(Some(now), now);
            links.lost((5, 7), stuck_for, Some(4 * SECOND).filter(|_| !stuck_for.is_zero()), now + time);
            links.since().is_some()
        };
        assert!(!lives_for(SECOND / 2, Duration::ZERO), "the first");
        assert!(!lives_for(SECOND, Duration::ZERO));
        assert!(lives_for(SECOND / 2, Duration::ZERO));
        assert!(!lives_for(3600 * SECOND, Duration::ZERO));
        // One byte was said at its end, to which nobody answered.
        assert!(!lives_for(3600 * SECOND, 10 * SECOND));
    }
}
