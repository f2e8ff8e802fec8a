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

/// Sends a byte as urgent; never blocks, never raises SIGPIPE. One byte only: of more the last would be it, and after a
/// short write another one.
pub(crate) fn send(fd: impl AsFd, byte: u8) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::OOB;
    match net::send(fd, &[byte], flags)? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}
