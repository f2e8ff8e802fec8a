//! Standard input and output as a local stream.
//!
//! A pipe or terminal is opened again through /proc where possible: O_NONBLOCK belongs to the open file, and
//! the one we were given may be shared with the shell. Sockets are read and written without blocking call by
//! call. Regular files and /dev/null are always ready.

use super::sys;
use crate::sys::urgent;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdRegisterError};

/// How often to look whether the reader of the output is gone. Default 1 s.
const FAILED_POLL: Duration = Duration::from_secs(1);

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The process's standard input and output.
#[derive(Debug)]
pub struct Stdio {
    input: End,
    /// None once it has been closed.
    output: Mutex<Option<End>>,
}

impl Stdio {
    /// Takes standard input and output over; both numbers refer to /dev/null afterwards. Needs a tokio runtime.
    ///
    /// # Errors
    /// When they were taken before, or are closed.
    pub fn take() -> io::Result<Self> {
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "standard input and output are already in use",
            ));
        }
        let null = OwnedFd::from(OpenOptions::new().read(true).write(true).open("/dev/null")?);
        let input = End::new(sys::take_standard(libc::STDIN_FILENO, null.as_fd())?, false)?;
        let output = End::new(sys::take_standard(libc::STDOUT_FILENO, null.as_fd())?, true)?;
        Ok(Self { input, output: Mutex::new(Some(output)) })
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.input {
            End::Socket(fd) | End::File(fd) => fd.poll_read_ready(cx).map_ok(drop),
            End::Ready(_) => Poll::Ready(Ok(())),
        }
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.input {
            End::Socket(fd) => fd.try_io(Interest::READABLE, |fd| sys::recv(fd.as_fd(), buffer)),
            End::File(fd) => fd.try_io(Interest::READABLE, |fd| sys::read(fd.as_fd(), buffer)),
            End::Ready(fd) => sys::read(fd.as_fd(), buffer),
        }
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &*self.output() {
            Some(End::Socket(fd) | End::File(fd)) => fd.poll_write_ready(cx).map_ok(drop),
            Some(End::Ready(_)) | None => Poll::Ready(Ok(())),
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &*self.output() {
            Some(End::Socket(fd)) => fd.try_io(Interest::WRITABLE, |fd| sys::send(fd.as_fd(), bytes, false)),
            Some(End::File(fd)) => fd.try_io(Interest::WRITABLE, |fd| sys::write(fd.as_fd(), bytes)),
            Some(End::Ready(fd)) => sys::write(fd.as_fd(), bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Whoever reads the output reads its end.
    pub(super) fn close_output(&self) -> io::Result<()> {
        match self.output().take() {
            // The same socket may be the input.
            Some(End::Socket(fd)) => socket2::SockRef::from(fd.get_ref()).shutdown(std::net::Shutdown::Write),
            // Some file systems tell only here what could not be written (close(2)).
            Some(End::File(fd)) => sys::close(fd.into_inner()),
            Some(End::Ready(fd)) => sys::close(fd),
            None => Ok(()),
        }
    }

    /// Completes when nobody reads the output any more.
    ///
    /// Looks once in a while: a descriptor that is waited for could not be closed meanwhile. Only asked
    /// when nothing is being read or written.
    pub(super) async fn failed(&self) {
        loop {
            let gone = self.output().as_ref().is_some_and(End::reader_is_gone);
            if gone {
                return;
            }
            tokio::time::sleep(FAILED_POLL).await;
        }
    }

    fn output(&self) -> MutexGuard<'_, Option<End>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum End {
    Socket(AsyncFd<OwnedFd>),
    File(AsyncFd<OwnedFd>),
    Ready(OwnedFd),
}

impl End {
    fn new(fd: OwnedFd, write: bool) -> io::Result<Self> {
        let interest = if write { Interest::WRITABLE } else { Interest::READABLE };
        match sys::file_kind(fd.as_fd())? {
            libc::S_IFSOCK => {
                // It stays in the stream; nothing tells it apart.
                let _ = urgent::keep_in_place(&fd);
                Ok(End::Socket(registered(fd, interest)?))
            }
            // These have a position, which another description of the file would not have.
            libc::S_IFREG | libc::S_IFBLK => Ok(End::Ready(fd)),
            _ => {
                let again = reopened(fd.as_fd(), write);
                if !write && sys::has_ended_empty(fd.as_fd()) {
                    // Of a named pipe that nobody writes to the kernel tells those who open it then that somebody may come.
                    return Ok(End::Ready(fd));
                }
                let fd = again.map_or(fd, OwnedFd::from);
                sys::set_nonblocking(fd.as_fd())?;
                match registered(fd, interest) {
                    Ok(fd) => Ok(End::File(fd)),
                    // epoll refuses what never blocks, such as /dev/null.
                    Err(refused) => Ok(End::Ready(refused.into_parts().0)),
                }
            }
        }
    }
}

impl End {
    fn reader_is_gone(&self) -> bool {
        match self {
            End::Socket(fd) | End::File(fd) => sys::has_failed(fd.as_fd()),
            End::Ready(_) => false,
        }
    }
}

fn registered(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, AsyncFdRegisterError<OwnedFd>> {
    // SAFETY: an OwnedFd is open, and stays the same open number, until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, interest) }
}

/// The same file with an open file description of our own.
fn reopened(fd: BorrowedFd<'_>, write: bool) -> Option<File> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    OpenOptions::new()
        .read(!write)
        .write(write)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()
}
