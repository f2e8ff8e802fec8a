//! One TCP connection that carries a session for a while, in the clear or under TLS.

mod traffic;

pub(crate) use traffic::NotTls;

use crate::error::{Error, Result};
use crate::proto::{KernelTimeout, LinkLook, LinkMode, UserTimeout};
use crate::sys::{self, WriteWait};
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Context;
use std::time::Duration;

/// Plaintext that TLS may hold back before a link counts as full.
const TLS_BUFFER_BYTES: usize = 128 << 10;

/// A path with a round trip below this is within one machine or one rack.
const SHORT_PATH_US: u32 = 300;
/// The send buffer for such a path (the kernel doubles it): at two thirds of it per round trip, measured here, still
/// 9 Gbit/s at the longest of these paths.
const SHORT_PATH_SEND_BUFFER_BYTES: usize = 256 << 10;

/// A link that nobody answers is looked at several times within this time.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(2);
/// The kernel's clock for what it has heard is coarse: less says nothing.
const KERNEL_TICKS: Duration = Duration::from_millis(20);
/// Who writes to a peer that has ended its own direction looks so often whether the link was given up.
const ENDED_LOOK: Duration = Duration::from_millis(20);

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

/// One TCP connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Registration with tokio's reactor, where the session lives in one.
    reactor: OnceLock<AsyncFd<sys::Shared>>,
    /// Readiness was cleared but input may remain: try `recv` before waiting.
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
    /// The helper was asked to go on when there is room.
    pub(super) awaits_room: AtomicBool,
    /// TLS: the kernel has taken ciphertext since this was lowered.
    pub(super) took_some: AtomicBool,
    /// How often in a row the kernel has called it writable and taken nothing. The helper's alone.
    pub(super) refusals: AtomicU8,
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
    made_ms: u64,
    /// Since when it is listened to in vain; 0 if it is not.
    unheard_since_ms: AtomicU64,
    /// Who counts how long the peer does not answer.
    user_timeout: Mutex<UserTimeout>,
    /// Since when it is known to wait for the peer's answer to something; 0: it does not.
    waits_since_ms: AtomicU64,
    /// Its reader tells urgent bytes from others by TCP's mark.
    marks_urgent: AtomicBool,
    /// A read was held up by an urgent byte that the reactor may not know of yet.
    pub(super) ask_for_urgent: AtomicBool,
    /// The next read does not stop at an urgent byte: its reader knows of it.
    pub(super) passes_urgent: AtomicBool,
    /// The reactor has spoken of input before the last read: the next one may find what the reactor has not told of.
    outruns_reactor: AtomicBool,
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
            awaits_room: AtomicBool::new(false),
            took_some: AtomicBool::new(false),
            refusals: AtomicU8::new(0),
            tuned: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            guarded: AtomicBool::new(guarded),
            fin_seen: AtomicBool::new(false),
            cause: OnceLock::new(),
            made_ms: sys::coarse_now_ms(),
            unheard_since_ms: AtomicU64::new(0),
            user_timeout: Mutex::default(),
            waits_since_ms: AtomicU64::new(0),
            marks_urgent: AtomicBool::new(false),
            ask_for_urgent: AtomicBool::new(false),
            passes_urgent: AtomicBool::new(false),
            outruns_reactor: AtomicBool::new(false),
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

    /// How long ago it was made.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(sys::coarse_now_ms().saturating_sub(self.made_ms))
    }

    /// Nothing was heard for so long by now, and asking did not help. None: that is not so.
    pub(crate) fn note_unheard(&self, time: Option<Duration>) {
        let since_ms = |time: Duration| sys::coarse_now_ms().saturating_sub(crate::engine::millis(time));
        self.unheard_since_ms.store(time.map_or(0, |time| since_ms(time).max(1)), Ordering::Relaxed);
    }

    /// For how long nothing has passed that should have, when the link is lost: since the peer was heard last, if
    /// something of ours is under way to it or asks for it. Nothing if the link worked to its end.
    pub(crate) fn stuck_for(&self) -> Duration {
        let kernel = sys::tcp_info(self).ok().map(|info| {
            let under_way =
                || sys::unacked_bytes(self).is_ok_and(|queued_bytes| queued_bytes > info.unsent_bytes);
            let silent = Duration::from_millis(info.silent_ms.into());
            let stuck = silent >= KERNEL_TICKS && (info.probes > 0 || under_way());
            // Something may have come from a peer that has not got what was sent.
            let unanswered = Duration::from_millis(info.unanswered_ms.into());
            if stuck { silent.max(unanswered) } else { unanswered }
        });
        let frames = match self.unheard_since_ms.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since_ms => Duration::from_millis(sys::coarse_now_ms().saturating_sub(since_ms)),
        };
        kernel.unwrap_or_default().max(frames).min(self.age())
    }

    /// Whether the kernel sends the same again and again and hears nothing. It does so the later, the longer the path is.
    pub(crate) fn is_unanswered(&self) -> bool {
        sys::tcp_info(self).is_ok_and(|info| info.retransmits > 0 || self.has_no_way(&info))
    }

    /// Whether there is something that was never sent, as this host's device was off: the kernel probes as for a window, and hears
    /// nothing.
    fn has_no_way(&self, info: &sys::TcpInfo) -> bool {
        info.probes > 0 && !info.is_window_closed && sys::unacked_bytes(self).is_ok_and(|bytes| bytes > 0)
    }

    /// One look: whether something of ours was under way, unanswered, at every look in the last `time`.
    pub(crate) fn is_stuck(&self, time: Duration) -> bool {
        let now_ms = sys::coarse_now_ms().max(1);
        let Ok(info) = sys::tcp_info(self) else { return false };
        let under_way = sys::unacked_bytes(self).is_ok_and(|queued_bytes| queued_bytes > info.unsent_bytes);
        let has_no_way = self.has_no_way(&info);
        let since_ms = self.waits_since_ms.load(Ordering::Relaxed);
        let waited_ms = now_ms.saturating_sub(since_ms);
        if !under_way && !has_no_way {
            self.waits_since_ms.store(0, Ordering::Relaxed);
            return false;
        }
        if since_ms == 0 || u64::from(info.silent_ms) < waited_ms {
            self.waits_since_ms.store(now_ms, Ordering::Relaxed);
            return false;
        }
        (info.retransmits > 0 || has_no_way) && Duration::from_millis(waited_ms) >= time
    }

    /// It was found stuck, and somebody does what can be done: the next time is later.
    pub(crate) fn wait_anew(&self) {
        self.waits_since_ms.store(0, Ordering::Relaxed);
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

    /// One look: whether a peer that does not answer is given up; None if there is nothing to be sent.
    pub(crate) fn look_at_unanswered(&self, detect_timeout: Duration) -> Option<bool> {
        let queued_bytes = sys::unacked_bytes(self).ok().filter(|bytes| *bytes > 0);
        let Some(queued_bytes) = queued_bytes else {
            let kernel = self.user_timeout.lock().note_nothing_unsent();
            self.set_kernel_timeout(kernel, detect_timeout);
            return None;
        };
        let info = sys::tcp_info(self).ok()?;
        let look = LinkLook {
            now_ms: sys::coarse_now_ms(),
            // With nothing under way the kernel probes for a window, if it waits for anything.
            is_window_closed: info.is_window_closed || queued_bytes == info.unsent_bytes,
            is_unanswered: info.probes > 0 || info.retransmits > 0,
            unanswered_ms: info.unanswered_ms.into(),
            silent_ms: info.silent_ms.into(),
        };
        let detect_timeout_ms = u64::try_from(detect_timeout.as_millis()).unwrap_or(u64::MAX);
        let advice = self.user_timeout.lock().look(look, detect_timeout_ms);
        self.set_kernel_timeout(advice.kernel, detect_timeout);
        Some(advice.gives_up)
    }

    fn set_kernel_timeout(&self, kernel: Option<KernelTimeout>, detect_timeout: Duration) {
        let timeout = match kernel {
            None => return,
            Some(KernelTimeout::Detection) => Some(detect_timeout),
            Some(KernelTimeout::Longer) => Some(detect_timeout + GIVEN_UP_WITHIN),
            Some(KernelTimeout::Never) => {
                // An older kernel asks less often.
                let _ = sys::set_rto_max(self, detect_timeout / 2);
                None
            }
        };
        // Where that fails the kernel gives the link up, which is then replaced as if it were broken.
        let _ = self.socket.set_tcp_user_timeout(timeout);
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

    pub(super) fn marks_urgent(&self) -> bool {
        self.marks_urgent.load(Ordering::Relaxed)
    }

    pub(super) fn mark_urgent(&self, marks: bool) {
        self.marks_urgent.store(marks, Ordering::Relaxed);
    }

    /// A short read need not have emptied the socket.
    pub(super) fn input_may_be_hidden(&self) {
        self.may_hide_input.store(true, Ordering::Relaxed);
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

    /// Declares the link dead and wakes the reader that waits for its input.
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

    /// Whether the peer's FIN was really received, given how many payload bytes were read from this socket.
    ///
    /// An end of input can also mean that somebody else took the socket's error. The kernel counts a FIN as
    /// one received byte (`tcpi_bytes_received`), so the two can be told apart exactly: as long as nothing is unread,
    /// because a byte of the stream would count as much.
    pub(crate) fn is_fin_received(&self, read_bytes: u64) -> bool {
        let received = !self.is_dead()
            && sys::tcp_info(self).is_ok_and(|info| info.bytes_received == read_bytes + 1)
            // Asked last: what was counted and is no FIN is still there.
            && sys::unread_bytes(self).is_ok_and(|unread_bytes| unread_bytes == 0);
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

    /// Whether this kernel has received what was not read.
    pub(crate) fn has_unread(&self) -> bool {
        sys::unread_bytes(self).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether the connection broke and nobody has noticed, however much of its input is unread. False for one that
    /// has ended in order: acknowledgements may still come another way.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_dead() || sys::has_error(self)
    }

    /// Waits for readiness, for callers that may block.
    pub(crate) fn wait(&self, read: bool, write: bool, timeout: Option<Duration>) -> io::Result<bool> {
        if read || !write {
            return sys::wait_ready(self, read, write, timeout_ms(timeout));
        }
        match sys::wait_to_write(self, timeout_ms(timeout))? {
            WriteWait::Ready => Ok(true),
            WriteWait::TimedOut => Ok(false),
            WriteWait::InputEnded if self.is_dead() => Ok(true),
            // A kill shows in the input, of which the peer's end is there already: it is looked for.
            WriteWait::InputEnded => {
                let slice = timeout.map_or(ENDED_LOOK, |left| left.min(ENDED_LOOK));
                let has_room = sys::wait_for_room(self, timeout_ms(Some(slice)))?;
                Ok(has_room || timeout.is_none_or(|left| left > slice))
            }
        }
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

/// What every link needs from its first byte on. Set on a listening socket it is inherited by every accepted one.
pub(crate) fn set_link_options(socket: &socket2::Socket) -> Result<()> {
    let set = || {
        socket.set_tcp_nodelay(true)?;
        // PROTOCOL 11.1: no byte is ever left out of the stream.
        sys::urgent::keep_in_place(socket)?;
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
