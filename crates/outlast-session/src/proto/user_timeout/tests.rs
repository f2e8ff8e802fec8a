//! Links whose peers answer, take in nothing, or are gone, in virtual time.

use super::KernelTimeout::{Detection, Longer, Never};
use super::*;
use alloc::vec::Vec;
use outlast_stream::SplitMix64;

const DETECT_MS: u64 = 3000;

/// Looks, each a second after the last one: closed, unanswered, silent for so long.
fn advice(looks: &[(bool, bool, u64)]) -> Vec<LookAdvice> {
    let mut timeout = UserTimeout::default();
    let looks = (1..).zip(looks).map(|(second, &(is_window_closed, is_unanswered, silent_ms))| {
        let now_ms = second * 1000;
        let look = LinkLook { now_ms, is_window_closed, is_unanswered, unanswered_ms: 0, silent_ms };
        timeout.look(look, DETECT_MS)
    });
    looks.collect()
}

fn changed(kernel: KernelTimeout) -> LookAdvice {
    LookAdvice { kernel: Some(kernel), gives_up: false }
}

const WAIT: LookAdvice = LookAdvice { kernel: None, gives_up: false };
const GIVE_UP: LookAdvice = LookAdvice { kernel: None, gives_up: true };

#[test]
fn a_peer_that_answers_is_waited_for() {
    let mut looks = [(true, false, 900); 60];
    // One answer among many is enough: kernels limit how often they send the same.
    for (number, look) in looks.iter_mut().enumerate() {
        let unheard = number as u64 % 3;
        *look = (true, unheard > 0, unheard * 1000 + 100);
    }
    let seen = advice(&looks);
    assert_eq!(seen[0], changed(Never));
    assert!(seen[1..].iter().all(|advice| *advice == WAIT), "{seen:?}");
}

#[test]
fn a_peer_that_does_not_answer_for_the_whole_time_is_given_up() {
    let (open, closed) = ((false, true, 3000), (true, true, 3000));
    let seen = advice(&[(true, false, 0), (true, true, 1000), (true, true, 2000), closed, closed]);
    assert_eq!(seen, [changed(Never), WAIT, WAIT, WAIT, GIVE_UP]);
    // Also when the window is open again.
    let seen = advice(&[(true, false, 0), (false, true, 1000), (false, true, 2000), open, open]);
    assert_eq!(seen, [changed(Never), WAIT, WAIT, WAIT, GIVE_UP]);
}

/// Nothing was sent meanwhile, so nothing could be answered.
#[test]
fn silence_before_the_first_unanswered_byte_does_not_count() {
    let seen =
        advice(&[(true, false, 0), (false, false, 50_000), (false, true, 60_000), (false, true, 60_000)]);
    assert_eq!(seen, [changed(Never), WAIT, WAIT, WAIT]);
}

/// Between two looks one answer came, and the next probe is unanswered again.
#[test]
fn an_answer_that_no_look_has_seen_counts() {
    let (unheard, heard) = ((true, true, 5000), (true, true, 400));
    let seen = advice(&[(true, false, 0), unheard, unheard, unheard, heard, unheard, unheard, unheard]);
    assert_eq!(seen, [changed(Never), WAIT, WAIT, WAIT, WAIT, WAIT, WAIT, GIVE_UP]);
}

#[test]
fn the_kernel_has_more_time_while_something_is_unanswered() {
    let mut timeout = UserTimeout::default();
    let answered = LinkLook {
        now_ms: 1000,
        is_window_closed: false,
        is_unanswered: false,
        unanswered_ms: 0,
        silent_ms: 0,
    };
    let unanswered = LinkLook { now_ms: 1500, is_unanswered: true, unanswered_ms: 400, ..answered };
    assert_eq!(timeout.look(answered, DETECT_MS), WAIT);
    assert_eq!(timeout.look(unanswered, DETECT_MS), changed(Longer));
    assert_eq!(timeout.look(LinkLook { unanswered_ms: 2999, ..unanswered }, DETECT_MS), WAIT);
    assert_eq!(timeout.look(answered, DETECT_MS), changed(Detection));
    assert_eq!(timeout.look(unanswered, DETECT_MS), changed(Longer));
    assert_eq!(timeout.note_nothing_unsent(), Some(Detection));
    assert_eq!(timeout.look(unanswered, DETECT_MS), changed(Longer));
    assert_eq!(timeout.look(LinkLook { unanswered_ms: DETECT_MS, ..unanswered }, DETECT_MS), GIVE_UP);
}

/// A peer that has closed its window answers what it does not take in, and the kernel sends it again.
#[test]
fn what_meets_a_closed_window_may_have_been_sent_for_long() {
    let mut timeout = UserTimeout::default();
    let look = LinkLook {
        now_ms: 9000,
        is_window_closed: true,
        is_unanswered: true,
        unanswered_ms: 2 * DETECT_MS,
        silent_ms: 100,
    };
    assert_eq!(timeout.look(look, DETECT_MS), changed(Never));
}

/// What was unanswered at first, and then met a closed window, was sent at last.
#[test]
fn a_window_that_was_closed_once_is_never_the_kernels_again() {
    let mut timeout = UserTimeout::default();
    let unanswered = LinkLook {
        now_ms: 1000,
        is_window_closed: false,
        is_unanswered: true,
        unanswered_ms: 300,
        silent_ms: 300,
    };
    assert_eq!(timeout.look(unanswered, DETECT_MS), changed(Longer));
    let closed = LinkLook { now_ms: 1500, is_window_closed: true, unanswered_ms: 0, ..unanswered };
    assert_eq!(timeout.look(closed, DETECT_MS), changed(Never));
    assert_eq!(timeout.note_nothing_unsent(), None);
    assert_eq!(timeout.look(LinkLook { now_ms: 60_000, ..unanswered }, DETECT_MS), WAIT);
}

/// A kernel with a connection to a peer that is there or not, and takes in what it gets or nothing.
struct Kernel {
    random: SplitMix64,
    now_ms: u64,
    timeout: KernelTimeout,
    path_works: bool,
    window_is_closed: bool,
    /// As the last answer has said.
    is_told_closed: bool,
    /// Since when something waits to be taken in.
    waits_since_ms: Option<u64>,
    heard_ms: u64,
    /// The first attempt since something was heard.
    asked_ms: Option<u64>,
    retransmits: u64,
    ask_ms: u64,
    /// When it has ended the connection, silently.
    ended_ms: Option<u64>,
}

impl Kernel {
    fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            now_ms: 1,
            timeout: Detection,
            path_works: true,
            window_is_closed: false,
            is_told_closed: false,
            waits_since_ms: None,
            heard_ms: 1,
            asked_ms: None,
            retransmits: 0,
            ask_ms: 0,
            ended_ms: None,
        }
    }

    /// A millisecond. Asks again after 200 ms, doubled each time, a second at most.
    fn tick(&mut self) {
        self.now_ms += 1;
        let Some(since_ms) = self.waits_since_ms else { return };
        if self.now_ms >= self.ask_ms {
            self.retransmits += u64::from(self.asked_ms.is_some());
            self.asked_ms.get_or_insert(self.now_ms);
            if self.path_works {
                (self.heard_ms, self.asked_ms, self.retransmits) = (self.now_ms, None, 0);
                self.is_told_closed = self.window_is_closed;
                if !self.window_is_closed {
                    self.waits_since_ms = None;
                }
            }
            self.ask_ms = self.now_ms + (200 << self.retransmits.min(3)).min(1000);
        }
        let limit_ms = match self.timeout {
            Detection => DETECT_MS,
            Longer => DETECT_MS + 2000,
            Never => u64::MAX,
        };
        // Also where a closed window is answered.
        if self.waits_since_ms.is_some() && self.now_ms - since_ms >= limit_ms {
            self.ended_ms.get_or_insert(self.now_ms);
        }
    }

    fn look(&self) -> LinkLook {
        let silent_ms = self.now_ms - self.heard_ms;
        let unanswered_ms = self.asked_ms.map_or(0, |asked_ms| self.now_ms - asked_ms);
        LinkLook {
            now_ms: self.now_ms,
            is_window_closed: self.is_told_closed,
            is_unanswered: self.retransmits > 0,
            unanswered_ms: if self.retransmits > 0 && !self.is_told_closed { unanswered_ms } else { 0 },
            silent_ms,
        }
    }
}

/// Whatever the path and the peer do: who answers within a second is never given up, by nobody; and who does not is given up
/// within two time-outs and a second, by the owner, not by the kernel.
#[test]
fn only_who_does_not_answer_is_given_up_and_the_owner_is_first() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..400 {
        let mut kernel = Kernel::new(seed);
        let mut timeout = UserTimeout::default();
        let mut broken_since_ms: Option<u64> = None;
        let (mut next_look_ms, mut works_until_ms) = (500, 0);
        let mut given_up = false;
        while kernel.now_ms < 120_000 && !given_up {
            if kernel.random.one_in(700) && kernel.waits_since_ms.is_none() {
                kernel.waits_since_ms = Some(kernel.now_ms);
                kernel.ask_ms = kernel.now_ms;
            }
            if kernel.random.one_in(3000) {
                kernel.window_is_closed = !kernel.window_is_closed;
            }
            // It comes back within a second, until the kernel has asked again; or never.
            match broken_since_ms {
                None if kernel.now_ms >= works_until_ms && kernel.random.one_in(4000) => {
                    (kernel.path_works, broken_since_ms) = (false, Some(kernel.now_ms));
                }
                Some(since_ms) if seed % 2 == 0 && kernel.now_ms - since_ms >= 1000 => {
                    (kernel.path_works, broken_since_ms, works_until_ms) = (true, None, kernel.now_ms + 1001);
                }
                _ => {}
            }
            kernel.tick();
            if kernel.now_ms >= next_look_ms {
                next_look_ms = kernel.now_ms + 400 + kernel.random.below(200);
                let advice = if kernel.waits_since_ms.is_some() {
                    timeout.look(kernel.look(), DETECT_MS)
                } else {
                    LookAdvice { kernel: timeout.note_nothing_unsent(), gives_up: false }
                };
                kernel.timeout = advice.kernel.unwrap_or(kernel.timeout);
                given_up = advice.gives_up;
            }
            assert_eq!(kernel.ended_ms, None, "seed {seed}: the kernel was first");
            if seed % 2 == 1
                && let (Some(broken_ms), Some(waits_ms)) = (broken_since_ms, kernel.waits_since_ms)
            {
                let stuck_ms = kernel.now_ms - broken_ms.max(waits_ms);
                assert!(stuck_ms <= 2 * DETECT_MS + 1000, "seed {seed}: nobody gives it up");
            }
        }
        assert_eq!(given_up, seed % 2 == 1, "seed {seed}: at {} ms", kernel.now_ms);
        lost += u32::from(given_up);
        kept += u32::from(!given_up);
    }
    assert_eq!((lost, kept), (200, 200));
}
