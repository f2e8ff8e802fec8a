//! Requests that servers are asked to end, and those of them that come again; and what is known of the locks of a transaction.

use super::packet::packet;
use super::replies::{self, Compare};
use super::{Holds, OfMysql, QUERY};
use crate::entry::Again;

/// What servers get so that they say an error, and what they do before that.
pub(super) const SAY_WAITED: &[u8] = b"\x03SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, \
    MESSAGE_TEXT = 'Lock wait timeout exceeded; try restarting transaction'";
pub(super) const SAY_DEADLOCK: &[u8] = b"\x03SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, \
    MESSAGE_TEXT = 'Deadlock found when trying to get lock; try restarting transaction'";
pub(super) const ROLL_BACK: &[u8] = b"\x03ROLLBACK";

impl OfMysql {
    /// The server is asked to end what is open by an error; whether it gets that again.
    pub(crate) fn interrupt(&mut self, keeps: bool) {
        self.interrupted = Some(keeps);
    }

    /// The server has ended a request, and may get it again.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    pub(crate) fn forget_kept(&mut self) {
        self.kept = None;
    }

    /// It gets it, or says an error.
    pub(crate) fn give_again(&mut self, how: Again) {
        let Some(asked) = self.kept.take() else { return };
        let last = core::mem::take(&mut self.last);
        match how {
            Again::Given => {
                self.give_bytes(&last);
                self.last = last;
            }
            Again::TimedOut => self.give_bytes(&packet(0, SAY_WAITED)),
            Again::Deadlock => {
                self.note(QUERY, Compare::Form);
                if let Some(asked) = self.asked.back_mut() {
                    asked.is_of_node = true;
                }
                self.give_bytes(&packet(0, ROLL_BACK));
                self.give_bytes(&packet(0, SAY_DEADLOCK));
            }
        }
        self.open += 1;
        self.asked.push_back(asked);
    }

    /// What a reply says of the transaction: an error says nothing.
    pub(super) fn note_status(&mut self, status: Option<u16>, holds: Holds, is_rolled_back: bool) {
        self.holds = self.holds.max(holds);
        self.status = status.unwrap_or(self.status);
        let is_over = self.status & replies::IN_TRANSACTION == 0;
        let begins_by_itself = status.is_none() && self.status & replies::AUTOCOMMIT == 0;
        if is_over && !begins_by_itself || is_rolled_back {
            self.holds = Holds::Nothing;
        }
        if is_rolled_back {
            self.status &= !replies::IN_TRANSACTION;
        }
    }

    pub(crate) fn is_in_transaction(&self) -> bool {
        self.status & replies::IN_TRANSACTION != 0 && !self.is_broken()
    }

    /// The client may have locked something that others wait for; or has read something, where that matters.
    pub(crate) fn may_hold_locks(&self, reads_matter: bool) -> bool {
        let least = if reads_matter { Holds::Reads } else { Holds::Locks };
        self.holds >= least || self.names_locks || self.is_broken()
    }

    /// What waits may be one that alters a table.
    pub(crate) fn waits_for_readers(&self) -> bool {
        self.asked.front().is_some_and(|asked| !asked.is_repeatable)
    }

    /// What is asked, and has no reply, is over after some time.
    pub(crate) fn times_out(&self) -> bool {
        self.kept.or(self.asked.front().copied()).is_some_and(|asked| asked.times_out)
    }
}
