//! Packets that need no verdict: what they say is stable, and nothing has to be known of what they bring.

use super::{Action, Replica, Role};
use crate::entry::ConnectionId;
use crate::is_mutant;

impl Replica {
    /// More of what this client has sent is stable, or it may be long enough ago that this node took over.
    pub(super) fn let_pass(&mut self, connection: ConnectionId, now_ms: u64) {
        // What comes may be for another primary.
        if self.role != Role::Serving || self.keeps_packets() {
            return;
        }
        let proposed = is_mutant!(self, ProposedIsAcknowledged);
        let Some(state) = self.connections.get_mut(&connection) else { return };
        // The client may acknowledge what this node's kernel has not sent: such a packet is looked at.
        if !state.is_open || now_ms < state.ahead_until_ms {
            return;
        }
        let input = &state.input;
        let stable = if proposed { input.proposed } else { input.delivered } + u64::from(input.ended);
        state.passes = true;
        let acknowledges = Some(state.handshake.client.number(stable));
        self.actions.push_back(Action::LetPass { connection, acknowledges });
    }

    /// The shell lets nobody's packets pass, and may again.
    pub fn let_all_pass(&mut self, now_ms: u64) {
        for connection in self.connections() {
            self.let_pass(connection, now_ms);
        }
    }

    /// All packets are looked at again.
    pub(super) fn let_none_pass(&mut self) {
        for (connection, state) in &mut self.connections {
            if core::mem::take(&mut state.passes) {
                self.actions.push_back(Action::LetPass { connection: *connection, acknowledges: None });
            }
        }
    }
}
