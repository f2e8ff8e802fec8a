//! Connections that are over, for as long as their clients may not know: TIME-WAIT (RFC 9293, section 3.3.2), which dies with the kernel that
//! was in it.

use crate::connection::{Connection, Ends, Handshake, Segment};
use alloc::collections::{BTreeMap, VecDeque};

/// Linux: `TCP_TIMEWAIT_LEN`.
const TIME_WAIT_MS: u64 = 60_000;
/// Linux keeps 4 to 8 times as many at the most (`tcp_max_tw_buckets`), where it has much memory.
const CLOSED_MAX: usize = 65_536;

/// What is said to a client that says again what has come, as it has not heard that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastAck {
    /// How the connection began.
    pub handshake: Handshake,
    /// The number behind the end of the answers.
    pub sequence: u32,
    /// The number behind the end of the client's stream.
    pub ack: u32,
    /// When the connection was opened: its timestamps are reckoned from there.
    pub opened_at_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Closed {
    known: BTreeMap<Ends, LastAck>,
    /// In the order in which they are forgotten.
    until_ms: VecDeque<(u64, Ends)>,
}

impl Closed {
    /// A connection is over. Only the end that has ended its stream first waits.
    pub(super) fn push(&mut self, state: &Connection, now_ms: u64) {
        while let Some((until_ms, ends)) = self.until_ms.front().copied()
            && (until_ms <= now_ms || self.until_ms.len() >= CLOSED_MAX)
        {
            self.until_ms.pop_front();
            self.known.remove(&ends);
        }
        // An earlier one from the same port: what its client said last is not what this one says.
        self.known.remove(&state.handshake.ends);
        let Some(end) = state.answers.end.filter(|_| state.answers.ended_first && state.input.ended) else {
            return;
        };
        let handshake = state.handshake;
        let last_ack = LastAck {
            handshake,
            sequence: handshake.server.number(end).wrapping_add(1),
            ack: handshake.client.number(state.input.delivered).wrapping_add(1),
            opened_at_ms: state.opened_at_ms,
        };
        self.remember(last_ack, now_ms);
    }

    /// One that is over.
    pub(super) fn remember(&mut self, last_ack: LastAck, now_ms: u64) {
        let ends = last_ack.handshake.ends;
        self.known.insert(ends, last_ack);
        self.until_ms.push_back((now_ms + TIME_WAIT_MS, ends));
    }

    /// All that are known.
    pub(super) fn all(&self) -> impl Iterator<Item = LastAck> {
        self.known.values().copied()
    }

    /// An acknowledgement, and nothing else, that comes when all is over: nobody needs it, and a kernel that does not know the connection would
    /// answer with a reset.
    pub(super) fn is_late_ack(&self, segment: &Segment) -> bool {
        let flags = segment.flags;
        let is_bare = !flags.syn && !flags.rst && !flags.fin && segment.payload_bytes == 0;
        is_bare && self.known.contains_key(&segment.ends)
    }

    /// The answer to a client that has not heard that all is over.
    pub(super) fn answer(&self, segment: &Segment) -> Option<LastAck> {
        let last_ack = self.known.get(&segment.ends)?;
        let says = segment.flags.fin || segment.payload_bytes > 0;
        (says && !segment.flags.syn && !segment.flags.rst).then_some(*last_ack)
    }
}
