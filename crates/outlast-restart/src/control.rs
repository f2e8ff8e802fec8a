//! What the generations of a server know of each other: atomics that all of them share.

use crate::death::Death;
use crate::policy::{Decision, Inheritance, Policy, Restarts};
use crate::suspects::Suspects;
use crate::sys::pages;
use crate::sys::robust::Baton;
use crate::sys::shared::AllZeroes;
use crate::threads::Threads;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Deaths that are remembered. More than a policy can ask for: three rungs of [`INTENSITY_MAX`](crate::policy::INTENSITY_MAX).
const DEATHS_MAX: usize = 64;

/// Processes split off by a zygote that are remembered: far more than live at a time.
const SPLIT_MAX: usize = 64;

/// Generations whose dead may still be dumped while others serve.
const PIDS: usize = 32;

/// Who is to blame for a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Blame {
    /// A request that is so for an earlier one, and not refused yet.
    Repeated = 1,
    /// One that was not.
    New = 2,
}

/// All of it.
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
    /// A thread of the generation that serves has faulted, and hands over; 0: none has.
    pub(crate) faulting_thread: AtomicU32,
    /// When that was, in nanoseconds of the monotonic clock.
    pub(crate) fault_ns: AtomicU64,
    /// The descriptor whose request it dealt with, plus 1; 0: none, or it is not to blame.
    pub(crate) blamed: AtomicU32,
    /// The generation that has handed over: all its threads stand still.
    pub(crate) quiet_generation: AtomicU32,
    /// The generation whose successor runs.
    pub(crate) acknowledged_generation: AtomicU32,
    /// The generation that was killed because it hung.
    pub(crate) hung_generation: AtomicU32,
    /// 1 when the binary before was told that this one serves.
    pub(crate) told_ready: AtomicU32,
    /// How often the kernel had killed for want of memory when that was looked at last.
    pub(crate) memory_kills: AtomicU64,
    /// How many transactions were begun that a mark depends on, and the descriptor of the last one's, plus 1.
    pub(crate) transactions: AtomicU64,
    pub(crate) transacting: AtomicU32,
    /// A request is dealt with alone: its descriptor plus 1.
    pub(crate) trial: AtomicU32,
    pub(crate) suspects: Suspects,
    /// Whether the death that comes is one that a suspect has caused before: the number of a [`Blame`].
    blame: AtomicU32,
    /// How little is taken over: the number of an [`Inheritance`].
    inheritance: AtomicU32,
    /// The signal that was sent to end the server, if any.
    pub(crate) stop_signal: AtomicU32,
    /// How the last one ended, as `waitpid` has it, which that was, and why (see [`Cause`](crate::board::Cause)). Known
    /// some time after its successor has begun.
    pub(crate) death_status: AtomicU32,
    pub(crate) death_generation: AtomicU32,
    /// The processes of the last generations, by the last bits of their numbers.
    pids: [AtomicU32; PIDS],
    /// The processes that the zygote has split off, and has not buried.
    split: [AtomicU32; SPLIT_MAX],
    split_count: AtomicU32,
    /// When the others have died, in milliseconds of the monotonic clock. Only successors write here, one after the other.
    deaths: AtomicU32,
    death_times_ms: [AtomicU64; DEATHS_MAX],
    /// Of a generation and of the one before it, by the last bit of their numbers. Large, of which little is used.
    threads: [Threads; 2],
}

// SAFETY: atomics and a Baton, all of which begin as zeroes and are meant to be shared.
unsafe impl AllZeroes for Control {}

impl Control {
    /// What a new generation is about to use of it.
    pub(crate) fn rehearse(&self) {
        pages::populate(std::ptr::from_ref(self).addr(), std::mem::offset_of!(Self, threads));
        self.threads.iter().for_each(Threads::rehearse);
    }

    /// The threads of a generation.
    pub(crate) fn threads(&self, generation: u32) -> &Threads {
        let [even, odd] = &self.threads;
        if generation & 1 == 0 { even } else { odd }
    }

    /// `pid` serves from now on, as the generation with the number that this gives.
    pub(crate) fn begin(&self, pid: u32) -> u32 {
        let number = self.generation.load(Ordering::SeqCst) + 1;
        self.threads(number).clear();
        if let Some(place) = self.pids.get(number as usize % PIDS) {
            place.store(pid, Ordering::SeqCst);
        }
        self.faulting_thread.store(0, Ordering::SeqCst);
        self.blamed.store(0, Ordering::SeqCst);
        self.trial.store(0, Ordering::SeqCst);
        self.serving_pid.store(pid, Ordering::SeqCst);
        self.generation.store(number, Ordering::SeqCst);
        number
    }

    /// A process was split off. Both it and its parent say so: either may be killed right then.
    pub(crate) fn note_split(&self, pid: u32) {
        if self.was_split(pid) {
            return;
        }
        let place = self.split_count.fetch_add(1, Ordering::SeqCst) as usize % SPLIT_MAX;
        if let Some(place) = self.split.get(place) {
            place.store(pid, Ordering::SeqCst);
        }
    }

    /// It is buried: another process may get its number.
    pub(crate) fn forget_split(&self, pid: u32) {
        for place in &self.split {
            let _ = place.compare_exchange(pid, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Whether a process was, and is not buried.
    pub(crate) fn was_split(&self, pid: u32) -> bool {
        pid != 0 && self.split.iter().any(|place| place.load(Ordering::SeqCst) == pid)
    }

    /// Which generation a process was. Processes of those long ago are forgotten.
    pub(crate) fn number_of(&self, pid: u32) -> Option<u32> {
        let last = self.generation.load(Ordering::SeqCst);
        let first = last.saturating_sub(u32::try_from(PIDS).unwrap_or(0) - 1).max(1);
        (first..=last).rev().find(|number| {
            self.pids.get(*number as usize % PIDS).is_some_and(|place| place.load(Ordering::SeqCst) == pid)
        })
    }

    /// Whether this generation has ended by itself, and in order.
    pub(crate) fn is_end_in_order(&self, number: u32, death: Death) -> bool {
        self.exiting_generation.load(Ordering::SeqCst) == number && death == Death::Exited(0)
    }

    /// Whether whoever dies so was told to. Many exit with another code than 0 then: after their own clean-up, or at once.
    pub(crate) fn is_end_as_told(&self, death: Death) -> bool {
        let stop_signal = self.stop_signal.load(Ordering::SeqCst).cast_signed();
        let as_told = matches!(death, Death::Exited(_)) || death == Death::Signal(stop_signal);
        stop_signal != 0 && as_told
    }

    /// One of those that are to blame for the death that comes was so before, or was not.
    pub(crate) fn note_blame(&self, blame: Blame) {
        // One that is new is enough to be counted.
        self.blame.fetch_max(blame as u32, Ordering::SeqCst);
    }

    /// How much is taken over by now.
    pub(crate) fn inheritance(&self) -> Inheritance {
        Inheritance::from_number(self.inheritance.load(Ordering::SeqCst))
    }

    /// The generation that serves has died: what follows. Called by its successor alone.
    ///
    /// Those deaths that one request causes before it is refused count as one: each of them leads there, and with all of them
    /// counted a few such requests would cost everybody their connections.
    pub(crate) fn note_death(&self, policy: Policy, now_ms: u64) -> Decision {
        let repeated = self.blame.swap(0, Ordering::SeqCst) == Blame::Repeated as u32;
        let decision = if repeated {
            Decision::Succeed(self.replay(policy).0.on_repetition(now_ms))
        } else {
            self.count_death(now_ms);
            self.replay(policy).1
        };
        if let Decision::Succeed(inheritance) = decision {
            self.inheritance.store(inheritance as u32, Ordering::SeqCst);
        }
        decision
    }

    fn count_death(&self, now_ms: u64) {
        let count = self.deaths.load(Ordering::SeqCst) as usize;
        if let Some(place) = self.death_times_ms.get(count % DEATHS_MAX) {
            place.store(now_ms, Ordering::SeqCst);
        }
        self.deaths.store(u32::try_from(count + 1).unwrap_or(u32::MAX), Ordering::SeqCst);
    }

    /// What the deaths so far have come to, and what followed the last.
    fn replay(&self, policy: Policy) -> (Restarts, Decision) {
        let count = self.deaths.load(Ordering::SeqCst) as usize;
        let mut restarts = Restarts::new(policy);
        let mut decision = Decision::Succeed(Inheritance::Everything);
        // Those that are forgotten are older than any window's worth of them.
        for death in count.saturating_sub(DEATHS_MAX)..count {
            if let Some(time_ms) = self.death_times_ms.get(death % DEATHS_MAX) {
                decision = restarts.on_death(time_ms.load(Ordering::SeqCst));
            }
        }
        (restarts, decision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Inheritance::{Everything, Listeners, WithoutSuspectState};

    fn control() -> &'static Control {
        crate::sys::shared::share().unwrap()
    }

    #[test]
    fn what_one_request_has_caused_counts_once() {
        let (control, policy) = (control(), Policy { intensity: 5, ..Policy::default() });
        let mut now_ms = 0;
        let mut crash = |blame| {
            control.note_blame(blame);
            now_ms += 10;
            control.note_death(policy, now_ms)
        };
        for _request in 0..5 {
            for blame in [Blame::New, Blame::Repeated, Blame::Repeated] {
                assert_eq!(crash(blame), Decision::Succeed(Everything));
            }
        }
        // Many of them are an attack, or something else is wrong.
        let mut decisions = Vec::new();
        for _request in 0..11 {
            decisions.extend([Blame::New, Blame::Repeated, Blame::Repeated].map(&mut crash));
        }
        assert_eq!(decisions[..15], [Decision::Succeed(WithoutSuspectState); 15]);
        assert_eq!(decisions[15..30], [Decision::Succeed(Listeners); 15]);
        assert_eq!(decisions[30], Decision::GiveUp);
    }

    #[test]
    fn a_death_with_one_that_is_new_counts_and_so_does_one_that_nobody_is_to_blame_for() {
        let (control, policy) = (control(), Policy { intensity: 1, ..Policy::default() });
        control.note_death(policy, 1);
        control.note_blame(Blame::Repeated);
        control.note_blame(Blame::New);
        assert_eq!(control.note_death(policy, 2), Decision::Succeed(WithoutSuspectState));
        assert_eq!(control.note_death(policy, 3), Decision::Succeed(Listeners));
        control.note_blame(Blame::Repeated);
        // It was dealt with.
        assert_eq!(control.note_death(policy, 4), Decision::Succeed(Listeners));
        assert_eq!(control.note_death(policy, 5), Decision::GiveUp);
    }
}
