//! Packets that pass without a verdict of this process: by the marks of their sockets, which the portal's rules know, and by a program that the
//! kernel asks about those that leave.

use super::clients::Client;
use super::machine::{LOOK, Machine};
use crate::entry::ConnectionId;
use outlast_netlink::ack_filter::{AckFilter, Slot, mark_and_mask};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Between two looks at what clients have, where no packet of theirs is seen.
const LOOK_AT_UNACKED: Duration = Duration::from_millis(25);
/// And after so much was written, where that is more often: all nodes keep what is not known to have come.
const LOOK_AFTER_BYTES: u64 = 64 << 10;
/// What was allowed counts for so long without a word of this process, at the most: one that serves looks after [`LOOK`].
const ALLOWED_FOR: Duration = LOOK.saturating_mul(3);

/// What the kernel can do by itself.
#[derive(Debug)]
pub(super) struct Unqueued {
    filter: Option<AckFilter>,
    /// Clients whose packets pass, and who may not have all that was sent.
    unacked: BTreeSet<ConnectionId>,
    looked_at: Instant,
    /// What is allowed when the kernel has the verdicts of the packets that wait: others would else come before them.
    later: Vec<(ConnectionId, u32)>,
}

/// How packets of one client pass.
#[derive(Debug, Default)]
pub(super) struct UnqueuedClient {
    slot: Option<Slot>,
    /// Of the socket: 0 for none.
    mark: u32,
    /// So much was written when it was looked at last.
    looked_at: u64,
}

impl Unqueued {
    pub(super) fn new(filter: Option<AckFilter>) -> Self {
        Self { filter, unacked: BTreeSet::new(), looked_at: Instant::now(), later: Vec::new() }
    }

    /// For so long from that instant of the monotonic clock what was allowed may leave.
    pub(super) fn allow_for(&self, since: Duration, left: Duration) {
        if let Some(filter) = &self.filter {
            let left = left.min(ALLOWED_FOR);
            filter.allow_until(if left.is_zero() { Duration::ZERO } else { since.saturating_add(left) });
        }
    }

    /// All sockets of clients are closed: what was allowed was for these.
    pub(super) fn forget_later(&mut self) {
        self.later.clear();
    }

    /// The client is forgotten.
    pub(super) fn forget(&mut self, connection: ConnectionId, unqueued: &mut UnqueuedClient) {
        self.unacked.remove(&connection);
        if let Some((slot, filter)) = unqueued.slot.take().zip(self.filter.as_mut()) {
            filter.remove(slot);
        }
    }

    /// The kernel has got all before this for a client. Whether to look at once how far that one is.
    pub(super) fn note_written(
        &mut self,
        connection: ConnectionId,
        unqueued: &mut UnqueuedClient,
        written: u64,
    ) -> bool {
        if unqueued.mark == 0 {
            return false;
        }
        self.unacked.insert(connection);
        let is_much = written >= unqueued.looked_at + LOOK_AFTER_BYTES;
        if is_much {
            unqueued.looked_at = written;
        }
        is_much
    }

    fn allow(&mut self, client: SocketAddr, unqueued: &mut UnqueuedClient, acknowledges: u32) {
        let Some(filter) = &mut self.filter else { return };
        if unqueued.slot.is_none() {
            unqueued.slot = filter.add(client);
        }
        if let Some(slot) = &unqueued.slot {
            filter.allow(slot, client, acknowledges);
        }
    }
}

/// The time on the clock that the kernel's programs know.
pub(super) fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}

impl Client {
    fn set_mark(&mut self, mark: u32) {
        match socket2::SockRef::from(&self.stream.socket).set_mark(mark) {
            Ok(()) => self.unqueued.mark = mark,
            Err(error) => tracing::debug!(%error, "packets of a client wait for verdicts"),
        }
    }
}

impl Machine {
    /// Packets of this client pass, as far as they acknowledge no more than this; or none does.
    pub(super) fn let_pass(&mut self, connection: ConnectionId, acknowledges: Option<u32>) {
        match acknowledges {
            None => {
                self.unqueued.later.retain(|(later, _)| *later != connection);
                if let Some(client) =
                    self.clients.get_mut(&connection).filter(|client| client.unqueued.mark != 0)
                {
                    client.set_mark(0);
                }
            }
            Some(acknowledges) if self.verdicts.is_empty() => self.allow(connection, acknowledges),
            Some(acknowledges) => self.unqueued.later.push((connection, acknowledges)),
        }
    }

    /// The kernel has the verdicts of all packets that waited.
    pub(super) fn let_later_pass(&mut self) {
        let mut later = std::mem::take(&mut self.unqueued.later);
        for (connection, acknowledges) in later.drain(..) {
            self.allow(connection, acknowledges);
        }
        self.unqueued.later = later;
    }

    fn allow(&mut self, connection: ConnectionId, acknowledges: u32) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        self.unqueued.allow(client.ends.client, &mut client.unqueued, acknowledges);
        // Where there are more clients than entries, what they send passes, and what they get waits.
        let mark = client.unqueued.slot.as_ref().map_or(mark_and_mask().0, Slot::mark);
        if client.unqueued.mark != mark && self.unqueued.filter.is_some() {
            client.set_mark(mark);
            // What was written before may be under way.
            self.unqueued.unacked.insert(connection);
        }
    }

    /// What comes from clients waits for verdicts.
    pub(super) fn let_none_pass(&mut self) {
        self.unqueued.forget_later();
        for client in self.clients.values_mut().filter(|client| client.unqueued.mark != 0) {
            client.set_mark(0);
        }
    }

    /// What clients have acknowledged, where this process sees no packet of theirs.
    pub(super) fn look_at_unacked(&mut self) {
        if self.unqueued.looked_at.elapsed() < LOOK_AT_UNACKED {
            return;
        }
        self.unqueued.looked_at = Instant::now();
        let now_ms = self.now_ms();
        let (clients, replica) = (&self.clients, &mut self.replica);
        self.unqueued.unacked.retain(|connection| {
            let Some(client) = clients.get(connection) else { return false };
            let acked = client.acked();
            replica.handle_acked(*connection, acked, now_ms);
            acked < client.all_written()
        });
    }

    /// When that is to be done next.
    pub(super) fn looks_at_unacked_at(&self) -> Option<Instant> {
        (!self.unqueued.unacked.is_empty()).then(|| self.unqueued.looked_at + LOOK_AT_UNACKED)
    }
}
