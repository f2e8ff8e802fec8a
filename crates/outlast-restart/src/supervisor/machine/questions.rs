//! What is asked of the machine, which changes nothing.

use super::{Ending, HANG_UP_TIMEOUT, Machine, Phase, Running, ms};
use crate::death::Death;

impl Machine {
    /// The process that is taken for the program.
    pub(in crate::supervisor) fn main(&self) -> Option<u32> {
        self.running().map(|running| running.main)
    }

    /// Whether the program is about to go into the background, if it does what it has done before.
    pub(in crate::supervisor) fn awaits_background(&self) -> bool {
        self.daemonizes && self.running().is_some_and(|running| !running.in_background)
    }

    /// When the program was told to end for good, if it was.
    pub(in crate::supervisor) fn told_ms(&self) -> Option<u64> {
        self.told_ms
    }

    /// Crashes so far that came soon after the start, each.
    pub(in crate::supervisor) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Whether the program is given up if it crashes once more soon.
    pub(in crate::supervisor) fn is_last_start(&self) -> bool {
        self.restarts.recent() >= self.settings.policy.intensity
    }

    /// Whether the program is ended because it was not ready in time.
    pub(in crate::supervisor) fn is_too_late(&self) -> bool {
        matches!(self.phase, Phase::Running(Running { ending: Some(Ending::TooLate), .. }))
    }

    /// Whether the program was told to end.
    pub(in crate::supervisor) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Running(Running { ending: Some(_), .. }))
    }

    pub(in crate::supervisor) fn is_ready(&self) -> bool {
        self.running().is_some_and(|running| running.ready)
    }

    /// How long ago the program was started, if it runs.
    pub(in crate::supervisor) fn age_ms(&self, now_ms: u64) -> Option<u64> {
        self.running().map(|running| now_ms.saturating_sub(running.began_ms))
    }

    /// Whether the program was interrupted, and dies so for that.
    pub(in crate::supervisor) fn is_interrupted_by(&self, death: Death, now_ms: u64) -> bool {
        let time = self.settings.stop_timeout.unwrap_or(HANG_UP_TIMEOUT);
        self.running().is_some_and(|running| running.interrupted_ms(death, time, now_ms).is_some())
    }

    /// Whether the signal asks the program to end, and is passed on as [`Settings::stop_signal`].
    pub(in crate::supervisor) fn stops(&self, number: i32) -> bool {
        number == libc::SIGTERM || number == self.settings.stop_signal
    }

    /// Whether the program has had this signal a short while ago.
    pub(in crate::supervisor) fn has_interrupted(&self, number: i32, now_ms: u64) -> bool {
        let time = ms(self.settings.stop_timeout.unwrap_or(HANG_UP_TIMEOUT));
        let interrupted = self.running().and_then(|running| running.interrupted);
        interrupted.is_some_and(|last| last.number == number && now_ms <= last.at_ms.saturating_add(time))
    }

    /// Whether the program can be replaced now.
    pub(in crate::supervisor) fn can_replace(&self) -> bool {
        match &self.phase {
            Phase::Running(running) => running.ending.is_none(),
            Phase::Pausing { .. } => true,
            Phase::Starting | Phase::Over => false,
        }
    }

    pub(super) fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            _ => None,
        }
    }

    /// When [`Input::Time`] is to come at the latest.
    pub(in crate::supervisor) fn deadline_ms(&self) -> Option<u64> {
        let of_phase = match &self.phase {
            Phase::Running(running) => {
                let limits = [
                    running.kill_at_ms,
                    self.start_limit_ms(running),
                    self.assumed_ready_ms(running),
                    self.watchdog_limit_ms(running),
                ];
                limits.into_iter().flatten().min()
            }
            Phase::Pausing { until_ms } => Some(*until_ms),
            Phase::Starting | Phase::Over => None,
        };
        of_phase.into_iter().chain(self.alive_at_ms).min()
    }

    pub(super) fn start_limit_ms(&self, running: &Running) -> Option<u64> {
        let waiting = !running.ready && running.ending.is_none();
        let limit = self.settings.start_timeout.filter(|_| waiting)?;
        Some(running.began_ms.saturating_add(ms(limit)))
    }

    pub(super) fn assumed_ready_ms(&self, running: &Running) -> Option<u64> {
        let waiting = !running.ready && running.ending.is_none();
        // What has once said so says so again, also where another binary takes its place: without that it does not serve.
        let time = self.settings.assume_ready_after.filter(|_| waiting && !self.was_told)?;
        Some(running.began_ms.saturating_add(ms(time)))
    }

    pub(super) fn watchdog_limit_ms(&self, running: &Running) -> Option<u64> {
        let watched = running.ready && running.ending.is_none();
        let limit = self.settings.watchdog_timeout.filter(|_| watched)?;
        Some(running.heard_ms.saturating_add(ms(limit)))
    }
}
