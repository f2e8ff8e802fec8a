//! What a node does as the primary, and when it is that no longer.

use super::machine::Machine;
use crate::view::NodeId;
use mio::Token;
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

/// The address is announced again, where an earlier primary may have said late that it is there.
const ANNOUNCE: Duration = Duration::from_millis(500);

impl Machine {
    /// This node leads: it makes all connections again, takes the portal's address, and goes on.
    pub(super) fn take_over(&mut self, epoch: u64) -> io::Result<()> {
        let begun = Instant::now();
        self.forget_clients();
        for connection in self.replica.connections() {
            self.restore_client(connection);
        }
        // It may have been over meanwhile: then all that is undone.
        if !self.has_lease() {
            return Ok(());
        }
        // Before packets pass, as without it there would be no answer.
        self.portal.take()?;
        self.announce_now();
        self.replica.handle_restored(epoch, self.now_ms());
        if !self.replica.is_serving() {
            return Ok(());
        }
        self.known.is_serving = true;
        self.known.take_overs += 1;
        self.took_over_at = Some(Instant::now());
        let since = self.fenced_at.take().unwrap_or(self.heard_primary_at);
        self.known.paused = Some(since.max(self.heard_primary_at).elapsed());
        self.known.restored_in = Some(begun.elapsed());
        self.announce_at = Some(Instant::now() + ANNOUNCE);
        for connection in self.replica.connections() {
            self.go_on_with(connection);
        }
        Ok(())
    }

    /// This node does not lead any more: no client hears anything of it.
    pub(super) fn fence(&mut self) {
        self.announce_at = None;
        self.unqueued.allow_for(Duration::ZERO, Duration::ZERO);
        // What it was as a primary counts where it is one still.
        if self.known.is_serving {
            self.fenced_at = Some(Instant::now());
            let is_leaseless = self.replica.order().is_primary() && !self.handing_over.has_just_ended();
            self.known.fences += u64::from(is_leaseless);
        }
        self.handing_over.note_fence();
        self.forget_clients();
    }

    pub(super) fn give_up_address(&mut self) {
        if let Err(error) = self.portal.give_up() {
            tracing::error!(%error, "the portal's address cannot be given up");
        }
    }

    fn forget_clients(&mut self) {
        // Those that the kernel has, and nobody has asked for yet.
        self.accept();
        for (connection, mut client) in std::mem::take(&mut self.clients) {
            self.unqueued.forget(connection, &mut client.unqueued);
            client.close_silently();
        }
        self.unqueued.forget_later();
        self.by_ends.clear();
        for set in [&mut self.dirty_clients, &mut self.heard, &mut self.watched] {
            set.clear();
        }
        let servers: BTreeSet<Token> =
            self.by_token.keys().filter(|token| token.0 % 2 == 1).copied().collect();
        self.by_token.retain(|token, _| servers.contains(token));
    }

    pub(super) fn announce(&mut self) {
        let now = Instant::now();
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce_at = Some(now + ANNOUNCE);
            if self.has_lease()
                && let Err(error) = self.portal.take()
            {
                tracing::error!(%error, "the portal's address cannot be kept");
            }
            self.announce_now();
        }
    }

    fn announce_now(&mut self) {
        if self.has_lease()
            && let Err(error) = self.portal.announce()
        {
            tracing::debug!(%error, "the portal's address could not be announced");
        }
    }

    /// Nodes that have caught up become necessary, and are told of.
    pub(super) fn promote(&mut self) {
        // In each view from the beginning: what others had in the one before does not count.
        self.known.promoted.clear();
        if !self.replica.is_serving() {
            return;
        }
        let now_ms = self.now_ms();
        let learners: Vec<NodeId> = self.replica.order().learners().collect();
        for node in learners.into_iter().filter(|node| self.known.linked.contains(node)) {
            if self.replica.promote(node, now_ms) {
                self.known.promoted.insert(node);
            }
        }
    }
}
