//! Links that the kernel calls writable, and then takes nothing for. That is so while all TCP connections of the machine together hold
//! as much as they may (`tcp_mem`, tcp(7)): what poll(2) says depends on a socket's own buffer alone. Asked at once what it thinks now,
//! the kernel would say the same, and a processor would do nothing else.

use super::super::Watched;
use crate::engine::{Engine, Link};
use mio::Interest;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The first pause before the kernel is asked again. Each time that it takes nothing the next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The pause is doubled so often at the most: 32 ms.
const DOUBLINGS_MAX: u8 = 5;

/// With so many that wait the pause is twice as long; with each more of them, once more.
const CROWD: usize = 64;
/// It is no longer than this.
const PAUSE_MAX: Duration = Duration::from_millis(256);

/// Those that are to be watched for room after a pause.
#[derive(Debug, Default)]
pub(super) struct Refused(Vec<(Instant, Weak<Engine>, Weak<Link>)>);

impl Refused {
    /// Sends what is pending on a link that was just reported as writable.
    pub(super) fn flush(engine: &Engine, link: &Link) {
        let refusals = match engine.flush_some(link) {
            true => 0,
            false => link.refusals.load(Ordering::Relaxed).saturating_add(1),
        };
        link.refusals.store(refusals, Ordering::Relaxed);
    }

    /// Takes the request if it has to wait.
    pub(super) fn put_off(&mut self, (engine, link, interest): &Watched) -> bool {
        let refusals = link.refusals.load(Ordering::Relaxed);
        let waits = refusals > 0 && *interest == Interest::WRITABLE;
        if waits {
            let doublings = (refusals - 1).min(DOUBLINGS_MAX);
            // Thousands are asked no more often than some.
            let crowd = u32::try_from(self.0.len() / CROWD).unwrap_or(u32::MAX);
            let pause = (PAUSE_MIN * (1 << doublings)).saturating_mul(1 + crowd).min(PAUSE_MAX);
            self.0.push((Instant::now() + pause, engine.clone(), Arc::downgrade(link)));
        }
        waits
    }

    /// Those whose pause is over.
    pub(super) fn due(&mut self) -> Vec<Watched> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let due = self.0.extract_if(.., |(at, ..)| *at <= now);
        let due = due.filter_map(|(_, engine, link)| Some((engine, link.upgrade()?, Interest::WRITABLE)));
        let due = due.collect();
        self.0.shrink_to(64);
        due
    }

    /// When the next pause is over.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|(at, ..)| *at).min()
    }
}
