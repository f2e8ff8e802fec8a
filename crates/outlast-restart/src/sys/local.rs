//! UNIX stream sockets and pipes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

fn checked(count: isize) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Where the next peek would begin; every read lowers it (SO_PEEK_OFF in socket(7)).
pub(crate) fn peek_offset(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut value = 0i32;
    let mut length = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(0);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEEK_OFF);
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::try_from(value).unwrap_or(0)) }
}

/// As above, to be changed.
pub(crate) fn set_peek_offset(socket: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    let value = i32::try_from(offset).map_err(io::Error::other)?;
    let length = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(0);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEEK_OFF);
    // SAFETY: reads a local integer of the length that is told.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes that can be read without waiting.
pub(crate) fn unread(pipe: RawFd) -> io::Result<u64> {
    queued(pipe, libc::FIONREAD)
}

/// Memory of what was written to a UNIX socket and not received by its peer yet, with descriptors.
pub(crate) fn unreceived(socket: RawFd) -> io::Result<u64> {
    queued(socket, libc::TIOCOUTQ)
}

fn queued(from: RawFd, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes = 0i32;
    // SAFETY: both requests fill one integer.
    if unsafe { libc::ioctl(from, request, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// What is written to this end does not wait for room.
pub(crate) fn set_nonblocking(writer: RawFd) -> io::Result<()> {
    // SAFETY: takes integers. A new end of a pipe has no other flags.
    if unsafe { libc::fcntl(writer, libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Moves bytes from a pipe to anything, or the other way round, within the kernel (splice(2)).
pub(crate) fn move_between(from: RawFd, to: RawFd, length: usize) -> io::Result<usize> {
    let nowhere = std::ptr::null_mut();
    // SAFETY: no memory of this process is touched.
    checked(unsafe { libc::splice(from, nowhere, to, nowhere, length, 0) })
}

/// As read(2).
pub(crate) fn read(from: RawFd, room: &mut [u8]) -> io::Result<usize> {
    // SAFETY: fills at most `room`.
    checked(unsafe { libc::read(from, room.as_mut_ptr().cast(), room.len()) })
}

/// As write(2).
pub(crate) fn write(to: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: reads at most `bytes`.
    checked(unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) })
}
