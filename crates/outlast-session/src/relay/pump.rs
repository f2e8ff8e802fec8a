//! Both directions of one relay, polled in one task.

mod down;
#[cfg(test)]
mod tests;
mod up;
mod urgent;

use super::Destination;
use super::bulk::Bulk;
use super::turn::Turn;
use crate::error::Error;
use crate::sys::Pipe;
use crate::tokio::Session;
use outlast_stream::{BufferPool, BufferSource};
use std::cell::RefCell;
use std::io;

/// Bytes read from a session at a time. Default 64 KiB: more does not copy faster, less does.
pub(super) const DOWN_BYTES: usize = 64 << 10;
/// Least and most bytes offered to a local read. It grows with what a read fills, so that quiet sessions
/// have small rings.
const UP_BYTES_MIN: usize = 4 << 10;
/// Offered to the first: a short answer is one read, one segment and one wake-up of everybody on its way.
const UP_BYTES_FIRST: usize = 16 << 10;
const UP_BYTES_MAX: usize = 256 << 10;
/// Free buffers kept per thread.
const KEPT_BYTES_MAX: usize = 4 * DOWN_BYTES;
/// Rounds of one direction before the other has its turn.
const ROUNDS_MAX: usize = 16;
/// Moved up before it is asked again whether the local side may have more under way.
const GROWTH_BYTES: usize = 32 << 10;

thread_local! {
    static POOL: RefCell<BufferPool> = const { RefCell::new(BufferPool::new(KEPT_BYTES_MAX)) };
}

pub(super) fn take_buffer() -> Box<[u8]> {
    POOL.with_borrow_mut(|pool| pool.take(DOWN_BYTES))
}

pub(super) fn give_buffer(buffer: Box<[u8]>) {
    // One that another process has left behind has another size.
    if buffer.len() == DOWN_BYTES {
        POOL.with_borrow_mut(|pool| pool.give(buffer));
    }
}

/// Which side failed.
#[derive(Debug)]
pub(super) enum Failure {
    Local(io::Error),
    Session(Error),
    /// The client asks for a destination, where all sessions lead to one service.
    Misdirected(Destination),
}

impl Failure {
    /// An error that a session gave through an I/O trait.
    pub(super) fn session(error: io::Error) -> Self {
        Failure::Session(super::session_error(error))
    }
}

/// Local to session.
#[derive(Debug)]
enum Up {
    /// Bytes that go before what the local side says.
    Head {
        bytes: Vec<u8>,
        sent: usize,
    },
    Open,
    Closing,
    Ended,
}

/// Session to local.
#[derive(Debug)]
enum Down {
    Open,
    /// The buffer exists only while the local side is slower than the session.
    Writing {
        buffer: Box<[u8]>,
        start: usize,
        end: usize,
        /// The session has no more after these.
        last: bool,
    },
    /// So many bytes are in the pipe.
    Passing {
        bytes: usize,
    },
    /// A byte that the session has brought as urgent.
    Urgent(u8),
    /// The local side takes no more. What it said before is still to be read; what it is told is thrown away.
    Broken {
        error: io::Error,
        ended: bool,
    },
    Ended,
}

/// What is under way between the two sides of a relay that has been taken out of its process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// The local side has ended its stream, and the session's is ended too.
    pub up_ended: bool,
    /// The session has ended its stream, and the local side was told.
    pub down_ended: bool,
    /// The local side takes no more.
    pub broken: bool,
    /// Read from the session, to be written to the local side.
    pub to_local: Vec<u8>,
}

/// The state of the two directions.
#[derive(Debug)]
pub(super) struct Pump {
    up: Up,
    up_bytes: usize,
    up_bulk: Bulk,
    /// Bytes are under way that the session has not counted yet.
    up_passing: bool,
    /// Moved since it was last asked whether the local side may have more under way; none if that is settled.
    up_moved: Option<usize>,
    up_turn: Turn,
    down_turn: Turn,
    unflushed: bool,
    listening: bool,
    /// The local side has been asked for what it has to say first.
    asked: bool,
    drained: bool,
    down: Down,
    /// When last polled, the local side had no room for what was to be written.
    blocked: bool,
    /// The session's first bytes are yet to come, and should not be a request for a destination.
    undirected: bool,
    down_bulk: Bulk,
    /// While the session has bulk for the local side.
    pipe: Option<Pipe>,
}

impl Pump {
    /// `head` goes before what the local side has to say. With `early` that may have said something before anybody
    /// waited for it.
    pub(super) fn new(head: Vec<u8>, early: bool) -> Self {
        let up = if head.is_empty() { Up::Open } else { Up::Head { bytes: head, sent: 0 } };
        Self {
            up,
            up_bytes: UP_BYTES_FIRST,
            up_bulk: Bulk::default(),
            up_passing: false,
            up_moved: None,
            up_turn: Turn::default(),
            down_turn: Turn::default(),
            unflushed: false,
            listening: false,
            asked: !early,
            drained: false,
            down: Down::Open,
            blocked: false,
            undirected: false,
            down_bulk: Bulk::default(),
            pipe: None,
        }
    }

    /// Others get the places that this one has, or waits for: it is to be called where it is not polled for some time.
    pub(super) fn leave_turns(&mut self) {
        (self.up_turn, self.down_turn) = (Turn::default(), Turn::default());
    }

    /// All sessions lead to the local side's service: RP 10.
    pub(super) fn undirected(self) -> Self {
        Self { undirected: true, ..self }
    }

    /// Goes on where another process has stopped.
    pub(super) fn restored(rest: Rest) -> Self {
        let Rest { up_ended, down_ended, broken, to_local } = rest;
        let mut pump = Self::new(Vec::new(), false);
        if up_ended {
            pump.up = Up::Ended;
        }
        if broken {
            pump.down = Down::Broken { error: io::ErrorKind::ConnectionReset.into(), ended: down_ended };
            return pump;
        }
        // A connection that has ended both ways cannot be told so again.
        if down_ended {
            pump.down = Down::Ended;
        }
        if !to_local.is_empty() {
            let buffer = to_local.into_boxed_slice();
            let end = buffer.len();
            pump.down = Down::Writing { buffer, start: 0, end, last: false };
        }
        pump
    }

    /// The local side's receive buffer grows only as the session's peer acknowledges.
    pub(super) fn watch_growth(&mut self) {
        self.up_moved = Some(0);
    }

    fn moved_up(&mut self, session: &Session, count: usize) {
        self.up_turn.moved(count);
        let Some(moved) = &mut self.up_moved else { return };
        *moved += count;
        if *moved >= GROWTH_BYTES {
            self.up_moved = (!session.let_service_send()).then_some(0);
        }
    }

    /// What is under way between the two sides. None if the two cannot part: something is yet to come before what the
    /// local side says, or it takes no more and has not said all it had to say.
    pub(super) fn rest(self) -> Option<Rest> {
        let (mut down_ended, mut broken) = (false, false);
        let up_ended = match self.up {
            Up::Head { .. } => return None,
            Up::Open => false,
            Up::Closing | Up::Ended => true,
        };
        let to_local = match self.down {
            Down::Open => Vec::new(),
            Down::Ended => {
                down_ended = true;
                Vec::new()
            }
            Down::Writing { buffer, start, end, .. } => buffer.get(start..end).unwrap_or_default().to_vec(),
            Down::Passing { bytes } => {
                let mut left = vec![0; bytes];
                let mut filled = 0;
                while filled < bytes {
                    match self.pipe.as_ref()?.read(left.get_mut(filled..).unwrap_or_default()) {
                        Ok(count) if count > 0 => filled += count,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        _ => return None,
                    }
                }
                left
            }
            Down::Urgent(byte) => vec![byte],
            // That it was reset is known here alone: in the next process it would seem to have ended in order.
            Down::Broken { .. } if !up_ended => return None,
            Down::Broken { ended, .. } => {
                (down_ended, broken) = (ended, true);
                Vec::new()
            }
        };
        Some(Rest { up_ended, down_ended, broken, to_local })
    }

    /// Whether [`rest`](Self::rest) has an answer.
    pub(super) fn can_rest(&self) -> bool {
        !matches!(self.up, Up::Head { .. }) && (self.up_ended() || self.broken().is_none())
    }

    /// Whether the local side has ended its stream in order.
    pub(super) fn up_ended(&self) -> bool {
        matches!(self.up, Up::Closing | Up::Ended)
    }

    /// Whether the task is woken by the local side's next byte, end or failure.
    pub(super) fn is_listening(&self) -> bool {
        self.listening
    }

    /// Notes that the local side takes no more.
    pub(super) fn break_down(&mut self, error: io::Error) {
        let broken = Down::Broken { error, ended: matches!(self.down, Down::Ended) };
        if let Down::Writing { buffer, .. } = std::mem::replace(&mut self.down, broken) {
            give_buffer(buffer);
        }
        self.pipe = None;
    }

    /// Why the local side takes no more, if that is so.
    pub(super) fn broken(&self) -> Option<&io::Error> {
        match &self.down {
            Down::Broken { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Whether the session has ended its stream, though the local side took no more of it.
    pub(super) fn broken_to_the_end(&self) -> bool {
        matches!(self.down, Down::Broken { ended: true, .. })
    }

    /// Whether the session is not read because the local side has not taken what was read before. It may have room: then its turn is
    /// waited for.
    pub(super) fn is_held_up(&self) -> bool {
        matches!(self.down, Down::Writing { .. } | Down::Passing { .. } | Down::Urgent(_))
    }

    /// Whether the local side had no room for more when last polled.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// How much the local side has taken. It wraps.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.down_turn.total_bytes()
    }

    /// Whether the session has ended its stream, and the local side has all of it.
    pub(super) fn has_ended_down(&self) -> bool {
        matches!(self.down, Down::Ended)
    }

    /// Whether the local side has everything that the session had to give when last asked.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
