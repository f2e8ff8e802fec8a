//! One packet with its descriptors.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Room for more than one, so that too many are told from none left in this process.
const DESCRIPTORS_MAX: usize = 2;

/// What has come.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Bytes in the room that was given. None: the other side has closed.
    pub(crate) length: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// There were more bytes than there was room for.
    pub(crate) is_cut: bool,
    /// There were more descriptors than there was room for, or than this process may have. The kernel has closed them.
    pub(crate) lacks_descriptors: bool,
}

impl Packet {
    /// This process may not have more descriptors. Otherwise there were more than any message has.
    pub(crate) fn is_for_want_of_room(&self) -> bool {
        self.lacks_descriptors && self.descriptors.len() < DESCRIPTORS_MAX
    }
}

/// Sends a packet, whole or not at all.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
    waits: bool,
) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = if waits { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

/// Takes the next packet. What is not for programs that this process executes is closed there.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], waits: bool) -> io::Result<Packet> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = if waits { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
    let received =
        rustix::io::retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags))?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Packet {
        length: received.bytes,
        descriptors,
        is_cut: received.flags.contains(ReturnFlags::TRUNC),
        lacks_descriptors: received.flags.contains(ReturnFlags::CTRUNC),
    })
}
