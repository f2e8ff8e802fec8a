//! Making a socket known to tokio's reactor without giving it away.

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A share in a socket, as the reactor holds it.
#[derive(Debug)]
pub(crate) struct Shared(Arc<socket2::Socket>);

impl AsRawFd for Shared {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Input, room for output, and urgent data: those are of interest to relays, and cost the others nothing.
fn interest() -> Interest {
    Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY
}

/// Registers a share of the socket with the reactor of the current runtime.
pub(crate) fn register(socket: &Arc<socket2::Socket>) -> io::Result<AsyncFd<Shared>> {
    // SAFETY: the share keeps the socket, hence its descriptor, open and the same until the AsyncFd is dropped;
    // nothing takes the descriptor out of a shared socket2::Socket.
    Ok(unsafe { AsyncFd::register_with_interest(Shared(socket.clone()), interest()) }?)
}

/// Registers a socket together with its owner.
pub(crate) fn register_owned<T: AsRawFd + Into<OwnedFd>>(owner: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: what can be turned into an OwnedFd owns its descriptor: it is open, and stays the same, until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(owner, interest()) }?)
}
