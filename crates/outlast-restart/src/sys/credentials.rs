//! Who is at the other end of a UNIX socket, as the kernel says.
//!
//! A process of another PID namespace has no number here, for which the kernel says 0. That is no value of types that leave it
//! out, as those of `rustix` do.

use super::process::Pid;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A process, and as whom it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// None: it is in another PID namespace.
    pub pid: Option<Pid>,
    /// Its user.
    pub uid: u32,
}

impl Peer {
    fn new(credentials: libc::ucred) -> Self {
        Self { pid: Some(credentials.pid).filter(|pid| *pid > 0), uid: credentials.uid }
    }

    /// The process that has connected a UNIX socket, listens where it is connected to, or has made the pair.
    ///
    /// # Errors
    /// It is no such socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
        let (number, place) = (socket.as_fd().as_raw_fd(), (&raw mut peer).cast());
        // SAFETY: fills a local of the length that is given.
        let result =
            unsafe { libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Self::new(peer)) }
    }
}

/// Room for the credentials of a sender, and some descriptors.
#[repr(C, align(8))]
struct Beside([u8; 128]);

/// Receives a datagram: its length, and who has sent it, if the socket is to hear that (`SO_PASSCRED`). Descriptors that come
/// with it are closed.
///
/// # Errors
/// The system's.
#[allow(clippy::unnecessary_cast, reason = "other C libraries have other types for lengths")]
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Option<Peer>)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut beside = Beside([0; 128]);
    let mut sender = None;
    // SAFETY: a message of locals, whose lengths are those of what they point to. Of what comes beside it is read what the
    // kernel has filled; a descriptor that comes is new, and nobody else's.
    unsafe {
        let mut message = MaybeUninit::<libc::msghdr>::zeroed().assume_init();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = (&raw mut beside).cast();
        message.msg_controllen = size_of::<Beside>() as _;
        let received = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        let mut head = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(part) = head.as_ref() {
            let content = libc::CMSG_DATA(head);
            let size = (part.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            match (part.cmsg_level, part.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if size >= size_of::<libc::ucred>() => {
                    sender = Some(Peer::new(content.cast::<libc::ucred>().read_unaligned()));
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let numbers = content.cast::<RawFd>();
                    let count = size / size_of::<RawFd>();
                    (0..count).for_each(|at| drop(OwnedFd::from_raw_fd(numbers.add(at).read_unaligned())));
                }
                _ => {}
            }
            head = libc::CMSG_NXTHDR(&raw const message, head);
        }
        Ok((length, sender))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn a_process_without_a_number_here_is_none() {
        let (here, _there) = UnixStream::pair().unwrap();
        let own = Peer::of(&here).unwrap();
        assert_eq!(own.pid, Some(crate::sys::process::pid()));
        assert_eq!(Peer::new(libc::ucred { pid: 0, uid: 7, gid: 7 }), Peer { pid: None, uid: 7 });
        assert!(Peer::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn a_datagram_says_who_has_sent_it_where_that_is_wanted() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let mut room = [0; 10];
        there.send(b"one").unwrap();
        assert_eq!(receive(here.as_fd(), &mut room).unwrap(), (3, None));
        rustix::net::sockopt::set_socket_passcred(&here, true).unwrap();
        there.send(b"four").unwrap();
        let sender = Peer::of(&here).unwrap();
        assert_eq!(receive(here.as_fd(), &mut room).unwrap(), (4, Some(sender)));
        assert_eq!(&room[..4], b"four");
    }
}
