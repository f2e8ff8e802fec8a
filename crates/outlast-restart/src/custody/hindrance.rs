//! Whether the listening sockets that are held hinder the program from starting: pure.
//!
//! The sockets stay open while a program is down, so that clients wait instead of being refused. A start script that looks whether
//! somebody listens at its port (`ss -l`, `lsof -sTCP:LISTEN`, `/proc/net/tcp`) sees them. Such a script fails, ends with 0 as if the
//! program ran already, or waits. Nothing tells why a start ends or waits. So this guesses, late and seldom: the sockets
//! are closed when not closing them would cost the program, and a guess is kept only if the program has come to listen after it.

use std::time::{Duration, Instant};

/// After so many starts in a row that have ended before they listened, sockets are closed, however many are still allowed.
const SILENT_STARTS_MAX: u32 = 5;
/// After so many starts in a row that have listened only when the sockets were closed, they are closed before each start.
const SURE: u32 = 2;
/// A start that runs and does not listen, or several in a row, have so long, and [`SLOWER`] times as long as the program has taken before.
const WAITS: Duration = Duration::from_secs(30);
const SLOWER: u32 = 4;
/// A start that was waiting listens within this time after the sockets were closed. One that listens later was slow.
const LISTENS_SOON: Duration = Duration::from_secs(5);

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
    /// So many starts in a row have listened only when the sockets were closed; no more than [`SURE`].
    times: u32,
    /// So many starts in a row have ended by themselves before they listened.
    silent_starts: u32,
    /// For the present start, or an earlier one that has ended before it listened.
    let_go: Option<LetGo>,
    /// The present start has begun, or the first one in this row of silent ones.
    began_at: Option<Instant>,
    /// Another binary takes the program's place: clients are promised that they wait.
    is_replaced: bool,
    /// So often it was said that what has failed before was due to this.
    excused: u32,
}

impl Hindrance {
    /// The program is about to be started; how the last start has `ended`, if there was one, and whether that was before it had
    /// listened. Whether the sockets are to be closed first.
    pub(super) fn starts(&mut self, ended: Option<(Ended, bool)>, is_replaced: bool, now: Instant) -> bool {
        let (times, excused) = (self.times, self.excused);
        if is_replaced {
            *self = Self { excused, ..Self::default() };
        }
        self.is_replaced = is_replaced;
        let Some((ended, was_silent)) = ended.filter(|_| !is_replaced) else {
            self.began_at = Some(now);
            return false;
        };
        let counts = was_silent && (ended.has_failed || ended.in_order);
        self.silent_starts = if counts { self.silent_starts.saturating_add(1) } else { 0 };
        if self.silent_starts == 0 {
            (self.began_at, self.let_go) = (Some(now), None);
        }
        let is_likely = ended.in_order || ended.is_last || times > 0;
        times >= SURE
            || times > 0 && ended.is_last
            || self.silent_starts > 0 && (is_likely || self.silent_starts >= SILENT_STARTS_MAX)
    }

    /// So many sockets were closed; `is_due`: while the start was running.
    pub(super) fn lets_go(&mut self, sockets: usize, is_due: bool, now: Instant) {
        if is_due {
            self.began_at = None;
        }
        if sockets > 0 {
            self.let_go = Some(LetGo { at: now, is_due });
        }
    }

    /// Whether a start that has ended in order before it listened is worth another one, without the sockets.
    pub(super) fn is_worth_another(&self) -> bool {
        self.let_go.is_none() && !self.is_replaced
    }

    /// When the sockets are to be closed, if the program does not listen until then. That has taken it `usual` before.
    pub(super) fn due_at(&self, usual: Duration) -> Option<Instant> {
        let began = self.began_at.filter(|_| !self.is_replaced);
        began.map(|began| began + WAITS + usual.saturating_mul(SLOWER))
    }

    /// The start listens. Whether what has failed before is not to count.
    pub(super) fn listens(&mut self, now: Instant) -> bool {
        let silent_starts = std::mem::take(&mut self.silent_starts);
        let Some(LetGo { at, is_due }) = self.let_go else {
            // What is held has not been in its way this time.
            self.times = 0;
            return false;
        };
        let is_proof = if is_due { now.duration_since(at) <= LISTENS_SOON } else { silent_starts > 0 };
        if !is_proof || self.times >= SURE {
            return false;
        }
        self.times += 1;
        // A program that crashes again and again has to be given up.
        self.excused = self.excused.saturating_add(1);
        self.excused <= SURE
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

    /// A program that has listened once.
    fn started(now: Instant) -> Hindrance {
        let mut it = Hindrance::default();
        assert!(!it.starts(None, false, now));
        assert!(!it.listens(now));
        it
    }

    #[test]
    fn a_program_that_fails_because_of_its_port_is_freed_at_the_last_start_then_at_the_first_and_then_at_once()
     {
        let now = Instant::now();
        let mut it = started(now);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(!it.starts(Some((FAILED, true)), false, now));
        assert!(it.starts(Some((LAST, true)), false, now));
        it.lets_go(1, false, now);
        assert!(it.listens(now));
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(it.starts(Some((FAILED, true)), false, now));
        it.lets_go(1, false, now);
        assert!(it.listens(now));
        for _ in 0..3 {
            assert!(it.starts(Some((KILLED, false)), false, now));
            it.lets_go(1, false, now);
            assert!(!it.listens(now), "its crashes count");
        }
    }

    #[test]
    fn a_guess_that_was_wrong_is_taken_back() {
        let now = Instant::now();
        let mut it = started(now);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(it.starts(Some((LAST, true)), false, now));
        it.lets_go(1, false, now);
        assert!(it.listens(now));
        assert!(!it.starts(Some((KILLED, false)), false, now));
        // With the sockets.
        assert!(!it.listens(now));
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(!it.starts(Some((FAILED, true)), false, now), "nothing is known of it");
    }

    #[test]
    fn what_was_learnt_outlasts_a_start_that_fails_for_another_reason() {
        let now = Instant::now();
        let mut it = started(now);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(it.starts(Some((LAST, true)), false, now));
        it.lets_go(1, false, now);
        // Nothing is left to be closed.
        it.starts(Some((LAST, true)), false, now);
        assert!(it.listens(now));
        assert!(
            it.starts(Some((Ended { is_last: true, ..KILLED }, false)), false, now),
            "no start is left to try"
        );
    }

    #[test]
    fn the_fifth_silent_start_frees_the_port_however_many_are_allowed() {
        let now = Instant::now();
        let mut it = started(now);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        let freed: Vec<bool> = (0..5).map(|_| it.starts(Some((FAILED, true)), false, now)).collect();
        assert_eq!(freed, [false, false, false, false, true]);
    }

    #[test]
    fn who_ends_in_order_before_it_listens_gets_one_more_start_without_the_sockets() {
        let now = Instant::now();
        let mut it = started(now);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(it.is_worth_another());
        assert!(it.starts(Some((IN_ORDER, true)), false, now));
        it.lets_go(1, false, now);
        assert!(!it.is_worth_another());
    }

    #[test]
    fn who_waits_is_freed_after_a_while_and_a_slow_one_teaches_nothing() {
        let now = Instant::now();
        let usual = Duration::from_secs(2);
        let mut it = started(now);
        for (listens_s, times) in [(50, 0), (40, 1), (40, 2)] {
            assert!(!it.starts(Some((KILLED, false)), false, now));
            assert_eq!(it.due_at(usual), Some(at(now, 38)));
            it.lets_go(1, true, at(now, 38));
            assert_eq!(it.due_at(usual), None);
            assert_eq!(it.listens(at(now, listens_s)), times > 0);
            assert_eq!(it.times, times);
        }
        assert!(it.starts(Some((KILLED, false)), false, now));
    }

    #[test]
    fn who_waits_for_a_while_and_fails_is_freed_as_if_it_had_waited_on() {
        let now = Instant::now();
        let mut it = started(now);
        assert!(!it.starts(Some((KILLED, false)), false, now));
        assert!(!it.starts(Some((FAILED, true)), false, at(now, 10)));
        assert!(!it.starts(Some((FAILED, true)), false, at(now, 20)));
        assert_eq!(it.due_at(Duration::ZERO), Some(at(now, 30)));
        it.lets_go(1, true, at(now, 30));
        assert!(it.listens(at(now, 31)));
        assert!(!it.starts(Some((KILLED, false)), false, at(now, 100)));
        assert_eq!(it.due_at(Duration::ZERO), Some(at(now, 130)));
    }

    #[test]
    fn an_upgrade_keeps_the_sockets_whatever_was_learnt_of_the_last_binary() {
        let now = Instant::now();
        let mut it = Hindrance { times: SURE, ..started(now) };
        assert!(!it.starts(Some((KILLED, false)), true, now));
        assert_eq!(it.due_at(Duration::ZERO), None);
        assert!(!it.listens(at(now, 100)));
        assert!(!it.starts(Some((KILLED, false)), false, now));
    }
}
