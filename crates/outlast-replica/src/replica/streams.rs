//! Bytes: from clients to the servers of all nodes, and from the server of this node to the client.

use super::{Replica, Role};
use crate::connection::Ends;
use crate::entry::{ConnectionId, DATA_BYTES_MAX, Entry};
use crate::{NotTaken, is_mutant};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A server that takes nothing lets so much wait, then its client is not read any more.
const TO_SERVER_BYTES_MAX: usize = 1 << 20;
/// The others are told at once that a client has acknowledged so much: they keep it until then.
const ACKED_BYTES_MIN: u64 = 64 << 10;
/// Less is told so often.
const ACKED_EVERY_MS: u64 = 100;
/// A kernel repeats a SYN-ACK for about a minute (Linux: `tcp_synack_retries`, five times with doubled waits from 1 s, so 63 s).
pub(super) const UNACCEPTED_MS: u64 = 70_000;

impl Replica {
    /// The portal's kernel has a whole connection. Its number, if it is known.
    pub fn handle_accepted(&mut self, ends: &Ends) -> Option<ConnectionId> {
        let connection = self.by_ends.get(ends).copied()?;
        self.connections.get_mut(&connection)?.is_accepted = true;
        Some(connection)
    }

    /// A client that never finishes its handshake, or resets it, is heard of by the kernel alone.
    pub(super) fn give_up_unaccepted(&mut self, now_ms: u64) {
        while let Some((at_ms, connection)) = self.unaccepted.front().copied()
            && at_ms <= now_ms
        {
            self.unaccepted.pop_front();
            if self.connections.get(&connection).is_some_and(|state| !state.is_accepted) {
                self.propose(Entry::Reset { connection }, now_ms);
            }
        }
    }

    /// How much the client has, as far as this node knows: a restored socket counts from there.
    #[must_use]
    pub fn acked(&self, connection: ConnectionId) -> u64 {
        self.connections.get(&connection).map_or(0, |state| state.answers.acked)
    }

    /// The client has sent this.
    ///
    /// # Errors
    /// This node does not serve, there is no room at present, or these are more than [`DATA_BYTES_MAX`]: the bytes stay where they are.
    pub fn handle_input(
        &mut self,
        connection: ConnectionId,
        bytes: Arc<[u8]>,
        now_ms: u64,
    ) -> Result<(), NotTaken<Arc<[u8]>>> {
        let Some(state) = self.connections.get_mut(&connection).filter(|_| self.role == Role::Serving) else {
            return Err(NotTaken::NotPrimary(bytes));
        };
        let is_held = self.holding.as_ref().is_some_and(|holding| holding.is_full(self.order.limits()));
        let ends = state.answers.ends_later();
        let is_full = !self.pending.is_empty() || state.input.waiting_bytes > TO_SERVER_BYTES_MAX;
        if is_full || is_held || ends || self.waits_for_transaction(connection, now_ms) {
            return Err(NotTaken::Full(bytes));
        }
        if bytes.len() > DATA_BYTES_MAX {
            return Err(NotTaken::Long(bytes));
        }
        self.tick(now_ms);
        let Some(state) = self.connections.get_mut(&connection) else {
            return Err(NotTaken::NotPrimary(bytes));
        };
        let (offset, length) = (state.input.proposed, bytes.len() as u64);
        let (said, before) = (state.answers.produced, state.answers.comparison.proposed());
        let report = state.answers.propose_said();
        match self.order.propose(Entry::Data { connection, offset, said, report, bytes }, now_ms) {
            Ok(_) => state.input.proposed += length,
            Err(not_taken) => {
                state.answers.comparison.take_back(before);
                match not_taken {
                    NotTaken::Full(Entry::Data { bytes, .. }) => return Err(NotTaken::Full(bytes)),
                    NotTaken::NotPrimary(Entry::Data { bytes, .. }) => {
                        return Err(NotTaken::NotPrimary(bytes));
                    }
                    _ => {}
                }
            }
        }
        self.take_outputs(now_ms);
        Ok(())
    }

    /// The client has ended its stream, and all of it was handed in. Whether that was taken: else it is said again later.
    #[must_use]
    pub fn handle_input_end(&mut self, connection: ConnectionId, now_ms: u64) -> bool {
        let Some(state) = self.connections.get_mut(&connection).filter(|_| self.role == Role::Serving) else {
            return true;
        };
        if state.answers.ends_later() {
            return false;
        }
        if !core::mem::replace(&mut state.input.end_proposed, true) {
            self.propose(Entry::Fin { connection }, now_ms);
        }
        self.take_outputs(now_ms);
        true
    }

    /// The client has reset the connection, or the kernel has given it up.
    pub fn handle_reset(&mut self, connection: ConnectionId, now_ms: u64) {
        self.transactions.remove(connection);
        if self.role == Role::Serving
            && self.has_news(connection)
            && let Some(state) = self.connections.get_mut(&connection)
        {
            // It is compared, though nobody gets more.
            let (offset, report) = (state.answers.acked_proposed, state.answers.propose_said());
            self.propose(Entry::Acked { connection, offset, report }, now_ms);
        }
        self.propose(Entry::Reset { connection }, now_ms);
        self.take_outputs(now_ms);
    }

    /// The kernel has done all that there was to do for this client, and has forgotten it.
    pub fn handle_closed(&mut self, connection: ConnectionId, now_ms: u64) {
        self.propose(Entry::Closed { connection }, now_ms);
        self.take_outputs(now_ms);
    }

    /// The client has acknowledged the answers before this position.
    pub fn handle_acked(&mut self, connection: ConnectionId, offset: u64, now_ms: u64) {
        let Some(state) = self.connections.get_mut(&connection).filter(|_| self.role == Role::Serving) else {
            return;
        };
        if offset <= state.answers.acked_proposed {
            return;
        }
        if offset - state.answers.acked_proposed < ACKED_BYTES_MIN {
            state.answers.acked_seen = offset;
            return self.tell_later(connection, now_ms);
        }
        self.acked.remove(&connection);
        (state.answers.acked_proposed, state.answers.acked_seen) = (offset, offset);
        let report = state.answers.propose_said();
        self.propose(Entry::Acked { connection, offset, report }, now_ms);
        self.take_outputs(now_ms);
    }

    /// The others do not know how far a client is, or what the server has said to it.
    fn tell_later(&mut self, connection: ConnectionId, now_ms: u64) {
        if self.acked.is_empty() {
            self.acked_at_ms = now_ms + ACKED_EVERY_MS;
        }
        self.acked.insert(connection);
    }

    pub(super) fn tell_acked(&mut self, now_ms: u64) {
        for connection in core::mem::take(&mut self.acked) {
            let Some(state) = self.connections.get_mut(&connection) else { continue };
            let offset = state.answers.acked_seen.max(state.answers.acked_proposed);
            state.answers.acked_proposed = offset;
            let report = state.answers.propose_said();
            self.propose(Entry::Acked { connection, offset, report }, now_ms);
        }
    }

    /// The server of this node has taken so many bytes.
    pub fn handle_server_took(&mut self, connection: ConnectionId, count: usize) {
        if let Some(state) = self.connections.get_mut(&connection) {
            state.input.waiting_bytes = state.input.waiting_bytes.saturating_sub(count);
        }
    }

    /// The server of this node has said this.
    pub fn handle_answer(&mut self, connection: ConnectionId, bytes: &[u8], now_ms: u64) {
        self.note_answer(connection, bytes, now_ms);
        self.tell_news_later(connection, now_ms);
        if self.awaits_agreement() {
            self.take_outputs(now_ms);
        }
    }

    /// The primary's server has said something of which no entry has a digest.
    pub(super) fn tell_news_later(&mut self, connection: ConnectionId, now_ms: u64) {
        if !self.propose_news(connection, now_ms) && self.role == Role::Serving && self.has_news(connection) {
            self.tell_later(connection, now_ms);
        }
    }

    pub(super) fn has_news(&self, connection: ConnectionId) -> bool {
        let state = self.connections.get(&connection);
        state.is_some_and(|state| state.answers.comparison.has_news(state.answers.produced))
    }

    /// The server of this node has ended its stream.
    pub fn handle_answer_end(&mut self, connection: ConnectionId, now_ms: u64) {
        self.note_server_end(connection, now_ms);
        let Some(state) = self.connections.get_mut(&connection) else { return };
        state.answers.server_ended = true;
        self.propose_end(connection, now_ms);
        self.give_up_unsaid(connection);
        self.take_outputs(now_ms);
    }

    /// The server of this node has reset the connection.
    pub fn handle_server_reset(&mut self, connection: ConnectionId, now_ms: u64) {
        self.note_server_end(connection, now_ms);
        let Some(state) = self.connections.get_mut(&connection) else { return };
        state.answers.server_reset = true;
        self.propose_end(connection, now_ms);
        self.give_up_unsaid(connection);
        self.take_outputs(now_ms);
    }

    /// At the primary: a reply cannot be kept by all nodes, so the connection is reset at all of them. What comes on other connections waits until the server
    /// has worked it off.
    pub fn give_up_reply(&mut self, connection: ConnectionId, now_ms: u64) {
        if let Some(questions) = self.questions.get_mut(&connection) {
            questions.give_up();
        }
        let Some(state) = self.connections.get_mut(&connection) else { return };
        state.answers.server_reset = true;
        self.propose_end(connection, now_ms);
        self.take_outputs(now_ms);
    }

    /// What this node's server did at its end holds for all, where this node leads.
    pub(super) fn propose_end(&mut self, connection: ConnectionId, now_ms: u64) {
        let serving = self.role == Role::Serving;
        let Some(state) = self.connections.get_mut(&connection).filter(|_| serving) else { return };
        let (is_lost, answers) = (state.is_lost(), &mut state.answers);
        let entry = if is_lost && !answers.abort_proposed {
            answers.abort_proposed = true;
            Entry::Abort { connection, report: answers.propose_said() }
        } else if answers.server_ended
            && !answers.server_reset
            && !answers.end_proposed
            && !answers.own.waits()
        {
            answers.end_proposed = true;
            Entry::End { connection, offset: answers.produced, report: answers.propose_said() }
        } else {
            return;
        };
        self.propose(entry, now_ms);
    }

    /// Nothing of the client's is on its way to the servers.
    #[cfg(test)]
    pub(crate) fn is_idle(&self, connection: ConnectionId) -> bool {
        let idle = |state: &crate::connection::Connection| {
            let input = &state.input;
            input.delivered == input.proposed && input.ended == input.end_proposed
        };
        let has_all = !self.deliveries.has(connection);
        self.pending.is_empty() && has_all && self.connections.get(&connection).is_some_and(idle)
    }

    /// The server of this node was given all that is stable.
    #[cfg(test)]
    pub(crate) fn has_given_all(&self) -> bool {
        self.deliveries.are_given()
    }

    /// So many replies that each server gives in its own way have their place in what this client gets.
    #[cfg(test)]
    pub(crate) fn own_replies(&self, connection: ConnectionId) -> u64 {
        self.connections.get(&connection).map_or(0, |state| state.answers.own.done())
    }

    #[cfg(test)]
    pub(crate) fn is_end_stable(&self, connection: ConnectionId) -> bool {
        self.connections.get(&connection).is_none_or(|state| state.answers.end.is_some())
    }

    /// What the client's socket has not got yet, oldest first, and whether the answers end behind that. Nothing where this node does not serve: a
    /// socket that is not closed yet would send what it has sent before as if it were more.
    #[must_use]
    pub fn client_bytes(&self, connection: ConnectionId) -> Option<(&[u8], &[u8], bool)> {
        if self.role != Role::Serving {
            return None;
        }
        let state = self.connections.get(&connection)?;
        let answers = &state.answers;
        let (front, back) = answers.unwritten(self.may_go_out(answers));
        let end = if is_mutant!(self, EndsBeforeItIsStable) {
            answers.server_ended.then_some(answers.produced)
        } else {
            answers.end
        };
        let written = answers.written + (front.len() + back.len()) as u64;
        Some((front, back, !answers.end_written && end.is_some_and(|end| written >= end)))
    }

    /// The client's socket has taken so many bytes, and the end.
    pub fn handle_client_took(&mut self, connection: ConnectionId, count: usize, end_written: bool) {
        let Some(state) = self.connections.get_mut(&connection) else { return };
        let answers = &mut state.answers;
        answers.written += count as u64;
        answers.end_written |= end_written;
    }

    /// All connections that there are.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.connections.iter().filter(|(_, state)| state.is_open).map(|(id, _)| *id).collect()
    }

    /// How many connections it knows, those among them that are being opened.
    #[must_use]
    pub fn connections_count(&self) -> usize {
        self.connections.len()
    }
}
