//! What a node asks of every database's protocol.

use super::{FAILED, IN_TRANSACTION, Kind};
use super::{OfPostgres, Phase, Question, requests};
use crate::connection::Piece;
use crate::entry::Again;
use crate::protocol::database::{Database, Given, give};
use alloc::vec::Vec;

impl Database for OfPostgres {
    fn ask(&mut self, bytes: &[u8]) {
        if self.broken.is_none() {
            return self.take(bytes);
        }
        let partial = core::mem::take(&mut self.partial);
        give(&mut self.given, &partial);
        give(&mut self.given, bytes);
        self.broken = Some(true);
    }

    fn answer(&mut self, bytes: &[u8], takes: &mut dyn FnMut(Piece<'_>)) {
        if self.broken.is_none() && self.hear(bytes, takes).is_some() {
            return;
        }
        if self.broken.is_none() {
            takes(Piece::Bytes(&core::mem::take(&mut self.reply)));
        } else {
            takes(Piece::Bytes(bytes));
        }
        self.broken = Some(false);
    }

    fn given(&mut self) -> Vec<Given> {
        core::mem::take(&mut self.given)
    }

    fn rest(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.rest)
    }

    fn of_node(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn refused(&mut self) -> Option<&'static str> {
        self.refused.take()
    }

    fn refuse(&mut self) {
        self.is_refused = true;
    }

    fn is_refused(&self) -> bool {
        self.is_refused
    }

    fn quits(&self) -> bool {
        self.quits || self.is_refused
    }

    /// It waits for what a client says.
    fn is_greeted(&self) -> bool {
        true
    }

    fn server_number(&self) -> Option<u32> {
        self.identity.number
    }

    fn note_canonical(&mut self, number: u64, reply: &[u8]) {
        let is_new = self.identity.said.as_ref().is_none_or(|(known, _)| *known < number);
        // A server that is late has not come to the login yet.
        if is_new && self.phase != Phase::Ready {
            let question =
                super::message::each(reply).filter_map(|(_, message)| Question::of(message)).last();
            self.identity.said =
                question.map(|question| (number, question)).or_else(|| self.identity.said.take());
        }
    }

    fn reply_bytes(&self) -> usize {
        self.reply.len()
    }

    fn give_up(&mut self) {
        (self.is_given_up, self.reply) = (true, Vec::new());
    }

    fn pass(&mut self) {
        self.broken = self.broken.map(|_| false);
        self.owed += core::mem::take(&mut self.open);
    }

    fn owes(&self) -> bool {
        self.owed > 0
    }

    fn are_answered(&self) -> bool {
        self.broken.map_or(self.open == 0, |is_open| !is_open)
    }

    fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    fn interrupt(&mut self, keeps: bool) {
        self.interrupted = Some(keeps);
    }

    fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    fn give_again(&mut self, how: Again) {
        let Some(asked) = self.kept.take() else { return };
        let last = core::mem::take(&mut self.last);
        let (state, why) = match how {
            Again::Given => {
                give(&mut self.given, &last);
                self.last = last;
                self.open += 1;
                return self.asked.push_back(asked);
            }
            Again::TimedOut => ("55P03", "canceling statement due to lock timeout"),
            Again::Deadlock => ("40P01", "deadlock detected"),
        };
        give(&mut self.given, &requests::raising(state.as_bytes(), "", why));
        self.open += 1;
        self.asked.push_back(super::Asked { kind: Kind::Query, ..asked });
    }

    fn forget_kept(&mut self) {
        self.kept = None;
    }

    /// One that has failed may have locked something before its last savepoint.
    fn is_in_transaction(&self) -> bool {
        matches!(self.status, IN_TRANSACTION | FAILED) && !self.is_broken()
    }

    fn may_hold_locks(&self, _: bool) -> bool {
        self.is_in_transaction() || self.names_locks || self.is_broken()
    }

    /// What was read is locked as well, in a transaction.
    fn waits_for_readers(&self) -> bool {
        false
    }

    /// Servers wait for as long as clients have them.
    fn times_out(&self) -> bool {
        false
    }
}
