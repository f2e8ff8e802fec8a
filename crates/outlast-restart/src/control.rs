//! What the generations of a server know of each other: one page of atomics that all of them share.

use crate::policy::{Decision, Inheritance, Policy, Restarts};
use crate::sys::robust::Baton;
use crate::sys::shared::AllZeroes;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Deaths that are remembered. More than a policy can ask for: three rungs of [`INTENSITY_MAX`].
const DEATHS_MAX: usize = 64;
/// The largest intensity of a policy.
pub(crate) const INTENSITY_MAX: usize = 20;

/// The page.
#[repr(C)]
pub(crate) struct Control {
    /// Held by the first thread of the generation that serves.
    pub(crate) baton: Baton,
    /// Its process, and its number, from 1.
    pub(crate) serving_pid: AtomicU32,
    pub(crate) generation: AtomicU32,
    /// The generation that has begun to exit in order; what that means depends on its exit code.
    pub(crate) exiting_generation: AtomicU32,
    /// The generation whose exit in order was a failure after all.
    pub(crate) failed_generation: AtomicU32,
    /// The signal that was sent to end the server, if any.
    pub(crate) stop_signal: AtomicU32,
    /// How the last one ended, as `waitpid` has it, and which that was. Known some time after its successor has begun.
    pub(crate) death_status: AtomicU32,
    pub(crate) death_generation: AtomicU32,
    /// When the others have died, in milliseconds of the monotonic clock. Only successors write here, one after the other.
    deaths: AtomicU32,
    death_times_ms: [AtomicU64; DEATHS_MAX],
}

// SAFETY: atomics and a Baton, all of which begin as zeroes and are meant to be shared.
unsafe impl AllZeroes for Control {}

impl Control {
    /// The generation that serves has died: what follows. Called by its successor alone.
    pub(crate) fn note_death(&self, policy: Policy, now_ms: u64) -> Decision {
        let count = self.deaths.load(Ordering::SeqCst) as usize;
        if let Some(place) = self.death_times_ms.get(count % DEATHS_MAX) {
            place.store(now_ms, Ordering::SeqCst);
        }
        self.deaths.store(u32::try_from(count + 1).unwrap_or(u32::MAX), Ordering::SeqCst);
        let mut restarts = Restarts::new(policy);
        let mut decision = Decision::Succeed(Inheritance::Everything);
        // Those that are forgotten are older than any window's worth of them.
        for death in (count + 1).saturating_sub(DEATHS_MAX)..=count {
            if let Some(time_ms) = self.death_times_ms.get(death % DEATHS_MAX) {
                decision = restarts.on_death(time_ms.load(Ordering::SeqCst));
            }
        }
        decision
    }
}
