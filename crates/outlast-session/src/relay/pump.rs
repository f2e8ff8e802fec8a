//! Both directions of one relay, polled in one task.

mod urgent;

use self::urgent::before_urgent;
use super::bulk::Bulk;
use super::preamble;
use super::{Destination, Local, Parsed};
use crate::engine::{Passed, UrgentAhead, WAY_SLOTS_BYTES};
use crate::error::Error;
use crate::sys::Pipe;
use crate::tokio::Session;
use outlast_stream::{BufferPool, BufferSource};
use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
    unflushed: bool,
    listening: bool,
    /// The local side has been asked for what it has to say first.
    asked: bool,
    drained: bool,
    down: Down,
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
            unflushed: false,
            listening: false,
            asked: !early,
            drained: false,
            down: Down::Open,
            undirected: false,
            down_bulk: Bulk::default(),
            pipe: None,
        }
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

    /// Whether the session is not read because the local side takes nothing.
    pub(super) fn is_held_up(&self) -> bool {
        matches!(self.down, Down::Writing { .. } | Down::Passing { .. } | Down::Urgent(_))
    }

    /// Whether the session has ended its stream, and the local side has all of it.
    pub(super) fn has_ended_down(&self) -> bool {
        matches!(self.down, Down::Ended)
    }

    /// Whether the local side has everything that the session had to give when last asked.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Moves bytes from the local side to the session. Ready when the local side's end has been passed on.
    pub(super) fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        local: &Local,
    ) -> Poll<Result<(), Failure>> {
        self.listening = false;
        for _ in 0..ROUNDS_MAX {
            match &mut self.up {
                Up::Head { bytes, sent } => {
                    let rest = bytes.get(*sent..).unwrap_or_default();
                    *sent +=
                        ready!(Pin::new(&mut *session).poll_write(cx, rest)).map_err(Failure::session)?;
                    self.unflushed = true;
                    if *sent >= bytes.len() {
                        self.up = Up::Open;
                    }
                }
                Up::Open => {
                    if (self.up_bulk.is_on() || self.up_passing)
                        && ready!(self.poll_pass_on(cx, session, local))?
                    {
                        continue;
                    }
                    let readable = local.poll_read_ready(cx);
                    // Asked behind that: what is readable because of an urgent byte is known to be.
                    if local.is_urgent_next() {
                        ready!(self.poll_urgent_up(cx, session, local))?;
                        continue;
                    }
                    let unasked = !std::mem::replace(&mut self.asked, true);
                    match readable {
                        Poll::Ready(readable) => {
                            readable.map_err(Failure::Local)?;
                            if local.is_ending() {
                                session.join_next_write();
                            }
                            ready!(self.poll_fill(cx, session, &mut |space| local.try_read(space), local))?;
                        }
                        Poll::Pending if unasked => {
                            ready!(self.poll_fill(
                                cx,
                                session,
                                &mut |space| local.try_read_early(space),
                                local
                            ))?;
                        }
                        Poll::Pending => {
                            self.listening = true;
                            return self.poll_flush(cx, session);
                        }
                    }
                }
                Up::Closing => {
                    ready!(Pin::new(&mut *session).poll_shutdown(cx)).map_err(Failure::session)?;
                    self.up = Up::Ended;
                }
                Up::Ended => return Poll::Ready(Ok(())),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// One read of the local side, straight into the session's ring.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        session: &Session,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
        local: &Local,
    ) -> Poll<Result<(), Failure>> {
        let mut offered = 0;
        let mut local_error = None;
        let mut fill = |space: &mut [u8]| {
            offered = space.len();
            read(space).map_err(|error| {
                let kind = error.kind();
                local_error = Some(error);
                kind.into()
            })
        };
        let written = ready!(session.poll_write_with(cx, self.up_bytes, &mut fill));
        match (written, local_error) {
            (_, Some(error)) if would_block(&error) => {}
            (_, Some(error)) => return Poll::Ready(Err(Failure::Local(error))),
            (Err(error), None) => return Poll::Ready(Err(Failure::session(error))),
            (Ok(0), None) if offered > 0 => self.up = Up::Closing,
            (Ok(count), None) => {
                self.unflushed = true;
                if local.can_splice() {
                    self.up_bulk.moved(count);
                }
                self.moved_up(session, count);
                if count == offered {
                    self.up_bytes = (self.up_bytes * 2).min(UP_BYTES_MAX);
                } else if count < self.up_bytes / 4 {
                    self.up_bytes = (self.up_bytes / 2).max(UP_BYTES_MIN);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// One round without copying. False if there is nothing to pass on, or not in this way.
    fn poll_pass_on(
        &mut self,
        cx: &mut Context<'_>,
        session: &Session,
        local: &Local,
    ) -> Poll<Result<bool, Failure>> {
        let bulk = &mut self.up_bulk;
        let mut moved = 0;
        let mut fill = |pipe: BorrowedFd<'_>, bytes_max: usize| {
            moved = local.try_splice_to(pipe, bytes_max).inspect(|count| bulk.moved(*count))?;
            Ok(moved)
        };
        let polled = session.poll_pass_on(cx, &mut fill);
        self.moved_up(session, moved);
        self.up_passing = polled.is_pending();
        Poll::Ready(match ready!(polled).map_err(Failure::session)? {
            Passed::End => {
                self.up = Up::Closing;
                Ok(true)
            }
            Passed::On => Ok(true),
            Passed::Source(error) if would_block(&error) => Ok(false),
            Passed::Source(error) => Err(Failure::Local(error)),
            Passed::Unsuited => {
                self.up_bulk.refused();
                Ok(false)
            }
        })
    }

    /// The local side pauses: what it said must not wait for more. Never ready.
    fn poll_flush(&mut self, cx: &mut Context<'_>, session: &mut Session) -> Poll<Result<(), Failure>> {
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(session).poll_flush(cx)
        {
            self.unflushed = false;
            if let Err(error) = flushed {
                return Poll::Ready(Err(Failure::session(error)));
            }
        }
        Poll::Pending
    }

    /// Moves bytes from the session to the local side. Ready when the session's end has been passed on, never if
    /// that cannot be because the local side is [`broken`](Self::broken).
    pub(super) fn poll_down(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        local: &Local,
    ) -> Poll<Result<(), Failure>> {
        self.drained = false;
        for _ in 0..ROUNDS_MAX {
            match &mut self.down {
                Down::Open => match session.urgent_ahead() {
                    UrgentAhead::Next => ready!(self.poll_take_urgent(cx, session))?,
                    ahead => {
                        if !self.down_bulk.is_on() || !ready!(self.poll_take_pages(cx, session))? {
                            ready!(self.poll_take(cx, session, local, ahead))?;
                        }
                    }
                },
                Down::Urgent(byte) => {
                    if let Err(error) = ready!(local.poll_write_ready(cx)) {
                        self.break_down(error);
                        continue;
                    }
                    match local.try_write_urgent(*byte) {
                        Ok(()) => self.down = Down::Open,
                        Err(error) if would_block(&error) => {}
                        Err(error) => self.break_down(error),
                    }
                }
                Down::Passing { bytes } => {
                    if let Err(error) = ready!(local.poll_write_ready(cx)) {
                        self.break_down(error);
                        continue;
                    }
                    let Some(pipe) = &self.pipe else { break };
                    match local.try_splice_from(pipe.output(), *bytes) {
                        Ok(count) => *bytes -= count,
                        Err(error) if would_block(&error) => {}
                        Err(error) => {
                            self.break_down(error);
                            continue;
                        }
                    }
                    if *bytes == 0 {
                        self.down = Down::Open;
                        if !self.down_bulk.is_on() {
                            self.pipe = None;
                        }
                    }
                }
                Down::Writing { buffer, start, end, last } => {
                    if let Err(error) = ready!(local.poll_write_ready(cx)) {
                        self.break_down(error);
                        continue;
                    }
                    match local.try_write(buffer.get(*start..*end).unwrap_or_default(), *last) {
                        Ok(count) => *start += count,
                        Err(error) if would_block(&error) => {}
                        Err(error) => {
                            self.break_down(error);
                            continue;
                        }
                    }
                    if start >= end
                        && let Down::Writing { buffer, .. } = std::mem::replace(&mut self.down, Down::Open)
                    {
                        give_buffer(buffer);
                    }
                }
                Down::Broken { ended: true, .. } => return Poll::Pending,
                Down::Broken { ended, .. } => {
                    let mut buffer = take_buffer();
                    let mut read = ReadBuf::new(&mut buffer);
                    let polled = Pin::new(&mut *session).poll_read(cx, &mut read);
                    *ended = polled.is_ready() && read.filled().is_empty();
                    give_buffer(buffer);
                    self.drained = polled.is_pending();
                    ready!(polled).map_err(Failure::session)?;
                }
                Down::Ended => return Poll::Ready(Ok(())),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Has the session fill the pipe. False if it has nothing that can be spliced.
    fn poll_take_pages(&mut self, cx: &mut Context<'_>, session: &Session) -> Poll<Result<bool, Failure>> {
        let pipe = match self.pipe.take().map_or_else(|| Pipe::with_slots_for(WAY_SLOTS_BYTES), Ok) {
            Ok(pipe) => self.pipe.insert(pipe),
            Err(_) => {
                self.down_bulk.refused();
                return Poll::Ready(Ok(false));
            }
        };
        let polled = session.poll_read_into(cx, pipe);
        self.drained = polled.is_pending();
        let taken = ready!(polled).map_err(Failure::session)?;
        if let Some(bytes) = taken {
            self.down_bulk.moved(bytes);
            self.down = Down::Passing { bytes };
        }
        Poll::Ready(Ok(taken.is_some()))
    }

    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        local: &Local,
        ahead: UrgentAhead,
    ) -> Poll<Result<(), Failure>> {
        let mut buffer = take_buffer();
        let mut read = ReadBuf::new(before_urgent(&mut buffer, ahead));
        let polled = Pin::new(&mut *session).poll_read(cx, &mut read);
        let mut end = read.filled().len();
        match polled {
            Poll::Ready(Ok(())) if end > 0 => {
                if std::mem::take(&mut self.undirected)
                    && let Ok(Parsed::Done(destination, _)) = preamble::parse_request(read.filled())
                {
                    give_buffer(buffer);
                    return Poll::Ready(Err(Failure::Misdirected(destination)));
                }
                // What came just behind it goes along, the end above all. An error will be there next time, too.
                let again = match read.remaining() {
                    0 => Poll::Pending,
                    _ if session.urgent_ahead() != UrgentAhead::Nothing => Poll::Pending,
                    _ => Pin::new(session).poll_read(cx, &mut read),
                };
                let last = matches!(again, Poll::Ready(Ok(()))) && read.filled().len() == end;
                end = read.filled().len();
                if local.can_splice() {
                    self.down_bulk.moved(end);
                }
                // It has room, as a rule: asking the reactor first would cost a new connection a wait.
                let taken = local.try_write_early(buffer.get(..end).unwrap_or_default(), last);
                let start = taken.unwrap_or(0);
                if start == end {
                    give_buffer(buffer);
                } else {
                    // What was wrong, if anything, is found again.
                    self.down = Down::Writing { buffer, start, end, last };
                }
                Poll::Ready(Ok(()))
            }
            other => {
                give_buffer(buffer);
                self.drained = other.is_pending();
                ready!(other).map_err(Failure::session)?;
                self.down = Down::Ended;
                if let Err(error) = local.shutdown_write() {
                    self.break_down(error);
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
