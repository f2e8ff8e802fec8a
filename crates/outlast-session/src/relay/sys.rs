//! The system calls that the standard library does not offer without a change of state.

use rustix::net::{self, RecvFlags, SendFlags};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

/// Receives without blocking, whatever the mode of the descriptor.
pub(super) fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(net::recv(socket, buffer, RecvFlags::DONTWAIT)?.0)
}

/// As [`recv`], and what is read stays to be read.
pub(super) fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(net::recv(socket, buffer, RecvFlags::DONTWAIT | RecvFlags::PEEK)?.0)
}

/// Bytes that can be read.
pub(super) fn unread_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(usize::try_from(rustix::io::ioctl_fionread(socket)?).unwrap_or(usize::MAX))
}

/// Whether the peer sends no more.
pub(super) fn is_peer_done(socket: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one pollfd is passed, and it outlives the call.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count == 1 && poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Sends without blocking and without SIGPIPE; with `more` what does not fill a segment waits for what follows.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(net::send(socket, bytes, if more { flags | SendFlags::MORE } else { flags })?)
}

/// read(2).
pub(super) fn read(file: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(file, buffer)?)
}

/// write(2).
pub(super) fn write(file: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::write(file, bytes)?)
}

/// close(2), and what it says of what was written. Closed it is in any case.
pub(super) fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: nobody else has this number.
    if unsafe { libc::close(file.into_raw_fd()) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

/// Bytes written to a socket that its peer has not taken yet; 0 where that is unknown.
pub(super) fn unsent_bytes(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ stores one int, and `bytes` is one int that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// What kind of file a descriptor is: the `S_IFMT` bits of its mode.
pub(super) fn file_kind(file: BorrowedFd<'_>) -> io::Result<libc::mode_t> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills the whole structure when it returns 0, and is only read then.
    unsafe {
        if libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stat.assume_init().st_mode & libc::S_IFMT)
    }
}

/// Sets O_NONBLOCK on the open file description.
pub(super) fn set_nonblocking(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: F_GETFL and F_SETFL take and return plain integers.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags < 0 || libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Moves a standard descriptor away: a duplicate is returned, and /dev/null takes the number.
pub(super) fn take_standard(number: libc::c_int, null: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the duplicate is new and owned by nobody else. `number` is a standard stream: replacing what it
    // refers to keeps the number valid for everyone who holds it.
    unsafe {
        let taken = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3);
        if taken < 0 {
            return Err(io::Error::last_os_error());
        }
        let taken = OwnedFd::from_raw_fd(taken);
        if libc::dup2(null.as_raw_fd(), number) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(taken)
    }
}

/// Whether nobody writes there any more, and nothing is left to be read.
pub(super) fn has_ended_empty(file: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd is passed, and it outlives the call.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count == 1 && poll.revents & libc::POLLHUP != 0 && poll.revents & libc::POLLIN == 0
}

/// Whether nobody is at the other end any more.
pub(super) fn has_failed(file: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one pollfd is passed, and it outlives the call.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count == 1 && poll.revents & (libc::POLLERR | libc::POLLHUP) != 0
}
