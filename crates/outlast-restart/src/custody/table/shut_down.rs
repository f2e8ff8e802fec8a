//! Listening sockets that the program has shut down, as it believes, for another binary: they stay open for its clients.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// More are shut down indeed.
const SOCKETS: usize = 64;

/// They, by their cookies.
#[derive(Debug)]
pub struct ShutDown {
    count: AtomicU32,
    cookies: [AtomicU64; SOCKETS],
    /// Connections by which those who wait there are woken up, and that nobody has accepted yet.
    pub wake_ups: AtomicU32,
}

impl ShutDown {
    /// Whether there are any: the one load that this costs in each `accept`.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn has(&self, cookie: u64) -> bool {
        cookie != 0 && self.cookies.iter().any(|known| known.load(Ordering::SeqCst) == cookie)
    }

    /// It is one from here on. False: there is no room for it.
    pub fn add(&self, cookie: u64) -> bool {
        let take =
            |place: &AtomicU64| place.compare_exchange(0, cookie, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let is_there = cookie != 0 && (self.has(cookie) || self.cookies.iter().any(take));
        self.count.fetch_add(u32::from(is_there), Ordering::SeqCst);
        is_there
    }

    /// It is none.
    pub fn remove(&self, cookie: u64) {
        for known in &self.cookies {
            let _ = known.compare_exchange(cookie, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Whatever connections were made to wake somebody up were accepted, or are gone.
    pub(in crate::custody) fn forget_wake_ups(&self) {
        self.wake_ups.store(0, Ordering::SeqCst);
    }

    /// None is one: the other binary is about to listen with them.
    pub(in crate::custody) fn clear(&self) {
        self.cookies.iter().for_each(|cookie| cookie.store(0, Ordering::SeqCst));
        self.count.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_shut_down_are_known_until_the_next_start() {
        let sockets = ShutDown {
            count: AtomicU32::new(0),
            cookies: [const { AtomicU64::new(0) }; SOCKETS],
            wake_ups: AtomicU32::new(0),
        };
        assert!(!sockets.has_any() && !sockets.add(0));
        let all = 1..=SOCKETS as u64;
        assert!(all.clone().all(|cookie| sockets.add(cookie)) && !sockets.add(1000));
        assert!(sockets.add(7) && sockets.has_any());
        sockets.remove(7);
        assert!(!sockets.has(7) && sockets.has(8) && !sockets.has(0) && sockets.add(1000));
        sockets.clear();
        assert!(!sockets.has_any() && !all.into_iter().any(|cookie| sockets.has(cookie)));
    }
}
