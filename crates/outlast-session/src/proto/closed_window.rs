//! When a link is lost whose peer has closed its receive window.
//!
//! With TCP_USER_TIMEOUT kernels (since 5.11) end a connection whose window has been closed for that long, also if every
//! probe is answered: an application that reads nothing for a while, or a machine that is short of memory, would be taken
//! for one that is gone. RFC 9293, section 3.8.6.1, asks to keep such a connection as long as probes are acknowledged.
//! What they count from does not begin again either where the window was open for less than they wanted to send. So from the
//! first closed window on the kernel has no time-out for this link, and its owner counts: from the first look that finds
//! something unanswered on, as long as every look does.

/// What a look at a link with something to be sent has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLook {
    /// When, in milliseconds of any clock that only goes forward.
    pub now_ms: u64,
    /// The peer takes in nothing.
    pub is_closed: bool,
    /// The kernel has sent data again, or a probe of the window, and has heard nothing since.
    pub is_unanswered: bool,
    /// For how long nothing has come from the peer, in milliseconds.
    pub silent_ms: u64,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowAdvice {
    /// Nothing.
    Wait,
    /// Take the time-out from the kernel. To be said once.
    CountHere,
    /// The link is lost.
    GiveUp,
}

/// The window of one link. To be looked at several times in a detection time-out while there is something to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClosedWindow {
    /// It was closed: the kernel does not count any more.
    counts_here: bool,
    unanswered_since_ms: Option<u64>,
}

impl ClosedWindow {
    /// Whether the kernel has no time-out.
    #[must_use]
    pub const fn counts_here(&self) -> bool {
        self.counts_here
    }

    /// One look.
    pub fn look(&mut self, look: WindowLook, detect_timeout_ms: u64) -> WindowAdvice {
        let WindowLook { now_ms, is_closed, is_unanswered, silent_ms } = look;
        // Something may have come between two looks.
        let known_ms =
            self.unanswered_since_ms.filter(|since_ms| silent_ms >= now_ms.saturating_sub(*since_ms));
        self.unanswered_since_ms = is_unanswered.then(|| known_ms.unwrap_or(now_ms));
        if !self.counts_here {
            self.counts_here = is_closed;
            return if is_closed { WindowAdvice::CountHere } else { WindowAdvice::Wait };
        }
        let is_over = |since_ms: u64| now_ms.saturating_sub(since_ms) >= detect_timeout_ms;
        if self.unanswered_since_ms.is_some_and(is_over) { WindowAdvice::GiveUp } else { WindowAdvice::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::WindowAdvice::{CountHere, GiveUp, Wait};
    use super::*;
    use alloc::vec::Vec;

    /// Looks, each a second after the last one, with a time-out of 3 s: closed, unanswered, silent for so long.
    fn advice(looks: &[(bool, bool, u64)]) -> Vec<WindowAdvice> {
        let mut window = ClosedWindow::default();
        let looks = (1..).zip(looks).map(|(second, &(is_closed, is_unanswered, silent_ms))| {
            let look = WindowLook { now_ms: second * 1000, is_closed, is_unanswered, silent_ms };
            window.look(look, 3000)
        });
        looks.collect()
    }

    #[test]
    fn the_kernel_counts_while_no_window_was_closed() {
        assert_eq!(advice(&[(false, true, 9000); 9]), [Wait; 9]);
    }

    #[test]
    fn a_peer_that_answers_is_waited_for() {
        let mut looks = [(true, false, 900); 60];
        // One answer among many is enough: kernels limit how often they send the same.
        for (number, look) in looks.iter_mut().enumerate() {
            let unheard = number as u64 % 3;
            *look = (true, unheard > 0, unheard * 1000 + 100);
        }
        let seen = advice(&looks);
        assert_eq!(seen[0], CountHere);
        assert!(seen[1..].iter().all(|advice| *advice == Wait), "{seen:?}");
    }

    #[test]
    fn a_peer_that_does_not_answer_for_the_whole_time_is_given_up() {
        let (open, closed) = ((false, true, 3000), (true, true, 3000));
        let seen = advice(&[(true, false, 0), (true, true, 1000), (true, true, 2000), closed, closed]);
        assert_eq!(seen, [CountHere, Wait, Wait, Wait, GiveUp]);
        // Also when the window is open again.
        let seen = advice(&[(true, false, 0), (false, true, 1000), (false, true, 2000), open, open]);
        assert_eq!(seen, [CountHere, Wait, Wait, Wait, GiveUp]);
    }

    /// Nothing was sent meanwhile, so nothing could be answered.
    #[test]
    fn silence_before_the_first_unanswered_byte_does_not_count() {
        let seen =
            advice(&[(true, false, 0), (false, false, 50_000), (false, true, 60_000), (false, true, 60_000)]);
        assert_eq!(seen, [CountHere, Wait, Wait, Wait]);
    }

    /// Between two looks one answer came, and the next probe is unanswered again.
    #[test]
    fn an_answer_that_no_look_has_seen_counts() {
        let (unheard, heard) = ((true, true, 5000), (true, true, 400));
        let seen = advice(&[(true, false, 0), unheard, unheard, unheard, heard, unheard, unheard, unheard]);
        assert_eq!(seen, [CountHere, Wait, Wait, Wait, Wait, Wait, Wait, GiveUp]);
    }
}
