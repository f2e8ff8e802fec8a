//! Channels between processes: UNIX stream sockets that are held at both ends, made by the root before there are processes.
//!
//! The root keeps both ends, and their private pipes, and where in them each process is (its [slots](crate::slots)): so nothing of
//! them is lost when a process is lost as a whole, and neither side ever sees an end of the other.

use crate::slots::Slots;
use crate::sys::descriptors;
use crate::transport::{self, Transport};
use crate::zygote::Common;
use crate::{Connection, Generation};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// To another process of the program.
#[derive(Debug)]
pub struct Channel {
    /// What that process is for.
    pub role: String,
    /// Which of its role it is.
    pub index: usize,
    /// What is written comes there, in order, and once.
    pub connection: Connection,
}

/// One end of a channel, in the process that has it.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) descriptor: RawFd,
    inode: u64,
    /// Who is at the other one.
    role: String,
    index: usize,
}

impl End {
    /// Whether its number is still its own.
    pub(crate) fn is_open(&self) -> bool {
        descriptors::inode_of(self.descriptor) == Some(self.inode)
    }
}

/// One end, in the root.
pub(super) struct Kept {
    /// Whose it is.
    pub(super) process: usize,
    socket: OwnedFd,
    private: Vec<OwnedFd>,
    end: End,
}

impl Kept {
    /// `peer` is a role's name, and which of that it is.
    fn new(process: usize, socket: OwnedFd, slots: &Slots, peer: (&str, usize)) -> io::Result<Self> {
        let (descriptor, inode) = (socket.as_raw_fd(), descriptors::inode(&socket)?);
        let slot = slots.to_use(descriptor).ok_or_else(|| io::Error::other("too many open descriptors"))?;
        Transport::Unix.begin(&socket, inode, slot)?;
        // They are only written down in the slot, where the process finds them.
        let private =
            transport::private(slot).filter_map(descriptors::adopt).map(|(pipe, ..)| pipe).collect();
        let end = End { descriptor, inode, role: peer.0.to_owned(), index: peer.1 };
        Ok(Self { process, socket, private, end })
    }

    /// In the process that has it: the descriptors stay open, and belong to whoever serves.
    pub(super) fn give(self) -> End {
        let _ = self.socket.into_raw_fd();
        for private in self.private {
            let _ = private.into_raw_fd();
        }
        self.end
    }
}

/// Between the processes `pairs`, which have these names and memories.
pub(super) fn open(
    pairs: &[(usize, usize)],
    names: &[(&str, usize)],
    commons: &[Common],
) -> io::Result<Vec<Kept>> {
    let mut kept = Vec::new();
    for &(one, other) in pairs {
        let (near, far) = UnixStream::pair()?;
        for (process, peer, socket) in [(one, other, near), (other, one, far)] {
            if let (Some(common), Some(peer)) = (commons.get(process), names.get(peer)) {
                kept.push(Kept::new(process, socket.into(), common.slots, *peer)?);
            }
        }
    }
    Ok(kept)
}

impl Generation {
    /// The channels of this process, [held](Self::hold), in the order of the roles; those that an earlier generation has closed
    /// are not among them. None the second time, and without [roles](crate::roles).
    ///
    /// With [`transact`](Connection::transact): to be asked for when the state is [attached](Self::attach).
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub fn channels(&mut self) -> io::Result<Vec<Channel>> {
        if std::mem::replace(&mut self.channels_given, true) {
            return Ok(Vec::new());
        }
        let open = self.channels.iter().filter(|end| end.is_open());
        open.filter_map(|end| Some((end, descriptors::adopt(end.descriptor)?)))
            .map(|(end, (socket, ..))| {
                let connection = Connection::new(self.shared, socket)?;
                Ok(Channel { role: end.role.clone(), index: end.index, connection })
            })
            .collect()
    }
}
