//! For programs of any language that cannot register: somebody else keeps their descriptors, and gives them back after a
//! crash.
//!
//! A service gives each connection to a [`Keeper`], under a name and with up to 4 KiB of state, and tells it when one is
//! over. When the service crashes, its next process [recovers](Keeper::recover) all of them. Keepers are a [holder](serve),
//! which `outlast hold` is, and [systemd], whose store of descriptors has the same interface here.
//!
//! ```no_run
//! use outlast_restart::holder::{Client, Keeper};
//! use std::os::fd::AsFd;
//!
//! let mut keeper = Client::new("/run/outlast/holder", "echo")?;
//! for kept in keeper.recover()? {
//!     println!("{} goes on after {} bytes of state", kept.name, kept.state.len());
//! }
//! let listener = std::net::TcpListener::bind("127.0.0.1:8080")?;
//! keeper.keep("listener", listener.as_fd(), b"")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is kept is a duplicate: as long as it is there, `close` ends nothing. A connection that is over is to be
//! [released](Keeper::release), before or after it is closed, or its client is never told; or ended by `shutdown`, which
//! does so at once whoever has duplicates. A connection that was accepted and not kept yet dies with its process, and what
//! was read from one and not answered is lost, unless the state says what it was.

mod activation;
mod backoff;
mod client;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod options;
pub(crate) mod packet;
pub mod protocol;
mod server;
mod socket;
mod state_file;
mod store;
pub mod systemd;

pub use activation::{Activated, activated};
pub use client::Client;
pub use options::{Event, Options};
pub use server::serve;
pub use socket::listen;
pub use store::{Limits, Service, Store};

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Names the holder's socket in the environment of programs.
pub const SOCKET_VARIABLE: &str = "OUTLAST_HOLDER";

/// Somebody who keeps the descriptors of a service, and gives them back to its next process.
pub trait Keeper {
    /// Has a duplicate of a descriptor kept, with this state, instead of what was kept under that name.
    ///
    /// # Errors
    /// It is not kept: see [`Error`]. What was kept before is kept on.
    fn keep(&mut self, name: &str, descriptor: BorrowedFd<'_>, state: &[u8]) -> Result<(), Error>;

    /// Changes the state of a descriptor that is kept. A service that dies within leaves the state before or this one.
    ///
    /// # Errors
    /// As [`keep`](Self::keep); and none of this name is kept, perhaps because its connection was reset.
    fn update(&mut self, name: &str, state: &[u8]) -> Result<(), Error>;

    /// Has a descriptor not kept any longer. That it was not kept is no error.
    ///
    /// # Errors
    /// See [`Error`].
    fn release(&mut self, name: &str) -> Result<(), Error>;

    /// Everything that earlier processes of this service have had kept. It stays kept until it is released.
    ///
    /// # Errors
    /// See [`Error`].
    fn recover(&mut self) -> Result<Vec<Kept>, Error>;

    /// Notices that the keeper has gone, and gives everything to the next one. To be called from time to time, such as once
    /// a second.
    ///
    /// # Errors
    /// Nobody keeps anything now, as [`Error`] says; or [another process](Refusal::Superseded) of this service has come,
    /// which is not tried again.
    fn tend(&mut self) -> Result<(), Error>;
}

/// A descriptor that was kept.
#[derive(Debug)]
pub struct Kept {
    /// As the service has named it.
    pub name: String,
    /// A duplicate of it.
    pub descriptor: OwnedFd,
    /// What was kept with it.
    pub state: Vec<u8>,
}

/// Why something is not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that cannot be used.
    #[error("{0:?} is no name: it takes 1 to {max} printable ASCII characters without a colon", max = protocol::NAME_BYTES_MAX)]
    Name(String),
    /// Too much state.
    #[error("{0} bytes of state, and at most {max} are kept", max = protocol::STATE_BYTES_MAX)]
    State(usize),
    /// Nobody keeps anything now. The service has everything itself, and goes on.
    #[error("no keeper at {at}: {source}")]
    Away {
        /// Where it should be.
        at: String,
        /// Why it is not there.
        source: io::Error,
    },
    /// The keeper does not want to.
    #[error("the keeper refuses {what}: {text}")]
    Refused {
        /// What it was asked for.
        what: String,
        /// Why, for programs.
        refusal: Refusal,
        /// Why, for people.
        text: String,
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

/// Why a keeper refuses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The message is none.
    Malformed,
    /// Another version of the protocol is spoken.
    Version,
    /// This user may not.
    NotAllowed,
    /// There are too many clients.
    Clients,
    /// There are too many descriptors.
    Descriptors,
    /// There is too much state.
    Bytes,
    /// Another process of the service has come.
    Superseded,
    /// There is nothing of this name.
    Unknown,
    /// Hello comes first, and once.
    Order,
    /// The holder cannot keep connections to itself: it would never see them end.
    Itself,
    /// One that is not known here.
    Other(u32),
}

impl Refusal {
    const KNOWN: [Self; 10] = [
        Self::Malformed,
        Self::Version,
        Self::NotAllowed,
        Self::Clients,
        Self::Descriptors,
        Self::Bytes,
        Self::Superseded,
        Self::Unknown,
        Self::Order,
        Self::Itself,
    ];

    /// As it is sent: they count from 1.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            known => {
                (1..).zip(Self::KNOWN).find(|(_, other)| *other == known).map_or(0, |(number, _)| number)
            }
        }
    }

    /// As it was sent.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        let known = (1..).zip(Self::KNOWN).find(|(other, _)| *other == number);
        known.map_or(Self::Other(number), |(_, refusal)| refusal)
    }

    /// Whether the connection to the holder goes on.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Descriptors | Self::Bytes | Self::Unknown | Self::Itself)
    }

    /// For people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Malformed => "the message is malformed",
            Self::Version => "only version 1 is spoken",
            Self::NotAllowed => "this user may not",
            Self::Clients => "there are too many clients",
            Self::Descriptors => "there is no room for more descriptors",
            Self::Bytes => "there is no room for more state",
            Self::Superseded => "another process of the service has come",
            Self::Unknown => "nothing of this name is kept",
            Self::Order => "hello comes first, and once",
            Self::Itself => "a connection to the holder cannot be kept by it",
            Self::Other(_) => "for a reason that is not known here",
        }
    }
}

/// Before anything is sent.
fn check(name: &str, state: &[u8]) -> Result<(), Error> {
    if !protocol::is_name(name.as_bytes()) {
        return Err(Error::Name(name.to_owned()));
    }
    if state.len() > protocol::STATE_BYTES_MAX {
        return Err(Error::State(state.len()));
    }
    Ok(())
}
