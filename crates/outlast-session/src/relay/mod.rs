//! Carrying the byte streams of unmodified programs over sessions.
//!
//! A relay joins a [`Local`] stream (TCP, UNIX socket, or standard input and output) with a
//! [`Session`](crate::tokio::Session): [`run`] copies both directions at once until both have ended, and
//! translates how either side ends for the other.
//!
//! | what happens | what the other side sees |
//! |---|---|
//! | local end of stream | end of stream, after every byte before it |
//! | session end of stream | half-close, after every byte before it |
//! | local reset | the session is reset; the far program sees a reset |
//! | the session fails | a reset, never a clean end of a truncated stream |
//!
//! Around it:
//!
//! * front ends that learn from the local program where it wants to go: [`socks5`], [`http_connect`],
//!   [`transparent`];
//! * [`preamble`]: how the client's relay tells the server's relay that destination;
//! * [`Destination`], [`Route`]s, [`dial`] and [`access`]: where one may go, and by which server.
//!
//! The parsers are pure functions over byte slices; a short async driver reads and writes for them.
//!
//! # Bulk
//!
//! Each direction is moved by one function, `Pump::poll_up` and `Pump::poll_down`. They copy, until a direction of a
//! [`Local::Tcp`] carries bulk: then they splice, as long as the session can. How a relay ends is the same for both.

pub mod access;
mod bulk;
mod control;
mod copy;
mod credentials;
mod destination;
pub mod dial;
mod exact;
pub mod http_connect;
mod local;
mod lookups;
pub mod preamble;
mod pump;
pub mod reasons;
pub mod reserved;
mod route;
mod settling;
pub mod socks5;
mod stdio;
mod sys;

pub mod transparent;
mod turn;

pub use control::Control;
pub use copy::{DetachedRelay, Ended, Outcome, go_on, peer_knows, run, run_undirected};
pub use credentials::Credentials;
pub use destination::{Destination, DestinationError, Host};
pub use local::{Local, LocalListener, TcpLocal, UnixLocal};
pub use pump::Rest;
pub use route::{Route, Routes};
pub use stdio::Stdio;

use crate::error::{Errno, Error};
use std::io;
use std::time::Duration;

/// Time a local program has for its SOCKS or HTTP request. Default 10 s: programs send it at once.
pub const FRONT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for one connection attempt to a target. Default 10 s: three SYN retransmissions.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time a server waits for the destination of a new session. Default 60 s, because a link may break meanwhile.
pub const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time to hand over what has been accepted when a relay is stopped. Default 5 s.
pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a parser says about the bytes it has been given so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// Complete; the number of bytes it took.
    Done(T, usize),
    /// At least so many more bytes are needed.
    More(usize),
}

/// The session's own error, out of what its I/O traits gave.
#[must_use]
pub fn session_error(error: io::Error) -> Error {
    let errno = error.raw_os_error();
    match error.into_inner().map(|inner| inner.downcast::<Error>()) {
        Some(Ok(error)) => *error,
        _ => Error::System { what: "session i/o", errno: Errno(errno.unwrap_or(libc::EIO)) },
    }
}
