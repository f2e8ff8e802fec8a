//! Writing right where the bytes are retained.

use super::{BYPASS_BYTES_MIN, JOINED_BYTES_MAX, Tx};
use crate::engine::{Engine, Progress};
use crate::error::Result;
use outlast_stream::Lent;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::task::Waker;

impl Engine {
    /// Room to write into directly, contiguous, of at most `bytes_max`, and what to do if there is none.
    pub(crate) fn reserve<'a>(
        &self,
        tx: &'a mut MutexGuard<'_, Tx>,
        bytes_max: usize,
    ) -> Result<&'a mut [u8]> {
        self.check_writable(tx)?;
        self.put_back(tx);
        if tx.sender.room_bytes() < bytes_max {
            self.learn_acked(tx);
            self.want_room(tx, bytes_max);
        }
        Ok(tx.sender.reserve(bytes_max))
    }

    /// The room last reserved, to be filled without a lock; `None` if there is none.
    pub(crate) fn lend(tx: &mut Tx) -> Option<Lent> {
        tx.sender.lend()
    }

    /// The room is back, and so much of it was filled.
    pub(crate) fn give_back(&self, lent: Lent, bytes: usize) {
        let mut tx = self.tx.lock();
        tx.sender.give_back(lent);
        if bytes > 0 && tx.failure.is_none() {
            self.commit(tx, bytes);
        } else {
            tx.sender.commit(0);
            // What could not be sent meanwhile.
            let flush = self.flush_locked(&mut tx);
            self.after_flush(tx, flush);
        }
        if self.writer_is_stalled() {
            self.wake_all();
        }
    }

    /// The reserved room was filled: sends it. Small commits are joined as small writes are.
    pub(crate) fn commit(&self, mut tx: MutexGuard<'_, Tx>, bytes: usize) {
        tx.sender.commit(bytes);
        if bytes >= BYPASS_BYTES_MIN
            && let Some(link) = &tx.link
        {
            link.tune_for_bulk();
        }
        let joinable = self.config.coalesce && self.wrote.swap(true, Ordering::Relaxed);
        if joinable && tx.link.is_some() && tx.sender.pending_bytes() < JOINED_BYTES_MAX as u64 {
            self.mark_dirty();
            return;
        }
        let flush = self.flush_locked(&mut tx);
        self.after_flush(tx, flush);
    }

    /// Nothing can be reserved: what to wait for.
    pub(crate) fn no_room(&self, mut tx: MutexGuard<'_, Tx>, waker: Option<&Waker>) -> Progress<usize> {
        let flush = self.flush_locked(&mut tx);
        self.stalled(tx, flush, waker)
    }
}
