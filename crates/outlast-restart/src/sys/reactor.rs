//! Descriptors that tokio waits for.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use tokio::io::unix::{AsyncFd, AsyncFdRegisterError};

/// What owns a descriptor, and is never made to own another one.
pub(crate) trait Fixed: AsRawFd {}

impl Fixed for OwnedFd {}
impl Fixed for Held {}

/// A connection, as [`AsyncFd`] wants to see it. Whoever can change it must not exchange it for another one.
#[derive(Debug)]
pub(crate) struct Held(pub(crate) crate::Connection);

impl AsRawFd for Held {
    fn as_raw_fd(&self) -> RawFd {
        self.0.socket().as_raw_fd()
    }
}

/// From here on the runtime of the caller tells when there is something to read, or room to write.
pub(crate) fn wait_for<T: Fixed>(owner: T) -> io::Result<AsyncFd<T>> {
    try_to_wait_for(owner).map_err(|(_, error)| error)
}

/// The same. Nothing is closed if that cannot be.
pub(crate) fn try_to_wait_for<T: Fixed>(owner: T) -> Result<AsyncFd<T>, (T, io::Error)> {
    // SAFETY: it owns its descriptor, and nobody gives it another one, as both types are used by this crate alone.
    unsafe { AsyncFd::register(owner) }.map_err(AsyncFdRegisterError::into_parts)
}
