//! Urgent data of the programs behind relays: a byte that keeps its place in the stream, whatever happens, and is marked
//! for the peer where the link can do that. PROTOCOL 11.

use super::{Engine, Link, Progress, Rx, Tx, Waiting};
use crate::proto::LinkMode;
use crate::sys::{self, urgent};
use ::tokio::io::Interest;
use parking_lot::MutexGuard;
use std::io;
use std::sync::atomic::Ordering;

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

    /// Whether a read must not begin here: the next byte is urgent, and the reader does not know yet. To be asked when the
    /// reactor has said that there is input.
    #[inline]
    pub(super) fn stops_at_urgent(&self) -> bool {
        self.marks_urgent() && self.is_urgent_at_socket()
    }

    /// Whether the next byte to be received is urgent. The reader who asks may read on.
    fn is_urgent_next(&self) -> bool {
        let next = self.marks_urgent() && self.is_urgent_at_socket();
        if next {
            // The reads before it have ended at it, and looked like the last ones.
            self.input_may_be_hidden();
        }
        next
    }

    /// Only for links of tasks; a system call only if the reactor knows of an urgent byte.
    fn is_urgent_at_socket(&self) -> bool {
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
