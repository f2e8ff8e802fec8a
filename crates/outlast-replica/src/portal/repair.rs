//! Sockets that are made again as another machine's kernel had them (`TCP_REPAIR`, Linux 3.5): no packet is sent for that, and
//! none when they go.
//!
//! The order of the steps is that in which CRIU restores sockets, with what other machines and clients need in addition:
//! * Everything that the client may have been sent is in the send queue before the socket leaves repair mode. Else
//!   acknowledgements of what was not sent here are refused, for ever.
//! * Timestamps go on ahead of all that were sent (RFC 7323, section 5: what is older is dropped).
//! * The kernel sends nothing of a restored send queue by itself for three seconds, as it has measured no round trip: see
//!   [`raw`](super::raw).

use super::sys::{self, get, set};
use crate::replica::Restore;
use crate::view::GROUP_EPOCHS;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

// linux/tcp.h, asm-generic/socket.h and linux/in6.h.
const TCP_TIMESTAMP: i32 = 24;
const TCP_QUEUE_SEQ: i32 = 21;
const TCP_REPAIR_ON: u32 = 1;
/// Leave it, and send no window probe: its number would be one that the client takes for an old one.
const TCP_REPAIR_OFF_NO_PROBE: u32 = u32::MAX;
const TCP_RECEIVE_QUEUE: u32 = 1;
const TCP_SEND_QUEUE: u32 = 2;
const SO_BUF_LOCK: i32 = 72;
const IPV6_TRANSPARENT: i32 = 75;

/// Options as a SYN has them (RFC 9293, RFC 7323, RFC 2018).
const OPTION_SEGMENT_BYTES: u32 = 2;
const OPTION_WINDOW_SHIFT: u32 = 3;
const OPTION_SELECTIVE_ACKS: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;

/// The kernel takes no less (`TCP_MIN_MSS`).
const SEGMENT_BYTES_MIN: u32 = 88;
/// Timestamps of a connection that is made again are ahead of those of the view before by so much: by more than the clocks of two nodes differ, as
/// each reckons from when it heard that the connection began. A client drops what is behind (RFC 7323, section 5.3).
const TIMESTAMP_AHEAD: Duration = Duration::from_secs(1);
/// In the lowest bit the kernel (6.7) is told to count microseconds.
const COUNTS_MILLISECONDS: u32 = !1;
/// What the client is taken to have room for, until it says so with its next packet.
const CLIENT_WINDOW_BYTES: u32 = 1 << 16;
/// What the client was offered is not known: less than that, and its next packets would look as if they were out of the window. No
/// kernel offers more than it keeps for a socket, and these are all configured alike.
const WINDOW_BYTES_MIN: u32 = 1 << 16;
const RECEIVE_BUFFER_LIMITS: &str = "/proc/sys/net/ipv4/tcp_rmem";
const RECEIVE_BUFFER_BYTES: u32 = 6 << 20;
/// Room for what the kernel reckons for each segment of the send queue, beside its bytes.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Makes a connection again. The socket is in repair mode: it answers nothing, and sends nothing, until [`go_on`] is called.
///
/// # Errors
/// This process may not (`CAP_NET_ADMIN`), or the portal's address is not one of this machine's, nor may be (`CAP_NET_RAW`).
pub fn restore(connection: &Restore<'_>) -> io::Result<Socket> {
    let ends = &connection.ends;
    let socket = Socket::new(Domain::for_address(ends.portal), Type::STREAM, None)?;
    let (front, back) = connection.unacked;
    let option = |name, value| set(socket.as_fd(), libc::IPPROTO_TCP, name, &[value]);
    make_transparent(&socket, ends.portal)?;
    socket.set_reuse_address(true)?;
    option(libc::TCP_REPAIR, TCP_REPAIR_ON)?;
    // Now, as the kernel reckons its segments when it connects, and never again as long as the path is the same.
    let segment_bytes = u32::from(connection.agreed.segment_bytes_max).max(SEGMENT_BYTES_MIN);
    option(libc::TCP_MAXSEG, segment_bytes)?;
    let unacked_bytes = front.len() + back.len();
    if unacked_bytes > 0 {
        let bytes = u32::try_from(2 * unacked_bytes + SEND_BUFFER_BYTES).unwrap_or(i32::MAX.cast_unsigned());
        set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &[bytes])?;
    }
    option(libc::TCP_REPAIR_QUEUE, TCP_SEND_QUEUE)?;
    option(TCP_QUEUE_SEQ, connection.send_sequence)?;
    option(libc::TCP_REPAIR_QUEUE, TCP_RECEIVE_QUEUE)?;
    option(TCP_QUEUE_SEQ, connection.receive_sequence)?;
    socket.bind(&SockAddr::from(ends.portal))?;
    socket.connect(&SockAddr::from(ends.client))?;
    set(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &options(connection))?;
    if let Some(now) = timestamp_at(connection) {
        option(TCP_TIMESTAMP, now)?;
    }
    option(libc::TCP_REPAIR_QUEUE, TCP_SEND_QUEUE)?;
    for part in [front, back] {
        fill(&socket, part)?;
    }
    if unacked_bytes > 0 {
        // The kernel adapts the buffer again from here on.
        set(socket.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK, &[0])?;
    }
    let received = connection.receive_sequence;
    let before = received.wrapping_sub(1);
    // struct tcp_repair_window: where the client's window was told last, that window, its largest one; ours, and from where.
    let (_, shift) = connection.agreed.window_shifts.unwrap_or((0, 0));
    let window_bytes =
        (u32::from(u16::MAX) << shift.min(14)).min(receive_buffer_bytes()).max(WINDOW_BYTES_MIN);
    let windows = [before, CLIENT_WINDOW_BYTES, CLIENT_WINDOW_BYTES, window_bytes, received];
    set(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &windows)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The timestamp that a connection begins with here, if it has any.
pub(super) fn timestamp_at(connection: &Restore<'_>) -> Option<u32> {
    connection.agreed.timestamp.map(|first| ahead(first, connection.age_ms, connection.epoch))
}

/// The timestamp of a connection that began with `first`, and is so old, in the view of this epoch: it counts milliseconds, and begins again. No connection
/// outlives the group that it was opened in, so views before that do not count: peers take none for newer that is half of the range ahead.
pub(super) fn ahead(first: u32, age_ms: u64, epoch: u64) -> u32 {
    let views = epoch % GROUP_EPOCHS;
    let age_ms = u128::from(age_ms) + TIMESTAMP_AHEAD.as_millis() * u128::from(views);
    let age_ms = u32::try_from(age_ms & u128::from(u32::MAX)).unwrap_or(0);
    first.wrapping_add(age_ms) & COUNTS_MILLISECONDS
}

/// As much as the kernel keeps for a socket of TCP.
fn receive_buffer_bytes() -> u32 {
    static KNOWN: OnceLock<u32> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let limits = std::fs::read_to_string(RECEIVE_BUFFER_LIMITS).unwrap_or_default();
        limits.split_whitespace().last().and_then(|most| most.parse().ok()).unwrap_or(RECEIVE_BUFFER_BYTES)
    })
}

/// The portal's address may be another machine's still.
pub(super) fn make_transparent(socket: &Socket, portal: SocketAddr) -> io::Result<()> {
    match portal {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
        SocketAddr::V6(_) => set(socket.as_fd(), libc::IPPROTO_IPV6, IPV6_TRANSPARENT, &[1]),
    }
}

/// `struct tcp_repair_opt`: a number and a value, for each.
fn options(connection: &Restore<'_>) -> Vec<u32> {
    let agreed = &connection.agreed;
    // Without it the kernel has a shift of its own, which the client knows nothing of.
    let (client, portal) = agreed.window_shifts.unwrap_or((0, 0));
    let shifts = u32::from(client) | u32::from(portal) << 16;
    let mut options =
        vec![OPTION_SEGMENT_BYTES, agreed.segment_bytes_max.into(), OPTION_WINDOW_SHIFT, shifts];
    if agreed.selective_acks {
        options.extend([OPTION_SELECTIVE_ACKS, 0]);
    }
    if agreed.timestamp.is_some() {
        options.extend([OPTION_TIMESTAMP, 0]);
    }
    options
}

/// Puts bytes into the send queue: all of them.
fn fill(socket: &Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = socket.send_with_flags(bytes, libc::MSG_DONTWAIT)?;
        bytes = bytes.get(count..).unwrap_or_default();
    }
    Ok(())
}

/// The socket leaves repair mode. It sends nothing by itself yet.
///
/// # Errors
/// The kernel's.
pub fn go_on(socket: &Socket) -> io::Result<()> {
    set(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, &[TCP_REPAIR_OFF_NO_PROBE])?;
    // What is left of it when it has ended would keep the next run of this program from listening. Leaving repair mode has taken that away.
    socket.set_reuse_address(true)
}

/// The timestamp that the kernel would send now.
///
/// # Errors
/// The kernel's.
pub fn timestamp(socket: &Socket) -> io::Result<u32> {
    get(socket.as_fd(), libc::IPPROTO_TCP, TCP_TIMESTAMP)
}

/// How many bytes of its send queue the client has not acknowledged.
///
/// # Errors
/// The kernel's.
pub fn unacked_bytes(socket: &Socket) -> io::Result<usize> {
    sys::unacked_bytes(socket.as_fd())
}

/// Closes a socket so that its client hears nothing of it, neither an end nor a reset.
///
/// # Errors
/// The kernel's: then the socket is closed as any other.
pub fn close_silently(socket: Socket) -> io::Result<()> {
    let silenced = set(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, &[TCP_REPAIR_ON]);
    drop(socket);
    silenced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_ahead_of_those_of_a_view_before_whose_clock_was_ahead() {
        let before = ahead(u32::MAX, 5_400, 3);
        // Shortly after, by a clock that is late.
        let after = ahead(u32::MAX, 4_500, 4);
        assert_eq!((before, after), (8_398, 8_498));
        assert_eq!(after.wrapping_sub(before) & !0x7fff_ffff, 0);
        // In a group that was founded again a long time later.
        assert_eq!(ahead(77, 23, 1_006_817_547 * GROUP_EPOCHS), 100);
    }
}
