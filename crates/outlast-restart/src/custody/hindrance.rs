//! Whether the listening sockets that are held hinder the program from starting: pure.
//!
//! The sockets stay open while a program is down, so that clients wait instead of being refused. A start script that looks whether
//! somebody listens at its port (`ss -l`, `lsof -sTCP:LISTEN`, `/proc/net/tcp`) sees them. Such a script fails, ends with 0 as if the
//! program ran already, or waits. Nothing tells why a start ends or waits. So this guesses, late and seldom: the sockets
//! are closed when not closing them would cost the program, and a guess is kept only if the program has come to listen after it.

use std::time::{Duration, Instant};

/// After so many starts in a row that have ended before they listened, sockets are closed, however many are still allowed.
const SILENT_STARTS_MAX: u32 = 5;
/// After so many starts in a row that have listened as soon as the sockets were closed for which they had waited, they are closed
/// before each start: to try that again would take half a minute.
const SURE: u32 = 2;
/// A start that runs and does not listen, or several in a row, have so long, and [`SLOWER`] times as long as the program has taken before.
const WAITS: Duration = Duration::from_secs(30);
const SLOWER: u32 = 4;
/// So long where that is not known.
const WAITS_AT_FIRST: Duration = Duration::from_secs(300);
/// A start that was waiting listens within this time after the sockets were closed, or within one and a half times what the program has
/// taken before, if that is not too long. One that listens later was slow.
const LISTENS_SOON: Duration = Duration::from_secs(5);
const LISTENS_SOON_MAX: Duration = Duration::from_secs(30);

/// How the last start has ended, as its supervisor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// With an error code, or killed because it was not ready in time.
    pub(crate) has_failed: bool,
    /// With success, though nothing was served.
    pub(crate) in_order: bool,
    /// The program is given up if the next start ends so as well.
    pub(crate) is_last: bool,
}

/// The sockets were closed.
#[derive(Clone, Copy, Debug)]
struct LetGo {
    at: Instant,
    /// While a start was running.
    is_due: bool,
}

#[derive(Debug, Default)]
pub(super) struct Hindrance {
    /// So many starts in a row have listened only when the sockets were closed: one that had failed before counts once, those that
    /// were waiting up to [`SURE`].
    times: u32,
    /// So many starts in a row have ended by themselves before they listened.
    silent_starts: u32,
    /// For the present start, or an earlier one that has ended before it listened.
    let_go: Option<LetGo>,
    began_at: Option<Instant>,
    /// The present start has begun, or the first one in this row of silent ones. None: it was dealt with.
    waits_since: Option<Instant>,
    /// The longest time from a start to when the program listened.
    usual: Option<Duration>,
    /// Another binary has been told to take the program's place: its first start. Clients are promised that they wait.
    is_spared: bool,
    was_replaced: bool,
}

impl Hindrance {
    /// The program is about to be started; how the last start has `ended`, if there was one, and whether that was before it had
    /// listened. Whether the sockets are to be closed first. `is_replaced` from when another binary was asked for until one listens.
    pub(super) fn starts(&mut self, ended: Option<(Ended, bool)>, is_replaced: bool, now: Instant) -> bool {
        if is_replaced && !self.was_replaced {
            *self = Self { is_spared: true, ..Self::default() };
        } else {
            self.is_spared = false;
        }
        (self.began_at, self.was_replaced) = (Some(now), is_replaced);
        let counts = |(ended, was_silent): (Ended, bool)| was_silent && (ended.has_failed || ended.in_order);
        if !self.is_spared && ended.is_some_and(counts) {
            self.silent_starts = self.silent_starts.saturating_add(1);
        } else {
            (self.silent_starts, self.waits_since, self.let_go) = (0, Some(now), None);
        }
        let Some((ended, _)) = ended.filter(|_| !self.is_spared) else { return false };
        let is_likely = ended.in_order || ended.is_last || self.times > 0;
        self.times >= SURE
            || self.times > 0 && ended.is_last
            || self.silent_starts > 0 && (is_likely || self.silent_starts >= SILENT_STARTS_MAX)
    }

    /// So many sockets were closed; `is_due`: while the start was running.
    pub(super) fn lets_go(&mut self, sockets: usize, is_due: bool, now: Instant) {
        if is_due {
            self.waits_since = None;
        }
        if sockets > 0 {
            self.let_go = Some(LetGo { at: now, is_due });
        }
    }

    /// Whether a start that has ended in order before it listened is worth another one, without the sockets.
    pub(super) fn is_worth_another(&self) -> bool {
        self.let_go.is_none() && !self.is_spared
    }

    /// When the sockets are to be closed, if the program does not listen until then.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let waits = self.usual.map_or(WAITS_AT_FIRST, |usual| WAITS + usual.saturating_mul(SLOWER));
        self.waits_since.filter(|_| !self.is_spared).map(|since| since + waits)
    }

    /// The start listens. So many starts before it have failed because of what was held.
    pub(super) fn listens(&mut self, now: Instant) -> u32 {
        let silent_starts = std::mem::take(&mut self.silent_starts);
        // If it has waited for the sockets to be closed, that was no part of its time.
        let freed_at = self.let_go.filter(|let_go| let_go.is_due).map(|let_go| let_go.at);
        let took = freed_at.max(self.began_at).map_or(Duration::ZERO, |began| now.duration_since(began));
        let usual = self.usual.unwrap_or_default();
        let soon = (usual.saturating_mul(3) / 2).clamp(LISTENS_SOON, LISTENS_SOON_MAX);
        self.waits_since = None;
        match self.let_go {
            Some(LetGo { at, is_due: true }) if now.duration_since(at) <= soon => {
                self.times = (self.times + 1).min(SURE);
                silent_starts
            }
            Some(LetGo { is_due: false, .. }) if silent_starts > 0 => {
                self.times = self.times.max(1);
                silent_starts
            }
            // One that was only slow, too.
            let_go => {
                self.usual = self.usual.max(Some(took));
                if let_go.is_none() {
                    // What is held has not been in its way this time.
                    self.times = 0;
                }
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Ended = Ended { has_failed: true, in_order: false, is_last: false };
    const LAST: Ended = Ended { is_last: true, ..FAILED };
    const KILLED: Ended = Ended { has_failed: false, in_order: false, is_last: false };
    const IN_ORDER: Ended = Ended { has_failed: false, in_order: true, is_last: false };

    fn at(now: Instant, seconds: u64) -> Instant {
        now + Duration::from_secs(seconds)
    }

    /// A program that has listened once, two seconds after its start, and is killed and started again.
    fn started_again(now: Instant) -> Hindrance {
        let mut it = Hindrance::default();
        assert!(!it.starts(None, false, now));
        assert_eq!(it.listens(at(now, 2)), 0);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        it
    }

    /// The same, and its port was freed before the last start that was allowed, and it listened then.
    fn freed(now: Instant) -> Hindrance {
        let mut it = started_again(now);
        assert!(!it.starts(Some((FAILED, true)), false, now));
        assert!(it.starts(Some((LAST, true)), false, now));
        it.lets_go(1, false, now);
        assert_eq!(it.listens(now), 2);
        it
    }

    #[test]
    fn a_program_that_fails_because_of_its_port_is_freed_at_the_last_start_and_then_at_the_first() {
        let now = Instant::now();
        let mut it = freed(now);
        for _ in 0..3 {
            assert!(!it.starts(Some((KILLED, false)), false, now), "it may have been for another reason");
            assert!(it.starts(Some((FAILED, true)), false, now));
            it.lets_go(1, false, now);
            assert_eq!(it.listens(now), 1, "its crashes count");
        }
        assert!(it.starts(Some((Ended { is_last: true, ..KILLED }, false)), false, now), "no other is left");
    }

    #[test]
    fn a_guess_that_was_wrong_is_taken_back() {
        let now = Instant::now();
        let mut it = freed(now);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        // With the sockets.
        assert_eq!(it.listens(now), 0);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(!it.starts(Some((FAILED, true)), false, now), "nothing is known of it");
    }

    #[test]
    fn what_was_learnt_outlasts_a_start_that_fails_for_another_reason() {
        let now = Instant::now();
        let mut it = started_again(now);
        assert!(it.starts(Some((LAST, true)), false, now));
        it.lets_go(1, false, now);
        // Nothing is left to be closed.
        it.starts(Some((LAST, true)), false, now);
        it.lets_go(0, false, now);
        assert_eq!(it.listens(now), 2);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(it.starts(Some((FAILED, true)), false, now));
    }

    #[test]
    fn the_fifth_silent_start_frees_the_port_however_many_are_allowed() {
        let now = Instant::now();
        let mut it = started_again(now);
        let freed: Vec<bool> = (0..5).map(|_| it.starts(Some((FAILED, true)), false, now)).collect();
        assert_eq!(freed, [false, false, false, false, true]);
    }

    #[test]
    fn who_ends_in_order_before_it_listens_gets_one_more_start_without_the_sockets() {
        let now = Instant::now();
        let mut it = started_again(now);
        assert!(it.is_worth_another());
        assert!(it.starts(Some((IN_ORDER, true)), false, now));
        it.lets_go(1, false, now);
        assert!(!it.is_worth_another());
    }

    #[test]
    fn who_waits_is_freed_after_a_while_and_at_once_when_that_has_helped_twice() {
        let now = Instant::now();
        let mut it = started_again(now);
        for times in 1..=2 {
            assert_eq!(it.due_at(), Some(at(now, 30 + 4 * 2)));
            it.lets_go(1, true, at(now, 38));
            assert_eq!(it.due_at(), None);
            assert_eq!(it.listens(at(now, 39)), 0);
            assert_eq!(it.times, times);
            assert_eq!(it.starts(Some((KILLED, false)), false, now), times == 2);
        }
    }

    #[test]
    fn a_slow_program_is_freed_once_and_then_has_its_time() {
        let now = Instant::now();
        let mut it = started_again(now);
        it.lets_go(1, true, at(now, 38));
        assert_eq!(it.listens(at(now, 100)), 0);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert_eq!((it.times, it.due_at()), (0, Some(at(now, 30 + 4 * 62))));
    }

    #[test]
    fn a_program_that_waits_and_takes_long_by_itself_is_known_as_one_that_waits() {
        let now = Instant::now();
        let mut it = Hindrance::default();
        assert!(!it.starts(None, false, now));
        assert_eq!(it.listens(at(now, 8)), 0);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert_eq!(it.due_at(), Some(at(now, 62)));
        it.lets_go(1, true, at(now, 62));
        assert_eq!(it.listens(at(now, 71)), 0);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert_eq!((it.times, it.due_at()), (1, Some(at(now, 62))));
    }

    #[test]
    fn of_a_program_that_was_taken_over_nobody_knows_how_long_it_takes() {
        let now = Instant::now();
        let mut it = Hindrance::default();
        assert!(!it.starts(None, false, now));
        assert_eq!(it.due_at(), Some(at(now, 300)));
    }

    #[test]
    fn who_waits_for_a_while_and_fails_is_freed_as_if_it_had_waited_on() {
        let now = Instant::now();
        let mut it = started_again(now);
        assert!(!it.starts(Some((FAILED, true)), false, at(now, 10)));
        assert!(!it.starts(Some((FAILED, true)), false, at(now, 20)));
        assert_eq!(it.due_at(), Some(at(now, 38)));
        it.lets_go(1, true, at(now, 38));
        assert_eq!(it.listens(at(now, 39)), 2);
        assert!(!it.starts(Some((KILLED, false)), false, at(now, 100)));
        assert_eq!(it.due_at(), Some(at(now, 138)));
    }

    #[test]
    fn an_upgrade_keeps_the_sockets_for_the_new_binary_and_if_it_fails_it_is_as_with_any() {
        let now = Instant::now();
        let mut it = freed(now);
        assert!(!it.starts(Some((KILLED, false)), true, now));
        assert_eq!(it.due_at(), None);
        assert!(!it.is_worth_another());
        // The old one is started again.
        assert!(!it.starts(Some((FAILED, true)), true, now));
        assert!(it.is_worth_another());
        assert!(it.starts(Some((LAST, true)), true, now));
        it.lets_go(1, false, now);
        assert_eq!(it.listens(now), 2);
    }
}
