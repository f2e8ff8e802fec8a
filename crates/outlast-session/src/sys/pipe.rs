//! Pipes as places for pages: bytes pass from socket to socket without being read.

use super::descriptors_max;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

fn count(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// A pipe of this process with itself. Neither end blocks.
#[derive(Debug)]
pub(crate) struct Pipe {
    output: OwnedFd,
    input: OwnedFd,
}

impl Pipe {
    /// A pipe with a slot for every page of `bytes`. A slot holds one piece of contiguous memory, whatever its
    /// size, so that a pipe may hold more bytes than that, or fewer.
    ///
    /// # Errors
    /// When the kernel grants less: `pipe-max-size`, or the user's share in `pipe-user-pages-soft` is spent. When three quarters of
    /// the descriptors are in use: links need the others, and bytes can be copied.
    pub(crate) fn with_slots_for(bytes: libc::c_int) -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: there is room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made both, and nobody else has them.
        let [output, input] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // The lowest that is free is taken.
        if u64::try_from(input.as_raw_fd()).is_ok_and(|number| number >= descriptors_max() / 4 * 3) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        // SAFETY: a plain integer is passed and returned.
        if unsafe { libc::fcntl(input.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) } < bytes {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { output, input })
    }

    /// Where bytes come out.
    pub(crate) fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    /// Where bytes go in.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: `buffer` is writable for its length.
        count(unsafe { libc::read(self.output.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) })
    }

    /// Has `other` refer to the first `bytes` of what is in here, behind what it holds already. Returns to how many:
    /// fewer if it has no slot left.
    pub(crate) fn tee(&self, other: &Pipe, bytes: usize) -> io::Result<usize> {
        let (from, to) = (self.output.as_raw_fd(), other.input.as_raw_fd());
        // SAFETY: no memory of this process is involved.
        count(unsafe { libc::tee(from, to, bytes, libc::SPLICE_F_NONBLOCK) })
    }

    /// Drops the first `bytes` of what is in here. Returns how many these were.
    pub(crate) fn forget(&self, bytes: usize) -> io::Result<usize> {
        match null() {
            Some(null) => splice(self.output(), null, bytes),
            None => {
                let mut scratch = [0; 16 << 10];
                let most = bytes.min(scratch.len());
                self.read(scratch.get_mut(..most).unwrap_or_default())
            }
        }
    }
}

/// Where bytes can be moved that nobody needs. None while no descriptor is free for it.
fn null() -> Option<BorrowedFd<'static>> {
    static NULL: OnceLock<OwnedFd> = OnceLock::new();
    if NULL.get().is_none()
        && let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null")
    {
        let _ = NULL.set(null.into());
    }
    NULL.get().map(AsFd::as_fd)
}

/// Moves up to `bytes` from one descriptor to another, of which one is a pipe. Does not block if neither descriptor
/// does.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let (from, to, none) = (from.as_raw_fd(), to.as_raw_fd(), std::ptr::null_mut());
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    // SAFETY: no memory of this process is involved, and no offsets are given.
    count(unsafe { libc::splice(from, none, to, none, bytes, flags) })
}
