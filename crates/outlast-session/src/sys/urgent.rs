//! Urgent data of TCP (RFC 6093): one byte of the stream that the receiver is told of. Other names are out-of-band data
//! and `MSG_OOB`; telnet and ftp use it to interrupt.

use rustix::net::{self, SendFlags, sockopt};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// linux/sockios.h; the C library's `sockatmark` asks the same.
const SIOCATMARK: libc::Ioctl = 0x8905;

/// Has the urgent byte read in its place in the stream: SO_OOBINLINE. Otherwise `recv` leaves it out. Inherited by accepted
/// connections.
pub(crate) fn keep_in_place(fd: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_oobinline(fd, true)?)
}

/// Whether the next byte to be read is urgent.
pub(crate) fn is_next(fd: impl AsFd) -> bool {
    let mut marked: libc::c_int = 0;
    // SAFETY: SIOCATMARK stores one int, and `marked` is one int that outlives the call.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), SIOCATMARK, &raw mut marked) };
    result == 0 && marked != 0
}

/// Whether an urgent byte has come and was not read yet.
pub(crate) fn is_there(fd: impl AsFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLPRI, revents: 0 };
    // SAFETY: one pollfd is passed, and it outlives the call.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count == 1 && poll.revents & libc::POLLPRI != 0
}

/// What a read would begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Nothing has come.
    Nothing,
    /// An urgent byte.
    Urgent,
    /// Another byte, the end, or an error.
    Other,
}

/// Looks what a read would begin with. The kernel notes that a byte is urgent before it shows the byte to readers: so it is asked for input
/// first, and then whether that begins with an urgent byte. (That one is announced says nothing: its segment may be dropped.)
pub(crate) fn ahead(fd: impl AsFd) -> Ahead {
    let events = libc::POLLIN | libc::POLLRDHUP;
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: one pollfd is passed, and it outlives the call.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    match count {
        0 => Ahead::Nothing,
        _ if is_next(fd) => Ahead::Urgent,
        _ => Ahead::Other,
    }
}

/// Sends a byte as urgent; never blocks, never raises SIGPIPE. One byte only: of more the last would be it, and after a
/// short write another one.
pub(crate) fn send(fd: impl AsFd, byte: u8) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::OOB;
    match net::send(fd, &[byte], flags)? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}
