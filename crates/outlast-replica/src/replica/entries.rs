//! What becomes of entries that are stable.

use super::Delivery;
use super::deliveries::NO_CONNECTION;
use super::streams::UNACCEPTED_MS;
use super::{Action, Replica, Role};
use crate::connection::Connection;
use crate::entry::{ConnectionId, Entry};
use crate::{Output, is_mutant};

impl Replica {
    /// What the order says is done, or passed on.
    pub(super) fn take_outputs(&mut self, now_ms: u64) {
        self.check_leadership(now_ms);
        while let Some(output) = self.order.poll_output() {
            match output {
                Output::Send { to, message } => self.actions.push_back(Action::Send { to, message }),
                Output::Deliver { index, entry } => self.deliver_or_hold(index, entry, now_ms),
                Output::Excluded { epoch } => self.actions.push_back(Action::Excluded { epoch }),
                Output::Outdated => self.actions.push_back(Action::Outdated),
                Output::TooFar { node } => self.actions.push_back(Action::TooFar { node }),
                Output::Lags { node } => self.actions.push_back(Action::Lags { node }),
            }
            if self.role == Role::Serving {
                self.propose_pending(now_ms);
            }
        }
        self.begin_take_over();
    }

    pub(super) fn deliver(&mut self, index: u64, entry: Entry, now_ms: u64) {
        self.worked_on = index;
        match entry {
            Entry::Open { handshake, at_ms } => {
                let connection = ConnectionId(index);
                let opened_at_ms = self.opened_at_ms(at_ms, now_ms);
                let new = || Connection::new(handshake, true, opened_at_ms);
                self.connections.entry(connection).or_insert_with(new).is_open = true;
                // The client may have begun again meanwhile, and the newer one is not stable yet.
                let newest = self.by_ends.entry(handshake.ends).or_insert(connection);
                if connection > *newest || is_mutant!(self, OldConnectionHides) {
                    *newest = connection;
                }
                self.connect_server(index, connection, now_ms);
                if self.role == Role::Serving {
                    self.unaccepted.push_back((now_ms + UNACCEPTED_MS, connection));
                }
                self.judge_again(connection);
            }
            Entry::Data { connection, offset, said, report, bytes } => {
                self.report(index, connection, report, now_ms);
                let Some(state) = self.connections.get_mut(&connection) else { return };
                if state.input.deliver(offset, &bytes) {
                    self.feed((index, said), connection, Action::ToServer { connection, bytes }, now_ms);
                }
                self.judge_again(connection);
                self.let_pass(connection, now_ms);
            }
            Entry::Fin { connection } => {
                let Some(state) = self.connections.get_mut(&connection) else { return };
                if !core::mem::replace(&mut state.input.ended, true) {
                    self.feed((index, 0), connection, Action::EndToServer { connection }, now_ms);
                }
                self.judge_again(connection);
                self.let_pass(connection, now_ms);
            }
            Entry::Reset { connection } | Entry::Closed { connection } => {
                if let Some(state) = self.connections.get(&connection) {
                    if !is_mutant!(self, ForgetsTimeWait) {
                        self.closed.push(state, now_ms);
                    }
                    self.deliver_to_server(
                        (index, 0),
                        connection,
                        Action::CloseServer { connection },
                        now_ms,
                    );
                }
                self.forget(connection);
            }
            Entry::End { connection, offset, report } => {
                self.report(index, connection, report, now_ms);
                let Some(state) = self.connections.get_mut(&connection) else { return };
                state.answers.end_at(offset);
                self.missed.remove(&connection);
                let Some(state) = self.connections.get_mut(&connection) else { return };
                state.answers.ended_first = !state.input.ended;
                state.answers.end_proposed = true;
                self.goes_out_after(index, connection, u64::MAX);
                self.let_go_out();
                self.tell_client(connection);
                self.judge_again(connection);
            }
            Entry::Abort { connection, report } => {
                self.report(index, connection, report, now_ms);
                let Some(state) = self.connections.get_mut(&connection) else { return };
                (state.is_aborted, state.answers.abort_proposed) = (true, true);
                state.is_server_closed = true;
                self.missed.remove(&connection);
                if let Some(questions) = self.questions.get_mut(&connection) {
                    questions.give_up();
                }
                self.deliver_to_server((index, 0), connection, Action::CloseServer { connection }, now_ms);
                if self.role == Role::Serving {
                    self.actions.push_back(Action::ResetClient { connection });
                }
                self.judge_again(connection);
            }
            Entry::Refresh => {
                if self.protocol.forgets() && !is_mutant!(self, NothingIsForgotten) {
                    let action = Action::RefreshServer { index };
                    self.deliver_to_server((index, 0), NO_CONNECTION, action, now_ms);
                }
                if self.holds_behind == Some(index) {
                    self.hold();
                }
            }
            entry @ Entry::Canonical { .. } => self.take_canonical(entry, now_ms),
            Entry::Tick { at_ms } => self.take_tick(index, at_ms, now_ms),
            Entry::NoOp => self.answer_strays(index, now_ms),
            Entry::Proceed { index } => self.proceed(index, now_ms),
            Entry::Again { connection, how } => self.deliver_again(index, connection, how, now_ms),
            Entry::Acked { connection, offset, report } => {
                self.report(index, connection, report, now_ms);
                if let Some(state) = self.connections.get_mut(&connection) {
                    state.answers.ack(offset);
                    if !state.passes {
                        self.let_pass(connection, now_ms);
                    }
                }
            }
        }
    }

    /// The server of this node gets what the client says. But where the primary's server has ended the stream for a reason of its own, it does
    /// not work on what comes then: nor may this one, so its connection ends as well. Where all work in one order, they do so at one place: what
    /// waits is the same at all nodes then.
    fn feed(&mut self, at: (u64, u64), connection: ConnectionId, action: Action, now_ms: u64) {
        let Some(state) = self.connections.get_mut(&connection) else { return };
        let (is_end_known, is_done) = (state.answers.end.is_some(), state.is_server_done());
        if is_done
            && !is_end_known
            && !state.is_server_closed
            && !state.is_aborted
            && matches!(action, Action::ToServer { .. })
        {
            self.missed.entry(connection).or_insert(now_ms);
        }
        let is_last = matches!(action, Action::EndToServer { .. });
        let hears = is_done && (is_last || self.deliveries.delivery == Delivery::PerConnection);
        let is_closed = state.is_server_closed || state.input.is_refused;
        if !is_closed && (!is_end_known || hears || is_mutant!(self, ServerHearsMore)) {
            return self.deliver_to_server(at, connection, action, now_ms);
        }
        if let Action::ToServer { bytes, .. } = action {
            state.input.waiting_bytes = state.input.waiting_bytes.saturating_sub(bytes.len());
        }
        if !is_closed {
            state.is_server_closed = !is_done;
            (state.answers.server_ended, state.input.is_refused) = (true, true);
            self.deliver_to_server(at, connection, Action::CloseServer { connection }, now_ms);
        }
    }

    /// The connection is no more.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        let Some(state) = self.connections.remove(&connection) else { return };
        let ends = state.handshake.ends;
        if self.by_ends.get(&ends) == Some(&connection) {
            self.by_ends.remove(&ends);
        }
        self.acked.remove(&connection);
        self.missed.remove(&connection);
        self.transactions.remove(connection);
        self.drop_held(connection);
        self.leave_answers(connection, ends.client, state.answers);
    }

    /// The primary tells the client what there is to tell.
    pub(super) fn tell_client(&mut self, connection: ConnectionId) {
        if self.role == Role::Serving && !is_mutant!(self, ClientIsNotTold) {
            self.actions.push_back(Action::ClientReady { connection });
        }
    }
}
