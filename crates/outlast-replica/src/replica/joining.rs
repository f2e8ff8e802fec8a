//! A node that begins with a snapshot of another one's server, and goes on with its connections.
//!
//! A snapshot has the server's data, and not its connections. But what clients say on them from then on changes the data, too: so the new node's
//! server has to get it, on connections of its own. It gets them from the shell, in the state in which the other server has them, as far as the
//! protocol is understood (a login, a chosen database). A connection whose state cannot be told has to end before the snapshot is made
//! ([`Replica::handle_abort`]): a server that has missed what came there has other data.

use super::{Action, LastAck, Replica};
use crate::connection::{Connection, Handshake};
use crate::entry::{ConnectionId, Entry};
use crate::is_mutant;
use crate::view::{NodeId, View};
use crate::{Limits, Order};
use alloc::vec::Vec;

/// Where the order was when the server's data were copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Of the last entry that the server had worked off.
    pub index: u64,
    /// The connections that were open then.
    pub connections: Vec<Known>,
    /// Those that had ended not long before, and whose clients may not know.
    pub closed: Vec<LastAck>,
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
    /// The last bytes of that, which the client may not have.
    pub unacked: Vec<u8>,
    /// The server had said all.
    pub server_ended: bool,
    /// Where the answers end, if that was stable.
    pub end: Option<u64>,
    /// The server had ended its stream before the client had.
    pub ended_first: bool,
    /// The server had reset it.
    pub is_aborted: bool,
}

impl Replica {
    /// A node that has restored this snapshot. It catches up, until the primary [promotes](Self::promote) it.
    #[must_use]
    pub fn join(me: NodeId, snapshot: &Snapshot, view: View, limits: Limits, now_ms: u64) -> Self {
        let mut replica = Self::after(Order::new(me, snapshot.index, view, limits));
        for known in &snapshot.connections {
            let (connection, ends) = (known.connection, known.handshake.ends);
            let newest = replica.by_ends.entry(ends).or_insert(connection);
            *newest = connection.max(*newest);
            replica.connections.insert(connection, Connection::known(known, now_ms));
            replica.resume_server(connection, known.produced, known.server_ended || known.is_aborted);
            if !known.server_ended && !known.is_aborted {
                replica.actions.push_back(Action::ReconnectServer { connection });
            }
        }
        for last_ack in &snapshot.closed {
            replica.closed.remember(*last_ack, now_ms);
        }
        replica
    }

    /// What a node has to know that begins with a copy of this one's server. To be asked when the server has worked off all that it was given,
    /// and all that it has said was handed in.
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
            unacked: if is_mutant!(self, SnapshotForgetsAnswers) {
                Vec::new()
            } else {
                state.answers.kept.iter().copied().collect()
            },
            server_ended: state.answers.server_ended || state.answers.server_reset,
            end: state.answers.end,
            ended_first: state.answers.ended_first,
            is_aborted: state.is_aborted,
        });
        let closed = self.closed.all().collect();
        Snapshot { index: self.order.delivered(), connections: connections.collect(), closed }
    }

    /// At the primary: ends a connection on all nodes, with a reset for its client.
    pub fn handle_abort(&mut self, connection: ConnectionId, now_ms: u64) {
        self.propose(Entry::Abort { connection }, now_ms);
        self.take_outputs(now_ms);
    }

    /// At the primary: a node is about to begin with a snapshot ([`Order::expect`]).
    pub fn expect(&mut self, node: NodeId) -> Option<u64> {
        self.order.expect(node)
    }

    /// At the primary: makes a node that has caught up necessary, so that it may be a member ([`Order::promote`]).
    pub fn promote(&mut self, node: NodeId) -> bool {
        self.order.promote(node)
    }
}
