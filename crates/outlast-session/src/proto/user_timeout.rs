//! When a link is lost that has something to send, and who finds that out: the kernel by TCP_USER_TIMEOUT (tcp(7)), or its
//! owner, who looks at it from time to time.
//!
//! The kernel is the better clock, as it counts while its owner is busy or stopped. But it errs in two ways:
//! - It ends a link without telling the peer. So once something is unanswered it gets more time, and the owner gives the
//!   link up first. Closing it resets it: a path that works again brings that to a peer that only reads.
//! - Since Linux 5.11 it ends a connection whose window has been closed for that long, also if every probe is answered: an
//!   application that reads nothing for a while would be taken for one that is gone. RFC 9293, section 3.8.6.1, asks to keep
//!   such a connection as long as probes are acknowledged. What the kernel counts from does not begin again either where the
//!   window was open for less than it wanted to send. So from the first closed window on the kernel has no time-out for this
//!   link, and its owner counts: from the first look that finds something unanswered on, as long as every look does.

/// What a look at a link with something to be sent has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLook {
    /// When, in milliseconds of any clock that only goes forward.
    pub now_ms: u64,
    /// The peer takes in nothing.
    pub is_window_closed: bool,
    /// The kernel has sent data again, or a probe of the window, and has heard nothing since.
    pub is_unanswered: bool,
    /// How long ago the data were sent first that the kernel sends again and again, in milliseconds; 0 if it sends none.
    pub unanswered_ms: u64,
    /// For how long nothing has come from the peer, in milliseconds.
    pub silent_ms: u64,
}

/// The kernel's time-out for what nobody answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelTimeout {
    /// The time in which a silent peer is to be noticed, as when the link was made.
    #[default]
    Detection,
    /// Longer than that by several looks: its owner is first.
    Longer,
    /// None.
    Never,
}

/// What follows from a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookAdvice {
    /// The kernel's time-out has to be changed to this one.
    pub kernel: Option<KernelTimeout>,
    /// The link is lost.
    pub gives_up: bool,
}

/// Of one link. To be looked at several times in a detection time-out while there is something to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct UserTimeout {
    kernel: KernelTimeout,
    unanswered_since_ms: Option<u64>,
}

impl UserTimeout {
    /// There is nothing to be sent: all was answered. Gives the kernel's time-out, if it has to be changed.
    pub fn note_nothing_unsent(&mut self) -> Option<KernelTimeout> {
        self.set(KernelTimeout::Detection)
    }

    /// One look at a link that has something to send.
    pub fn look(&mut self, look: LinkLook, detect_timeout_ms: u64) -> LookAdvice {
        let LinkLook { now_ms, is_window_closed, is_unanswered, unanswered_ms, silent_ms } = look;
        // Something may have come between two looks.
        let known_ms =
            self.unanswered_since_ms.filter(|since_ms| silent_ms >= now_ms.saturating_sub(*since_ms));
        self.unanswered_since_ms = is_unanswered.then(|| known_ms.unwrap_or(now_ms));
        let counted_ms = match self.kernel {
            KernelTimeout::Never => {
                self.unanswered_since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms))
            }
            KernelTimeout::Detection | KernelTimeout::Longer if is_window_closed => 0,
            KernelTimeout::Detection | KernelTimeout::Longer => unanswered_ms,
        };
        let kernel = match unanswered_ms {
            _ if is_window_closed => KernelTimeout::Never,
            0 => KernelTimeout::Detection,
            _ => KernelTimeout::Longer,
        };
        LookAdvice { kernel: self.set(kernel), gives_up: counted_ms >= detect_timeout_ms }
    }

    fn set(&mut self, kernel: KernelTimeout) -> Option<KernelTimeout> {
        if self.kernel == KernelTimeout::Never || self.kernel == kernel {
            return None;
        }
        self.kernel = kernel;
        Some(kernel)
    }
}

#[cfg(test)]
mod tests;
