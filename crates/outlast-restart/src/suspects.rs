//! Which requests are suspected of crashing whoever deals with them: those that were dealt with by the very thread that
//! faulted, or hung, or for which the memory did not suffice; again and again, without getting any further.
//!
//! In flight in two such crashes, a request is dealt with alone; after a third one it is refused.

use crate::control::{Blame, Control};
use crate::slots::Slots;
use crate::sys::tcp;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// More suspects than that are forgotten.
const SUSPECTS: usize = 16;
/// Crashes after which a request is dealt with alone, and after which it is refused.
pub(crate) const ALONE: u32 = 2;
pub(crate) const REFUSED: u32 = 3;

/// Which request it is, and how far dealing with it had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) descriptor: RawFd,
    pub(crate) inode: u64,
    pub(crate) consumed_bytes: u64,
    pub(crate) sent_bytes: u64,
}

#[repr(C)]
struct Suspect {
    /// Plus 1; 0: none.
    descriptor: AtomicU32,
    crashes: AtomicU32,
    inode: AtomicU64,
    consumed_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// A request of this connection was in flight when its generation met its end.
pub(crate) fn blame(control: &Control, slots: &Slots, descriptor: RawFd) {
    let known = slots.of(descriptor).and_then(|slot| {
        let (inode, sent_bytes) = (slot.inode()?, tcp::sent_bytes(descriptor).unwrap_or(0));
        Some(Request { descriptor, inode, consumed_bytes: slot.mark().consumed_bytes, sent_bytes })
    });
    let crashes = known.map_or(0, |request| control.suspects.blame(request));
    // Beyond that it is not the request alone.
    let repeated = (2..=REFUSED).contains(&crashes);
    control.note_blame(if repeated { Blame::Repeated } else { Blame::New });
}

/// All of them, in shared memory. One process at a time changes them: the successor of who crashed, or the zygote.
#[repr(C)]
pub(crate) struct Suspects {
    next: AtomicU32,
    suspects: [Suspect; SUSPECTS],
}

impl Suspects {
    /// It was in flight in a crash. Gives in how many by now.
    pub(crate) fn blame(&self, request: Request) -> u32 {
        let number = request.descriptor.cast_unsigned().wrapping_add(1);
        let known = self.suspects.iter().find(|suspect| suspect.descriptor.load(Ordering::SeqCst) == number);
        let free = || self.suspects.get(self.next.fetch_add(1, Ordering::SeqCst) as usize % SUSPECTS);
        let Some(suspect) = known.or_else(free) else { return 0 };
        let same = known.is_some() && suspect.is(&request)
            // Where something of the answer has come out since, it was not this that has crashed before.
            && suspect.sent_bytes.load(Ordering::SeqCst) == request.sent_bytes;
        let crashes = if same { suspect.crashes.load(Ordering::SeqCst) + 1 } else { 1 };
        suspect.descriptor.store(0, Ordering::SeqCst);
        suspect.inode.store(request.inode, Ordering::SeqCst);
        suspect.consumed_bytes.store(request.consumed_bytes, Ordering::SeqCst);
        suspect.sent_bytes.store(request.sent_bytes, Ordering::SeqCst);
        suspect.crashes.store(crashes, Ordering::SeqCst);
        suspect.descriptor.store(number, Ordering::SeqCst);
        crashes
    }

    /// In how many crashes the first request of a connection that is not done was in flight.
    pub(crate) fn crashes(&self, descriptor: RawFd, inode: u64, consumed_bytes: u64) -> u32 {
        let request = Request { descriptor, inode, consumed_bytes, sent_bytes: 0 };
        let number = descriptor.cast_unsigned().wrapping_add(1);
        let suspect =
            self.suspects.iter().find(|suspect| suspect.descriptor.load(Ordering::SeqCst) == number);
        suspect
            .filter(|suspect| suspect.is(&request))
            .map_or(0, |suspect| suspect.crashes.load(Ordering::SeqCst))
    }

    /// Whether there are any that a new generation has to look for.
    pub(crate) fn any(&self) -> bool {
        self.suspects.iter().any(|suspect| {
            suspect.descriptor.load(Ordering::SeqCst) != 0 && suspect.crashes.load(Ordering::SeqCst) >= ALONE
        })
    }

    /// It is dealt with, or gone.
    pub(crate) fn acquit(&self, descriptor: RawFd) {
        let number = descriptor.cast_unsigned().wrapping_add(1);
        for suspect in &self.suspects {
            let _ = suspect.descriptor.compare_exchange(number, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

impl Suspect {
    fn is(&self, request: &Request) -> bool {
        self.inode.load(Ordering::SeqCst) == request.inode
            && self.consumed_bytes.load(Ordering::SeqCst) == request.consumed_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request = Request { descriptor: 5, inode: 50, consumed_bytes: 500, sent_bytes: 5000 };

    fn suspects() -> &'static Suspects {
        &crate::sys::shared::share::<Control>().unwrap().suspects
    }

    #[test]
    fn a_request_that_gets_no_further_is_blamed_more_and_more() {
        let suspects = suspects();
        assert_eq!([1, 2, 3].map(|_| suspects.blame(REQUEST)), [1, 2, 3]);
        assert_eq!((suspects.crashes(5, 50, 500), suspects.crashes(5, 50, 501)), (3, 0));
        assert!(suspects.any());
        suspects.acquit(5);
        assert_eq!((suspects.crashes(5, 50, 500), suspects.any()), (0, false));
    }

    #[test]
    fn a_request_that_gets_further_or_another_one_is_not() {
        let suspects = suspects();
        assert_eq!(suspects.blame(REQUEST), 1);
        assert_eq!(suspects.blame(Request { sent_bytes: 5001, ..REQUEST }), 1);
        assert_eq!(suspects.blame(Request { consumed_bytes: 600, ..REQUEST }), 1);
        assert_eq!(suspects.blame(Request { inode: 51, ..REQUEST }), 1);
        assert!(!suspects.any());
    }

    #[test]
    fn many_suspects_are_told_apart() {
        let suspects = suspects();
        for round in 1..=3 {
            for descriptor in 0..16 {
                assert_eq!(suspects.blame(Request { descriptor, ..REQUEST }), round);
            }
        }
    }
}
