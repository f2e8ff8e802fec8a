//! Servers that outlive their process.
//!
//! A server calls [`register`] when it is initialised, and serves in the [`Generation`] that this returns. When that
//! crashes, whatever kills it, `register` returns once more, in the next generation: with the same open descriptors
//! under the same numbers, and everything in memory as it was at the call. Clients see a pause of microseconds.
//!
//! ```no_run
//! # fn serve(_: outlast_restart::Connection) {}
//! let listener = std::net::TcpListener::bind("127.0.0.1:8080")?;
//! let mut generation = outlast_restart::register()?;
//! if let Some(death) = generation.predecessor() {
//!     eprintln!("generation {} serves: the last one has {death}", generation.number());
//! }
//! for client in generation.incoming(&listener)? {
//!     let client = client?;
//!     std::thread::spawn(move || serve(client));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The design follows Chang, Tsai, Li, Lee, "Kernel support for zero-loss Internet service restart" (2006), without a
//! module in the kernel.

mod connection;
mod control;
mod death;
mod inherited;
pub mod policy;
mod slots;
pub mod supervisor;
mod sys;
mod zygote;

pub use connection::Connection;
pub use death::Death;
pub use inherited::Inherited;
use policy::{Inheritance, Policy};
use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering;

/// By which a server is told to end.
const STOP_SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT];

/// Why there is no generation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Threads were started before.
    #[error(
        "the process has {count} threads: register before any is started, as the next generation has only one"
    )]
    Threads {
        /// How many there are.
        count: u32,
    },
    /// This process has registered before.
    #[error("this process is registered already")]
    Registered,
    /// A policy that cannot be kept.
    #[error("a policy allows at most {} restarts in its window", control::INTENSITY_MAX)]
    Policy,
    /// The kernel has refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str, source: io::Error) -> Self {
        Self::System { what, source }
    }
}

/// One run of the server, from its beginning or from where the last one died.
#[derive(Debug)]
pub struct Generation {
    number: u32,
    inheritance: Inheritance,
    control: &'static control::Control,
    slots: &'static slots::Slots,
    zygote: i32,
    /// Open when the server registered.
    known: BTreeSet<RawFd>,
    found: bool,
}

impl Generation {
    /// What was opened since the server registered, by generations that have died. Empty the second time.
    ///
    /// # Errors
    /// The descriptors cannot be listed: there is no /proc.
    pub fn inherited(&mut self) -> io::Result<Inherited> {
        if std::mem::replace(&mut self.found, true) || self.number == 1 {
            return Ok(Inherited::default());
        }
        Inherited::find(&self.known)
    }

    /// A connection whose requests are dealt with exactly once: a TCP socket that was accepted, or
    /// [inherited](Self::inherited).
    ///
    /// # Errors
    /// It is no TCP socket, or its number is too large.
    pub fn hold(&self, socket: impl Into<OwnedFd>) -> io::Result<Connection> {
        Connection::new(self.slots, socket.into())
    }

    /// All connections to serve, [held](Self::hold): first those that earlier generations have left, then whoever comes.
    /// Of what they have left besides, everything is closed: see [`inherited`](Self::inherited).
    ///
    /// # Errors
    /// The descriptors cannot be listed. Later errors are those of `accept` and [`hold`](Self::hold), one by one.
    pub fn incoming<'a>(
        &'a mut self,
        listener: &'a TcpListener,
    ) -> io::Result<impl Iterator<Item = io::Result<Connection>> + 'a> {
        let left = self.inherited()?.connections;
        let accepted = listener.incoming().map(|client| client.map(OwnedFd::from));
        Ok(left.into_iter().map(Ok).chain(accepted).map(|client| self.hold(client?)))
    }

    /// Counts from 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How much of the last generation is to be taken over. The first has nobody's.
    #[must_use]
    pub fn inheritance(&self) -> Inheritance {
        self.inheritance
    }

    /// How the last generation died. A generation begins before that is known: until then, and for the first, none.
    #[must_use]
    pub fn predecessor(&self) -> Option<Death> {
        let known = self.control.death_generation.load(Ordering::SeqCst);
        (self.number > 1 && known == self.number - 1)
            .then(|| Death::from_status(self.control.death_status.load(Ordering::SeqCst).cast_signed()))
    }

    /// The process that stays: the one that service managers know, and that signals are sent to.
    #[must_use]
    pub fn zygote_pid(&self) -> u32 {
        self.zygote.cast_unsigned()
    }
}

/// From here on the server outlives its process.
///
/// To be called when the server is initialised, listens perhaps, and has no threads yet. Returns in every generation, one
/// at a time. The process that calls it stays as their parent, forwards signals to the one that serves, and ends when one
/// of them exits with code 0.
///
/// # Errors
/// [`Error`]; the process goes on as it was, and does not outlive a crash.
pub fn register() -> Result<Generation, Error> {
    register_with(Policy::default())
}

/// As [`register`], with limits of one's own.
///
/// # Errors
/// As [`register`].
pub fn register_with(policy: Policy) -> Result<Generation, Error> {
    if policy.intensity > control::INTENSITY_MAX {
        return Err(Error::Policy);
    }
    zygote::register(policy)
}

impl std::fmt::Debug for control::Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("generation", &self.generation).finish_non_exhaustive()
    }
}
