//! Whether a crash is followed by another generation: pure, time is an argument.
//!
//! A fault is *transient* if the last restart is longer ago than [`Policy::transient_after_ms`]: so the paper decides
//! whether restarting helps at all (Chang, Tsai, Li, Lee, "Kernel support for zero-loss Internet service restart",
//! 2006). Faults in quick succession are allowed up to an *intensity*, so many within a sliding window, as Erlang's
//! supervisors do; beyond that less and less is taken over from the generation that died, and in the end nothing.

use std::collections::VecDeque;

/// How much of a dead generation the next one takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Inheritance {
    /// Connections and state.
    Everything = 0,
    /// Connections and the part of the state that is transactional: what only a hook can verify is left behind.
    WithoutSuspectState = 1,
    /// Listening sockets: whoever is connected is disconnected.
    Listeners = 2,
}

impl Inheritance {
    pub(crate) fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Everything,
            1 => Self::WithoutSuspectState,
            _ => Self::Listeners,
        }
    }
}

/// What follows a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The next generation serves, with so much of what there was.
    Succeed(Inheritance),
    /// Nothing helps: end, loudly.
    GiveUp,
}

/// The largest [intensity](Policy::intensity): servers remember the times of so many deaths, on each rung.
pub const INTENSITY_MAX: usize = 20;

/// The limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A fault so long after the last one has nothing to do with it.
    pub transient_after_ms: u64,
    /// So many restarts within [`intensity_window_ms`](Self::intensity_window_ms) are taken for bad luck, on every rung; at most
    /// [`INTENSITY_MAX`].
    pub intensity: usize,
    /// The window.
    pub intensity_window_ms: u64,
    /// A generation that is busy for so long without a sign of life is killed, and succeeded; 0: never.
    pub hang_timeout_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { transient_after_ms: 60_000, intensity: 5, intensity_window_ms: 30_000, hang_timeout_ms: 0 }
    }
}

/// The deaths so far, as far as they matter.
#[derive(Clone, Debug)]
pub struct Restarts {
    policy: Policy,
    inheritance: Inheritance,
    /// When the latest restarts on this rung were.
    recent_ms: VecDeque<u64>,
    last_ms: Option<u64>,
    /// Nothing helped. Several may stand by, and each of them asks: all are to hear the same.
    gave_up: bool,
}

impl Restarts {
    /// None yet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            inheritance: Inheritance::Everything,
            recent_ms: VecDeque::new(),
            last_ms: None,
            gave_up: false,
        }
    }

    /// So much the next one takes over if a generation dies at `now_ms` of what others have died of before, which is not
    /// counted again.
    #[must_use]
    pub fn on_repetition(&self, now_ms: u64) -> Inheritance {
        if self.is_transient(now_ms) { Inheritance::Everything } else { self.inheritance }
    }

    /// How many restarts within the window there were until the last death, that among them.
    #[must_use]
    pub fn recent(&self) -> usize {
        self.recent_ms.len()
    }

    /// What it died of the last times, so many of them, was none of its own doing. Only on the first rung: a lower one was reached for
    /// other deaths as well.
    pub fn forget_last(&mut self, count: usize) {
        if self.inheritance == Inheritance::Everything {
            self.recent_ms.truncate(self.recent_ms.len().saturating_sub(count));
        }
    }

    fn is_transient(&self, now_ms: u64) -> bool {
        let since = |last_ms| now_ms.saturating_sub(last_ms);
        self.last_ms.is_none_or(|last_ms| since(last_ms) > self.policy.transient_after_ms)
    }

    /// A generation has died at `now_ms`, which does not fall.
    pub fn on_death(&mut self, now_ms: u64) -> Decision {
        let transient = self.is_transient(now_ms);
        self.last_ms = Some(now_ms);
        if transient {
            // Whatever was wrong before has been over for long.
            self.inheritance = Inheritance::Everything;
            self.recent_ms.clear();
            self.gave_up = false;
        }
        if self.gave_up {
            return Decision::GiveUp;
        }
        let begin_ms = now_ms.saturating_sub(self.policy.intensity_window_ms);
        while self.recent_ms.front().is_some_and(|&at_ms| at_ms < begin_ms) {
            self.recent_ms.pop_front();
        }
        if self.recent_ms.len() < self.policy.intensity {
            self.recent_ms.push_back(now_ms);
            return Decision::Succeed(self.inheritance);
        }
        self.recent_ms.clear();
        self.recent_ms.push_back(now_ms);
        match self.inheritance {
            Inheritance::Everything => self.inheritance = Inheritance::WithoutSuspectState,
            Inheritance::WithoutSuspectState => self.inheritance = Inheritance::Listeners,
            Inheritance::Listeners => {
                self.gave_up = true;
                return Decision::GiveUp;
            }
        }
        Decision::Succeed(self.inheritance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Inheritance::{Everything, Listeners, WithoutSuspectState};

    fn decisions(times_ms: impl IntoIterator<Item = u64>) -> Vec<Decision> {
        let mut restarts = Restarts::new(Policy::default());
        times_ms.into_iter().map(|at_ms| restarts.on_death(at_ms)).collect()
    }

    #[test]
    fn rare_faults_never_exhaust_it() {
        let hours = (0..10_000).map(|n| n * 3_600_000);
        assert!(decisions(hours).iter().all(|decision| *decision == Decision::Succeed(Everything)));
        // Nor do those that keep within the intensity.
        let steady = (0..10_000).map(|n| n * 6_001);
        assert!(decisions(steady).iter().all(|decision| *decision == Decision::Succeed(Everything)));
    }

    #[test]
    fn quick_faults_climb_the_ladder_to_its_end() {
        let told = decisions((0..16).map(|n| n * 100));
        assert_eq!(told[..5], [Decision::Succeed(Everything); 5]);
        assert_eq!(told[5..10], [Decision::Succeed(WithoutSuspectState); 5]);
        assert_eq!(told[10..15], [Decision::Succeed(Listeners); 5]);
        assert_eq!(told[15], Decision::GiveUp);
    }

    #[test]
    fn all_who_ask_after_the_last_rung_give_up() {
        // Also where the window of the restarts passes between two of them.
        let mut times_ms: Vec<u64> = (0..16).map(|n| n * 100).collect();
        times_ms.extend([1_501, 1_600, 31_000, 60_000]);
        assert!(
            decisions(times_ms.clone()).into_iter().skip(15).all(|decision| decision == Decision::GiveUp)
        );
        times_ms.push(120_001);
        assert_eq!(decisions(times_ms).last(), Some(&Decision::Succeed(Everything)));
    }

    #[test]
    fn what_it_has_not_died_of_by_itself_is_not_counted() {
        let mut restarts = Restarts::new(Policy { intensity: 3, ..Policy::default() });
        assert_eq!(
            (0..3).map(|now_ms| restarts.on_death(now_ms)).collect::<Vec<_>>(),
            [Decision::Succeed(Everything); 3]
        );
        restarts.forget_last(2);
        assert_eq!(restarts.recent(), 1);
        assert_eq!(
            (0..2).map(|_| restarts.on_death(4)).collect::<Vec<_>>(),
            [Decision::Succeed(Everything); 2]
        );
        assert_ne!(restarts.on_death(5), Decision::Succeed(Everything));
    }

    #[test]
    fn what_is_repeated_is_not_counted_and_changes_nothing() {
        let (mut restarts, mut plain) = (Restarts::new(Policy::default()), Restarts::new(Policy::default()));
        for now_ms in (0..16).map(|n| n * 100) {
            let decision = restarts.on_death(now_ms);
            assert_eq!(decision, plain.on_death(now_ms));
            for later_ms in 1..3 {
                let repeated = restarts.on_repetition(now_ms + later_ms);
                assert!(decision == Decision::Succeed(repeated) || decision == Decision::GiveUp);
            }
        }
        assert_eq!(restarts.on_repetition(61_600), Everything);
    }

    #[test]
    fn a_quiet_minute_forgives_everything() {
        let mut times_ms: Vec<u64> = (0..12).collect();
        times_ms.push(60_012);
        assert_eq!(decisions(times_ms).last(), Some(&Decision::Succeed(Everything)));
        let mut times_ms: Vec<u64> = (0..12).collect();
        times_ms.push(60_011);
        // Exactly the limit is not more than the limit, but the window has passed.
        assert_eq!(decisions(times_ms).last(), Some(&Decision::Succeed(Listeners)));
    }
}
