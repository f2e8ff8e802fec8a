//! Writers that wait for their peers to make room: a look at each costs some microseconds, and thousands may wait.

use super::super::Helper;
use crate::engine::Engine;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Spent on them in one tick: a fifth of the time. Others have their turn in the next one, and a processor is left for those who
/// have something to say.
const LOOKS_TIME_MAX: Duration = Duration::from_micros(250);

/// Those that are to be looked at, the one that has waited longest first. Each counts as listed for a flush meanwhile
/// (`flush_listed`), so that nobody lists it once more.
#[derive(Debug, Default)]
pub(super) struct Stalled(VecDeque<Weak<Engine>>);

impl Stalled {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, engine: &Arc<Engine>) {
        self.0.push_back(Arc::downgrade(engine));
    }

    /// Flushes, and looks for acknowledgements, as many as there is time for.
    pub(super) fn look(&mut self, helper: &Helper) {
        let ends = Instant::now() + LOOKS_TIME_MAX;
        while let Some(engine) = self.0.pop_front() {
            let Some(engine) = engine.upgrade() else { continue };
            engine.flush_listed.store(false, Ordering::Release);
            if engine.owes_ack() {
                engine.send_ack();
            }
            look_at(helper, &engine);
            if Instant::now() >= ends {
                break;
            }
        }
    }
}

/// Flushes, and looks for acknowledgements if a writer waits for them.
pub(super) fn look_at(helper: &Helper, engine: &Engine) {
    // A datagram takes nothing along, such as a Welcome without which it does not count (PROTOCOL 5.5).
    engine.flush();
    // Without a link nothing makes room; the next one wakes the writer.
    let waits = engine.writer_waits.load(Ordering::Acquire) && engine.link().is_some();
    if waits && !engine.make_room() {
        // Look again at the next tick: the application has nothing else to wait for.
        helper.flush_soon(engine);
    }
}
