//! Where a holder listens, and what can be told of the sockets that it holds.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getpeername, getsockname,
    listen as start, socket_with, sockopt,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

fn new() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens at a path, for clients of this user only, or of whoever can reach it. A socket there that nobody listens on was
/// left by a holder that was killed, and is replaced; anything else that is there stays.
///
/// # Errors
/// `AddrInUse` when the path is taken, `InvalidFilename` when it is too long for a socket (107 bytes).
pub fn listen(path: &Path, for_everybody: bool) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new()?;
    match bind(&socket, &address) {
        Err(rustix::io::Errno::ADDRINUSE) if is_abandoned(path, &address) => {
            std::fs::remove_file(path)?;
            bind(&socket, &address)?;
        }
        other => other?,
    }
    // Nobody can connect before `listen`: nobody comes in while the mode is still another.
    let mode = if for_everybody { 0o666 } else { 0o600 };
    let ready = rustix::fs::chmod(path, Mode::from_raw_mode(mode)).and_then(|()| start(&socket, BACKLOG));
    if let Err(error) = ready {
        let _ = std::fs::remove_file(path);
        return Err(error.into());
    }
    Ok(socket)
}

/// Not followed if it is a link: that would be somebody's.
fn is_abandoned(path: &Path, address: &SocketAddrUnix) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refuses = |socket: OwnedFd| connect(&socket, address) == Err(rustix::io::Errno::CONNREFUSED);
    is_socket && new().is_ok_and(refuses)
}

/// A connection to the holder at `path`.
pub(super) fn reach(path: &Path) -> io::Result<OwnedFd> {
    let socket = new()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Whether nothing can be read from a connection any more, and nothing sent: it was reset, or both directions were ended.
///
/// The end of the peer's direction alone says nothing: many clients end theirs, and then wait for the answer. Where there is
/// still something to read, the next process of the service has a use for it.
pub(super) fn is_over(socket: &impl AsFd) -> bool {
    // A pipe or a file that has no peer now may have one later.
    if sockopt::socket_type(socket) != Ok(SocketType::STREAM) {
        return false;
    }
    let mut wanted = [PollFd::new(socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let [answer] = &mut wanted;
    let hung_up = poll(std::slice::from_mut(answer), Some(&at_once)).is_ok()
        && answer.revents().contains(PollFlags::HUP);
    hung_up && rustix::io::ioctl_fionread(socket).unwrap_or(0) == 0
}

/// Whether it is a connection to the holder that listens at `listener`.
pub(super) fn leads_to(descriptor: &impl AsFd, listener: &impl AsFd) -> bool {
    match (getpeername(descriptor), getsockname(listener)) {
        (Ok(Some(peer)), Ok(own)) => peer == own,
        _ => false,
    }
}
