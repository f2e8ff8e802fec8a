//! How far a connection has come, from the kernel's own counters: exact, whenever a process that used it has died.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What has passed through a socket since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Positions {
    /// Bytes that were read from it.
    pub(crate) read_bytes: u64,
    /// Bytes that were written to it. A connection that was made from this side counts one more (its SYN).
    pub(crate) written_bytes: u64,
}

/// The beginning of the kernel's `struct tcp_info`, as far as it is used (include/uapi/linux/tcp.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    state: u8,
    other: [u8; 119],
    bytes_acked: u64,
    bytes_received: u64,
}

/// States in which the peer's FIN has come, which the kernel counts as a byte: CLOSE_WAIT, LAST_ACK, CLOSING, TIME_WAIT.
const PEER_HAS_ENDED: [u8; 4] = [8, 9, 11, 6];

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
            let ends = u64::from(PEER_HAS_ENDED.contains(&after.state));
            return Ok(Positions {
                read_bytes: after.bytes_received.saturating_sub(unread + ends),
                written_bytes: after.bytes_acked + unacked,
            });
        }
        before = after;
    }
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
}
