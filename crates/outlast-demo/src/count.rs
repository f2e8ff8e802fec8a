//! What clients see: requests, failures, bytes that are not the right ones, and the longest time without an answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a kind of client has seen so far. Several threads add to it.
#[derive(Debug, Default)]
pub struct Count {
    requests: AtomicU64,
    failed: AtomicU64,
    wrong_bytes: AtomicU64,
    longest_pause_us: AtomicU64,
}

impl Count {
    /// A request that was answered in full.
    pub fn answered(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// So many of them.
    pub fn answered_all(&self, number: u64) {
        self.requests.fetch_add(number, Ordering::Relaxed);
    }

    /// So many requests that were not, or not in full, or that could not be sent.
    pub fn failed(&self, number: u64) {
        self.requests.fetch_add(number, Ordering::Relaxed);
        self.failed.fetch_add(number, Ordering::Relaxed);
    }

    /// So many bytes are not those that were asked for.
    pub fn wrong(&self, bytes: u64) {
        self.wrong_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn paused(&self, time: Duration) {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.longest_pause_us.fetch_max(time_us, Ordering::Relaxed);
    }

    /// The numbers as they are now.
    pub fn seen(&self) -> Seen {
        let pause_us = self.longest_pause_us.load(Ordering::Relaxed);
        Seen {
            requests: self.requests.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            wrong_bytes: Some(self.wrong_bytes.load(Ordering::Relaxed)),
            longest_pause: (pause_us > 0).then(|| Duration::from_micros(pause_us)),
        }
    }
}

/// The numbers of a kind of client. None: it cannot tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub requests: u64,
    pub failed: u64,
    pub wrong_bytes: Option<u64>,
    pub longest_pause: Option<Duration>,
}

/// Measures the time from one byte to the next, of a client that always waits for one. A connection that fails does not
/// end the pause: whoever looks at a page waits for bytes, not for connections.
#[derive(Debug)]
pub struct Pauses<'a> {
    count: &'a Count,
    last: Instant,
}

impl<'a> Pauses<'a> {
    pub fn of(count: &'a Count) -> Self {
        Self { count, last: Instant::now() }
    }

    /// Something has come.
    pub fn over(&mut self) {
        let now = Instant::now();
        self.count.paused(now - self.last);
        self.last = now;
    }
}

/// Until when clients go on.
#[derive(Debug)]
pub struct Going<'a> {
    pub stop: &'a AtomicBool,
    pub interrupted: &'a AtomicBool,
}

impl Going<'_> {
    pub fn on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && !self.interrupted.load(Ordering::Relaxed)
    }
}

/// How many bytes are not the right ones.
pub fn different(received: &[u8], right: &[u8]) -> u64 {
    if received == right {
        return 0;
    }
    let changed = received.iter().zip(right).filter(|(one, other)| one != other).count();
    (changed + received.len().saturating_sub(right.len())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_changed_or_too_many_are_wrong_and_missing_ones_are_a_failure() {
        assert_eq!(different(b"abc", b"abc"), 0);
        assert_eq!(different(b"ab", b"abc"), 0);
        assert_eq!(different(b"xbcd", b"abc"), 2);
    }

    #[test]
    fn a_pause_goes_from_byte_to_byte() {
        let count = Count::default();
        let mut pauses = Pauses::of(&count);
        assert_eq!(count.seen().longest_pause, None);
        std::thread::sleep(Duration::from_millis(3));
        pauses.over();
        pauses.over();
        assert!(count.seen().longest_pause.unwrap() >= Duration::from_millis(3));
    }
}
