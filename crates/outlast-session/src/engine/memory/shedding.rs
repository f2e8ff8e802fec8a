//! Sessions that are given up as there is too little of something: a few at a time. Ending one wakes whatever serves it, and
//! thousands at once keep the links of all others waiting, on a busy machine for a second.

use super::{NAMED_MAX, SHED_BYTES, SHED_SESSIONS};
use crate::engine::Helper;
use crate::engine::server::Acceptor;
use crate::error::Error;
use crate::proto::{Holder, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So many go at once.
const AT_ONCE: usize = 16;
/// And the next ones so much later: 1,600 in a second.
const PAUSE: Duration = Duration::from_millis(10);
/// For so long those that go are counted after the first few: strangers must not fill the log.
const COUNT_FOR: Duration = Duration::from_secs(10);

/// Who is to go, and who is gone.
#[derive(Debug, Default)]
pub(in crate::engine) struct Shedding {
    /// And what each of them holds.
    left: VecDeque<(SessionId, u64)>,
    short_of: &'static str,
    /// Since when `ended` counts.
    counted_from: Option<Instant>,
    /// So many are gone since then.
    ended: u32,
    /// The helper comes back to tell how many.
    is_told_later: bool,
}

impl Shedding {
    fn others(&self) -> u32 {
        self.ended.saturating_sub(NAMED_MAX)
    }

    /// Tells how many are gone that were not named, and counts from zero again.
    fn tell(&mut self) {
        let others = self.others();
        if others > 0 {
            tracing::warn!(others, "more sessions ended to free {}, which had no link either", self.short_of);
        }
        (self.counted_from, self.ended) = (None, 0);
    }

    /// How much longer is counted, if there is something to be told then.
    fn left_to_count(&self) -> Option<Duration> {
        let counted_for = self.counted_from.filter(|_| self.others() > 0)?.elapsed();
        Some(COUNT_FOR.saturating_sub(counted_for))
    }
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
        let mut shedding = self.shares.shedding.lock();
        if shedding.short_of != short_of
            || shedding.counted_from.is_some_and(|from| from.elapsed() >= COUNT_FOR)
        {
            shedding.tell();
        }
        shedding.counted_from.get_or_insert_with(Instant::now);
        (shedding.left, shedding.short_of) = (left, short_of);
        drop(shedding);
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
        if shedding.others() > 0 && !std::mem::replace(&mut shedding.is_told_later, true) {
            Helper::get().tell_shedding(self.this.clone());
        }
        None
    }

    /// Tells of those that were not named when they have been counted for long enough. After how long to come back.
    pub(in crate::engine) fn tell_shedding(&self) -> Option<Duration> {
        let mut shedding = self.shares.shedding.lock();
        match shedding.left_to_count() {
            Some(left) if !left.is_zero() => return Some(left),
            _ => shedding.is_told_later = false,
        }
        shedding.tell();
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
