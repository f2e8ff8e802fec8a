//! Descriptors that are not held: the system's calls.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};

fn bytes(count: isize) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

fn nothing(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn is_open(fd: RawFd) -> bool {
    // SAFETY: asks for flags, of a number that need not be open.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Of a socket that listens already: what else it may let wait.
pub(crate) fn listen(listener: &TcpListener, backlog: i32) -> io::Result<()> {
    // SAFETY: numbers.
    nothing(unsafe { libc::listen(listener.as_raw_fd(), backlog) })
}

pub(crate) fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: fills at most `buffer`.
    bytes(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) })
}

pub(crate) fn write(fd: RawFd, content: &[u8]) -> io::Result<usize> {
    // SAFETY: reads at most `content`.
    bytes(unsafe { libc::write(fd, content.as_ptr().cast(), content.len()) })
}

pub(crate) fn send_file(fd: RawFd, file: RawFd, offset: &mut libc::off_t, size: usize) -> io::Result<usize> {
    // SAFETY: changes a number.
    bytes(unsafe { libc::sendfile(fd, file, offset, size) })
}

pub(crate) fn shut_down(fd: RawFd, how: i32) -> io::Result<()> {
    // SAFETY: numbers.
    nothing(unsafe { libc::shutdown(fd, how) })
}

pub(crate) fn close(fd: RawFd) -> io::Result<()> {
    // SAFETY: it is not held, so it is the caller's own, who gives it up.
    nothing(unsafe { libc::close(fd) })
}

/// SIGPIPE, as long as it has its default action, by which every client that hangs up would end the process.
pub(crate) fn ignore_broken_pipes() {
    // SAFETY: sets an action that runs no code, and the former one again if that was another than the default.
    unsafe {
        let before = libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        if before != libc::SIG_DFL && before != libc::SIG_ERR {
            libc::signal(libc::SIGPIPE, before);
        }
    }
}
