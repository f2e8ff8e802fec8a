//! Connections whose requests are dealt with exactly once, whenever the process dies: *held reads* and *logged writes*
//! (Chang et al. 2006, sections 3.2 and 3.3), without logging in the steady state.
//!
//! What is received goes straight into memory that all generations share, and stays there until its request is
//! [done](Connection::done). How much was received, and how much was sent, is not written down: the kernel counts both,
//! and the next generation asks it. That begins with the first request that is not done, and what it writes for that is
//! left out as far as it was sent before: so a request has to be answered with the same bytes when it is dealt with again.

mod suspected;

use crate::buffers;
use crate::generation::Shared;
use crate::slots::{Mark, NOTE_BYTES, Notes, Slot};
use crate::suspects;
use crate::sys::{descriptors, tcp};
use crate::transport::{Passed, Transport};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// A connection that outlives its process.
#[derive(Debug)]
pub struct Connection {
    /// Closed by its end, which goes on afterwards.
    pub(crate) socket: ManuallyDrop<OwnedFd>,
    pub(crate) transport: Transport,
    pub(crate) shared: &'static Shared,
    pub(crate) slot: &'static Slot,
    /// What the slot has.
    pub(crate) mark: Mark,
    /// Everything before this was received.
    received_bytes: u64,
    /// Everything before this was given out by [`read`](Self::read).
    taken_bytes: u64,
    /// Everything before this was sent, by this generation or one before.
    pub(crate) sent_bytes: u64,
    /// Where the application is in what it writes.
    pub(crate) answered_bytes: u64,
    /// Whether the mark's buffer is this connection's now.
    lent: bool,
    /// As the slot has it: see [`Slot::rests`].
    rests: bool,
    suspected: bool,
    rare: Option<Box<Rare>>,
}

/// What few connections ever have.
#[derive(Debug, Default)]
struct Rare {
    /// The length of a note of its own for the next request that is done.
    next_note_bytes: Option<u8>,
    /// Of what is held, if that lies around the end of the buffer.
    around: Box<[u8]>,
    /// What a generation before has received, and nobody has looked at in this one.
    unseen: bool,
}

impl Connection {
    pub(crate) fn new(shared: &'static Shared, socket: OwnedFd) -> io::Result<Self> {
        let number = socket.as_raw_fd();
        let Some(slot) = shared.slots.to_use(number) else {
            let limit = crate::slots::SLOTS;
            return Err(io::Error::other(format!(
                "descriptor {number}: only those below {limit} can be held"
            )));
        };
        shared.buffers.prepare(shared.slots);
        let inode = descriptors::inode(&socket)?;
        let known = Transport::of_slot(slot).filter(|_| slot.is_of(inode));
        let (transport, passed) = match known {
            Some(transport) => (transport, transport.passed(socket.as_fd(), slot)?),
            None => {
                let transport = Transport::of(&socket)?;
                transport.begin(&socket, inode, slot)?;
                (transport, Passed::default())
            }
        };
        shared.settle(slot)?;
        let mark = slot.mark();
        if !mark.is_possible(passed.received_bytes) {
            return Err(io::Error::other("what is known of the connection is damaged"));
        }
        let suspected = shared.number > 1
            && shared.control.suspects.crashes(number, inode, mark.consumed_bytes) >= suspects::ALONE;
        if suspected {
            shared.control.trial.store(number.cast_unsigned().wrapping_add(1), Ordering::SeqCst);
        }
        let mut connection = Self {
            socket: ManuallyDrop::new(socket),
            transport,
            shared,
            slot,
            mark,
            received_bytes: passed.received_bytes,
            taken_bytes: mark.consumed_bytes,
            sent_bytes: passed.sent_bytes,
            answered_bytes: mark.written_bytes,
            // A mark can name one that was given back, and was lent for the answer after that.
            lent: mark.buffer != mark.outbox && shared.buffers.is_lent_to(mark.buffer, number),
            rests: slot.rests(),
            suspected,
            rare: (passed.received_bytes > mark.consumed_bytes)
                .then(|| Box::new(Rare { unseen: true, ..Rare::default() })),
        };
        // No event tells of that, so it is held as what was read before is.
        if transport.has_in_pipe(connection.socket.as_fd(), slot) {
            connection.see();
            // Where that cannot be, it comes with what is received next.
            let _ = connection.receive();
            connection.rare.get_or_insert_default().unseen = true;
        }
        Ok(connection)
    }

    /// Receives more: how many bytes, 0 at the end of the input. What an earlier generation has received counts, unless it was
    /// looked at: so who waits for a request here finds the one that nobody has answered.
    ///
    /// # Errors
    /// As for any socket; [`OutOfMemory`](io::ErrorKind::OutOfMemory) when a request that is not done is longer than
    /// 16 MiB, or too many are longer than 64 KiB.
    pub fn receive(&mut self) -> io::Result<usize> {
        if let Some(held_bytes) = self.see() {
            return Ok(held_bytes);
        }
        if !self.lent {
            self.lend(1)?;
        }
        let length = self.buffer_bytes();
        let free_bytes = length - self.held_bytes().min(length);
        if free_bytes == 0 {
            self.lend(length + 1)?;
            return self.receive();
        }
        let begin = self.place(self.received_bytes, length);
        let room = free_bytes.min(length - begin);
        // SAFETY: this connection has been lent the buffer, and this is the only value of it; the bytes are behind those
        // that are held, so that nobody has a reference to them.
        let room = unsafe { self.shared.buffers.room(self.mark.buffer, begin, room) };
        self.stir();
        match self.transport.receive(self.socket.as_fd(), self.slot, room) {
            Ok(count) => {
                self.received_bytes += count as u64;
                self.slot.note_held(self.held_bytes());
                if count == 0 {
                    self.give_back_if_empty();
                    self.rest();
                } else {
                    self.shared.control.threads(self.shared.number).deals_with(self.socket.as_raw_fd());
                }
                Ok(count)
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::WouldBlock {
                    // Who has nothing to say needs no memory.
                    self.give_back_if_empty();
                    self.rest();
                    self.is_through();
                }
                Err(error)
            }
        }
    }

    /// What was received and is not done.
    pub fn input(&mut self) -> &[u8] {
        let held_bytes = self.held_bytes();
        let length = self.buffer_bytes();
        if held_bytes == 0 || length == 0 {
            return &[];
        }
        self.see();
        self.shared.control.threads(self.shared.number).deals_with(self.socket.as_raw_fd());
        let begin = self.place(self.mark.consumed_bytes, length);
        let first = held_bytes.min(length - begin);
        // SAFETY: the buffer is lent to this connection, which is borrowed as long as the result is.
        let bytes = unsafe { self.shared.buffers.bytes(self.mark.buffer, begin, first) };
        if first == held_bytes {
            return bytes;
        }
        // SAFETY: as above.
        let second = unsafe { self.shared.buffers.bytes(self.mark.buffer, 0, held_bytes - first) };
        let rare = self.rare.get_or_insert_default();
        rare.around = [bytes, second].concat().into();
        &rare.around
    }

    /// As `read` of any socket: what comes after what was read last. It stays held until it is [done](Self::done); after a
    /// crash, the next generation reads from there again.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() || (self.taken_bytes >= self.received_bytes && self.receive()? == 0) {
            return Ok(0);
        }
        self.see();
        let length = self.buffer_bytes();
        let begin = self.place(self.taken_bytes, length);
        let there = usize::try_from(self.received_bytes - self.taken_bytes).unwrap_or(usize::MAX);
        let count = there.min(bytes.len()).min(length - begin);
        // SAFETY: the buffer is lent to this connection; it is used until the next line only.
        let held = unsafe { self.shared.buffers.bytes(self.mark.buffer, begin, count) };
        bytes.get_mut(..count).unwrap_or_default().copy_from_slice(held);
        self.taken_bytes += count as u64;
        self.shared.control.threads(self.shared.number).deals_with(self.socket.as_raw_fd());
        Ok(count)
    }

    /// As `write` of any socket: how many of `bytes` need not be written again. What an earlier generation has sent of
    /// them counts, and is not sent again.
    ///
    /// # Errors
    /// As for any socket. What was sent before is not forgotten.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let sent_before =
            usize::try_from(self.sent_bytes.saturating_sub(self.answered_bytes)).unwrap_or(usize::MAX);
        let skipped = sent_before.min(bytes.len());
        let rest = bytes.get(skipped..).unwrap_or_default();
        let mut sent = 0;
        if !rest.is_empty() {
            self.stir();
            match self.transport.send(self.socket.as_fd(), self.slot, rest, skipped == 0) {
                Ok(count) => sent = count,
                Err(error) if skipped == 0 => return Err(error),
                // It comes again with the next one.
                Err(_) => {}
            }
        }
        self.answered_bytes += (skipped + sent) as u64;
        self.sent_bytes += sent as u64;
        Ok(skipped + sent)
    }

    /// As `sendfile`: up to `count` bytes of `file`, from `offset` on, without copying them where the kernel can.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_file(&mut self, file: BorrowedFd<'_>, offset: u64, count: usize) -> io::Result<usize> {
        self.flush()?;
        let sent_before =
            usize::try_from(self.sent_bytes.saturating_sub(self.answered_bytes)).unwrap_or(usize::MAX);
        let skipped = sent_before.min(count);
        self.stir();
        let sent = match self.transport {
            _ if skipped == count => 0,
            Transport::Tcp => {
                tcp::send_file(self.socket.as_fd(), file, offset + skipped as u64, count - skipped)?
            }
            _ => {
                let mut piece = [0; 16 << 10];
                let length = (count - skipped).min(piece.len());
                let piece = piece.get_mut(..length).unwrap_or_default();
                let there = tcp::read_at(file, piece, offset + skipped as u64)?;
                self.transport.send(
                    self.socket.as_fd(),
                    self.slot,
                    piece.get(..there).unwrap_or_default(),
                    true,
                )?
            }
        };
        self.answered_bytes += (skipped + sent) as u64;
        self.sent_bytes += sent as u64;
        Ok(skipped + sent)
    }

    /// Writes all of `bytes`, but for what an earlier generation has sent of them. Waits for room, also where the socket
    /// does not block.
    ///
    /// # Errors
    /// As for any socket. What was sent before is not forgotten.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
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

    /// The next `bytes` of the input were dealt with, and everything was written that is to be written for them: no
    /// later generation sees them.
    ///
    /// After a greeting, which answers no input, say `done(0)`: until then it counts as an answer that is not complete, and
    /// where connections are given up rather than taken over, it ends by a reset.
    pub fn done(&mut self, bytes: usize) {
        let mark = self.mark_after(bytes);
        self.carry_note(&mark, true);
        self.slot.set_mark(&mark);
        self.set_done(mark);
    }

    /// What is to be written down when so much more of the input is done.
    pub(crate) fn mark_after(&self, bytes: usize) -> Mark {
        let consumed_bytes = (self.mark.consumed_bytes + bytes as u64).min(self.received_bytes);
        let is_empty = consumed_bytes == self.received_bytes;
        Mark {
            consumed_bytes,
            written_bytes: self.answered_bytes,
            // What comes next begins at the beginning of the buffer, which is in the cache.
            begin_bytes: if is_empty { consumed_bytes } else { self.mark.begin_bytes },
            note_bytes: self.next_note_bytes().unwrap_or(self.mark.note_bytes),
            ..self.mark
        }
    }

    /// Before a mark is written: its note has to be there when it counts.
    pub(crate) fn carry_note(&self, mark: &Mark, is_done: bool) {
        if mark.note_bytes > 0 {
            let is_next = is_done && self.next_note_bytes().is_some();
            if let Some(notes) = self.notes() {
                notes.carry(self.slot.next(), is_next, mark.note_bytes);
            }
        }
    }

    /// It was written down.
    pub(crate) fn set_done(&mut self, mark: Mark) {
        let before = std::mem::replace(&mut self.mark, mark);
        if let Some(rare) = &mut self.rare {
            rare.next_note_bytes = None;
        }
        let is_further = mark.consumed_bytes > before.consumed_bytes;
        self.taken_bytes = self.taken_bytes.max(mark.consumed_bytes);
        self.slot.note_held(self.held_bytes());
        if self.held_bytes() == 0 {
            self.give_back();
            self.rest();
            self.is_through();
        }
        // A note alone says nothing about the request that may crash us yet.
        if is_further {
            self.acquit();
        }
    }

    /// As [`done`](Self::done), for everything that was [read](Self::read).
    pub fn done_read(&mut self) {
        self.done(usize::try_from(self.taken_bytes - self.mark.consumed_bytes).unwrap_or(usize::MAX));
    }

    /// How much of the input is done, from when the connection was held.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.mark.consumed_bytes
    }

    /// What was [noted](Self::set_note) with the last request that is done.
    #[must_use]
    pub fn note(&self) -> &[u8] {
        let (mark, length) = (self.slot.current(), self.mark.note_bytes);
        // SAFETY: they are carried by this connection alone, which is borrowed as long as the result is.
        self.notes().map_or(&[], |notes| unsafe { notes.of_mark(mark, length) })
    }

    /// Leaves up to [`NOTE_BYTES`](crate::NOTE_BYTES) to the next generation, from the next [`done`](Self::done) on, at once
    /// with that: so a part of a long request can be done, and where it goes on be known.
    ///
    /// # Errors
    /// It is too long.
    pub fn set_note(&mut self, content: &[u8]) -> io::Result<()> {
        let length = u8::try_from(content.len()).ok().filter(|length| usize::from(*length) <= NOTE_BYTES);
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a note is longer than 64 bytes");
        self.rare.get_or_insert_default().next_note_bytes = Some(length.ok_or_else(too_long)?);
        if let Some(notes) = self.notes() {
            notes.set_next(content);
        }
        Ok(())
    }

    /// The other side is told that nothing more is written. What is left of answers of [`transact`](Self::transact) is sent before.
    ///
    /// # Errors
    /// As for any socket; as for [`flush`](Self::flush), when the other side does not know yet.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        self.flush()?;
        descriptors::shut_down(self.socket.as_fd(), libc::SHUT_WR)
    }

    /// The socket, for whoever waits for it.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether bytes are held that [`read`](Self::read) has not given out: it does not wait then, and no event tells of them.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.taken_bytes < self.received_bytes
    }

    /// Something is about to be received or sent: from here on the kernel alone knows how much, if this process dies.
    pub(crate) fn stir(&mut self) {
        if std::mem::take(&mut self.rests) {
            self.slot.set_rests(false);
        }
    }

    /// If all of that is dealt with, and its mark says so.
    pub(crate) fn rest(&mut self) {
        let is_dealt_with = self.received_bytes == self.mark.consumed_bytes
            && self.sent_bytes == self.mark.written_bytes
            && self.mark.outbox == 0;
        if is_dealt_with && !self.rests && self.transport == Transport::Tcp {
            self.rests = true;
            self.slot.set_rests(true);
        }
    }

    /// How much is held that nobody in this generation has looked at, if anything is: all of it may have been done unseen,
    /// by a [note](Self::note) that says so. From here on somebody has.
    pub(crate) fn see(&mut self) -> Option<usize> {
        let unseen = std::mem::take(&mut self.rare.as_mut()?.unseen);
        Some(self.held_bytes()).filter(|held_bytes| unseen && *held_bytes > 0)
    }

    fn notes(&self) -> Option<&'static Notes> {
        self.shared.slots.notes_of(self.socket.as_raw_fd())
    }

    fn next_note_bytes(&self) -> Option<u8> {
        self.rare.as_ref()?.next_note_bytes
    }

    fn held_bytes(&self) -> usize {
        usize::try_from(self.received_bytes - self.mark.consumed_bytes).unwrap_or(usize::MAX)
    }

    /// Where in the buffer a byte of the input is.
    fn place(&self, position_bytes: u64, length: usize) -> usize {
        usize::try_from((position_bytes - self.mark.begin_bytes) % (length as u64).max(1)).unwrap_or(0)
    }

    /// Of the buffer that it has, if it has one.
    fn buffer_bytes(&self) -> usize {
        if self.lent { buffers::length(self.mark.buffer) } else { 0 }
    }

    /// Gets a buffer of this length, with what is held.
    fn lend(&mut self, length: usize) -> io::Result<()> {
        let buffer = self.shared.buffers.lend(length, self.socket.as_raw_fd())?;
        if !self.lent && buffer == self.mark.buffer {
            // The mark says so already.
            self.lent = true;
            return Ok(());
        }
        let held = self.input().to_vec();
        // SAFETY: the same, or lent just now; and `held` is a copy.
        unsafe { self.shared.buffers.room(buffer, 0, held.len()) }.copy_from_slice(&held);
        let mark = Mark { buffer, begin_bytes: self.mark.consumed_bytes, ..self.mark };
        // Notes change with requests that are done, and with nothing else.
        self.carry_note(&mark, false);
        self.slot.set_mark(&mark);
        self.give_back();
        self.mark = mark;
        self.lent = true;
        Ok(())
    }

    fn give_back_if_empty(&mut self) {
        if self.held_bytes() == 0 {
            self.give_back();
        }
    }

    /// Nothing is held in its buffer. Its mark goes on naming that: whose it is by then is known to the buffers.
    fn give_back(&mut self) {
        if std::mem::take(&mut self.lent) {
            self.shared.buffers.give_back(self.mark.buffer);
        }
    }
}

/// Beside its slot, what a connection takes: with what an allocator adds, a multiple of 16.
const _: () = assert!(size_of::<Connection>() <= 104);

impl Drop for Connection {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The thread that serves it has panicked, which is a crash as any other: closed here, it would be lost. The next
            // generation goes on with it. The message was printed.
            std::process::abort();
        }
        let inode = self.slot.inode();
        self.transport.end(self.slot);
        self.give_back();
        if self.mark.outbox != 0 {
            // An answer is not complete, which is not to look so. UNIX sockets and pipes cannot be reset.
            if self.transport == Transport::Tcp {
                tcp::reset_on_close(self.socket.as_fd());
            }
            self.shared.buffers.give_back(self.mark.outbox);
        }
        self.acquit();
        self.is_through();
        descriptors::close(self.socket.as_raw_fd());
        self.slot.forget_ended(inode);
    }
}
