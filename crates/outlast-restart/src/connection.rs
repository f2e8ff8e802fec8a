//! Connections whose requests are dealt with exactly once, whenever the process dies: *held reads* and *logged writes*
//! (Chang et al. 2006, sections 3.2 and 3.3), without logging in the steady state.
//!
//! What is received goes straight into memory that all generations share, and stays there until its request is
//! [done](Connection::done). How much was received, and how much was sent, is not written down: the kernel counts both,
//! and the next generation asks it. That begins with the first request that is not done, and what it writes for that is
//! left out as far as it was sent before: so a request has to be answered with the same bytes when it is dealt with again.

use crate::slots::{HELD_BYTES, Mark, Slot, Slots};
use crate::sys::{descriptors, shared, tcp};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A connection that outlives its process.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    slot: &'static Slot,
    mark: Mark,
    /// Everything before this was received.
    received_bytes: u64,
    /// Everything before this was written, by this generation or one before.
    sent_bytes: u64,
    /// Where the application is in what it writes.
    answered_bytes: u64,
    /// Of what is held, if that lies around the end of the ring.
    around: Vec<u8>,
}

impl Connection {
    /// A connected TCP socket, newly accepted or inherited.
    pub(crate) fn new(slots: &'static Slots, socket: OwnedFd) -> io::Result<Self> {
        let number = socket.as_raw_fd();
        let slot = slots.of(number).ok_or_else(|| {
            io::Error::other(format!(
                "descriptor {number}: only those below {} can be held",
                crate::slots::SLOTS
            ))
        })?;
        let inode = descriptors::inode(&socket)?;
        let positions = tcp::positions(socket.as_fd())?;
        if !slot.is_of(inode) {
            slot.begin(inode, positions.read_bytes, positions.written_bytes);
        }
        let (read_base, written_base) = slot.bases();
        let mark = slot.mark();
        Ok(Self {
            socket,
            slot,
            mark,
            received_bytes: positions.read_bytes - read_base,
            sent_bytes: positions.written_bytes - written_base,
            answered_bytes: mark.written_bytes,
            around: Vec::new(),
        })
    }

    /// Receives more: how many bytes, 0 at the end of the input.
    ///
    /// # Errors
    /// As for any socket; [`OutOfMemory`](io::ErrorKind::OutOfMemory) when all room is taken by a request that is not
    /// done.
    pub fn receive(&mut self) -> io::Result<usize> {
        let held_bytes = self.received_bytes - self.mark.consumed_bytes;
        let free_bytes = HELD_BYTES - usize::try_from(held_bytes).unwrap_or(HELD_BYTES).min(HELD_BYTES);
        if free_bytes == 0 {
            let why = format!("a request is longer than {HELD_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
        }
        let begin = place(self.received_bytes);
        let room = free_bytes.min(HELD_BYTES - begin);
        let room = shared::bytes_mut(self.slot.held(), begin, room);
        let count = tcp::receive(self.socket.as_fd(), room)?;
        self.received_bytes += count as u64;
        Ok(count)
    }

    /// What was received and is not done.
    pub fn input(&mut self) -> &[u8] {
        let begin = place(self.mark.consumed_bytes);
        let held_bytes = usize::try_from(self.received_bytes - self.mark.consumed_bytes).unwrap_or(0);
        let first = held_bytes.min(HELD_BYTES - begin);
        let bytes = shared::bytes(self.slot.held(), begin, first);
        if first == held_bytes {
            return bytes;
        }
        self.around.clear();
        self.around.extend_from_slice(bytes);
        self.around.extend_from_slice(shared::bytes(self.slot.held(), 0, held_bytes - first));
        &self.around
    }

    /// Writes all of `bytes`, but for what an earlier generation has sent of them. Waits for room, also where the socket
    /// does not block.
    ///
    /// # Errors
    /// As for any socket. What was sent before is not forgotten.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let begin = self.answered_bytes;
        self.answered_bytes += bytes.len() as u64;
        let sent_before = usize::try_from(self.sent_bytes.saturating_sub(begin)).unwrap_or(usize::MAX);
        let mut rest = bytes.get(sent_before.min(bytes.len())..).unwrap_or_default();
        while !rest.is_empty() {
            match tcp::send(self.socket.as_fd(), rest) {
                Ok(count) => {
                    self.sent_bytes += count as u64;
                    rest = rest.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Half an answer is of no use to who has to write the whole of it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tcp::wait_writable(self.socket.as_fd())?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The first `bytes` of the input were dealt with, and everything was written that is to be written for them: no
    /// later generation sees them.
    pub fn done(&mut self, bytes: usize) {
        self.mark = Mark {
            consumed_bytes: (self.mark.consumed_bytes + bytes as u64).min(self.received_bytes),
            written_bytes: self.answered_bytes,
        };
        self.slot.set_mark(self.mark);
    }

    /// The socket, for whoever waits for it.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Before the number is free for another one.
        self.slot.forget();
    }
}

/// Where in the ring a byte of the input is.
fn place(offset: u64) -> usize {
    usize::try_from(offset % HELD_BYTES as u64).unwrap_or(0)
}
