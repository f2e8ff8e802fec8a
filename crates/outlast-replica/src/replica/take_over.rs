//! Another node has led, and this one does now: what it has to know of every connection, to go on with it.

use super::transactions::Transactions;
use super::{Action, Replica, Role};
use crate::connection::{Agreed, Ends, Handshake};
use crate::entry::ConnectionId;
use crate::is_mutant;
use alloc::vec::Vec;

/// So long packets are under way at the most, as Linux reckons (`TCP_TIMEWAIT_LEN`): a client may be told for so long what the node before
/// has sent.
const AHEAD_MS: u64 = 60_000;

/// How a connection is made again, as values for `TCP_REPAIR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restore<'a> {
    /// Its two ends.
    pub ends: Ends,
    /// What both ends have agreed on.
    pub agreed: Agreed,
    /// The number of the first byte of `unacked`.
    pub send_sequence: u32,
    /// The number of the byte that is expected from the client.
    pub receive_sequence: u32,
    /// What is stable of the client's stream, with its end: packets that pass the rules unseen acknowledge no more than that.
    pub stable_ack: u32,
    /// The first of what the client may have been sent and may not have ([`Limits::resent_bytes_max`](crate::Limits::resent_bytes_max)): it has
    /// to be in the send queue before the socket leaves repair mode, or the client's acknowledgements are taken for wrong ones. The rest
    /// is there for the socket from then on.
    pub unacked: (&'a [u8], &'a [u8]),
    /// The client's FIN is stable: its acknowledgement is repeated.
    pub client_ended: bool,
    /// The answers end behind `unacked`.
    pub answers_ended: bool,
    /// The server has reset the connection: so does this node, instead of going on with it.
    pub is_aborted: bool,
    /// Where nothing has come from the client, it may not have got the SYN-ACK: that has to be sent again, with these numbers.
    pub syn_ack: Option<Handshake>,
    /// For so long the connection has been open, about: timestamps have to be ahead of all that were sent.
    pub age_ms: u64,
    /// Of the view in which this node has restored it: what was sent in earlier ones was sent by clocks of others.
    pub epoch: u64,
}

impl Replica {
    /// Whether this node leads may have changed.
    pub(super) fn handle_role(&mut self, now_ms: u64) {
        let leads = self.order.is_primary() && self.has_lease;
        if leads == (self.role != Role::Backup) {
            if self.role == Role::Restoring {
                // Another view, led by this node again.
                self.role = Role::Waiting;
            }
            return;
        }
        if leads {
            self.role = Role::Waiting;
            return;
        }
        self.step_down(now_ms);
    }

    /// This node serves no clients any more.
    pub(super) fn step_down(&mut self, now_ms: u64) {
        if self.role == Role::Backup {
            return;
        }
        self.role = Role::Backup;
        self.pending.clear();
        self.opening.clear();
        self.acked.clear();
        self.unaccepted.clear();
        self.transactions = Transactions::default();
        self.forget_proposed_proceeds();
        self.clock.forget_proposed();
        for ((_, packet), _) in core::mem::take(&mut self.held) {
            self.actions.push_back(Action::Verdict { packet, passes: false });
        }
        self.drop_strays();
        self.begin_to_forward(now_ms);
        self.actions.push_back(Action::Fence);
        self.unagreed.clear();
        self.forget_proposals();
        self.disown_answers(now_ms);
    }

    /// What was only proposed may be replaced by another primary; if not, it comes again as a delivery.
    fn forget_proposals(&mut self) {
        let unopened: Vec<ConnectionId> =
            self.connections.iter().filter(|(_, state)| !state.is_open).map(|(id, _)| *id).collect();
        if !is_mutant!(self, KeepsUnopened) {
            for connection in unopened {
                self.forget(connection);
            }
        }
        // An earlier connection of the same client may have been hidden by one that never came to be.
        self.by_ends = self.connections.iter().map(|(id, state)| (state.handshake.ends, *id)).collect();
        let keeps = is_mutant!(self, KeepsProposed);
        for state in self.connections.values_mut().filter(|_| !keeps) {
            state.forget_proposals();
        }
    }

    /// A primary begins to restore when all is stable that the one before it may have shown to anybody.
    pub(super) fn begin_take_over(&mut self) {
        let is_due = self.order.delivered() >= self.order.inherited() || is_mutant!(self, TakesOverEarly);
        if self.role == Role::Waiting && is_due && self.holding.is_none() {
            self.role = Role::Restoring;
            self.forget_proposals();
            self.actions.push_back(Action::TakeOver { epoch: self.order.view().epoch });
        }
    }

    /// How this connection is made again.
    #[must_use]
    pub fn restore(&self, connection: ConnectionId, now_ms: u64) -> Option<Restore<'_>> {
        let state = self.connections.get(&connection)?;
        let (handshake, input, answers) = (&state.handshake, &state.input, &state.answers);
        let received = if is_mutant!(self, RestoresAtDelivered) { input.delivered } else { input.proposed };
        let nothing_came = input.delivered == 0 && !input.ended && answers.acked == 0;
        // A socket that serves is made again with what counts as given to it: more may go out since then.
        let until = if self.role == Role::Serving {
            answers.written
        } else {
            answers.resent_until(self.order.limits().resent_bytes_max, self.may_go_out(answers))
        };
        let resent_bytes = usize::try_from(until - answers.acked).unwrap_or(usize::MAX);
        let (front, back) = answers.unacked();
        let front = front.get(..resent_bytes).unwrap_or(front);
        let back = back.get(..resent_bytes - front.len()).unwrap_or(back);
        let unacked = if is_mutant!(self, RestoresNoAnswers) { (&[][..], &[][..]) } else { (front, back) };
        Some(Restore {
            ends: handshake.ends,
            agreed: handshake.agreed(),
            send_sequence: handshake.server.number(answers.acked),
            receive_sequence: handshake.client.number(received),
            stable_ack: handshake.client.number(input.delivered).wrapping_add(input.ended.into()),
            unacked,
            client_ended: input.end_proposed,
            answers_ended: answers.end.is_some_and(|end| until >= end),
            is_aborted: state.is_aborted,
            syn_ack: nothing_came.then_some(*handshake),
            age_ms: now_ms.saturating_sub(state.opened_at_ms),
            epoch: if self.role == Role::Serving && state.is_restored {
                state.restored_epoch
            } else {
                self.order.view().epoch
            },
        })
    }

    /// All connections are restored, and the portal's address is here: this node serves, if it still leads in that view.
    pub fn handle_restored(&mut self, epoch: u64, now_ms: u64) {
        if self.role != Role::Restoring || epoch != self.order.view().epoch {
            return;
        }
        self.role = Role::Serving;
        let resent_bytes_max = self.order.limits().resent_bytes_max;
        let delivered = self.order.delivered();
        for connection in self.connections() {
            let may_go_out = self.connections.get(&connection).map(|state| self.may_go_out(&state.answers));
            let Some(state) = self.connections.get_mut(&connection) else { continue };
            state.restored_epoch = epoch;
            (state.is_restored, state.is_accepted) = (true, true);
            state.ahead_until_ms = now_ms + AHEAD_MS;
            state.restored(resent_bytes_max, may_go_out.unwrap_or(u64::MAX));
            self.goes_out_after_compared(delivered, connection);
            if !is_mutant!(self, OwnRepliesAreForgotten) {
                self.propose_canonical(connection, now_ms);
            }
            if !is_mutant!(self, EndsAreForgotten) {
                self.propose_end(connection, now_ms);
            }
            self.tell_news_later(connection, now_ms);
            self.tell_client(connection);
        }
        if !is_mutant!(self, AgreedIsForgotten) {
            // What members have said while this node had no lease.
            self.judge_differences(now_ms);
            self.let_go_out();
        }
        self.end_forwarding();
        self.keep_on(now_ms);
        self.say_that_it_serves(now_ms);
        self.take_outputs(now_ms);
    }
}
