//! A program's UNIX stream socket.
//!
//! There is no reset for these, with one exception: a socket that is closed, or whose process dies, with input unread
//! gives its peer `ECONNRESET` behind what was sent (unix(7) does not say so, every Linux does). So the last byte of
//! what the program has sent is left in the queue, though it was read, until the streams have ended in order. A program that
//! has not said a word, or much at once, cannot be protected that way: it sees an early end of stream.

use crate::relay::sys;
use crate::sys::urgent;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// A byte is left behind only of reads up to this size. The kernel counts the whole message that the byte belongs to
/// against the program's send buffer, and wakes a program that waits for room only when three quarters of that (208 KiB
/// by default) are free.
const KEPT_OF_BYTES_MAX: usize = 4 << 10;

/// A UNIX stream socket of a local program.
#[derive(Debug)]
pub struct UnixLocal {
    pub(super) stream: UnixStream,
    /// Whether the first byte in the queue was read before.
    kept: AtomicBool,
    /// See [`Local::written`](super::Local::written).
    pub(super) has_failed: AtomicBool,
}

impl UnixLocal {
    pub(super) fn new(stream: UnixStream) -> Self {
        // Since Linux 5.15 these have urgent data, too.
        let _ = urgent::keep_in_place(&stream);
        Self { stream, kept: AtomicBool::new(false), has_failed: AtomicBool::new(false) }
    }

    /// The socket with everything that was read taken out of its queue.
    pub(super) fn into_fd(self) -> io::Result<OwnedFd> {
        self.take_kept();
        self.stream.into_std().map(OwnedFd::from)
    }

    /// From now on a close is the end of the stream in order.
    pub(super) fn end_in_order(&self) {
        self.take_kept();
    }

    fn take_kept(&self) {
        if self.kept.swap(false, Ordering::Relaxed) {
            // It is there, whoever is at the other end.
            let _ = sys::recv(self.stream.as_fd(), &mut [0]);
        }
    }

    /// Reads what is there. `WouldBlock` clears the readiness.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.try_io(Interest::READABLE, || self.read(buffer))
    }

    /// As [`try_read`](Self::try_read), whatever the reactor has said.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let kept = usize::from(self.kept.load(Ordering::Relaxed));
        let queued = sys::unread_bytes(self.stream.as_fd())?;
        if kept > 0 && queued <= kept {
            return self.end_behind_kept();
        }
        let fresh = queued.saturating_sub(kept);
        if (1..=KEPT_OF_BYTES_MAX.min(buffer.len())).contains(&fresh)
            && let Some(count) = self.read_and_keep(buffer, kept)?
        {
            return Ok(count);
        }
        self.take_kept();
        sys::recv(self.stream.as_fd(), buffer)
    }

    /// Nothing but the byte that was kept: whether the stream ends behind it.
    fn end_behind_kept(&self) -> io::Result<usize> {
        let stream = self.stream.as_fd();
        if !sys::is_peer_done(stream) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Asked again: what came before the end may have come since.
        if sys::unread_bytes(stream)? > 1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.stream.take_error()?.map_or(Ok(0), Err)
    }

    /// None if there is something in the way.
    fn read_and_keep(&self, buffer: &mut [u8], kept: usize) -> io::Result<Option<usize>> {
        let mut scratch = [0; KEPT_OF_BYTES_MAX + 1];
        let most = (kept + buffer.len()).min(scratch.len());
        let peeked = sys::peek(self.stream.as_fd(), scratch.get_mut(..most).unwrap_or_default())?;
        let Some(fresh) = scratch.get(kept..peeked).filter(|fresh| !fresh.is_empty()) else {
            return Ok(None);
        };
        let count = fresh.len();
        buffer.get_mut(..count).unwrap_or_default().copy_from_slice(fresh);
        let mut taken = 0;
        while taken + 1 < peeked {
            taken += sys::recv(self.stream.as_fd(), scratch.get_mut(taken..peeked - 1).unwrap_or_default())?;
        }
        self.kept.store(true, Ordering::Relaxed);
        Ok(Some(count))
    }
}
