//! In which order the server of a node gets what clients send on several connections.
//!
//! All servers have to work in the same order, and a server that has several connections to read takes any of them first. So it is given
//! a request of another connection only when it has answered what it was given before. One that it does not answer, as it waits for another
//! client (a lock, an empty queue), would keep all waiting: after a time the primary passes it, which has a place in the order of entries, so
//! that all nodes do.

mod kept;
mod passing;
mod queue;

#[cfg(feature = "io")]
pub use passing::Threads;

use super::{Action, AnswerPolicy, Replica, Role};
use crate::connection::Connection;
use crate::connection::comparison::Comparison;
use crate::entry::ConnectionId;
use crate::is_mutant;
use crate::protocol::database::Given;
use crate::protocol::{Protocol, Questions, Resume};
use alloc::boxed::Box;
use alloc::vec::Vec;
pub(super) use queue::Deliveries;
use queue::{Proceed, Waiting, Working};

/// A backup whose server is so many times what the log may hold behind does not keep up.
pub(super) const BACKLOG_LOGS: usize = 4;

/// A server that answers later is asked whether it answers at all, where others wait.
const ASK_AFTER_MS: u64 = 5;
/// Where a request waits at a server of several already, the next one may wait as well.
const ASK_WHERE_OWED_MS: u64 = 1;
/// And again, as the question may be lost, or too early.
const ASK_AGAIN_MS: u64 = 10;
/// So much later where nobody waits for it; and where it lasts for longer than that.
const ASK_ALONE_MS: u64 = 100;
const ASK_ALONE_LONG_MS: u64 = 1_000;
/// And at a backup, where nobody is passed by that.
const ASK_BACKUP_MS: u64 = 1_000;
/// Of what is longer a server may have read a part when it answers others: redis reads 16 KiB at a time. So it is asked once more for each.
const BYTES_PER_QUESTION: usize = 16 << 10;
/// And no more often than that.
const QUESTIONS_MAX: usize = 256;
/// A time waits so much longer than what clients say for what a server does not answer, and that it is not done with.
const TIMES_WAIT: u64 = 3;

/// Where one entry has several requests, those behind the first have its index and as many times this.
const REST: u64 = 1 << 48;
const ENTRY_BITS: u64 = REST - 1;
/// A client that says more at a time, without an answer, is refused.
const RESTS_MAX: u64 = 16_000;
/// A server cleans up after so many connections at a time at the most.
const ENDED_NUMBERS_MAX: usize = 256;

/// Of what a server is asked by the node itself. Connections are numbered from 1 on.
pub(crate) const NO_CONNECTION: ConnectionId = ConnectionId(0);

/// When a server gets what has a place in the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// When it has answered what it was given of other connections before.
    #[default]
    Serial,
    /// At once: for servers whose clients have nothing in common.
    PerConnection,
}

impl Replica {
    /// Has the server of this node get this, as soon as it may.
    pub(super) fn deliver_to_server(
        &mut self,
        (index, after): (u64, u64),
        connection: ConnectionId,
        action: Action,
        now_ms: u64,
    ) {
        // Where replies are counted it is known without that what a request has to wait for; and they may have other lengths.
        let counts = !matches!(self.protocol, Protocol::Raw);
        let is_turn = self.protocol.takes_turns() && matches!(action, Action::ToServer { .. });
        let after = if is_turn {
            u64::from(self.protocol.greets())
        } else if counts || is_mutant!(self, AnswersAreNotAwaited) {
            0
        } else {
            after
        };
        let waits_for_answers = is_turn || counts && matches!(action, Action::EndToServer { .. });
        let waiting = Waiting {
            index,
            after,
            connection,
            action,
            waits_for_greeting: is_turn,
            waits_for_answers,
            proceed: Proceed::No,
            again: None,
        };
        self.push_waiting(waiting, now_ms);
    }

    fn push_waiting(&mut self, waiting: Waiting, now_ms: u64) {
        self.deliveries.bytes += waiting.bytes();
        if self.deliveries.waiting.is_empty() {
            self.deliveries.first_since_ms = now_ms;
        }
        self.deliveries.waiting.push_back(waiting);
        self.go_on_with_deliveries(now_ms);
        // A backup that does not keep up would keep all of it in memory.
        let backlog_bytes_max = BACKLOG_LOGS * self.order.limits().log_bytes_max;
        if self.deliveries.bytes > backlog_bytes_max && self.role == Role::Backup {
            self.actions.push_back(Action::ServerHangs);
        }
    }

    /// Gives the server what it may have now.
    pub(super) fn go_on_with_deliveries(&mut self, now_ms: u64) {
        let overtakes = is_mutant!(self, KeptIsOvertaken);
        while let Some(next) = self.deliveries.next(now_ms, overtakes) {
            self.give_to_server(next, now_ms);
        }
    }

    fn give_to_server(&mut self, next: Waiting, now_ms: u64) {
        let Waiting { index, connection, mut action, proceed, again, .. } = next;
        if !matches!(action, Action::SetClock { .. }) {
            self.note_given(index & ENTRY_BITS, now_ms);
        }
        if let Some(again) = again {
            return self.begin_again(index, connection, (again, proceed), now_ms);
        }
        if matches!(action, Action::CloseServer { .. }) {
            self.forget_kept(connection);
        }
        // One that has ended its stream says nothing more, whatever it gets.
        let has_ended = self.deliveries.ended.contains(&connection);
        let before = self.deliveries.working.filter(|working| working.connection == connection);
        let mut length = before.map_or(0, |working| working.bytes);
        let several = self.protocol.works_on_several();
        let was_passed = several && before.is_some_and(|working| working.passed_ms().is_some());
        let (mut instead, mut is_refused) = (None, false);
        let (waits, awaits_end) = match &mut action {
            // It takes nothing any more.
            Action::ToServer { .. } if has_ended && self.protocol.takes_turns() => (false, false),
            Action::ToServer { bytes, .. } => {
                let protocol = self.protocol;
                let questions = self
                    .questions
                    .entry(connection)
                    .or_insert_with(|| Questions::resumed(protocol, &Resume::default()));
                if !protocol.works_on_several() {
                    length = length.max(questions.partial_bytes()) + bytes.len();
                }
                if index >= REST * RESTS_MAX {
                    questions.refuse();
                }
                questions.ask(bytes);
                if let Some(why) = questions.refused() {
                    self.actions.push_back(Action::CommandRefused { connection, why });
                }
                let rest = questions.rest();
                let asked_bytes = bytes.len() - rest.len();
                instead = questions.instead_of(bytes).map(|instead| (asked_bytes, instead));
                let (is_open, quits) = (!questions.are_answered(), questions.quits());
                is_refused = questions.is_refused();
                self.deliver_rest((index, connection), rest);
                (!has_ended && (is_open || quits), quits)
            }
            Action::ConnectServer { .. } => {
                let is_greeted = self.questions.get(&connection).is_none_or(Questions::is_greeted);
                (!has_ended && !is_greeted, false)
            }
            // It ends its stream as well, when it has answered all.
            Action::EndToServer { .. } => (!has_ended, true),
            Action::RefreshServer { .. } => (true, true),
            // It answers those whose time is over before it works on what comes next, at all nodes.
            Action::SetClock { .. } => (
                self.protocol.answers_by_time()
                    && self.deliveries.owes()
                    && !self.deliveries.is_silent
                    && !is_mutant!(self, TimeIsNotAwaited),
                false,
            ),
            Action::CloseServer { .. } => {
                self.deliveries.closing.insert(connection);
                (true, true)
            }
            _ => (false, false),
        };
        let waits = waits && !is_mutant!(self, DeliversAtOnce);
        // One that works on several is asked first, and ended, if it waits.
        let is_passed = matches!(proceed, Proceed::Since { .. });
        let is_over = is_passed && awaits_end && !several;
        if is_over {
            if let Some(questions) = self.questions.get_mut(&connection) {
                questions.pass();
            }
            self.note_owing(connection, now_ms);
            self.deliveries.end_work(connection);
        }
        match instead {
            None => self.actions.push_back(action),
            Some((before_bytes, given)) => self.give_instead(connection, before_bytes, given),
        }
        if is_refused {
            self.actions.push_back(Action::EndToServer { connection });
        }
        if waits && !is_over {
            let is_time = connection == NO_CONNECTION && !awaits_end;
            let (since_ms, ask_at_ms) =
                (now_ms, if is_time { now_ms } else { self.asks_first_at_ms(now_ms) });
            self.deliveries.working = Some(Working {
                connection,
                index,
                since_ms,
                awaits_end,
                bytes: length,
                ask_at_ms,
                is_idle: false,
                // What its client has ended before others heard that it waits is to be ended as well.
                proceed: if is_passed || was_passed { Proceed::Since { at_ms: now_ms } } else { proceed },
            });
        }
    }

    /// What comes behind a request in the same piece waits until that is answered.
    fn deliver_rest(&mut self, (index, connection): (u64, ConnectionId), rest: Vec<u8>) {
        if rest.is_empty() {
            return;
        }
        // It is passed by itself, and that may be known before this server has got so far.
        let index = index + REST;
        let is_passed = self.deliveries.early_proceeds.remove(&index);
        let proceed = if is_passed { Proceed::Since { at_ms: 0 } } else { Proceed::No };
        let waiting = Waiting {
            index,
            after: u64::from(self.protocol.greets()),
            connection,
            action: Action::ToServer { connection, bytes: rest.into() },
            waits_for_greeting: true,
            waits_for_answers: true,
            proceed,
            again: None,
        };
        self.deliveries.bytes += waiting.bytes();
        self.deliveries.waiting.push_front(waiting);
    }

    /// The server gets this, in place of so many bytes of the client: it may be a part of a request, or all of one that has come in parts.
    fn give_instead(&mut self, connection: ConnectionId, before_bytes: usize, given: Vec<Given>) {
        let length = |given: &Given| match given {
            Given::Bytes(bytes) => bytes.len(),
            Given::LogIn(login) => login.length(),
        };
        if let Some(state) = self.connections.get_mut(&connection) {
            let waiting_bytes = state.input.waiting_bytes.saturating_sub(before_bytes);
            state.input.waiting_bytes = waiting_bytes + given.iter().map(length).sum::<usize>();
        }
        self.actions.extend(given.into_iter().map(|given| match given {
            Given::Bytes(bytes) => Action::ToServer { connection, bytes: bytes.into() },
            Given::LogIn(login) => Action::LogIn { connection, login: Box::new(login) },
        }));
    }

    /// Another server has had this connection before, and has said so much on it; or has ended it.
    pub(super) fn resume_server(&mut self, connection: ConnectionId, said: u64, resume: Option<&Resume>) {
        self.deliveries.said.insert(connection, said);
        let Some(resume) = resume else {
            self.deliveries.ended.insert(connection);
            return;
        };
        self.questions.insert(connection, Questions::resumed(self.protocol, resume));
        self.actions.push_back(Action::ReconnectServer { connection, resume: resume.clone() });
    }

    /// The server is about to have this connection. Where it speaks first, it does so when it has answered what came before: what it notes then, the time for
    /// one, is the same at all nodes.
    pub(super) fn connect_server(&mut self, index: u64, connection: ConnectionId, now_ms: u64) {
        self.questions.insert(connection, Questions::new(self.protocol));
        self.deliveries.said.insert(connection, 0);
        if let Some(state) = self.connections.get_mut(&connection) {
            state.answers.comparison = Comparison::new(self.protocol.counts_replies());
            if self.comparing.policy == AnswerPolicy::Unchecked {
                state.answers.comparison.end();
            }
        }
        let action = Action::ConnectServer { connection };
        if self.protocol.takes_turns() {
            self.deliver_to_server((index, 0), connection, action, now_ms);
        } else {
            self.actions.push_back(action);
        }
    }

    /// The server has said something on this connection.
    pub(super) fn note_answer(&mut self, connection: ConnectionId, bytes: &[u8], now_ms: u64) {
        self.deliveries.is_silent = false;
        self.take_answer(connection, bytes, now_ms);
        self.note_transaction(connection, now_ms);
        self.ask_for_node(connection);
        if let Some(said) = self.deliveries.said.get_mut(&connection)
            && self.questions.get(&connection).is_none_or(Questions::is_greeted)
        {
            *said += bytes.len() as u64;
        }
        if self.deliveries.owing.contains_key(&connection) {
            self.note_owing(connection, now_ms);
        }
        self.note_kept(connection, now_ms);
        if let Some(questions) = self.questions.get(&connection) {
            let is_passed =
                |working: &Working| working.connection == connection && working.passed_ms().is_some();
            // What comes may answer what was passed before: the server says by itself whether it is done.
            if !questions.are_answered()
                || self.deliveries.working.as_ref().is_some_and(is_passed) && questions.owes()
            {
                return;
            }
        }
        if !self.deliveries.working.is_some_and(|working| working.awaits_end) {
            let working = self.deliveries.working.filter(|working| working.connection == connection);
            self.deliveries.end_work(connection);
            if working.is_some() {
                self.settle(now_ms);
            }
        }
        self.go_on_with_deliveries(now_ms);
        self.give_again(now_ms);
    }

    /// The server gets what the node asks for itself: when that is answered, it has worked off what has no answer.
    fn ask_for_node(&mut self, connection: ConnectionId) {
        let bytes = self.questions.get_mut(&connection).map(Questions::of_node).unwrap_or_default();
        if bytes.is_empty() || self.deliveries.closing.contains(&connection) {
            return;
        }
        if let Some(state) = self.connections.get_mut(&connection) {
            state.input.waiting_bytes += bytes.len();
        }
        self.actions.push_back(Action::ToServer { connection, bytes: bytes.into() });
    }

    /// A request was answered, and others that were passed may go on by that: the server gets the next one when they have, or wait again.
    fn settle(&mut self, now_ms: u64) {
        let is_owed = self.protocol.works_on_several() && self.deliveries.owes();
        if is_owed && self.deliveries.working.is_none() && !is_mutant!(self, DeliversAtOnce) {
            self.deliveries.settles += 1;
            self.deliveries.working = Some(Working {
                connection: NO_CONNECTION,
                // Of no entry: what is said, or passed, of those is about something else.
                index: u64::MAX - self.deliveries.settles,
                since_ms: now_ms,
                awaits_end: false,
                bytes: 0,
                ask_at_ms: now_ms,
                proceed: Proceed::No,
                is_idle: false,
            });
        }
    }

    /// The server of this node has ended its stream of this connection.
    pub(super) fn note_server_end(&mut self, connection: ConnectionId, now_ms: u64) {
        let number = self.questions.remove(&connection).and_then(|questions| questions.server_number());
        if let Some(number) = number {
            if self.deliveries.ended_numbers.len() >= ENDED_NUMBERS_MAX {
                self.deliveries.ended_numbers.remove(0);
            }
            self.deliveries.ended_numbers.push(number);
        }
        self.transactions.remove(connection);
        self.deliveries.owing.remove(&connection);
        self.deliveries.kept.note_answered();
        self.deliveries.kept.remove(connection);
        self.deliveries.ended.insert(connection);
        self.deliveries.end_work(connection);
        // What it had locked is free by that, a little later.
        self.settle(now_ms);
        self.go_on_with_deliveries(now_ms);
        self.give_again(now_ms);
    }

    /// The shell has [closed](Action::CloseServer) the connection to the server, and the server has done so as well; or it has not for some time,
    /// and nobody [waits](Self::awaits_end) for that.
    pub fn handle_server_closed(&mut self, connection: ConnectionId, now_ms: u64) {
        self.note_server_end(connection, now_ms);
        self.end_answers(connection);
        self.deliveries.ended.remove(&connection);
        self.deliveries.closing.remove(&connection);
        self.deliveries.said.remove(&connection);
        self.take_outputs(now_ms);
    }

    /// The server of this node has forgotten what a copy of its data lacks.
    pub fn handle_refreshed(&mut self, index: u64, now_ms: u64) {
        if self.deliveries.working.is_some_and(|working| working.index == index) {
            self.deliveries.end_work(NO_CONNECTION);
        }
        self.go_on_with_deliveries(now_ms);
        self.take_outputs(now_ms);
    }

    /// Whether what comes on other connections waits until the server has ended this one: it may work still on what it has got.
    #[must_use]
    pub fn awaits_end(&self, connection: ConnectionId) -> bool {
        self.deliveries.working.is_some_and(|working| working.connection == connection)
    }

    /// Whether the server was given all that was delivered.
    #[must_use]
    pub fn is_all_given(&self) -> bool {
        self.deliveries.are_given()
    }

    /// Whether the server has answered all that this node was to give it: then its data are those of the last entry that was worked on here,
    /// and can be copied.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_cut = |state: &Connection| {
            let answers = &state.answers;
            answers.server_reset || answers.end.is_some() || state.is_aborted || state.is_server_closed
        };
        let waits = |state: &Connection| state.answers.own.waits() && !is_cut(state);
        self.deliveries.are_done() && !self.connections.values().any(waits)
    }
}
