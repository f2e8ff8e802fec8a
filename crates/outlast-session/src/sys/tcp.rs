//! Facts about a TCP socket that only the kernel knows, and the few things one can do to it.

use super::source_ports;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn length_of<T>() -> libc::socklen_t {
    // No option value here is larger than a few hundred bytes.
    #[allow(clippy::cast_possible_truncation)]
    let length = size_of::<T>() as libc::socklen_t;
    length
}

pub(super) fn get_option<T: Copy>(fd: RawFd, level: i32, name: i32, mut value: T) -> io::Result<(T, usize)> {
    let mut length = length_of::<T>();
    // SAFETY: `value` is a live, writable T of `length` bytes, and the kernel writes at most `length`; every
    // T used here is an integer or a struct of integers, for which all bit patterns are valid.
    check(unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut length) })?;
    Ok((value, length as usize))
}

pub(super) fn set_option<T: Copy>(fd: RawFd, level: i32, name: i32, value: T) -> io::Result<()> {
    // SAFETY: `value` is a live T of the given length, only read by the kernel.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), length_of::<T>()) })
}

fn get_count(fd: RawFd, request: libc::Ioctl) -> io::Result<u64> {
    let mut count: libc::c_int = 0;
    // SAFETY: SIOCINQ and SIOCOUTQ write one int to the given address.
    check(unsafe { libc::ioctl(fd, request, &raw mut count) })?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Bytes (and a FIN) handed to the socket that the peer's kernel has not acknowledged: SIOCOUTQ.
///
/// Truthful also on a socket that was reset or timed out; not after `close`.
pub(crate) fn unacked_bytes(fd: impl AsFd) -> io::Result<u64> {
    get_count(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ)
}

/// Bytes received and not yet read: SIOCINQ. A FIN does not count.
pub(crate) fn unread_bytes(fd: impl AsFd) -> io::Result<u64> {
    get_count(fd.as_fd().as_raw_fd(), libc::FIONREAD)
}

/// The value the kernel would put into the TSval of the next segment (socket option TCP_TIMESTAMP).
pub(crate) fn tcp_timestamp(fd: impl AsFd) -> io::Result<u32> {
    Ok(get_option(fd.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, 0u32)?.0)
}

/// The longest time between two transmissions of the same data, or two probes of a closed window. Since Linux 6.15; before,
/// it is two minutes.
pub(crate) fn set_rto_max(fd: impl AsFd, time: Duration) -> io::Result<()> {
    const TCP_RTO_MAX_MS: libc::c_int = 44;
    // What the kernel accepts.
    let time_ms = time.as_millis().clamp(1000, 120_000);
    let time_ms = libc::c_int::try_from(time_ms).unwrap_or(libc::c_int::MAX);
    set_option(fd.as_fd().as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, time_ms)
}

/// Keeps the SYN of accepted connections for [`saved_syn`]. Set on the listening socket.
pub(crate) fn save_syn(fd: impl AsFd) -> io::Result<()> {
    set_option(fd.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 1i32)
}

/// The network and transport headers of the SYN that opened this accepted connection. Readable once.
pub(crate) fn saved_syn(fd: impl AsFd) -> io::Result<Vec<u8>> {
    let mut headers = vec![0u8; 256];
    let mut length = length_of::<[u8; 256]>();
    // SAFETY: `headers` is writable for `length` = 256 bytes, the kernel writes at most that.
    check(unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            headers.as_mut_ptr().cast(),
            &mut length,
        )
    })?;
    headers.truncate(length as usize);
    Ok(headers)
}

/// What of `struct tcp_info` is used here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpInfo {
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Payload bytes received in order, plus one for a FIN.
    pub bytes_received: u64,
    /// Since when nothing has come from the peer, neither data nor an acknowledgement; in the kernel's ticks.
    pub silent_ms: u32,
    /// Since when no data have come; in the kernel's ticks.
    pub unheard_ms: u32,
    /// How often in a row the same data was sent again, without an answer.
    pub retransmits: u8,
    /// How long ago the data were sent first that are sent again and again; 0 if none are, or nobody has to answer yet.
    pub unanswered_ms: u32,
    /// Keepalive probes, or probes of a window that was closed, without an answer.
    pub probes: u8,
    /// The peer's receive window is closed, as far as this kernel tells that (since 5.4).
    pub is_window_closed: bool,
    /// Handed to the socket and never sent.
    pub unsent_bytes: u64,
    /// A FIN or RST has come: the state is CLOSE, CLOSE_WAIT or behind it.
    pub has_peer_ended: bool,
}

/// The head of the kernel's `struct tcp_info` (linux/tcp.h), up to `tcpi_bytes_received` since 4.1, up to
/// `tcpi_notsent_bytes` since 4.6, up to `tcpi_snd_wnd` since 5.4.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawTcpInfo {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    window_scales: u8,
    rate_flags: u8,
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    more: [u32; 2],
    rates_and_times: [u64; 4],
    delivered: [u32; 2],
    bytes_sent: [u64; 2],
    events: [u32; 3],
    send_window: u32,
}

/// Reads the socket's TCP_INFO.
pub(crate) fn tcp_info(fd: impl AsFd) -> io::Result<TcpInfo> {
    // SAFETY: RawTcpInfo is plain integers, for which zero is a valid value.
    let zero: RawTcpInfo = unsafe { MaybeUninit::zeroed().assume_init() };
    let (raw, length) = get_option(fd.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, zero)?;
    if length < offset_of!(RawTcpInfo, segs_out) {
        return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
    }
    // The 16th word behind the bytes is tcpi_rtt: rto, ato, snd_mss, rcv_mss, unacked, sacked, lost, retrans, fackets,
    // four times of last events, pmtu, rcv_ssthresh, rtt.
    let [rto_us, _, _, _, _, _, _, _, _, last_sent_ms, _, last_data_ms, last_ack_ms, _, _, rtt_us, ..] =
        raw.words;
    // The kernel's numbers of TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING (net/tcp_states.h).
    let has_peer_ended = matches!(raw.state, 6 | 7 | 8 | 9 | 11);
    let tells_window = length >= offset_of!(RawTcpInfo, send_window) + size_of::<u32>();
    Ok(TcpInfo {
        rtt_us,
        is_window_closed: tells_window && raw.send_window == 0,
        bytes_received: raw.bytes_received,
        silent_ms: last_data_ms.min(last_ack_ms),
        unheard_ms: last_data_ms,
        retransmits: raw.retransmits,
        unanswered_ms: unanswered_ms(rto_us, raw.retransmits, last_sent_ms),
        probes: raw.probes,
        unsent_bytes: u64::from(raw.notsent_bytes),
        has_peer_ended,
    })
}

/// How long ago the data were sent first that are sent again and again, in milliseconds; 0 if none are.
///
/// RFC 6298, 5.5: each time doubles the time-out. The first n of them took as long as the next one, but for the very first. What was
/// sent last longer ago than that was sent once: the kernel tries again, and has no way (a device that is off).
fn unanswered_ms(rto_us: u32, retransmits: u8, last_sent_ms: u32) -> u32 {
    const TICKS_MS: u32 = 20;
    if retransmits == 0 {
        return 0;
    }
    if last_sent_ms > rto_us / 1000 + TICKS_MS {
        return last_sent_ms;
    }
    let first_rto_us = rto_us.checked_shr(retransmits.into()).unwrap_or(0);
    (rto_us.saturating_sub(first_rto_us) / 1000).saturating_add(last_sent_ms)
}

/// From now on the socket takes in nothing more: every arriving segment is dropped before TCP sees it, so that
/// nothing more is acknowledged and [`unread_bytes`] is final. What was received before stays readable.
///
/// A classic BPF filter of one instruction, `return 0`. Old kernels let everybody attach one, newer ones may ask for
/// CAP_NET_ADMIN: see [`can_freeze`]. The filter runs before a segment
/// is queued for the socket's owner, and SIOCINQ takes the socket's lock, so that whatever had passed the
/// filter has been counted when SIOCINQ answers.
pub(crate) fn freeze(fd: impl AsFd) -> io::Result<()> {
    const RETURN_CONSTANT: u16 = 0x06; // BPF_RET | BPF_K
    let mut drop_all = [libc::sock_filter { code: RETURN_CONSTANT, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: drop_all.as_mut_ptr() };
    set_option(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Whether this process may [`freeze`] sockets.
pub(crate) fn can_freeze() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    if let Some(can) = CAN.get() {
        return *can;
    }
    let probe = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    match probe.and_then(|probe| freeze(&probe)) {
        Ok(()) => *CAN.get_or_init(|| true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => *CAN.get_or_init(|| {
            tracing::info!("this process may not freeze connections: acknowledgement mode inband is used");
            false
        }),
        // Any other error, such as too few descriptors, says nothing about the next socket.
        Err(_) => true,
    }
}

/// The kernel's name for the network namespace that the socket belongs to: SO_NETNS_COOKIE, since Linux 5.14.
pub(crate) fn netns_cookie(fd: impl AsFd) -> io::Result<u64> {
    Ok(get_option(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0u64)?.0)
}

/// The same for the calling thread.
pub(crate) fn netns_cookie_here() -> Option<u64> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None).ok()?;
    netns_cookie(&socket).ok()
}

// What moves bytes goes to the kernel directly: the C library's calls are cancellation points, which costs two locked
// instructions each in a process of several threads.

/// Receives into `buffer`; blocks if `wait`.
#[inline]
pub(crate) fn receive(fd: impl AsFd, buffer: &mut [u8], wait: bool) -> io::Result<usize> {
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    Ok(net::recv(fd, buffer, flags)?.0)
}

/// What follows what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Nothing that is known of.
    Nothing,
    /// At once the end of the stream: the last bytes wait for it, so that both go in one segment.
    End,
}

impl Then {
    const fn send_flags(self) -> SendFlags {
        let flags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
        match self {
            Then::Nothing => flags,
            Then::End => flags.union(SendFlags::MORE),
        }
    }
}

/// Sends one buffer; never blocks, never raises SIGPIPE.
#[inline]
pub(crate) fn send(fd: impl AsFd, buffer: &[u8], then: Then) -> io::Result<usize> {
    Ok(net::send(fd, buffer, then.send_flags())?)
}

/// Sends several buffers as one write; never blocks, never raises SIGPIPE.
pub(crate) fn send_vectored(fd: impl AsFd, buffers: &[IoSlice<'_>], then: Then) -> io::Result<usize> {
    Ok(net::sendmsg(fd, buffers, &mut SendAncillaryBuffer::default(), then.send_flags())?)
}

/// Wakes everybody who waits for input on the socket, for good; nothing goes out on the wire.
pub(crate) fn shut_read(fd: impl AsFd) {
    // SAFETY: no memory is involved. An error means that the socket is dead already, which serves as well.
    unsafe { libc::shutdown(fd.as_fd().as_raw_fd(), libc::SHUT_RD) };
}

/// Queues a FIN behind what was sent.
pub(crate) fn shut_write(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::shutdown(fd.as_fd().as_raw_fd(), libc::SHUT_WR) })
}

/// Chooses what `close` (and the end of the process) does: reset the connection, or end it in order.
pub(crate) fn reset_on_close(fd: impl AsFd, reset: bool) -> io::Result<()> {
    let linger = libc::linger { l_onoff: i32::from(reset), l_linger: 0 };
    set_option(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, linger)
}

/// SO_SNDBUF and SO_RCVBUF as the kernel counts them now.
pub(crate) fn buffer_bytes(fd: impl AsFd) -> io::Result<(u64, u64)> {
    let fd = fd.as_fd().as_raw_fd();
    let send = get_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 0i32)?.0;
    let receive = get_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 0i32)?.0;
    Ok((u64::try_from(send).unwrap_or(0), u64::try_from(receive).unwrap_or(0)))
}

/// Waits until the socket is readable or writable as asked, has ended, or is in error; false when the time is over.
pub(crate) fn wait_ready(fd: impl AsFd, read: bool, write: bool, timeout_ms: i32) -> io::Result<bool> {
    let mut events = libc::POLLRDHUP;
    if read {
        events |= libc::POLLIN;
    }
    if write {
        events |= libc::POLLOUT;
    }
    wait_for(fd, events, timeout_ms).map(|found| found != 0)
}

/// What somebody who wants to write has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteWait {
    /// The socket is writable, or in error.
    Ready,
    /// It is not, and its input has ended, by the peer or by this end.
    InputEnded,
    /// Neither.
    TimedOut,
}

/// Waits until the socket is writable, or its input has ended, or it is in error.
pub(crate) fn wait_to_write(fd: impl AsFd, timeout_ms: i32) -> io::Result<WriteWait> {
    Ok(match wait_for(fd, libc::POLLOUT | libc::POLLRDHUP, timeout_ms)? {
        0 => WriteWait::TimedOut,
        libc::POLLRDHUP => WriteWait::InputEnded,
        _ => WriteWait::Ready,
    })
}

/// Waits until the socket is writable, or in error, whatever becomes of its input.
pub(crate) fn wait_for_room(fd: impl AsFd, timeout_ms: i32) -> io::Result<bool> {
    wait_for(fd, libc::POLLOUT, timeout_ms).map(|found| found != 0)
}

/// What was found of these events; all of them when a signal came.
fn wait_for(fd: impl AsFd, events: i16, timeout_ms: i32) -> io::Result<i16> {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: one valid pollfd.
    match unsafe { libc::poll(&raw mut poll, 1, timeout_ms) } {
        0 => Ok(0),
        n if n > 0 => Ok(poll.revents),
        _ => {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted { Ok(events) } else { Err(error) }
        }
    }
}

/// Has a socket that does not block connect. True if it is connected already: within a machine that takes no longer
/// than the call. Otherwise it will be writable when it is decided.
pub(crate) fn begin_connect(socket: &socket2::Socket, address: SocketAddr) -> io::Result<bool> {
    let address = address.into();
    let begun = connect_anywhere(socket, &address, source_ports::narrow(socket));
    let result = match begun {
        // Asking again says what has become of it.
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => socket.connect(&address),
        other => other,
    };
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EALREADY) => Ok(false),
        other => other.map(|()| true),
    }
}

/// `narrowed`: it looks for its port in a part of the range. Where that is in use, it looks in all of it.
pub(super) fn connect_anywhere(
    socket: &socket2::Socket,
    address: &socket2::SockAddr,
    narrowed: bool,
) -> io::Result<()> {
    match socket.connect(address) {
        Err(error) if narrowed && error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
            source_ports::widen(socket)?;
            socket.connect(address)
        }
        result => result,
    }
}

/// Accepts a connection, if there is one, whose socket does not block.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<(socket2::Socket, SocketAddr)> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: `try_init` hands out a live sockaddr_storage and its length, and the kernel writes an address of that
    // length or none.
    let (fd, address) = unsafe {
        socket2::SockAddr::try_init(|storage, length| {
            let fd = libc::accept4(listener.as_fd().as_raw_fd(), storage.cast(), length, flags);
            check(fd).map(|()| fd)
        })
    }?;
    // SAFETY: the kernel has just made it, and nobody else has it.
    let socket = unsafe { socket2::Socket::from_raw_fd(fd) };
    let address = address.as_socket().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
    Ok((socket, address))
}

/// As [`wait_ready`], for a socket that is connecting.
pub(crate) fn wait_writable(fd: impl AsFd, timeout: std::time::Duration) -> io::Result<bool> {
    wait_ready(fd, false, true, i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX))
}

/// Has a listening socket accept a connection when its first bytes have come: whoever opens a link speaks first. After
/// `wait_s` seconds of silence it is accepted all the same.
pub(crate) fn defer_accept(listener: impl AsFd, wait_s: i32) -> io::Result<()> {
    set_option(listener.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, wait_s)
}

/// Whether the connection was reset or timed out and nobody has been told. Takes nothing away: the error stays for
/// whoever reads or writes next. False for one that has ended in order.
pub(crate) fn has_error(fd: impl AsFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one valid pollfd.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count > 0 && poll.revents & (libc::POLLERR | libc::POLLNVAL) != 0
}

/// Milliseconds since an arbitrary origin, to the kernel's tick (1 to 10 ms): cheap enough for every write.
pub(crate) fn coarse_now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock exists since Linux 2.6.32.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_again_was_sent_first_as_many_timeouts_ago() {
        assert_eq!(unanswered_ms(200_000, 0, 150), 0);
        // After 0.2, 0.6 and 1.4 s, the next time after 3 s.
        assert_eq!(unanswered_ms(400_000, 1, 0), 200);
        assert_eq!(unanswered_ms(1_600_000, 3, 0), 1400);
        assert_eq!(unanswered_ms(1_600_000, 3, 1610), 3010);
        // It was sent once, and the kernel has tried since.
        assert_eq!(unanswered_ms(1_600_000, 3, 2500), 2500);
    }
}
