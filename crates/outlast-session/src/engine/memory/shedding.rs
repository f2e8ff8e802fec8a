//! Sessions that are given up as there is too little of something: a few at a time. Ending one wakes whatever serves it, and
//! thousands at once keep the links of all others waiting, on a busy machine for a second.

use super::{NAMED_MAX, SHED_BYTES, SHED_SESSIONS};
use crate::engine::Helper;
use crate::engine::server::Acceptor;
use crate::error::Error;
use crate::proto::{Holder, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// So many go at once.
const AT_ONCE: usize = 16;
/// And the next ones so much later: 1,600 in a second.
const PAUSE: Duration = Duration::from_millis(10);

/// Who is to go.
#[derive(Debug, Default)]
pub(in crate::engine) struct Shedding {
    /// And what each of them holds.
    left: VecDeque<(SessionId, u64)>,
    short_of: &'static str,
    /// So many of them are gone.
    ended: u32,
}

impl Acceptor {
    /// Whether some are still to go of those that were chosen last: what they free is not known yet.
    pub(super) fn is_shedding(&self) -> bool {
        !self.shares.shedding.lock().left.is_empty()
    }

    /// Gives these sessions without a link up, in this order, as there is too little of something.
    pub(in crate::engine) fn shed(&self, gone: &[SessionId], holders: &[Holder], short_of: &'static str) {
        if gone.is_empty() || self.is_shedding() {
            return;
        }
        let held: BTreeMap<SessionId, u64> =
            holders.iter().map(|holder| (holder.id, holder.held_bytes)).collect();
        let left = gone.iter().map(|id| (*id, held.get(id).copied().unwrap_or(0))).collect();
        *self.shares.shedding.lock() = Shedding { left, short_of, ended: 0 };
        if self.shed_some().is_some() {
            Helper::get().go_on_shedding(self.this.clone());
        }
    }

    /// The next ones. After how long there are more to go, if there are.
    pub(in crate::engine) fn shed_some(&self) -> Option<Duration> {
        let (next, short_of) = {
            let mut shedding = self.shares.shedding.lock();
            let count = shedding.left.len().min(AT_ONCE);
            (shedding.left.drain(..count).collect::<Vec<_>>(), shedding.short_of)
        };
        for (id, held_bytes) in next {
            let is_named = self.shares.shedding.lock().ended < NAMED_MAX;
            if self.shed_one(id, held_bytes, short_of, is_named) {
                self.shares.shedding.lock().ended += 1;
            }
        }
        let mut shedding = self.shares.shedding.lock();
        if !shedding.left.is_empty() {
            return Some(PAUSE);
        }
        if let Some(others) = shedding.ended.checked_sub(NAMED_MAX).filter(|others| *others > 0) {
            tracing::warn!(others, "more sessions ended to free {short_of}, which had no link either");
        }
        shedding.ended = 0;
        None
    }

    /// Whether it is given up.
    fn shed_one(&self, id: SessionId, held_bytes: u64, short_of: &'static str, is_named: bool) -> bool {
        // Only if it still has no link: a client that has just come back stays.
        let Some(engine) = self.registry.lock().shed(&id, self.now()) else { return false };
        SHED_SESSIONS.fetch_add(1, Ordering::Relaxed);
        SHED_BYTES.fetch_add(held_bytes, Ordering::Relaxed);
        let info = engine.info();
        let without_link = Duration::from_millis(info.pause_now_ms.unwrap_or_default());
        let peer = info.peer_addr.map(|peer| peer.to_string()).unwrap_or_default();
        if is_named {
            tracing::warn!(
                session = %id, peer, held_bytes, ?without_link, unacked_bytes = info.unacked_bytes,
                "session ended to free {short_of}: it had no link, and the sessions of this process use most of what they may"
            );
        }
        engine.fail(Error::Shed { id, short_of, held_bytes, unacked_bytes: info.unacked_bytes });
        true
    }
}
