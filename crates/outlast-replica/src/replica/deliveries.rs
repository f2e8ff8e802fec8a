//! In which order the server of a node gets what clients send on several connections.
//!
//! All servers have to work in the same order, and a server that has several connections to read takes any of them first. So it is given
//! a request of another connection only when it has answered what it was given before. One that it does not answer, as it waits for another
//! client (a lock, an empty queue), would keep all waiting: after a time the primary passes it, which has a place in the order of entries, so
//! that all nodes do.

use super::{Action, Replica, Role};
use crate::entry::{ConnectionId, Entry};
use crate::is_mutant;
use crate::protocol::Questions;
use alloc::collections::{BTreeSet, VecDeque};

/// When a server gets what has a place in the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// When it has answered what it was given of other connections before.
    #[default]
    Serial,
    /// At once: for servers whose clients have nothing in common.
    PerConnection,
}

/// What the server works on.
#[derive(Clone, Copy, Debug)]
struct Working {
    connection: ConnectionId,
    /// Of the last entry that it was given of that.
    index: u64,
    since_ms: u64,
    /// It has got the end of the stream, or is to close the connection: an answer is not enough.
    awaits_end: bool,
    /// At the primary: that it is passed has a place in the order, or will have.
    is_passed: bool,
}

/// What the server of a node was given, and is to be given.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    pub(super) delivery: Delivery,
    waiting: VecDeque<(u64, ConnectionId, Action)>,
    working: Option<Working>,
    /// Entries that wait, and are not waited for once the server has them.
    passed: BTreeSet<u64>,
    /// The server has ended its streams of these connections, which are to be closed.
    ended: BTreeSet<ConnectionId>,
}

impl Deliveries {
    /// Nothing waits, and the server has answered all.
    pub(super) fn are_done(&self) -> bool {
        self.waiting.is_empty() && self.working.is_none()
    }

    /// Something of this connection waits.
    #[cfg(test)]
    pub(super) fn has(&self, connection: ConnectionId) -> bool {
        self.waiting.iter().any(|(_, waiting, _)| *waiting == connection)
    }

    /// The server has nothing to do for this connection any more.
    fn end_work(&mut self, connection: ConnectionId) {
        self.working = self.working.filter(|working| working.connection != connection);
    }

    /// The next one that the server may have now.
    fn next(&mut self) -> Option<(u64, ConnectionId, Action)> {
        let (_, connection, _) = self.waiting.front()?;
        let is_free = self.working.is_none_or(|working| working.connection == *connection);
        if is_free || self.delivery == Delivery::PerConnection { self.waiting.pop_front() } else { None }
    }

    /// The answer to this entry is not waited for. The connection, if the server has it.
    fn pass(&mut self, index: u64) -> Option<ConnectionId> {
        let working = self.working.filter(|working| working.index == index);
        if working.is_some() {
            self.working = None;
        } else if self.waiting.iter().any(|(waiting, ..)| *waiting == index) {
            self.passed.insert(index);
        }
        working.map(|working| working.connection)
    }
}

impl Replica {
    /// Has the server of this node get this, as soon as it may.
    pub(super) fn deliver_to_server(
        &mut self,
        index: u64,
        connection: ConnectionId,
        action: Action,
        now_ms: u64,
    ) {
        self.deliveries.waiting.push_back((index, connection, action));
        self.go_on_with_deliveries(now_ms);
    }

    /// Gives the server what it may have now.
    pub(super) fn go_on_with_deliveries(&mut self, now_ms: u64) {
        while let Some((index, connection, action)) = self.deliveries.next() {
            // One that has ended its stream says nothing more, whatever it gets.
            let has_ended = self.deliveries.ended.contains(&connection);
            let (waits, awaits_end) = match &action {
                Action::ToServer { bytes, .. } => {
                    let protocol = self.protocol;
                    let questions =
                        self.questions.entry(connection).or_insert_with(|| Questions::resumed(protocol));
                    questions.ask(bytes);
                    (!has_ended && !questions.are_answered(), false)
                }
                // It ends its stream as well, when it has answered all.
                Action::EndToServer { .. } => (!has_ended, true),
                Action::CloseServer { .. } => (true, true),
                _ => (false, false),
            };
            let is_passed = self.deliveries.passed.remove(&index);
            if is_passed && let Some(questions) = self.questions.get_mut(&connection) {
                questions.pass();
            }
            self.actions.push_back(action);
            if waits && !is_passed && !is_mutant!(self, DeliversAtOnce) {
                self.deliveries.working =
                    Some(Working { connection, index, since_ms: now_ms, awaits_end, is_passed: false });
            }
        }
    }

    /// The server is about to have this connection.
    pub(super) fn connect_server(&mut self, connection: ConnectionId) {
        self.questions.insert(connection, Questions::new(self.protocol));
        self.actions.push_back(Action::ConnectServer { connection });
    }

    /// The server has said something on this connection.
    pub(super) fn note_answer(&mut self, connection: ConnectionId, bytes: &[u8], now_ms: u64) {
        if let Some(questions) = self.questions.get_mut(&connection) {
            questions.answer(bytes);
            if !questions.are_answered() {
                return;
            }
        }
        if !self.deliveries.working.is_some_and(|working| working.awaits_end) {
            self.deliveries.end_work(connection);
        }
        self.go_on_with_deliveries(now_ms);
    }

    /// The server of this node has ended its stream of this connection.
    pub(super) fn note_server_end(&mut self, connection: ConnectionId, now_ms: u64) {
        self.questions.remove(&connection);
        self.deliveries.ended.insert(connection);
        self.deliveries.end_work(connection);
        self.go_on_with_deliveries(now_ms);
    }

    /// The shell has [closed](Action::CloseServer) the connection to the server, and the server has done so as well, or has not within a
    /// time.
    pub fn handle_server_closed(&mut self, connection: ConnectionId, now_ms: u64) {
        self.note_server_end(connection, now_ms);
        self.deliveries.ended.remove(&connection);
        self.take_outputs(now_ms);
    }

    /// When the primary passes what its server does not answer.
    pub(super) fn passes_at_ms(&self) -> Option<u64> {
        let others_wait = self.role == Role::Serving && !self.deliveries.waiting.is_empty();
        let working = self.deliveries.working.filter(|working| others_wait && !working.is_passed)?;
        Some(working.since_ms + self.order.limits().answer_timeout_ms)
    }

    /// When a backup's server counts as hanging: that of the primary has answered, or was passed.
    pub(super) fn hangs_at_ms(&self) -> Option<u64> {
        let others_wait = self.role == Role::Backup && !self.deliveries.waiting.is_empty();
        let working = self.deliveries.working.filter(|_| others_wait)?;
        Some(working.since_ms + self.order.limits().hang_timeout_ms)
    }

    pub(super) fn pass_unanswered(&mut self, now_ms: u64) {
        if self.hangs_at_ms().is_some_and(|at_ms| now_ms >= at_ms)
            && let Some(working) = &mut self.deliveries.working
        {
            working.since_ms = now_ms;
            self.actions.push_back(Action::ServerHangs);
        }
        if self.passes_at_ms().is_none_or(|at_ms| now_ms < at_ms) {
            return;
        }
        if let Some(working) = &mut self.deliveries.working {
            working.is_passed = true;
            let index = working.index;
            self.propose(Entry::Proceed { index }, now_ms);
        }
    }

    /// That was proposed by a node that leads no more.
    pub(super) fn forget_passing(&mut self) {
        if let Some(working) = &mut self.deliveries.working {
            working.is_passed = false;
        }
    }

    /// All nodes go on without the answer to this entry.
    pub(super) fn proceed(&mut self, index: u64, now_ms: u64) {
        if is_mutant!(self, ProceedIsForgotten) {
            return;
        }
        if let Some(connection) = self.deliveries.pass(index)
            && let Some(questions) = self.questions.get_mut(&connection)
        {
            questions.pass();
        }
        self.go_on_with_deliveries(now_ms);
    }

    /// Whether the server has answered all that this node was to give it: then its data are those of the last entry that was
    /// delivered, and can be copied.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.deliveries.are_done()
    }
}
