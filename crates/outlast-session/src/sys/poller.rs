//! Events that several threads wait for at once.
//!
//! mio's poll belongs to one thread. Here every waiting thread sleeps in the same epoll instance: the kernel wakes one
//! of them for each event, the latest to go to sleep first.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Events taken at a time.
const EVENTS_MAX: usize = 64;
/// The number that wake-ups come with.
const WAKE: u64 = u64::MAX;

/// An epoll instance, and a descriptor that wakes one of its waiters.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
}

/// What has happened.
#[derive(Debug)]
pub(crate) struct Ready {
    numbers: [u64; EVENTS_MAX],
    count: usize,
}

impl Default for Ready {
    fn default() -> Self {
        Self { numbers: [WAKE; EVENTS_MAX], count: 0 }
    }
}

impl Ready {
    /// The numbers of the descriptors that something has happened to; none after a mere wake-up.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.numbers.iter().take(self.count).copied().filter(|number| *number != WAKE)
    }
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered: every write is news, and nobody has to read it.
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll, wake })
    }

    /// Reports `source` whenever there is news.
    pub(crate) fn watch_always(&self, source: impl AsFd, number: u64) -> io::Result<()> {
        let data = EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, source, data, EventFlags::IN | EventFlags::ET)?)
    }

    /// Reports `source` once, now or when there is input (or room to `write`). `again`: it was watched before.
    pub(crate) fn watch_once(
        &self,
        source: BorrowedFd<'_>,
        number: u64,
        write: bool,
        again: bool,
    ) -> io::Result<()> {
        let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        if write {
            flags |= EventFlags::OUT;
        }
        let data = EventData::new_u64(number);
        let watched = if again {
            epoll::modify(&self.epoll, source, data, flags)
        } else {
            epoll::add(&self.epoll, source, data, flags)
        };
        Ok(watched?)
    }

    /// Reports `source` no more.
    pub(crate) fn forget(&self, source: BorrowedFd<'_>) {
        // Gone already if it was closed.
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Wakes one waiter: one that waits now, or the next one to wait.
    pub(crate) fn wake(&self) {
        // A full counter means that as many wake-ups as there are waiters are on their way.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sleeps until there is something to report, a wake-up, or `timeout`.
    pub(crate) fn wait(&self, ready: &mut Ready, timeout: Option<Duration>) -> io::Result<()> {
        ready.count = 0;
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS_MAX];
        let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => 0,
            other => other?,
        };
        for (number, event) in ready.numbers.iter_mut().zip(events.iter().take(count)) {
            *number = event.data.u64();
        }
        ready.count = count;
        Ok(())
    }
}
