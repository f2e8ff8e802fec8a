//! Connections whose request may have crashed those who dealt with it: on trial, acquitted or refused.

use super::Connection;
use crate::generation::peer;
use crate::sys::{descriptors, tcp};
use crate::transport::Transport;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;

impl Connection {
    /// In how many crashes the first request that is not done was in flight, as far as it is suspected of them. Clients are
    /// refused after three. [Channels](crate::roles) are not: whoever is asked there what nobody survives should answer
    /// that, and be done with it.
    #[must_use]
    pub fn crashes(&self) -> u32 {
        let (number, consumed_bytes) = (self.socket.as_raw_fd(), self.mark.consumed_bytes);
        let suspects = &self.shared.control.suspects;
        descriptors::inode(&self.socket).map_or(0, |inode| suspects.crashes(number, inode, consumed_bytes))
    }

    /// Its request has crashed everybody: it is told so, if the protocol has a word for that, and written down.
    pub(crate) fn refuse(mut self, refusal: &[u8]) {
        // A generation has died in the middle of this.
        let goes_on = self.slot.is_refused();
        if !goes_on {
            let request = self.input().to_vec();
            self.shared.board.note_quarantined(self.shared.number, &peer(&self.socket()), &request);
        }
        // Whose end it has said has had all that is to come.
        let may_say_more = self.transport != Transport::Tcp
            || self.mark.outbox != 0
            || tcp::is_open_for_writing(self.socket.as_fd());
        let sent_bytes = self.sent_bytes.saturating_sub(self.mark.written_bytes);
        let said_before =
            if goes_on && may_say_more { usize::try_from(sent_bytes).unwrap_or(usize::MAX) } else { 0 };
        let has_begun = may_say_more && !goes_on && self.sent_bytes != self.mark.written_bytes;
        let said_bytes = if has_begun {
            0
        } else {
            // From here on what is sent is no answer.
            self.slot.set_refused();
            let rest = refusal.get(said_before..).unwrap_or_default();
            // Nobody is served meanwhile: a client that reads nothing is not waited for.
            said_before + tcp::send_now(self.socket.as_fd(), rest).unwrap_or(0)
        };
        let is_cut = has_begun || said_bytes > 0 && said_bytes < refusal.len();
        if !is_cut {
            // Whole answers may still be on their way, and be all that it has room for.
            let _ = self.shutdown_write();
            // What is unread at a close makes that a reset, which can overtake what was just said.
            tcp::drain(self.socket.as_fd());
            // A close is not to wait either.
            tcp::close_without_waiting(self.socket.as_fd());
        } else if self.transport == Transport::Tcp {
            // Half an answer is not to look like a whole one.
            tcp::reset_on_close(self.socket.as_fd());
        }
        self.acquit();
    }

    pub(super) fn acquit(&mut self) {
        if std::mem::take(&mut self.suspected) {
            self.shared.control.suspects.acquit(self.socket.as_raw_fd());
            self.end_trial();
        }
    }

    fn end_trial(&self) {
        let trial = &self.shared.control.trial;
        let mine = self.socket.as_raw_fd().cast_unsigned().wrapping_add(1);
        if trial.compare_exchange(mine, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let _ = crate::sys::futex::wake(trial, u32::MAX >> 1);
        }
    }

    /// The calling thread has nothing of it to deal with.
    pub(super) fn is_through(&self) {
        self.shared.control.threads(self.shared.number).is_through();
        if self.suspected {
            self.end_trial();
        }
    }
}
