//! One run of the server, and what it finds of those before.

use crate::board::Board;
use crate::buffers::Buffers;
use crate::connection::Connection;
use crate::control::Control;
use crate::death::Death;
use crate::inherited::{self, Inherited};
use crate::patience::{self, Passing, passing};
use crate::policy::Inheritance;
use crate::roles::End;
use crate::slots::{Slot, Slots};
use crate::suspects;
use crate::sys::descriptors::{self, Known};
use crate::transact::Attached;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A request that is dealt with alone has so long until the others are dealt with after all.
const TRIAL_LIMIT: Duration = Duration::from_secs(1);

/// What every connection needs of its generation.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) control: &'static Control,
    pub(crate) board: &'static Board,
    pub(crate) slots: &'static Slots,
    pub(crate) buffers: &'static Buffers,
    pub(crate) number: u32,
    pub(crate) state: OnceLock<Attached>,
}

/// One run of the server, from its beginning or from where the last one died.
#[derive(Debug)]
pub struct Generation {
    pub(crate) shared: &'static Shared,
    pub(crate) inheritance: Inheritance,
    pub(crate) zygote: i32,
    /// Open when the server registered.
    pub(crate) known: Arc<Known>,
    /// To other processes of the program.
    pub(crate) channels: Vec<End>,
    pub(crate) channels_given: bool,
    pub(crate) found: bool,
    pub(crate) refusal: Arc<[u8]>,
}

/// Signs of life of a thread that waits for events: see [`Generation::heartbeat`].
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat(&'static Shared);

impl Generation {
    /// What was opened since the server registered, by generations that have died: to be asked for before this one opens
    /// anything, which would be taken for theirs. Empty the second time.
    ///
    /// Connections with a request that is suspected of having crashed its generations come first; those with one that
    /// was in flight in three crashes are refused here, and not given.
    ///
    /// # Errors
    /// The descriptors cannot be listed: there is no /proc.
    pub fn inherited(&mut self) -> io::Result<Inherited> {
        if std::mem::replace(&mut self.found, true) || self.number() == 1 {
            return Ok(Inherited::default());
        }
        let slots = self.shared.slots;
        let channels = self.channels.iter().filter(|end| end.is_open()).map(|end| end.descriptor).collect();
        let mut inherited = Inherited::find(&self.known, &channels, slots)?;
        if self.inheritance == Inheritance::Listeners {
            // Whatever it is that crashes everybody: it may be among these.
            inherited::discard(slots, inherited.connections.drain(..));
        }
        // Whoever waits for an answer first: there may be thousands that do not.
        inherited.connections.sort_by_cached_key(|connection| {
            let slot = slots.of(connection.as_raw_fd());
            slot.is_none_or(Slot::rests)
        });
        // Also those that a generation was refusing when it died.
        let is_refused =
            |connection: &OwnedFd| slots.of(connection.as_raw_fd()).is_some_and(Slot::is_refused);
        if self.shared.control.suspects.any() || inherited.connections.iter().any(is_refused) {
            self.judge(&mut inherited.connections);
        }
        Ok(inherited)
    }

    /// Refuses who has crashed too many, and puts those first that may have.
    fn judge(&self, connections: &mut Vec<OwnedFd>) {
        let crashes = |connection: &OwnedFd| {
            let slot = self.shared.slots.of(connection.as_raw_fd())?;
            let inode = descriptors::inode(connection).ok().filter(|inode| slot.is_of(*inode))?;
            if slot.is_refused() {
                return Some(suspects::REFUSED);
            }
            let consumed_bytes = slot.mark().consumed_bytes;
            Some(self.shared.control.suspects.crashes(connection.as_raw_fd(), inode, consumed_bytes))
        };
        connections.sort_by_cached_key(|connection| std::cmp::Reverse(crashes(connection).unwrap_or(0)));
        while let Some(first) = connections.first() {
            if crashes(first).unwrap_or(0) < suspects::REFUSED {
                break;
            }
            let connection = connections.remove(0);
            if let Ok(connection) = Connection::new(self.shared, connection) {
                connection.refuse(&self.refusal);
            }
        }
    }

    /// What clients are told whose request was in flight in three crashes, before they are disconnected: the protocol's own
    /// error, such as HTTP's 500. Nothing, unless it is said here, and nothing where an answer has begun.
    pub fn refuse_with(&mut self, refusal: &[u8]) {
        self.refusal = refusal.into();
    }

    /// A connection whose requests are dealt with exactly once: a TCP socket, a UNIX stream socket or a pipe, newly
    /// accepted or [inherited](Self::inherited). Urgent bytes of TCP are read in their place from here on (`SO_OOBINLINE`).
    ///
    /// # Errors
    /// It is something else, or its number is too large.
    pub fn hold(&self, socket: impl Into<OwnedFd>) -> io::Result<Connection> {
        Connection::new(self.shared, socket.into())
    }

    /// All connections to serve, [held](Self::hold): first those that earlier generations have left, then whoever comes.
    /// Of what they have left besides, everything is closed: see [`inherited`](Self::inherited).
    ///
    /// Where a request is suspected of having crashed two generations, the connections after it come when it is
    /// [done](Connection::done), or after a second.
    ///
    /// # Errors
    /// The descriptors cannot be listed. `listener` is a TCP or UNIX socket. Later errors are those of `accept` and [`hold`](Self::hold), one by one.
    /// Where `accept` finds no free descriptor, or no memory, whoever connects waits until there is.
    pub fn incoming<'a>(
        &'a mut self,
        listener: &'a impl AsFd,
    ) -> io::Result<impl Iterator<Item = io::Result<Connection>> + 'a> {
        let left = self.inherited()?.connections;
        let accepted = std::iter::repeat_with(|| accept(listener));
        Ok(left.into_iter().map(Ok).chain(accepted).map(|client| {
            self.await_trial();
            self.hold(client?)
        }))
    }

    /// Sleeps while a request is dealt with that is to be dealt with alone, a second at the most.
    pub fn await_trial(&self) {
        let until_ns = self.shared.trial_limit_ns();
        while let Some(suspect) = self.shared.on_trial(until_ns) {
            crate::sys::futex::wait(&self.shared.control.trial, suspect, Some(Duration::from_millis(10)));
        }
    }

    /// To be told by each thread with an event loop when it [waits](Heartbeat::idle) and when it [works](Heartbeat::busy):
    /// where that works for longer than [`hang_timeout_ms`](crate::policy::Policy::hang_timeout_ms) at a stretch, the
    /// generation hangs: it is killed, and succeeded.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        Heartbeat(self.shared)
    }

    /// Counts from 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// How much of the last generation is to be taken over. The first has nobody's.
    #[must_use]
    pub fn inheritance(&self) -> Inheritance {
        self.inheritance
    }

    /// How the last generation died. A generation begins before that is known: until then, and for the first, none.
    #[must_use]
    pub fn predecessor(&self) -> Option<Death> {
        let control = self.shared.control;
        let known = control.death_generation.load(Ordering::SeqCst);
        (self.number() > 1 && known == self.number() - 1)
            .then(|| Death::from_status(control.death_status.load(Ordering::SeqCst).cast_signed()))
    }

    /// The process that stays: the one that service managers know, and that signals are sent to.
    #[must_use]
    pub fn zygote_pid(&self) -> u32 {
        self.zygote.cast_unsigned()
    }

    /// What was written down of the generations so far.
    #[must_use]
    pub fn board(&self) -> &'static Board {
        self.shared.board
    }
}

/// Waits where there is no room.
fn accept(listener: &impl AsFd) -> io::Result<OwnedFd> {
    loop {
        let error = match descriptors::accept(listener.as_fd()) {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        match passing(&error) {
            None => return Err(error),
            Some(Passing::Gone) => {}
            Some(Passing::NoRoom) => {
                patience::tell_no_room(&error);
                std::thread::sleep(patience::NO_ROOM_PAUSE);
            }
        }
    }
}

impl Shared {
    /// Until when those wait who wait from now on, in nanoseconds of the monotonic clock.
    pub(crate) fn trial_limit_ns(&self) -> u64 {
        crate::sys::clock::monotonic_ns() + u64::try_from(TRIAL_LIMIT.as_nanos()).unwrap_or(0)
    }

    /// What is dealt with alone, if something is. After `until_ns` nothing is.
    pub(crate) fn on_trial(&self, until_ns: u64) -> Option<u32> {
        let trial = &self.control.trial;
        let suspect = Some(trial.load(Ordering::SeqCst)).filter(|suspect| *suspect != 0)?;
        if crate::sys::clock::monotonic_ns() > until_ns {
            trial.store(0, Ordering::SeqCst);
            return None;
        }
        Some(suspect)
    }
}

impl Heartbeat {
    /// The calling thread works: to be said whenever it begins to, and where one piece of work is long, within it.
    pub fn busy(self) {
        self.0.control.threads(self.0.number).busy();
    }

    /// The calling thread waits for something to do.
    pub fn idle(self) {
        self.0.control.threads(self.0.number).idle();
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn threads(self) -> &'static crate::threads::Threads {
        self.0.control.threads(self.0.number)
    }
}

/// Whether a peer can be named.
pub(crate) fn peer(connection: &impl AsFd) -> String {
    let name = connection.as_fd().try_clone_to_owned().ok().map(std::net::TcpStream::from);
    name.and_then(|stream| stream.peer_addr().ok()).map_or_else(String::new, |address| address.to_string())
}
