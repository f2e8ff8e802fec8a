//! What a connection is made of, and how far it has come, exactly, whenever a process that used it has died.
//!
//! * **TCP**: the kernel counts what was read and written. Urgent bytes are read in their place (`SO_OOBINLINE`).
//! * **UNIX stream sockets**: reading lowers the socket's offset for peeking (`SO_PEEK_OFF`), which nobody peeks with: from
//!   a large number on, it is a counter. Writing is not counted; so what is written goes through a private *pipe*, whose
//!   content tells how much of it has not passed on.
//! * **Pipes** count nothing: both directions go through a private pipe.
//!
//! What has passed the private pipe is written down in the [slot](Slot), before and after each step: `base`, what had
//! passed before this step, and `step`, what is in the pipe now or on its way out of it.

use crate::slots::Slot;
use crate::sys::descriptors::{self, Shape};
use crate::sys::{local, tcp};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the countdown of a UNIX socket begins, and when it is begun again.
const COUNTDOWN_BEGIN: u64 = 1 << 30;
const COUNTDOWN_LOW: u64 = 1 << 29;
/// A step is at most what a pipe takes: the lower bits of a word, of which the others are its base.
const STEP_BITS: u32 = 17;
pub(crate) const STEP_BYTES: usize = 64 << 10;

/// How to count. The numbers are those that slots keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp = 1,
    Unix = 2,
    Pipe = 3,
}

/// What has passed since the connection was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Passed {
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

/// The ends of the private pipe of a slot, as numbers: they live as long as the connection.
#[derive(Clone, Copy)]
struct Pipe {
    reader: RawFd,
    writer: RawFd,
}

impl Transport {
    pub(crate) fn of(descriptor: &OwnedFd) -> io::Result<Self> {
        match descriptors::shape(descriptor)? {
            Shape::Tcp if tcp::has_upper_layer(descriptor.as_fd()) => {
                let why = "the kernel encrypts this connection (kTLS): what its counters count are not the program's bytes";
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
            Shape::Tcp => Ok(Self::Tcp),
            Shape::UnixStream => Ok(Self::Unix),
            Shape::Pipe => Ok(Self::Pipe),
            Shape::Other => {
                let why = "only TCP and UNIX stream sockets and pipes can be held";
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
        }
    }

    /// Of a connection that was held before.
    pub(crate) fn of_slot(slot: &Slot) -> Option<Self> {
        [Self::Tcp, Self::Unix, Self::Pipe].into_iter().find(|transport| *transport as u8 == slot.kind())
    }

    /// In the generation that opened it.
    pub(crate) fn begin(self, descriptor: &OwnedFd, inode: u64, slot: &Slot) -> io::Result<()> {
        slot.forget();
        let (mut read_base, mut written_base) = (0, 0);
        match self {
            Self::Tcp => {
                // What is left out of the stream is counted as received all the same.
                tcp::keep_urgent_in_place(descriptor.as_fd())?;
                let positions = tcp::positions(descriptor.as_fd())?;
                (read_base, written_base) = (positions.read_bytes, positions.written_bytes);
            }
            Self::Unix => {
                local::set_peek_offset(descriptor.as_fd(), COUNTDOWN_BEGIN).map_err(uncounted)?;
                make_sending_pipe(slot)?;
            }
            Self::Pipe if descriptors::is_readable(descriptor.as_fd()) => make_pipe(slot)?,
            Self::Pipe => make_sending_pipe(slot)?,
        }
        slot.begin(self as u8, inode, read_base, written_base);
        Ok(())
    }

    /// In a later one: what its predecessors have done with it.
    pub(crate) fn passed(self, descriptor: BorrowedFd<'_>, slot: &Slot) -> io::Result<Passed> {
        let read_base = slot.read_base.load(Ordering::SeqCst);
        match self {
            Self::Tcp if slot.rests() => {
                let mark = slot.mark();
                Ok(Passed { received_bytes: mark.consumed_bytes, sent_bytes: mark.written_bytes })
            }
            Self::Tcp => {
                let positions = tcp::positions(descriptor)?;
                let written_base = slot.written_base.load(Ordering::SeqCst);
                Ok(Passed {
                    received_bytes: positions.read_bytes.saturating_sub(read_base),
                    sent_bytes: positions.written_bytes.saturating_sub(written_base),
                })
            }
            Self::Unix => {
                let left = local::peek_offset(descriptor)?;
                let next = slot.next_base.load(Ordering::SeqCst);
                // It died between beginning the countdown again and writing that down.
                if next != 0 && left > COUNTDOWN_LOW {
                    slot.read_base.store(next, Ordering::SeqCst);
                }
                slot.next_base.store(0, Ordering::SeqCst);
                let read_base = slot.read_base.load(Ordering::SeqCst);
                Ok(Passed {
                    received_bytes: read_base + (COUNTDOWN_BEGIN - left.min(COUNTDOWN_BEGIN)),
                    sent_bytes: finish_sending(slot)?,
                })
            }
            Self::Pipe if descriptors::is_readable(descriptor) => {
                let (base, step) = parts(read_base);
                let left = local::unread(pipe(slot)?.reader)?;
                // Nothing was taken from a step that was not written down: it is in the pipe as a whole.
                Ok(Passed { received_bytes: base + step.saturating_sub(left), sent_bytes: 0 })
            }
            Self::Pipe => Ok(Passed { received_bytes: 0, sent_bytes: finish_sending(slot)? }),
        }
    }

    /// Whether a generation has died between taking something into the private pipe and reading it from there.
    pub(crate) fn has_in_pipe(self, descriptor: BorrowedFd<'_>, slot: &Slot) -> bool {
        self == Self::Pipe
            && descriptors::is_readable(descriptor)
            && pipe(slot).and_then(|pipe| local::unread(pipe.reader)).is_ok_and(|bytes| bytes > 0)
    }

    /// Receives into `room`.
    pub(crate) fn receive(self, from: BorrowedFd<'_>, slot: &Slot, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp => tcp::receive(from, room),
            Self::Unix => {
                let count = tcp::receive(from, room)?;
                let left = local::peek_offset(from)?;
                if left < COUNTDOWN_LOW {
                    let base = slot.read_base.load(Ordering::SeqCst) + (COUNTDOWN_BEGIN - left);
                    slot.next_base.store(base, Ordering::SeqCst);
                    local::set_peek_offset(from, COUNTDOWN_BEGIN)?;
                    slot.read_base.store(base, Ordering::SeqCst);
                    slot.next_base.store(0, Ordering::SeqCst);
                }
                Ok(count)
            }
            Self::Pipe => {
                let pipe = pipe(slot)?;
                let (base, mut step) = parts(slot.read_base.load(Ordering::SeqCst));
                let mut base = base;
                let mut left = local::unread(pipe.reader)?;
                if left == 0 {
                    base += step;
                    set_parts(&slot.read_base, base, 0);
                    let moved =
                        local::move_between(from.as_raw_fd(), pipe.writer, room.len().min(STEP_BYTES))?;
                    if moved == 0 {
                        return Ok(0);
                    }
                    left = moved as u64;
                    step = 0;
                }
                if step == 0 {
                    set_parts(&slot.read_base, base, left);
                }
                let length = usize::try_from(left).unwrap_or(STEP_BYTES).min(room.len());
                local::read(pipe.reader, room.get_mut(..length).unwrap_or_default())
            }
        }
    }

    /// Sends what the other side takes of `bytes`. What it does not take is not kept: the next ones may be others.
    pub(crate) fn send(
        self,
        to: BorrowedFd<'_>,
        slot: &Slot,
        bytes: &[u8],
        waits: bool,
    ) -> io::Result<usize> {
        if self == Self::Tcp {
            return tcp::send(to, bytes);
        }
        let pipe = pipe(slot)?;
        let base = finish_sending(slot)?;
        let step = local::write(pipe.writer, bytes.get(..STEP_BYTES).unwrap_or(bytes))?;
        set_parts(&slot.written_base, base, step as u64);
        let mut sent = 0;
        while sent < step {
            match local::move_between(pipe.reader, to.as_raw_fd(), step - sent) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted && waits => {}
                Err(error) => {
                    finish_sending(slot)?;
                    // An error that lasts comes again with the next ones.
                    return if sent > 0 { Ok(sent) } else { Err(error) };
                }
            }
        }
        Ok(sent)
    }

    /// Before the number of the connection is free for another one. When it is closed the slot is to be
    /// [forgotten](Slot::forget_ended): whoever comes earlier closes it.
    pub(crate) fn end(self, slot: &Slot) {
        slot.set_ended();
        for end in &slot.pipe {
            let number = end.swap(0, Ordering::SeqCst);
            if number != 0 && self != Self::Tcp {
                descriptors::close(RawFd::try_from(number - 1).unwrap_or(-1));
            }
        }
    }
}

/// Without it nobody would know what a dead generation has read.
fn uncounted(error: io::Error) -> io::Error {
    let why = format!("UNIX sockets cannot be held: this kernel or a sandbox refuses SO_PEEK_OFF ({error})");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// The numbers of the descriptors that belong to a slot.
pub(crate) fn private(slot: &Slot) -> impl Iterator<Item = RawFd> {
    let numbers = slot.pipe.iter().map(|end| end.load(Ordering::SeqCst));
    numbers.filter_map(|number| RawFd::try_from(number.checked_sub(1)?).ok())
}

fn make_pipe(slot: &Slot) -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    for (end, descriptor) in slot.pipe.iter().zip([OwnedFd::from(reader), writer.into()]) {
        let number = std::os::fd::IntoRawFd::into_raw_fd(descriptor);
        end.store(u32::try_from(number).unwrap_or(0) + 1, Ordering::SeqCst);
    }
    Ok(())
}

/// One that takes what it has room for, and does not wait: who writes into it is the only one who reads from it, and it
/// is small where its user has many pipes (fs.pipe-user-pages-soft in proc(5)).
fn make_sending_pipe(slot: &Slot) -> io::Result<()> {
    make_pipe(slot)?;
    local::set_nonblocking(pipe(slot)?.writer)
}

fn pipe(slot: &Slot) -> io::Result<Pipe> {
    let mut ends = private(slot);
    match (ends.next(), ends.next()) {
        (Some(reader), Some(writer)) => Ok(Pipe { reader, writer }),
        _ => Err(io::Error::other("a connection has lost its private pipe")),
    }
}

/// What has left the private pipe in all, by predecessors too. What is in it is taken out: it is written once more.
fn finish_sending(slot: &Slot) -> io::Result<u64> {
    let (base, step) = parts(slot.written_base.load(Ordering::SeqCst));
    let pipe = pipe(slot)?;
    let mut left = local::unread(pipe.reader)?;
    // A step that was not written down had not begun to leave.
    let sent = base + step.saturating_sub(left);
    set_parts(&slot.written_base, if step == 0 { base } else { sent }, 0);
    let mut scratch = [0; 4096];
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(scratch.len()).min(scratch.len());
        let count = local::read(pipe.reader, scratch.get_mut(..length).unwrap_or_default())?;
        left = left.saturating_sub(count as u64);
    }
    Ok(if step == 0 { base } else { sent })
}

fn parts(word: u64) -> (u64, u64) {
    (word >> STEP_BITS, word & ((1 << STEP_BITS) - 1))
}

fn set_parts(word: &AtomicU64, base: u64, step: u64) {
    word.store(base << STEP_BITS | step, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forbid;
    use std::io::Read;

    #[test]
    fn a_unix_socket_whose_reading_is_not_counted_is_not_held() {
        let call = forbid::Call {
            argument: 2,
            mask: u32::MAX,
            value: libc::SO_PEEK_OFF.cast_unsigned(),
            ..forbid::without("setsockopt", libc::SYS_setsockopt)
        };
        let held = || {
            let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
            let slots = crate::slots::Slots::new().unwrap();
            Transport::Unix.begin(&socket.into(), 1, slots.of(0).unwrap())
        };
        held().unwrap();
        // Of this thread alone.
        let sandboxed = std::thread::spawn(move || {
            forbid::forbid_here(call, libc::ENOPROTOOPT).unwrap();
            held().unwrap_err()
        });
        let error = sandboxed.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("SO_PEEK_OFF"), "{error}");
    }

    #[test]
    fn a_socket_of_several_paths_is_not_taken_for_one_of_tcp() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
        let socket =
            |protocol| socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, protocol);
        assert_eq!(Transport::of(&socket(Some(ipproto::TCP)).unwrap()).unwrap(), Transport::Tcp);
        let Ok(multipath) = socket(Some(ipproto::MPTCP)) else {
            eprintln!(
                "SKIPPED: a_socket_of_several_paths_is_not_taken_for_one_of_tcp: this kernel has no MPTCP"
            );
            return;
        };
        assert_eq!(Transport::of(&multipath).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

    /// What is sent through a private pipe of one page, and what a thread at the other side has heard of that.
    fn through_a_small_pipe(transport: Transport, to: OwnedFd, from: OwnedFd) {
        let slot = crate::slots::Slots::new().unwrap().of(0).unwrap();
        transport.begin(&to, 1, slot).unwrap();
        // SAFETY: takes integers.
        let size = unsafe { libc::fcntl(pipe(slot).unwrap().writer, libc::F_SETPIPE_SZ, 1) };
        assert!((1..1 << 16).contains(&size), "{size}");
        let content: Vec<u8> =
            (0..300_000u32).map(|count| count.to_le_bytes()[0] ^ count.to_le_bytes()[1]).collect();
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut all = Vec::new();
            std::fs::File::from(from).read_to_end(&mut all).unwrap();
            told.send(all).unwrap();
        });
        let said = content.clone();
        std::thread::spawn(move || {
            let mut rest = said.as_slice();
            while !rest.is_empty() {
                let count = transport.send(to.as_fd(), slot, rest, true).unwrap();
                rest = &rest[count..];
            }
            let passed = transport.passed(to.as_fd(), slot).unwrap();
            assert_eq!(passed.sent_bytes, said.len() as u64);
        });
        let heard = heard.recv_timeout(std::time::Duration::from_secs(10));
        // Nobody waits for room that only himself could make.
        assert!(heard.unwrap() == content, "{transport:?}");
    }

    /// Says `whole` and then `next`, to whom reads nothing until something was refused: a writer that is given up between.
    fn refused_then_another(transport: Transport, to: OwnedFd, from: OwnedFd, whole: usize) {
        let slot = crate::slots::Slots::new().unwrap().of(0).unwrap();
        transport.begin(&to, 1, slot).unwrap();
        local::set_nonblocking(to.as_raw_fd()).unwrap();
        local::set_nonblocking(from.as_raw_fd()).unwrap();
        let (mut said, mut heard) = (Vec::new(), Vec::new());
        let words = vec![1; whole];
        let refused = loop {
            match transport.send(to.as_fd(), slot, &words, false) {
                Ok(count) => said.resize(said.len() + count, 1),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let mut from = std::fs::File::from(from);
        let _ = from.read_to_end(&mut heard);
        assert_eq!(transport.send(to.as_fd(), slot, b"another", false).unwrap(), 7);
        said.extend(b"another");
        assert_eq!(transport.passed(to.as_fd(), slot).unwrap().sent_bytes, said.len() as u64);
        let _ = from.read_to_end(&mut heard);
        assert!(heard == said, "{transport:?}, {whole}: {:?}", heard.get(said.len() - 7..));
    }

    #[test]
    fn what_was_refused_does_not_take_the_place_of_what_comes_next() {
        for whole in [1000, 60_000, STEP_BYTES] {
            let (server, client) = std::os::unix::net::UnixStream::pair().unwrap();
            refused_then_another(Transport::Unix, server.into(), client.into(), whole);
            let (reader, writer) = io::pipe().unwrap();
            refused_then_another(Transport::Pipe, writer.into(), reader.into(), whole);
        }
    }

    #[test]
    fn what_a_dead_reader_has_left_in_a_private_pipe_is_found() {
        let slot = crate::slots::Slots::new().unwrap().of(0).unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let reader = OwnedFd::from(reader);
        Transport::Pipe.begin(&reader, 1, slot).unwrap();
        assert!(!Transport::Pipe.has_in_pipe(reader.as_fd(), slot));
        local::write(writer.as_raw_fd(), b"words").unwrap();
        let moved = local::move_between(reader.as_raw_fd(), pipe(slot).unwrap().writer, 5).unwrap();
        assert!(moved == 5 && Transport::Pipe.has_in_pipe(reader.as_fd(), slot));
        let mut room = [0; 9];
        assert_eq!(Transport::Pipe.receive(reader.as_fd(), slot, &mut room).unwrap(), 5);
        assert!(room.starts_with(b"words") && !Transport::Pipe.has_in_pipe(reader.as_fd(), slot));
    }

    #[test]
    fn answers_go_through_pipes_of_any_size() {
        let (server, client) = std::os::unix::net::UnixStream::pair().unwrap();
        through_a_small_pipe(Transport::Unix, server.into(), client.into());
        let (reader, writer) = io::pipe().unwrap();
        through_a_small_pipe(Transport::Pipe, writer.into(), reader.into());
    }
}
