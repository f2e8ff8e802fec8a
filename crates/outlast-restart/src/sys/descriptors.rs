//! The open descriptors of this process.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What a descriptor is, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Listener,
    Connection,
    Other,
}

/// All of them, but the one that is used to find out.
pub(crate) fn open() -> io::Result<BTreeSet<RawFd>> {
    let names = std::fs::read_dir("/proc/self/fd")?;
    let mut open = BTreeSet::new();
    for name in names {
        if let Some(descriptor) = name?.file_name().to_str().and_then(|name| name.parse().ok()) {
            open.insert(descriptor);
        }
    }
    // That of the folder itself is closed by now.
    open.retain(|&descriptor| is_open(descriptor));
    Ok(open)
}

fn is_open(descriptor: RawFd) -> bool {
    // SAFETY: asks for flags, of a number that need not be open.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
}

/// Takes an open descriptor that nothing in this process owns. None if it is not open after all.
///
/// Behind its kind: a number that it shares with its duplicates alone.
pub(crate) fn adopt(descriptor: RawFd) -> Option<(OwnedFd, Kind, u64)> {
    if !is_open(descriptor) {
        return None;
    }
    // SAFETY: it is open, and its owner was another process, which is dead: no value in this one stands for it.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let kind = match (option(&owned, libc::SO_TYPE), option(&owned, libc::SO_ACCEPTCONN)) {
        (Some(libc::SOCK_STREAM), Some(1)) => Kind::Listener,
        (Some(libc::SOCK_STREAM), _) => Kind::Connection,
        _ => Kind::Other,
    };
    let identity = inode(&owned).ok()?;
    Some((owned, kind, identity))
}

/// What a descriptor shares with its duplicates alone.
pub(crate) fn inode(descriptor: &OwnedFd) -> io::Result<u64> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fills `status`.
    if unsafe { libc::fstat(descriptor.as_raw_fd(), status.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers, zeroed before and filled by the kernel.
    Ok(unsafe { status.assume_init() }.st_ino)
}

fn option(socket: &OwnedFd, name: i32) -> Option<i32> {
    let mut value = 0i32;
    let mut length = libc::socklen_t::try_from(size_of::<i32>()).ok()?;
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    (result == 0).then_some(value)
}
