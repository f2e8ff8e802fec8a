//! One TCP connection that carries a session for a while, in the clear or under TLS.

use crate::error::{Error, Result};
use crate::proto::LinkMode;
use crate::sys::{self, Then};
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use parking_lot::Mutex;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

/// Ciphertext moved per system call.
const TLS_READ_BYTES: usize = 16 << 10;
/// Plaintext that TLS may hold back before a link counts as full.
const TLS_BUFFER_BYTES: usize = 128 << 10;

/// A path with a round trip below this is within one machine or one rack.
const SHORT_PATH_US: u32 = 300;
/// The send buffer for such a path (the kernel doubles it): at two thirds of it per round trip, measured here, still
/// 9 Gbit/s at the longest of these paths.
const SHORT_PATH_SEND_BUFFER_BYTES: usize = 256 << 10;

/// Two pieces of so many bytes together are sent as one.
const JOINED_BYTES_MAX: usize = 256;

/// What came first where TLS was expected.
#[derive(Debug, thiserror::Error)]
#[error("the peer does not speak tls")]
pub(crate) struct NotTls(pub(crate) Vec<u8>);

/// What to do when there is nothing to receive yet.
#[derive(Debug)]
pub(crate) enum Waiting<'a, 'b> {
    /// Sleep in the kernel.
    Block,
    /// Say so.
    Never,
    /// Say so, and have the task woken by its reactor when there is something.
    Task(&'a mut Context<'b>),
}

/// What a receive has left in the kernel.
#[derive(Clone, Copy)]
enum Left {
    /// The room was not filled: what comes next is news to the reactor.
    Nothing,
    Perhaps,
}

/// One TCP connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Registration with tokio's reactor, where the session lives in one.
    reactor: OnceLock<AsyncFd<sys::Shared>>,
    /// The reactor may not know of input that is there: it was told that there is none, and somebody has read some since.
    may_hide_input: AtomicBool,
    socket: Arc<socket2::Socket>,
    tls: Option<Mutex<Box<rustls::Connection>>>,
    /// Rises with every link of a session.
    pub(crate) epoch: u64,
    mode: AtomicU8,
    pub(crate) peer_addr: SocketAddr,
    /// Broken, replaced or frozen: an end of input on it means nothing.
    dead: AtomicBool,
    /// Received, not taken by TLS yet, whose room for plaintext is limited.
    ciphertext: Mutex<Vec<u8>>,
    /// The send buffer was looked at for bulk.
    tuned: AtomicBool,
    /// Counts what was received of frames and handshakes.
    heard: AtomicU64,
    /// Finds out by itself when the peer is gone: [`guard`](Self::guard).
    guarded: AtomicBool,
    /// The peer's FIN was read.
    fin_seen: AtomicBool,
    /// Why it was given up.
    cause: OnceLock<String>,
}

impl Link {
    pub(crate) fn new(
        socket: socket2::Socket,
        tls: Option<rustls::Connection>,
        epoch: u64,
        mode: LinkMode,
        peer_addr: SocketAddr,
        guarded: bool,
    ) -> Self {
        let tls = tls.map(|mut connection| {
            connection.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            Mutex::new(Box::new(connection))
        });
        Self {
            reactor: OnceLock::new(),
            may_hide_input: AtomicBool::new(false),
            socket: Arc::new(socket),
            tls,
            epoch,
            mode: AtomicU8::new(mode as u8),
            peer_addr,
            dead: AtomicBool::new(false),
            ciphertext: Mutex::new(Vec::new()),
            tuned: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            guarded: AtomicBool::new(guarded),
            fin_seen: AtomicBool::new(false),
            cause: OnceLock::new(),
        }
    }

    /// The unspecified address leads to this host, which then answers from an address of its own.
    pub(crate) fn name_peer(&mut self) {
        if self.peer_addr.ip().is_unspecified()
            && let Some(address) = self.socket.peer_addr().ok().and_then(|address| address.as_socket())
        {
            self.peer_addr = address;
        }
    }

    /// Why connecting has failed, once it is decided.
    pub(crate) fn connect_error(&self) -> io::Result<()> {
        self.socket.take_error()?.map_or(Ok(()), Err)
    }

    /// Our end of the connection. Asked for when somebody wants to know: it costs a system call.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }

    /// The socket alone, for whoever watches it.
    pub(crate) fn shared_socket(&self) -> Arc<socket2::Socket> {
        self.socket.clone()
    }

    /// Has the kernel find out when the peer is gone. Not part of making a link: short sessions are over before it
    /// matters, and these are five system calls.
    pub(crate) fn guard(&self, detect_timeout: Duration) {
        if self.guarded.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = set_detection(&self.socket, detect_timeout)
            && !self.is_dead()
        {
            tracing::warn!(%error, peer = %self.peer_addr, "a silent peer will be noticed late");
        }
    }

    /// Makes the link known to the reactor of the tokio runtime that the caller runs in.
    pub(crate) fn register(&self) -> io::Result<()> {
        if self.reactor.get().is_none() {
            // An already registered link keeps its registration.
            let _ = self.reactor.set(sys::register(&self.socket)?);
        }
        Ok(())
    }

    /// Waits until somebody who has the link to himself may try again, with input or without: what the reactor knows is
    /// taken back, and what he leaves unread is not announced again.
    pub(crate) async fn ready(&self, write: bool) -> io::Result<()> {
        let Some(reactor) = self.reactor() else {
            return Err(io::Error::other("the link belongs to no tokio runtime"));
        };
        let interest = if write { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let mut ready = reactor.ready(interest).await?;
        self.may_hide_input.store(true, Ordering::Relaxed);
        ready.clear_ready();
        Ok(())
    }

    pub(crate) fn reactor(&self) -> Option<&AsyncFd<sys::Shared>> {
        self.reactor.get()
    }

    pub(crate) fn mode(&self) -> LinkMode {
        LinkMode::from_u8(self.mode.load(Ordering::Relaxed)).unwrap_or(LinkMode::Inband)
    }

    /// The Hello has said what this link is.
    pub(crate) fn mark(&mut self, epoch: u64, mode: LinkMode) {
        self.epoch = epoch;
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Something has come. Called by one reader at a time.
    pub(crate) fn note_heard(&self) {
        self.heard.store(self.heard.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Changes whenever something has come.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// The kernel's buffers for sending and receiving, where the peer has to know them: in `window` mode.
    pub(crate) fn buffer_bytes(&self) -> (u64, u64) {
        match self.mode() {
            LinkMode::Window => sys::buffer_bytes(self).unwrap_or_default(),
            LinkMode::Kernel | LinkMode::Udp | LinkMode::Inband => (0, 0),
        }
    }

    /// `window` mode: fixes the kernel's buffers, so that what they can hold has a bound.
    pub(crate) fn pin_buffers(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_send_buffer_size(bytes)?;
        self.socket.set_recv_buffer_size(bytes)
    }

    /// Before the first bulk write: on a path that is over in a moment a send buffer of several megabytes only pushes
    /// the bytes out of the cache, here and in the kernel. Longer paths keep the kernel's own tuning.
    pub(crate) fn tune_for_bulk(&self) {
        if self.tuned.swap(true, Ordering::Relaxed) || self.mode() == LinkMode::Window {
            return;
        }
        if sys::tcp_info(self).is_ok_and(|info| info.rtt_us < SHORT_PATH_US) {
            // Best effort: without it the link works as well, slower.
            let _ = self.socket.set_send_buffer_size(SHORT_PATH_SEND_BUFFER_BYTES);
        }
    }

    /// Says why the link is given up; returns what was said first.
    pub(crate) fn blame(&self, cause: &str) -> &str {
        self.cause.get_or_init(|| cause.to_owned())
    }

    /// Declares the link dead; nobody waits for its input.
    pub(crate) fn retire(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Declares the link dead and wakes whoever waits for its input.
    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
        sys::shut_read(self);
    }

    /// As [`kill`](Self::kill), and nothing more is taken in or acknowledged: what is unread is final.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        let frozen = sys::freeze(self);
        self.kill();
        frozen
    }

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

    /// Sends past TLS, which has not begun: for a peer that does not speak it.
    pub(crate) fn send_in_the_clear(&self, bytes: &[u8]) -> io::Result<usize> {
        sys::send(self, bytes)
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
        if self.may_hide_input.load(Ordering::Relaxed) {
            match receive(false) {
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
            let Poll::Ready(ready) = reactor.poll_read_ready(context) else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            let mut ready = ready?;
            match receive(false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Ok((count, Left::Nothing)) => {
                    // An end that has come already is not cleared with it.
                    ready.clear_ready();
                    return Ok(count);
                }
                result => return result.map(|(count, _)| count),
            }
        }
    }

    /// Receives plaintext; 0 is the end of input.
    pub(crate) fn receive(&self, buffer: &mut [u8], waiting: &mut Waiting<'_, '_>) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.receive_raw(buffer, waiting);
        };
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
            // RFC 8446, 5.1: the first record is a handshake's, or an alert.
            if self.heard() == 0 && !matches!(fresh, [21 | 22, ..]) {
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

    /// RFC 5705 keying material of this TLS connection, which both ends know and nobody between them.
    pub(crate) fn exporter(&self, label: &[u8]) -> Option<[u8; 32]> {
        let tls = self.tls.as_ref()?.lock();
        let secret = match &**tls {
            rustls::Connection::Client(client) => client.export_keying_material([0u8; 32], label, None),
            rustls::Connection::Server(server) => server.export_keying_material([0u8; 32], label, None),
        };
        secret.ok()
    }

    /// Whether the peer's FIN was really received, given how many payload bytes were read from this socket.
    ///
    /// An end of input can also mean that somebody else took the socket's error. The kernel counts a FIN as
    /// one received byte (`tcpi_bytes_received`), so the two can be told apart exactly.
    pub(crate) fn is_fin_received(&self, read_bytes: u64) -> bool {
        let received =
            !self.is_dead() && sys::tcp_info(self).is_ok_and(|info| info.bytes_received == read_bytes + 1);
        if received {
            self.fin_seen.store(true, Ordering::Relaxed);
        }
        received
    }

    /// Whether [`is_fin_received`](Self::is_fin_received) has been true.
    pub(crate) fn is_fin_seen(&self) -> bool {
        self.fin_seen.load(Ordering::Relaxed)
    }

    /// Whether the peer has closed its side, or the connection is gone: true even where this end no longer listens.
    pub(crate) fn has_peer_ended(&self) -> bool {
        sys::tcp_info(self).is_ok_and(|info| info.has_peer_ended)
    }

    /// Whether the connection broke and nobody has noticed, however much of its input is unread. False for one that
    /// has ended in order: acknowledgements may still come another way.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_dead() || sys::has_error(self)
    }

    /// Waits for readiness, for callers that may block.
    pub(crate) fn wait(&self, read: bool, write: bool, timeout: Option<Duration>) -> io::Result<bool> {
        sys::wait_ready(self, read, write, timeout_ms(timeout))
    }
}

/// A time-out as `poll` takes it: rounded up, -1 for none.
pub(crate) fn timeout_ms(timeout: Option<Duration>) -> i32 {
    match timeout {
        None => -1,
        Some(time) => i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The socket as rustls writes to it.
struct Ciphertext<'a>(&'a Link);

impl Write for Ciphertext<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sys::send(self.0, bytes, Then::Nothing)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What every link needs from its first byte on. Set on a listening socket it is inherited by every accepted one.
pub(crate) fn set_link_options(socket: &socket2::Socket) -> Result<()> {
    let set = || {
        socket.set_tcp_nodelay(true)?;
        // PROTOCOL 2.4: a process that dies resets its links; only an intended end sends a FIN.
        sys::reset_on_close(socket, true)
    };
    set().map_err(|error| Error::system("set socket options", &error))
}

/// How long, and how, a link tells that its peer is gone: keepalive while idle, TCP_USER_TIMEOUT while something
/// is unacknowledged. Inherited as well.
///
/// RFC 5482 and tcp(7): with both set, keepalive gives up when the user time-out is over, so the probes only have
/// to be frequent enough.
pub(crate) fn set_detection(socket: &socket2::Socket, detect_timeout: Duration) -> Result<()> {
    let probe = (detect_timeout / 4).max(Duration::from_secs(1));
    let keepalive = socket2::TcpKeepalive::new().with_time(probe * 2).with_interval(probe).with_retries(3);
    let set = || {
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(detect_timeout))
    };
    set().map_err(|error| Error::system("set socket options", &error))
}
