//! How far a connection has come, from the kernel's own counters: exact, whenever a process that used it has died.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What has passed through a socket since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Positions {
    /// Bytes that were read from it.
    pub(crate) read_bytes: u64,
    /// Bytes that were written to it. A connection that was made from this side counts one more (its SYN).
    pub(crate) written_bytes: u64,
    /// Nothing more can be written to it: this side has ended its stream. Its FIN is none of `written_bytes`.
    pub(crate) is_shut: bool,
}

/// The beginning of the kernel's `struct tcp_info`, as far as it is used (include/uapi/linux/tcp.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    state: u8,
    before_unacked: [u8; 23],
    /// Of a listening socket: how many wait to be accepted.
    unacked: u32,
    before_times: [u8; 16],
    last_data_sent_ms: u32,
    last_ack_sent_ms: u32,
    last_data_received_ms: u32,
    before_bytes: [u8; 64],
    bytes_acked: u64,
    bytes_received: u64,
}

const ESTABLISHED: u8 = 1;
/// The peer has ended its side.
const CLOSE_WAIT: u8 = 8;

/// Who has just sent something may send more.
const QUIET_MS: u32 = 200;

/// States in which the peer's FIN has come, which the kernel counts as a byte: CLOSE_WAIT, LAST_ACK, CLOSING, TIME_WAIT.
const PEER_HAS_ENDED: [u8; 4] = [CLOSE_WAIT, 9, 11, 6];

/// States in which this side has sent a FIN or is about to, counted in the same way: FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING,
/// TIME_WAIT.
const THIS_SIDE_HAS_ENDED: [u8; 5] = [4, 5, 9, 11, 6];

/// CLOSE: both sides have ended, or the connection was broken off.
const CLOSE: u8 = 7;

/// Of the kernel's `struct tcp_zerocopy_receive`, what says how much is to be received. The word behind that would take
/// away an error that is to be told.
#[repr(C, packed(4))]
struct Receivable {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
}

/// Whether the peer's FIN has come to a socket whose state does not say so. Peeking would say so, too, and take errors away.
/// With more than a page unread it is not known.
fn has_peer_ended(socket: BorrowedFd<'_>, unread: u64) -> bool {
    let mut receivable = Receivable { address: 0, length: 0, recv_skip_hint: 0, inq: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<Receivable>()).unwrap_or(0);
    // SAFETY: reads and fills the length that is told, which is that of `receivable`. Nothing is mapped at address 0.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_ZEROCOPY_RECEIVE,
            (&raw mut receivable).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        // Everything was received, and nothing will ever come.
        return io::Error::last_os_error().raw_os_error() == Some(libc::EIO);
    }
    // A FIN counts here, and does not in FIONREAD.
    u64::from(receivable.inq) > unread
}

fn info(socket: BorrowedFd<'_>) -> io::Result<Info> {
    let mut info = MaybeUninit::<Info>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<Info>()).unwrap_or(0);
    // SAFETY: fills at most the length that is told, which is that of `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers, zeroed before and filled by the kernel.
    Ok(unsafe { info.assume_init() })
}

/// Whether the kernel changes what the program writes and reads on a connection: `TCP_ULP`, such as kTLS
/// (Documentation/networking/tls.rst).
pub(crate) fn has_upper_layer(socket: BorrowedFd<'_>) -> bool {
    let mut name = [0u8; 16];
    let mut length = libc::socklen_t::try_from(name.len()).unwrap_or(0);
    // SAFETY: fills at most the length that is told, which is that of `name`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_ULP,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    // Where there is none, the kernel gives the length 0.
    result == 0 && length > 0
}

/// How many connections wait at a listening socket of TCP. None: it is none.
pub(crate) fn queued_count(socket: BorrowedFd<'_>) -> Option<u32> {
    const LISTEN: u8 = 10;
    info(socket).ok().filter(|info| info.state == LISTEN).map(|info| info.unacked)
}

/// Whether the other end of a connection has not answered yet.
pub(crate) fn is_connecting(socket: BorrowedFd<'_>) -> bool {
    const SYN_SENT: u8 = 2;
    info(socket).is_ok_and(|info| info.state == SYN_SENT)
}

/// Whether nothing was read of a connection since it was accepted, or written to it. False of what is no TCP connection.
pub(crate) fn is_untouched(socket: BorrowedFd<'_>) -> bool {
    positions(socket).is_ok_and(|positions| positions == Positions::default())
}

/// Whether somebody seems to wait for what a process has to say on a connection of which nobody knows more: its client was
/// the last to say something, or it has sent something just now, or that is not all there yet. False of what is no TCP
/// connection.
pub(crate) fn is_under_way(socket: BorrowedFd<'_>) -> bool {
    info(socket).is_ok_and(|info| {
        let is_asked = info.last_data_received_ms < info.last_data_sent_ms;
        let answers = info.last_data_sent_ms < QUIET_MS;
        let is_unsent = || queued(socket, libc::TIOCOUTQ).is_ok_and(|bytes| bytes > 0);
        [ESTABLISHED, CLOSE_WAIT].contains(&info.state) && (is_asked || answers || is_unsent())
    })
}

fn queued(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes = 0i32;
    // SAFETY: both requests fill one integer.
    if unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// The counters of a TCP socket that nobody else reads from or writes to now. Acknowledgements and input may come
/// meanwhile: they are read until they stand still.
pub(crate) fn positions(socket: BorrowedFd<'_>) -> io::Result<Positions> {
    let mut before = info(socket)?;
    loop {
        let (unread, unacked) = (queued(socket, libc::FIONREAD)?, queued(socket, libc::TIOCOUTQ)?);
        let after = info(socket)?;
        if (after.bytes_acked, after.bytes_received, after.state)
            == (before.bytes_acked, before.bytes_received, before.state)
        {
            let has_ended = PEER_HAS_ENDED.contains(&after.state)
                || after.state == CLOSE && has_peer_ended(socket, unread);
            let ends = u64::from(has_ended);
            // Of one that was broken off behind the peer's end nobody needs to know how much was written.
            let is_shut = THIS_SIDE_HAS_ENDED.contains(&after.state) || after.state == CLOSE && has_ended;
            let own_ends = u64::from(is_shut);
            return Ok(Positions {
                read_bytes: after.bytes_received.saturating_sub(unread + ends),
                written_bytes: (after.bytes_acked + unacked).saturating_sub(own_ends),
                is_shut,
            });
        }
        before = after;
    }
}

/// Urgent bytes are read as the others are, in their place, from here on, and also the one that waits now.
pub(crate) fn keep_urgent_in_place(socket: BorrowedFd<'_>) -> io::Result<()> {
    rustix::net::sockopt::set_socket_oobinline(socket, true).map_err(Into::into)
}

/// A close ends it by a reset from here on: what was said is not complete.
pub(crate) fn reset_on_close(socket: BorrowedFd<'_>) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
}

/// A close does not wait from here on, whatever was asked for (SO_LINGER). What was said is sent all the same.
pub(crate) fn close_without_waiting(socket: BorrowedFd<'_>) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, None);
}

/// About what was sent, of a number that may be no such socket: something may be acknowledged meanwhile. In half the time of
/// [`positions`].
pub(crate) fn sent_bytes(socket: std::os::fd::RawFd) -> Option<u64> {
    if socket < 0 {
        return None;
    }
    // SAFETY: only asked; what is no TCP socket is an error.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    Some(info(socket).ok()?.bytes_acked + queued(socket, libc::TIOCOUTQ).ok()?)
}

/// Receives into shared memory.
pub(crate) fn receive(socket: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    // SAFETY: fills at most `room`.
    let count = unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Sends what the socket takes.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: reads at most `bytes`.
    let count =
        unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// The same, without waiting for room, whatever the socket does otherwise.
pub(crate) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: reads at most `bytes`.
    let count = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Whether this end of a connection may still say something.
pub(crate) fn is_open_for_writing(socket: BorrowedFd<'_>) -> bool {
    info(socket).is_ok_and(|info| [ESTABLISHED, CLOSE_WAIT].contains(&info.state))
}

/// Sends a part of a file.
pub(crate) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    count: usize,
) -> io::Result<usize> {
    let mut offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: changes a local integer.
    let count = unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, count) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Reads a part of a file.
pub(crate) fn read_at(file: BorrowedFd<'_>, room: &mut [u8], offset: u64) -> io::Result<usize> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: fills at most `room`.
    let count = unsafe { libc::pread(file.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), offset) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Throws away what has come, without waiting for more, and not for ever of a peer that sends as fast.
pub(crate) fn drain(socket: BorrowedFd<'_>) {
    const TIMES_MAX: usize = 4096;
    let mut room = [0u8; 4096];
    for _ in 0..TIMES_MAX {
        // SAFETY: fills at most `room`.
        let count = unsafe {
            libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT)
        };
        if count <= 0 {
            return;
        }
    }
}

/// Sleeps until the socket takes more, or is broken.
pub(crate) fn wait_writable(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut wanted = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, which is a local.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, -1) };
    match io::Error::last_os_error() {
        error if ready < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn what_was_read_and_written_is_counted_exactly_also_behind_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let at = |socket: &TcpStream| {
            let positions = positions(socket.as_fd()).unwrap();
            (positions.read_bytes, positions.written_bytes)
        };
        assert_eq!((at(&server), at(&client)), ((0, 0), (0, 1)));
        client.write_all(&[7; 1000]).unwrap();
        server.read_exact(&mut [0; 300]).unwrap();
        server.write_all(&[8; 50]).unwrap();
        assert_eq!(at(&server), (300, 50));
        client.shutdown(Shutdown::Write).unwrap();
        server.read_exact(&mut [0; 700]).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
        assert_eq!(at(&server), (1000, 50));
    }

    #[test]
    fn the_end_of_this_side_is_no_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for client_ends_first in [false, true] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let at = |server: &TcpStream| {
                let positions = positions(server.as_fd()).unwrap();
                (positions.written_bytes, positions.is_shut)
            };
            server.write_all(&[8; 50]).unwrap();
            client.read_exact(&mut [0; 50]).unwrap();
            assert_eq!(at(&server), (50, false));
            if client_ends_first {
                client.shutdown(Shutdown::Write).unwrap();
                assert_eq!(server.read(&mut [0]).unwrap(), 0);
            }
            server.shutdown(Shutdown::Write).unwrap();
            assert_eq!(at(&server), (50, true));
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
            assert_eq!(at(&server), (50, true));
            if client_ends_first {
                wait_closed(&server);
                assert_eq!(at(&server), (50, true));
            }
        }
    }

    /// Until both sides have ended.
    fn wait_closed(socket: &TcpStream) {
        while info(socket.as_fd()).unwrap().state != CLOSE {
            std::thread::yield_now();
        }
    }

    #[test]
    fn and_behind_the_end_of_both_sides_or_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let read_bytes = |socket: &TcpStream| positions(socket.as_fd()).unwrap().read_bytes;
        // What was sent, what was read before the end and after it.
        for (sent, before, after) in [(1000, 300, 700), (1000, 1000, 0), (1000, 300, 100), (9000, 9000, 0)] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(&vec![7; sent]).unwrap();
            server.read_exact(&mut vec![0; before]).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            while info(server.as_fd()).unwrap().state != PEER_HAS_ENDED[0] {
                std::thread::yield_now();
            }
            server.shutdown(Shutdown::Write).unwrap();
            wait_closed(&server);
            assert_eq!(read_bytes(&server), before as u64);
            server.read_exact(&mut vec![0; after]).unwrap();
            assert_eq!(read_bytes(&server), (before + after) as u64);
            if before + after == sent {
                assert_eq!(server.read(&mut [0]).unwrap(), 0);
                assert_eq!(read_bytes(&server), sent as u64);
            }
        }
        for ends_first in [false, true] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(&[7; 1000]).unwrap();
            server.read_exact(&mut [0; 1000]).unwrap();
            if ends_first {
                client.shutdown(Shutdown::Write).unwrap();
                assert_eq!(server.read(&mut [0]).unwrap(), 0);
            }
            // Closed with something unread: a reset.
            server.write_all(&[8; 10]).unwrap();
            while client.peek(&mut [0]).unwrap() == 0 {}
            drop(client);
            wait_closed(&server);
            assert_eq!(read_bytes(&server), 1000);
            // It is still told.
            assert!(server.take_error().unwrap().is_some());
            assert_eq!(read_bytes(&server), 1000);
        }
    }
}
