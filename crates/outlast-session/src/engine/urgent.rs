//! Urgent data of the programs behind relays: a byte that keeps its place in the stream, whatever happens, and is marked
//! for the peer where the link can do that. PROTOCOL 11.

use super::{Engine, Link, Progress, Rx, Tx, Waiting};
use crate::proto::LinkMode;
use crate::sys;
use crate::sys::urgent::{self, Ahead};
use ::tokio::io::Interest;
use parking_lot::MutexGuard;
use std::io;
use std::sync::atomic::Ordering;
use std::task::Context;

/// No urgent byte: no stream gets there.
pub(super) const NO_URGENT: u64 = u64::MAX;

/// Where the next urgent byte of the peer's stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UrgentAhead {
    /// None that is known of. One that is found later ends a read that begins before it, in modes without frames.
    Nothing,
    /// The next byte to be read is urgent.
    Next,
    /// So many bytes come before it.
    Behind(usize),
}

impl Engine {
    /// The reserved byte was filled, and is urgent: it goes out at once.
    pub(crate) fn commit_urgent(&self, mut tx: MutexGuard<'_, Tx>, bytes: usize) {
        tx.sender.commit(bytes);
        tx.sender.mark_urgent();
        let flush = self.flush_locked(&mut tx);
        self.after_flush(tx, flush);
    }

    /// Gives the link what is next, and marks the urgent byte.
    pub(super) fn send_next(tx: &Tx, link: &Link, then: sys::Then) -> io::Result<usize> {
        match tx.sender.urgent_byte() {
            Some(byte) => link.send_urgent(byte).map(|()| 1),
            None => link.send(&tx.sender.chunks(), then),
        }
    }

    /// Whether an urgent byte of the peer's stream is to be read.
    pub(crate) fn urgent_ahead(&self) -> UrgentAhead {
        if !self.config.urgent {
            return UrgentAhead::Nothing;
        }
        let rx = self.rx.lock();
        if rx.receiver.is_framed() || !rx.backlog.is_empty() {
            return self.urgent_behind(&rx);
        }
        match &rx.link {
            // PROTOCOL 11.3
            Some(link) if rx.inbox.is_empty() && link.is_urgent_next() => UrgentAhead::Next,
            _ => UrgentAhead::Nothing,
        }
    }

    /// As the peer's frames say.
    fn urgent_behind(&self, rx: &Rx) -> UrgentAhead {
        // PROTOCOL 11.4: an announcement of what is behind the end counts for nothing.
        if rx.receiver.end_offset() == Some(rx.consumed_offset()) {
            return UrgentAhead::Nothing;
        }
        let urgent_offset = self.urgent_offset.load(Ordering::Relaxed);
        match urgent_offset.checked_sub(rx.consumed_offset()) {
            Some(0) => UrgentAhead::Next,
            Some(bytes) if urgent_offset != NO_URGENT => {
                UrgentAhead::Behind(usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            _ => UrgentAhead::Nothing,
        }
    }

    /// Whether a reader that has just handled a handshake or an announcement looks for an urgent byte before it reads on.
    pub(super) fn looks_for_urgent(&self, waiting: &Waiting<'_, '_>) -> bool {
        self.config.urgent && matches!(waiting, Waiting::Task(_))
    }

    /// The task that reads comes back at once, and looks what is next before it reads on.
    pub(super) fn ask_again(&self, waiting: &Waiting<'_, '_>) -> Progress<usize> {
        self.asked_again.fetch_add(1, Ordering::Relaxed);
        if let Waiting::Task(context) = waiting {
            context.waker().wake_by_ref();
        }
        Progress::Stalled
    }

    /// How often a task that read was sent away, and has to come back at once: then there may be more to read.
    pub(crate) fn asked_again(&self) -> u32 {
        self.asked_again.load(Ordering::Relaxed)
    }

    /// PROTOCOL 11.4: a frame has announced an urgent byte.
    pub(super) fn note_urgent(&self, urgent_offset: u64) {
        if self.config.urgent {
            self.urgent_offset.store(urgent_offset, Ordering::Relaxed);
        }
    }
}

impl Link {
    /// PROTOCOL 11.3: sends a byte that the peer's kernel tells from the others.
    pub(super) fn send_urgent(&self, byte: u8) -> io::Result<()> {
        urgent::send(self, byte)
    }

    /// What a task's read would begin with. The reactor tells of input and of an urgent byte at once; where a read outruns the reactor,
    /// the kernel is asked. A reader to whom an urgent byte is news is woken: it must not read now. If it asks then what is next, it
    /// gets the byte alone; others read on, and lose its mark.
    #[inline]
    pub(super) fn ahead(&self, outruns_reactor: bool, context: &Context<'_>) -> Ahead {
        if !self.marks_urgent() || self.passes_urgent.swap(false, Ordering::Relaxed) {
            return Ahead::Other;
        }
        let ahead = match outruns_reactor {
            true => urgent::ahead(self),
            false if self.is_urgent_at_socket() => Ahead::Urgent,
            false => Ahead::Other,
        };
        if ahead == Ahead::Urgent {
            self.ask_for_urgent.store(true, Ordering::Relaxed);
            self.passes_urgent.store(true, Ordering::Relaxed);
            self.input_may_be_hidden();
            context.waker().wake_by_ref();
        }
        ahead
    }

    /// Whether the next byte to be received is urgent. The reader who asks may read on.
    fn is_urgent_next(&self) -> bool {
        let next = self.marks_urgent() && self.is_urgent_at_socket();
        if next {
            // The reads before it have ended at it, and looked like the last ones.
            self.input_may_be_hidden();
            self.passes_urgent.store(true, Ordering::Relaxed);
        }
        next
    }

    /// Only for links of tasks; a system call only if there is, or may be, an urgent byte.
    fn is_urgent_at_socket(&self) -> bool {
        if self.ask_for_urgent.load(Ordering::Relaxed) {
            if urgent::is_next(self) {
                return true;
            }
            self.ask_for_urgent.store(false, Ordering::Relaxed);
        }
        let look = |link: &sys::Shared| match urgent::is_next(link) {
            true => Ok(true),
            false if urgent::is_there(link) => Ok(false),
            false => Err(io::ErrorKind::WouldBlock.into()),
        };
        self.reactor()
            .is_some_and(|reactor| reactor.try_io(Interest::PRIORITY, |link| look(link)).unwrap_or(false))
    }

    /// Whether this end says in its handshake that it takes urgent bytes. TLS hides the marks of TCP.
    pub(crate) fn takes_urgent(&self, config: &crate::Config) -> bool {
        let framed = self.mode() == LinkMode::Inband;
        let takes_urgent = config.urgent && (framed || !self.is_tls());
        self.mark_urgent(takes_urgent && !framed);
        takes_urgent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::task::Waker;

    /// A peer, and a link to it that marks urgent bytes, as a relay has it in modes without frames.
    fn linked() -> (TcpStream, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_nodelay(true).unwrap();
        let (socket, peer_addr) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        urgent::keep_in_place(&socket).unwrap();
        let link = Link::new(socket.into(), None, 1, LinkMode::Kernel, peer_addr, false);
        link.register().unwrap();
        link.mark_urgent(true);
        (peer, link)
    }

    /// One read by a task. The reactor does not get its turn before or after.
    fn read(link: &Link, room_bytes: usize) -> io::Result<Vec<u8>> {
        let mut room = vec![0; room_bytes];
        let mut context = Context::from_waker(Waker::noop());
        let count = link.receive(&mut room, &mut Waiting::Task(&mut context))?;
        Ok(room[..count].to_vec())
    }

    async fn told(link: &Link) {
        let reactor = link.reactor().unwrap();
        let _ = std::future::poll_fn(|context| reactor.poll_read_ready(context).map_ok(|_| ())).await;
    }

    #[tokio::test]
    async fn a_read_that_outruns_the_reactor_stops_at_an_urgent_byte() {
        for hidden in [false, true] {
            let (mut peer, link) = linked();
            io::Write::write_all(&mut peer, b"abcd").unwrap();
            told(&link).await;
            assert_eq!(read(&link, 4).unwrap(), b"abcd");
            urgent::send(&peer, b'u').unwrap();
            if hidden {
                link.input_may_be_hidden();
            }
            assert!(!link.is_urgent_next(), "nobody has told");
            assert_eq!(read(&link, 8).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            io::Write::write_all(&mut peer, b"efgh").unwrap();
            assert!(link.is_urgent_next());
            assert_eq!(read(&link, 1).unwrap(), b"u");
            assert!(!link.is_urgent_next());
            assert_eq!(read(&link, 8).unwrap(), b"efgh");
        }
    }

    /// The peer's window may be closed: then nothing more comes that would be news.
    #[tokio::test]
    async fn a_reader_who_does_not_ask_reads_on_behind_what_comes_before() {
        let (mut peer, link) = linked();
        io::Write::write_all(&mut peer, b"abc").unwrap();
        urgent::send(&peer, b'u').unwrap();
        io::Write::write_all(&mut peer, b"efgh").unwrap();
        told(&link).await;
        assert_eq!(read(&link, 8).unwrap(), b"abc");
        assert_eq!(read(&link, 8).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(read(&link, 8).unwrap(), b"uefgh");
    }

    #[tokio::test]
    async fn a_reader_who_does_not_ask_reads_on() {
        let (mut peer, link) = linked();
        urgent::send(&peer, b'u').unwrap();
        io::Write::write_all(&mut peer, b"efgh").unwrap();
        told(&link).await;
        assert_eq!(read(&link, 8).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(read(&link, 8).unwrap(), b"uefgh");
    }
}
