//! What goes over a link: bytes in and out, as they are or under TLS, for threads and for tasks.

use super::{Link, Waiting};
use crate::proto::Fingerprint;
use crate::sys::urgent::Ahead;
use crate::sys::{self, Then};
use ::tokio::io::Interest;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::task::Poll;

/// Ciphertext moved per system call.
const TLS_READ_BYTES: usize = 16 << 10;
/// Two pieces of so many bytes together are sent as one.
const JOINED_BYTES_MAX: usize = 256;

/// What came first where TLS was expected.
#[derive(Debug, thiserror::Error)]
#[error("the peer does not speak tls")]
pub(crate) struct NotTls(pub(crate) Vec<u8>);

/// What a receive has left in the kernel.
#[derive(Clone, Copy)]
enum Left {
    /// The room was not filled: what comes next is news to the reactor.
    Nothing,
    Perhaps,
}

impl Link {
    /// Sends without blocking; returns how many bytes of `chunks` were taken.
    pub(crate) fn send(&self, chunks: &[&[u8]; 3], then: Then) -> io::Result<usize> {
        if let Some(tls) = &self.tls {
            return self.send_tls(&mut tls.lock(), chunks);
        }
        match chunks {
            [[], only, []] => sys::send(self, only, then),
            [only, [], []] => sys::send(self, only, then),
            [a, b, []] if a.len() + b.len() <= JOINED_BYTES_MAX => {
                // A header and a few bytes: copying them together is cheaper than having the kernel gather them.
                let mut joined = [0; JOINED_BYTES_MAX];
                let (head, rest) = joined.split_at_mut(a.len());
                head.copy_from_slice(a);
                rest.split_at_mut(b.len()).0.copy_from_slice(b);
                sys::send(self, joined.get(..a.len() + b.len()).unwrap_or_default(), then)
            }
            [a, b, c] => sys::send_vectored(self, &[IoSlice::new(a), IoSlice::new(b), IoSlice::new(c)], then),
        }
    }

    /// Sends one buffer without blocking.
    pub(crate) fn send_one(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&[&[], bytes, &[]], Then::Nothing)
    }

    /// Sends past TLS, of which there is none, or which has not begun and the peer does not speak.
    #[inline]
    pub(crate) fn send_in_the_clear(&self, bytes: &[u8]) -> io::Result<usize> {
        sys::send(self, bytes, Then::Nothing)
    }

    fn send_tls(&self, tls: &mut rustls::Connection, chunks: &[&[u8]; 3]) -> io::Result<usize> {
        let mut taken = 0;
        for chunk in chunks {
            let count = tls.writer().write(chunk)?;
            taken += count;
            if count < chunk.len() {
                break;
            }
        }
        match self.flush_locked(tls) {
            // What TLS took is kept by TLS; only a link that took nothing at all is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) if taken == 0 && chunks.iter().any(|chunk| !chunk.is_empty()) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Ok(()) => Ok(taken),
        }
    }

    fn flush_locked(&self, tls: &mut rustls::Connection) -> io::Result<()> {
        while tls.wants_write() {
            tls.write_tls(&mut Ciphertext(self))?;
        }
        Ok(())
    }

    /// Sends what TLS still holds; `WouldBlock` if the socket is full.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match &self.tls {
            None => Ok(()),
            Some(tls) => self.flush_locked(&mut tls.lock()),
        }
    }

    /// One `recv`, as `waiting` says.
    #[inline]
    fn receive_raw(&self, buffer: &mut [u8], waiting: &mut Waiting<'_, '_>) -> io::Result<usize> {
        self.receive_by(waiting, |block| {
            let count = sys::receive(self, buffer, block)?;
            let emptied = 0 < count && count < buffer.len();
            Ok((count, if emptied { Left::Nothing } else { Left::Perhaps }))
        })
    }

    /// Moves what was received, at most `bytes_max`, into a pipe; 0 is the end of input. Only for links of tasks.
    pub(crate) fn splice_to(
        &self,
        pipe: BorrowedFd<'_>,
        bytes_max: usize,
        waiting: &mut Waiting<'_, '_>,
    ) -> io::Result<usize> {
        self.receive_by(waiting, |_| Ok((sys::splice(self.as_fd(), pipe, bytes_max)?, Left::Perhaps)))
    }

    /// Sends the next `bytes` of a pipe. Only for links of tasks, whose sockets do not block.
    pub(crate) fn splice_from(&self, pipe: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        sys::splice(pipe, self.as_fd(), bytes)
    }

    fn receive_by(
        &self,
        waiting: &mut Waiting<'_, '_>,
        mut receive: impl FnMut(bool) -> io::Result<(usize, Left)>,
    ) -> io::Result<usize> {
        let context = match waiting {
            Waiting::Block => return receive(true).map(|(count, _)| count),
            Waiting::Never => return receive(false).map(|(count, _)| count),
            Waiting::Task(context) => context,
        };
        let Some(reactor) = self.reactor.get() else {
            return Err(io::Error::other("the link belongs to no tokio runtime"));
        };
        let would_block = || io::Error::from(io::ErrorKind::WouldBlock);
        if self.may_hide_input.load(Ordering::Relaxed) {
            self.outruns_reactor.store(true, Ordering::Relaxed);
            let received = match self.ahead(true, context) {
                Ahead::Urgent => return Err(would_block()),
                Ahead::Nothing => Err(would_block()),
                Ahead::Other => receive(false),
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok((count, Left::Perhaps)) => return Ok(count),
                Ok((count, Left::Nothing)) => {
                    self.may_hide_input.store(false, Ordering::Relaxed);
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
            // From here on whatever comes is news.
            self.may_hide_input.store(false, Ordering::Relaxed);
        }
        loop {
            // The reactor knows whether a system call is worth while.
            let Poll::Ready(ready) = reactor.poll_read_ready(context) else { return Err(would_block()) };
            let mut ready = ready?;
            let received = match self.ahead(self.outruns_reactor.load(Ordering::Relaxed), context) {
                Ahead::Urgent => return Err(would_block()),
                Ahead::Nothing => Err(would_block()),
                Ahead::Other => receive(false),
            };
            match &received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                // An end that has come already is not cleared with it.
                Ok((_, Left::Nothing)) => {
                    ready.clear_ready();
                    // The read may have ended at an urgent byte, with more behind it of which the reactor has told.
                    if self.marks_urgent() && reactor.try_io(Interest::PRIORITY, |_| Ok(())).is_ok() {
                        self.input_may_be_hidden();
                    }
                }
                _ => {}
            }
            let is_ready = reactor.try_io(Interest::READABLE, |_| Ok(())).is_ok();
            self.outruns_reactor.store(is_ready, Ordering::Relaxed);
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result.map(|(count, _)| count),
            }
        }
    }

    /// Receives plaintext; 0 is the end of input.
    #[inline]
    pub(crate) fn receive(&self, buffer: &mut [u8], waiting: &mut Waiting<'_, '_>) -> io::Result<usize> {
        match &self.tls {
            None => self.receive_raw(buffer, waiting),
            Some(tls) => self.receive_tls(tls, buffer, waiting),
        }
    }

    /// Not a part of [`receive`](Self::receive), whose every call would make room for `scratch`.
    #[inline(never)]
    fn receive_tls(
        &self,
        tls: &Mutex<Box<rustls::Connection>>,
        buffer: &mut [u8],
        waiting: &mut Waiting<'_, '_>,
    ) -> io::Result<usize> {
        let mut scratch = [0u8; TLS_READ_BYTES];
        loop {
            match tls.lock().reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A truncated stream is a broken link, not an end: the peer says End in a frame.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            let mut rest = std::mem::take(&mut *self.ciphertext.lock());
            if rest.is_empty() {
                // The lock is not held while the kernel may put this thread to sleep.
                let count = self.receive_raw(&mut scratch, waiting)?;
                if count == 0 {
                    // Not for TLS to know, which would take it for final: it is the end of what was to be read so far if
                    // this end has shut its reading, and a broken link otherwise.
                    return Ok(0);
                }
                rest.extend_from_slice(scratch.get(..count).unwrap_or_default());
            }
            let mut tls = tls.lock();
            let mut fresh = rest.as_slice();
            loop {
                let taken = tls.read_tls(&mut fresh)?;
                // Not the link's fault: the peer said something else, or an alert.
                let state = tls
                    .process_new_packets()
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                if taken == 0 || fresh.is_empty() || state.plaintext_bytes_to_read() > 0 {
                    break;
                }
            }
            *self.ciphertext.lock() = fresh.to_vec();
            let _ = self.flush_locked(&mut tls);
        }
    }

    /// One step of the TLS handshake; true when it is complete. `WouldBlock` means: wait as
    /// [`handshake_wants_write`](Self::handshake_wants_write) says and call again.
    pub(crate) fn handshake(&self) -> io::Result<bool> {
        let Some(tls) = &self.tls else { return Ok(true) };
        let mut tls = tls.lock();
        loop {
            self.flush_locked(&mut tls)?;
            if !tls.is_handshaking() {
                return Ok(true);
            }
            let mut scratch = [0u8; TLS_READ_BYTES];
            let count = sys::receive(self, &mut scratch, false)?;
            if count == 0 {
                return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
            }
            let mut fresh = scratch.get(..count).unwrap_or_default();
            // RFC 8446, 5.1: the first record is a handshake's, or an alert. What goes on like one may have been one.
            if self.heard() == 0 && !matches!(fresh, [21 | 22, ..] | [_, 3, 0..=4, ..]) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, NotTls(fresh.to_vec())));
            }
            self.note_heard();
            while !fresh.is_empty() {
                tls.read_tls(&mut fresh)?;
                if let Err(error) = tls.process_new_packets() {
                    // The alert tells the peer why.
                    let _ = self.flush_locked(&mut tls);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
    }

    pub(crate) fn handshake_wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.lock().wants_write())
    }

    /// The version that both sides have agreed on, if they have.
    pub(crate) fn tls_version(&self) -> Option<rustls::ProtocolVersion> {
        self.tls.as_ref()?.lock().protocol_version()
    }

    /// RFC 5705 keying material of this TLS connection, which both ends know and nobody between them.
    pub(crate) fn exporter(&self, label: &[u8]) -> Option<[u8; 32]> {
        let tls = self.tls.as_ref()?.lock();
        let secret = match &**tls {
            rustls::Connection::Client(client) => client.export_keying_material([0u8; 32], label, None),
            rustls::Connection::Server(server) => server.export_keying_material([0u8; 32], label, None),
        };
        secret.ok()
    }

    /// What the client's certificate is known by, if it has presented one.
    pub(crate) fn peer_certificate(&self) -> Option<Fingerprint> {
        let tls = self.tls.as_ref()?.lock();
        let certificate = tls.peer_certificates()?.first()?;
        Some(Sha256::digest(certificate.as_ref()).into())
    }
}

/// The socket as rustls writes to it.
struct Ciphertext<'a>(&'a Link);

impl Write for Ciphertext<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = sys::send(self.0, bytes, Then::Nothing);
        if sent.is_ok() {
            self.0.took_some.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
