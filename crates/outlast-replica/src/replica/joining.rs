//! A node that begins with a snapshot of another one's server, and goes on with its connections.
//!
//! A snapshot has the server's data, and not its connections. But what clients say on them from then on changes the data, too: so the new node's
//! server has to get it, on connections of its own. It gets them from the shell, in the state in which the other server has them, as far as the
//! protocol is understood (a login, a chosen database). A connection whose state cannot be transferred has to end before the snapshot is made
//! ([`Replica::handle_abort`]): a server that has missed what came there has other data.

use super::clock::Clock;
use super::{Action, Delivery, LastAck, Replica, Role};
use crate::connection::{Connection, Handshake};
use crate::entry::{ConnectionId, Entry};
use crate::is_mutant;
use crate::protocol::{Protocol, Resume};
use crate::view::{NodeId, View};
use crate::{Limits, Order, Weigh};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Longer than a primary holds anything back.
const EARLIER_MS_MAX: u64 = 15_000;
/// Clients are not read any more when this part of what the log may hold waits.
const HELD_PART: usize = 4;

/// Entries that are stable, and wait until the server's data are copied.
#[derive(Debug, Default)]
pub(super) struct Holding {
    entries: VecDeque<(u64, Entry)>,
    bytes: usize,
    /// Connections to the server of this node are brought into their states.
    resumes: bool,
}

impl Holding {
    /// Whether no more may come.
    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.bytes > limits.log_bytes_max / HELD_PART
    }
}

/// Where the order was when the server's data were copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Of the last entry that the server had worked off.
    pub index: u64,
    /// When it was made, by the clock of the node that made it.
    pub at_ms: u64,
    /// The time of day that the server had then, where it has that from the order ([`ServerClock::Order`](super::ServerClock)); 0: it has had none.
    pub clock_ms: u64,
    /// The connections that were open then.
    pub connections: Vec<Known>,
    /// Those that had ended not long before, and whose clients may not know, and for how long each had been open.
    pub closed: Vec<(LastAck, u64)>,
}

/// A connection that is older than a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its number.
    pub connection: ConnectionId,
    /// How it began.
    pub handshake: Handshake,
    /// For so long it had been open.
    pub age_ms: u64,
    /// How much the client had sent.
    pub delivered: u64,
    /// The client had ended its stream.
    pub ended: bool,
    /// How much the server had said.
    pub produced: u64,
    /// The same in parts that are compared, and how many of them were in entries.
    pub said: u64,
    /// See there.
    pub reported: u64,
    /// So many replies the server would have given in its own way ([`Entry::Canonical`]).
    pub own: u64,
    /// The last bytes of that, which the client may not have.
    pub unacked: Vec<u8>,
    /// How another server is brought into the state that this one had; none: the server had said all.
    pub resume: Option<Resume>,
    /// Where the answers end, if that was stable.
    pub end: Option<u64>,
    /// The server had ended its stream before the client had.
    pub ended_first: bool,
    /// The server had reset it.
    pub is_aborted: bool,
    /// It had, and no entry says so yet.
    pub is_reset: bool,
}

impl Replica {
    /// A node that has restored this snapshot, which was made at `made_ms` by this node's clock. It catches up, until the primary
    /// [promotes](Self::promote) it; its server is given nothing new before [`handle_resumed`](Self::handle_resumed).
    #[must_use]
    pub fn join(
        me: NodeId,
        snapshot: &Snapshot,
        view: View,
        limits: Limits,
        (delivery, protocol): (Delivery, Protocol),
        made_ms: u64,
    ) -> Self {
        let mut replica = Self::after(Order::new(me, snapshot.index, view, limits)).with(delivery, protocol);
        for known in &snapshot.connections {
            let (connection, ends) = (known.connection, known.handshake.ends);
            let newest = replica.by_ends.entry(ends).or_insert(connection);
            *newest = connection.max(*newest);
            replica
                .connections
                .insert(connection, Connection::known(known, protocol.counts_replies(), made_ms));
            replica.resume_server(connection, known.produced, known.resume.as_ref());
            if known.ended && known.resume.is_some() {
                replica.actions.push_back(Action::EndToServer { connection });
            }
        }
        // A message to subscribers would else be lost, if one of them is not there yet.
        replica.holding = Some(Holding { resumes: true, ..Holding::default() });
        for (last_ack, age_ms) in &snapshot.closed {
            let opened_at_ms = made_ms.saturating_sub(*age_ms);
            replica.closed.remember(LastAck { opened_at_ms, ..*last_ack }, made_ms);
        }
        replica.clock = Clock::resumed(snapshot.clock_ms, made_ms);
        replica.late = Some((snapshot.at_ms, made_ms));
        replica
    }

    /// When a connection was opened, by this node's clock: one that joins hears of it late. It may have been while the primary held all back for
    /// the snapshot. Clocks of two primaries may differ, so the time is not much earlier than that, and no later than now.
    pub(super) fn opened_at_ms(&self, at_ms: u64, now_ms: u64) -> u64 {
        let opened = self.late.map(|(snapshot_ms, made_ms)| {
            let earlier_ms = snapshot_ms.saturating_sub(at_ms).min(EARLIER_MS_MAX);
            let later_ms = at_ms.saturating_sub(snapshot_ms);
            made_ms.saturating_sub(earlier_ms).saturating_add(later_ms).min(now_ms)
        });
        opened.unwrap_or(now_ms)
    }

    /// From now on the server of this node gets nothing that becomes stable, nor does any client hear of that: so it comes to an end with what
    /// it has got ([`is_settled`](Self::is_settled)), and its data can be copied. Another view, or another word about the lease, ends this.
    pub fn hold(&mut self) {
        self.holding.get_or_insert_default();
    }

    /// The same, right behind an entry at which the servers of all nodes forget what a copy of their data lacks. Whether that is
    /// proposed. Only then may the data be [copied](Self::snapshot), once this [holds](Self::is_refreshed).
    pub fn refresh_and_hold(&mut self, now_ms: u64) -> bool {
        if self.role != Role::Serving || !self.pending.is_empty() || self.holding.is_some() {
            return false;
        }
        self.holds_behind = self.order.propose(Entry::Refresh, now_ms).ok();
        self.take_outputs(now_ms);
        self.holds_behind.is_some()
    }

    /// Such an entry is on its way, or was the last one.
    #[must_use]
    pub fn is_refreshing(&self) -> bool {
        self.holds_behind.is_some()
    }

    /// All is held right behind such an entry.
    #[must_use]
    pub fn is_refreshed(&self) -> bool {
        self.is_holding() && self.holds_behind == Some(self.worked_on)
    }

    /// Whether it is so.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.holding.is_some()
    }

    /// All goes on.
    pub fn release(&mut self, now_ms: u64) {
        self.holds_behind = None;
        if self.holding.as_ref().is_some_and(|holding| !holding.resumes) {
            self.go_on(now_ms);
        }
    }

    /// At a node that joins: all connections to its server are in their states ([`Action::ReconnectServer`]).
    pub fn handle_resumed(&mut self, now_ms: u64) {
        self.go_on(now_ms);
    }

    fn go_on(&mut self, now_ms: u64) {
        let Some(holding) = self.holding.take() else { return };
        for (index, entry) in holding.entries {
            self.deliver(index, entry, now_ms);
        }
        self.take_outputs(now_ms);
    }

    pub(super) fn deliver_or_hold(&mut self, index: u64, entry: Entry, now_ms: u64) {
        let Some(holding) = &mut self.holding else { return self.deliver(index, entry, now_ms) };
        if let Entry::Canonical { connection, .. } = entry
            && self.connections.contains_key(&connection)
        {
            // It is not for the server. What a copy has already is passed over there.
            return self.take_canonical(entry, now_ms);
        }
        if let Entry::Proceed { index } = entry
            && let Some(connection) = self.deliveries.connection_of(index)
            && (self.deliveries.waits_for_others(connection)
                || !holding.entries.iter().any(|(_, held)| held.given_on() == Some(connection)))
        {
            // The server is given what waits already. Nothing that is held goes before this, at any node: what other clients say waits behind that
            // connection, and what it says itself behind what others have said before.
            return self.proceed(index, now_ms);
        }
        holding.bytes += entry.weight_bytes();
        holding.entries.push_back((index, entry));
    }

    /// Connections whose state cannot be transferred to another server at present. They have to be over
    /// ([`handle_abort`](Self::handle_abort)) before a [snapshot](Self::snapshot) is of use.
    #[must_use]
    pub fn not_transferable(&self) -> Vec<ConnectionId> {
        let is_not_transferable = |(id, state): &(&ConnectionId, &Connection)| {
            state.is_open && !state.has_server_ended() && self.resume(**id).is_none()
        };
        self.connections.iter().filter(is_not_transferable).map(|(id, _)| *id).collect()
    }

    fn resume(&self, connection: ConnectionId) -> Option<Resume> {
        self.questions.get(&connection)?.resume()
    }

    /// What a node has to know that begins with a copy of this one's server. To be asked when the server has worked off all that it was given
    /// ([`is_settled`](Self::is_settled)), and all that it has said was handed in.
    #[must_use]
    pub fn snapshot(&self, now_ms: u64) -> Snapshot {
        let forgets = is_mutant!(self, SnapshotForgetsConnections);
        let open = self.connections.iter().filter(|(_, state)| state.is_open && !forgets);
        let connections = open.map(|(connection, state)| Known {
            connection: *connection,
            handshake: state.handshake,
            age_ms: now_ms.saturating_sub(state.opened_at_ms),
            delivered: state.input.delivered,
            ended: state.input.ended,
            produced: state.answers.produced,
            said: state.answers.comparison.said(state.answers.produced),
            reported: state.answers.comparison.reported(),
            own: state.answers.own.done(),
            unacked: if is_mutant!(self, SnapshotForgetsAnswers) {
                Vec::new()
            } else {
                let (front, back) = state.answers.unacked();
                [front, back].concat()
            },
            resume: if state.has_server_ended() { None } else { self.resume(*connection) },
            end: state.answers.end,
            ended_first: state.answers.ended_first,
            is_aborted: state.is_aborted,
            is_reset: state.answers.server_reset && !state.is_aborted,
        });
        let index = if is_mutant!(self, SnapshotIsAhead) { self.order.delivered() } else { self.worked_on };
        let closed = self.closed.all().map(|last| {
            let age_ms = now_ms.saturating_sub(last.opened_at_ms);
            (LastAck { opened_at_ms: 0, ..last }, age_ms)
        });
        let (connections, closed) = (connections.collect(), closed.collect());
        let clock_ms = if is_mutant!(self, SnapshotForgetsTheTime) { 0 } else { self.clock.at_ms() };
        Snapshot { index, at_ms: now_ms, clock_ms, connections, closed }
    }

    /// At the primary: ends a connection on all nodes, with a reset for its client.
    /// Whether that is new.
    pub fn handle_abort(&mut self, connection: ConnectionId, now_ms: u64) -> bool {
        let serves = self.is_serving();
        let state =
            self.connections.get_mut(&connection).filter(|state| serves && !state.answers.abort_proposed);
        let Some(state) = state else { return false };
        state.answers.abort_proposed = true;
        let report = state.answers.propose_said();
        self.propose(Entry::Abort { connection, report }, now_ms);
        self.take_outputs(now_ms);
        true
    }

    /// At the primary: a node is about to begin with a snapshot ([`Order::expect`]).
    pub fn expect(&mut self, node: NodeId) -> Option<u64> {
        self.order.expect(node)
    }

    /// At the primary: makes a node that has caught up necessary, so that it may be a member ([`Order::promote`]).
    pub fn promote(&mut self, node: NodeId, now_ms: u64) -> bool {
        let is_promoted = self.order.promote(node, now_ms);
        self.take_outputs(now_ms);
        is_promoted
    }
}
