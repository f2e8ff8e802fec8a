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
//! A panic of a thread that has a [`Connection`] is a crash as any other: it aborts the process when the connection would be
//! dropped. What [`catch_unwind`](std::panic::catch_unwind) is to contain must not own one.
//!
//! For programs of several processes, such as a master and its workers, there are [`roles`].
//!
//! The design follows Chang, Tsai, Li, Lee, "Kernel support for zero-loss Internet service restart" (2006), without a
//! module in the kernel.

pub mod board;
mod buffers;
mod connection;
mod control;
#[cfg(test)]
mod corpus;
#[doc(hidden)]
pub mod custody;
mod death;
mod fault;
#[cfg(test)]
#[path = "../tests/all/common/forbid.rs"]
mod forbid;
mod generation;
mod handover;
pub mod holder;
mod inherited;
mod passed;
mod patience;
pub mod policy;
#[cfg(test)]
mod random;
pub mod roles;
mod slots;
pub mod state;
pub mod supervisor;
mod suspects;
mod sys;
mod threads;
#[cfg(feature = "tokio")]
pub mod tokio;
mod transact;
mod transport;
mod upgrade;
mod zygote;

pub use connection::Connection;
pub use death::Death;
pub use generation::{Generation, Heartbeat};
pub use inherited::Inherited;
use policy::Policy;
pub use slots::NOTE_BYTES;
use std::io;
#[doc(hidden)]
pub use sys::credentials;
#[doc(hidden)]
pub use sys::file_size::beyond_limit;
pub use sys::launch::{end_with_us, inherit};
pub use upgrade::listen;

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
    /// Another supervisor runs a program by this name.
    #[error("process {pid} supervises a program of this name already")]
    Taken {
        /// That supervisor.
        pid: u32,
    },
    /// A policy that cannot be kept.
    #[error("a policy allows at most {} restarts in its window", policy::INTENSITY_MAX)]
    Policy,
    /// [Roles](roles::Roles) that make no program.
    #[error("the roles of the program: {why}")]
    Roles {
        /// What is wrong with them.
        why: String,
    },
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

/// From here on the server outlives its process.
///
/// To be called when the server is initialised, listens perhaps, and has no threads yet. What is open by then belongs to all
/// generations: none of them may close it, as the next one has its number in its memory. Returns in every generation, one
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
    if policy.intensity > policy::INTENSITY_MAX {
        return Err(Error::Policy);
    }
    zygote::register(policy)
}

impl std::fmt::Debug for control::Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("generation", &self.generation).finish_non_exhaustive()
    }
}
