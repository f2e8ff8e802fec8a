//! A manager that keeps the descriptors of a service while that is started again, as the `FDSTORE` of systemd does: the
//! sockets live on, what was read from them and not answered does not.

use anyhow::{Context, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The first byte of a message: what it is about.
const KEEP: u8 = b'+';
const DROP: u8 = b'-';
/// What was kept so far has been told.
const END: u8 = b'.';
const MESSAGE_BYTES: usize = 5;

fn message(kind: u8, number: i32) -> [u8; MESSAGE_BYTES] {
    let [a, b, c, d] = number.to_ne_bytes();
    [kind, a, b, c, d]
}

fn send(to: impl AsFd, kind: u8, number: i32, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let bytes = message(kind, number);
    rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message; none when the other side is gone.
fn receive(from: impl AsFd) -> Result<Option<(u8, i32, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; MESSAGE_BYTES];
    let received = rustix::net::recvmsg(
        from,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    );
    if received.map_or(true, |received| received.bytes != MESSAGE_BYTES) {
        return Ok(None);
    }
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    let [kind, a, b, c, d] = bytes;
    Ok(Some((kind, i32::from_ne_bytes([a, b, c, d]), descriptor)))
}

/// The manager as the service sees it.
pub struct Keeper {
    socket: OwnedFd,
    /// By what numbers here the manager knows them under which of its own.
    names: BTreeMap<i32, i32>,
    next_name: i32,
}

impl Keeper {
    /// The manager, and what it has kept.
    pub fn reach(path: &Path) -> Result<(Self, Vec<OwnedFd>)> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?).context("cannot reach the manager")?;
        let mut keeper = Self { socket, names: BTreeMap::new(), next_name: 0 };
        let mut kept = Vec::new();
        while let Some((KEEP, name, Some(descriptor))) = receive(&keeper.socket)? {
            keeper.next_name = keeper.next_name.max(name + 1);
            keeper.names.insert(descriptor.as_raw_fd(), name);
            kept.push(descriptor);
        }
        Ok((keeper, kept))
    }

    /// Has a connection kept.
    pub fn keep(&mut self, connection: &impl AsFd) -> Result<()> {
        let name = self.next_name;
        self.next_name += 1;
        self.names.insert(connection.as_fd().as_raw_fd(), name);
        send(&self.socket, KEEP, name, Some(connection.as_fd()))
    }

    /// It was closed here.
    pub fn drop_kept(&mut self, number: i32) -> Result<()> {
        self.names.remove(&number).map_or(Ok(()), |name| send(&self.socket, DROP, name, None))
    }
}

/// What the manager keeps.
#[derive(Default)]
pub struct Store(BTreeMap<i32, OwnedFd>);

impl Store {
    /// Where services reach it.
    pub fn listen(path: &Path) -> Result<OwnedFd> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?).context("cannot listen for the service")?;
        rustix::net::listen(&socket, 1)?;
        Ok(socket)
    }

    /// Gives the next service what is kept, and keeps what it has kept, until it is gone.
    pub fn serve_one(&mut self, listener: &OwnedFd) -> Result<()> {
        let service = rustix::net::accept(listener)?;
        for (name, descriptor) in &self.0 {
            send(&service, KEEP, *name, Some(descriptor.as_fd()))?;
        }
        send(&service, END, 0, None)?;
        while let Some((kind, name, descriptor)) = receive(&service)? {
            match (kind, descriptor) {
                (KEEP, Some(descriptor)) => self.0.insert(name, descriptor),
                _ => self.0.remove(&name),
            };
        }
        Ok(())
    }
}
