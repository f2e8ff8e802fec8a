//! Making a socket known to tokio's reactor without giving it away.

use ::tokio::io::unix::AsyncFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
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

/// Registers a share of the socket with the reactor of the current runtime.
pub(crate) fn register(socket: &Arc<socket2::Socket>) -> io::Result<AsyncFd<Shared>> {
    // SAFETY: the share keeps the socket, hence its descriptor, open and the same until the AsyncFd is dropped;
    // nothing takes the descriptor out of a shared socket2::Socket.
    Ok(unsafe { AsyncFd::register(Shared(socket.clone())) }?)
}
