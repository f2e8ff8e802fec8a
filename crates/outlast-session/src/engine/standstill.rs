//! A writer that waits for an acknowledgement, on a link whose input this end may not take in: there is no memory for it.
//!
//! The acknowledgement is somewhere in that input, behind bytes that nobody reads. If the peer is in the same position, or
//! its application is, nobody goes on. The handshake of a link says the same as an acknowledgement and is behind nothing:
//! so this one is ended for the next one (PROTOCOL 4.10). Each time as much passes as either end may hold: slow, as
//! everything is while memory is short, but not for ever.

use super::Engine;
use crate::proto::LinkMode;
use crate::sys;

/// A standstill is one after so long: an application that reads makes room sooner.
const PATIENCE_MIN_MS: u64 = 200;
/// It doubles where the last link has brought nothing: then it is the peer's application that does not go on.
const PATIENCE_MAX_MS: u64 = 30_000;

/// Since when nothing moves, and how far both directions had come.
#[derive(Debug)]
pub(super) struct Standstill {
    since_ms: u64,
    epoch: u64,
    reached: (u64, u64),
    patience_ms: u64,
}

impl Engine {
    /// One look, while a writer waits for room that only the peer can make.
    pub(super) fn look_for_standstill(&self) {
        let Some(link) = self.link().filter(|link| link.mode() == LinkMode::Inband) else { return };
        let acked_offset = self.tx().sender.acked_offset();
        let Some((full, taken_offset)) = self.rx.try_lock().map(|rx| {
            let full = rx.opening.is_none() && rx.backlog_bytes >= self.backlog_bytes_max();
            (full, rx.receiver.next_offset())
        }) else {
            return;
        };
        let mut standstill = self.standstill.lock();
        if !full {
            *standstill = None;
            return;
        }
        let (now_ms, reached) = (sys::coarse_now_ms(), (acked_offset, taken_offset));
        let known = standstill.as_mut().filter(|known| known.reached == reached);
        let patience_ms = known.as_ref().map_or(PATIENCE_MIN_MS, |known| known.patience_ms);
        match known {
            Some(known) if known.epoch == link.epoch => {
                if now_ms.saturating_sub(known.since_ms) < patience_ms {
                    return;
                }
                known.patience_ms = (patience_ms * 2).min(PATIENCE_MAX_MS);
            }
            _ => {
                let since_ms = now_ms;
                *standstill =
                    Some(Box::new(Standstill { since_ms, epoch: link.epoch, reached, patience_ms }));
                return;
            }
        }
        drop(standstill);
        self.lost(
            &link,
            "no memory to read on to the peer's acknowledgements (--memory): the next link brings them",
        );
    }
}
