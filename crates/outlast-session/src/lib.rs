//! A *session* is a bidirectional byte stream that outlives the TCP connection it rides on.
//!
//! When the link breaks (reset, time-out, cable, address change, a NAT that forgot us, a laptop lid) the client makes a
//! new one, both ends say what they have, what is missing is sent again, and neither application sees more than a
//! pause. Nothing is lost, nothing comes twice, or there is an [`Error`] that says what is known to be delivered.
//!
//! * [`blocking`]: `Session` and `Listener` for threads, like `std::net`.
//! * [`mod@tokio`]: the same names for tokio, for many thousands of sessions on a fixed number of threads.
//! * [`relay`]: carrying unmodified programs.
//! * [`proto`]: the protocol itself, without I/O, `no_std`; built alone when the feature `io` is off.
//!
//! ```no_run
//! use outlast_session::blocking::Session;
//! use std::io::{Read, Write};
//!
//! let mut session = Session::connect("server.example:7000")?;
//! session.write_all(b"hello")?;
//! let mut answer = [0; 5];
//! session.read_exact(&mut answer)?; // pull the cable here if you like
//! session.finish()?; // the peer has everything
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(feature = "io"), no_std)]

extern crate alloc;

pub mod proto;

#[cfg(feature = "io")]
pub mod blocking;
#[cfg(feature = "io")]
mod config;
#[cfg(feature = "io")]
mod engine;
#[cfg(feature = "io")]
mod error;
#[cfg(feature = "io")]
mod outages;
#[cfg(feature = "io")]
pub mod relay;
#[cfg(feature = "io")]
mod scoped;
#[cfg(feature = "io")]
mod sys;
#[cfg(feature = "io")]
mod targets;
#[cfg(feature = "io")]
pub mod tokio;

#[cfg(feature = "io")]
pub use crate::{
    config::{AckMode, Config, Patience, PeerFilter, Security, TlsConfig},
    engine::{Event, EventKind, Events, Info, Memory, Role, SessionState},
    error::{Blame, Errno, Error, Result},
    outages::{Outage, OutageNews, Outages},
    scoped::Scoped,
    targets::Targets,
};
pub use proto::{Detached, LAST_WORD_BYTES, LastWord, LinkMode, Modes, Psk, Refusal, SessionId};
