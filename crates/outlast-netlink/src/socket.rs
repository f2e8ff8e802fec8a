//! A socket that asks the kernel, and waits for its answer.

use crate::message::{Message, Reply, errors, flags, take};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// As much as one answer has at most.
const ANSWER_BYTES: usize = 64 << 10;

/// Which part of the kernel is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Devices, addresses, routes.
    Route,
    /// Sockets of all processes.
    SocketDiag,
    /// Connections that are tracked, and packets that wait in queues.
    Netfilter,
}

impl Protocol {
    /// None stands for the first.
    fn of_kernel(self) -> Option<rustix::net::Protocol> {
        match self {
            Self::Route => None,
            Self::SocketDiag => Some(netlink::INET_DIAG),
            Self::Netfilter => Some(netlink::NETFILTER),
        }
    }
}

/// A new socket, in the calling thread's network namespace, where it stays.
///
/// # Errors
/// The kernel has no such part, or no descriptor is left.
pub(crate) fn open(protocol: Protocol) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol.of_kernel())?)
}

/// A netlink socket; it stays in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no such part, or no descriptor is left.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        Ok(Self { socket: open(protocol)?, sequence: 0 })
    }

    /// The same, to hear of what happens in these groups (a bit each), without asking. It does not wait: see
    /// [`drain`](Self::drain).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn subscribe(protocol: Protocol, groups: u32) -> io::Result<Self> {
        let socket = Self::open(protocol)?;
        rustix::net::bind(&socket.socket, &SocketAddrNetlink::new(0, groups))?;
        rustix::io::ioctl_fionbio(&socket.socket, true)?;
        Ok(socket)
    }

    /// Takes all that has come, and says whether that was anything. More than there was room for (ENOBUFS) is something, too.
    #[must_use]
    pub fn drain(&self) -> bool {
        let (mut seen, mut room) = (false, [0; 8192]);
        loop {
            match rustix::net::recv(&self.socket, &mut room[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) if count > 0 => seen = true,
                Err(Errno::NOBUFS) => seen = true,
                Err(Errno::INTR) => {}
                _ => return seen,
            }
        }
    }

    /// Sends `message` and waits for the kernel's verdict.
    ///
    /// # Errors
    /// The kernel's.
    pub fn request(&mut self, message: Message) -> io::Result<()> {
        self.exchange(message, flags::ACK).map(drop)
    }

    /// Sends `message` as a question about one thing.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ask(&mut self, message: Message) -> io::Result<Vec<Reply>> {
        self.exchange(message, flags::ACK)
    }

    /// Sends `message` as a question about everything of its kind.
    ///
    /// # Errors
    /// The kernel's.
    pub fn dump(&mut self, message: Message) -> io::Result<Vec<Reply>> {
        self.exchange(message, flags::DUMP)
    }

    /// Sends messages that belong together in one datagram, and waits until the kernel has said what becomes of the last one.
    ///
    /// # Errors
    /// What the kernel says of the first that it refuses.
    pub fn request_all(&mut self, messages: Vec<Message>) -> io::Result<()> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        let count = messages.len();
        for (at, mut message) in messages.into_iter().enumerate() {
            self.sequence = self.sequence.wrapping_add(1);
            // Of a batch the ends are not answered, unless something is wrong with them.
            if at > 0 && at + 1 < count {
                message.add_flags(flags::ACK);
            }
            bytes.extend(message.finish(self.sequence));
        }
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        let (mut awaited, mut room) = (count.saturating_sub(2), vec![0; ANSWER_BYTES]);
        let mut refused = None;
        while awaited > 0 && refused.is_none() {
            let received = match rustix::net::recv(&self.socket, &mut room[..], RecvFlags::empty()) {
                Ok((received, _)) => received,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for (sequence, error) in errors(&room[..received]) {
                if sequence.wrapping_sub(first) < u32::try_from(count).unwrap_or(u32::MAX) {
                    awaited = awaited.saturating_sub(1);
                    if error != 0 && refused.is_none() {
                        refused = Some(io::Error::from_raw_os_error(-error));
                    }
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn exchange(&mut self, mut message: Message, flags: u16) -> io::Result<Vec<Reply>> {
        self.sequence = self.sequence.wrapping_add(1);
        message.add_flags(flags);
        rustix::net::send(&self.socket, &message.finish(self.sequence), SendFlags::empty())?;
        let (mut replies, mut room) = (Vec::new(), vec![0; ANSWER_BYTES]);
        loop {
            let count = match rustix::net::recv(&self.socket, &mut room[..], RecvFlags::empty()) {
                Ok((count, _)) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if take(&room[..count], self.sequence, &mut replies)? {
                return Ok(replies);
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
