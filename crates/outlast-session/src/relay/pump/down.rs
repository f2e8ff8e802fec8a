//! From the session to the local side.

use super::urgent::before_urgent;
use super::{Down, Failure, Pump, ROUNDS_MAX, give_buffer, take_buffer, would_block};
use crate::engine::{UrgentAhead, WAY_SLOTS_BYTES};
use crate::relay::{Local, Parsed, preamble};
use crate::sys::Pipe;
use crate::tokio::Session;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Control frames that are handled in one turn. A peer can send them without end, each costs an answer, and they bring no byte.
const CONTROLS_MAX: u32 = 16;

/// Whether so many have come since there were `controls_before`.
fn is_flooded(session: &Session, controls_before: u32) -> bool {
    session.controls().wrapping_sub(controls_before) >= CONTROLS_MAX
}

impl Pump {
    /// Moves bytes from the session to the local side. Ready when the session's end has been passed on, never if
    /// that cannot be because the local side is [`broken`](Self::broken).
    pub(in crate::relay) fn poll_down(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        local: &Local,
    ) -> Poll<Result<(), Failure>> {
        (self.drained, self.blocked) = (false, false);
        ready!(self.down_turn.poll_begin(cx));
        let controls_before = session.controls();
        let (mut polled, mut has_more) = (Poll::Pending, false);
        for _ in 0..CONTROLS_MAX {
            self.drained = false;
            let asked_again = session.asked_again();
            polled = self.poll_down_in_turn(cx, session, local, controls_before);
            // Whether an urgent byte is next has to be looked at before more is read.
            has_more = polled.is_pending() && session.asked_again() != asked_again;
            if !has_more || self.down_turn.is_cut() || is_flooded(session, controls_before) {
                break;
            }
        }
        if polled.is_pending() && is_flooded(session, controls_before) {
            // There may be more of them.
            self.down_turn.cut_flood();
        } else if has_more {
            self.down_turn.cut();
        }
        self.down_turn.end(cx);
        polled
    }

    fn poll_down_in_turn(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        local: &Local,
        controls_before: u32,
    ) -> Poll<Result<(), Failure>> {
        for _ in 0..ROUNDS_MAX {
            if self.down_turn.is_used_up() || is_flooded(session, controls_before) {
                break;
            }
            if self.is_held_up() {
                let room = local.poll_write_ready(cx);
                self.blocked = room.is_pending();
                if let Err(error) = ready!(room) {
                    self.break_down(error);
                    continue;
                }
            }
            match &mut self.down {
                Down::Open => match session.urgent_ahead() {
                    UrgentAhead::Next => ready!(self.poll_take_urgent(cx, session, local))?,
                    ahead => {
                        if !self.down_bulk.is_on() || !ready!(self.poll_take_pages(cx, session))? {
                            ready!(self.poll_take(cx, session, local, ahead))?;
                        }
                    }
                },
                Down::Urgent(byte) => match local.try_write_urgent(*byte) {
                    Ok(()) => {
                        self.down = Down::Open;
                        self.down_turn.moved(1);
                    }
                    Err(error) if would_block(&error) => {}
                    Err(error) => self.break_down(error),
                },
                Down::Passing { bytes } => {
                    let Some(pipe) = &self.pipe else { break };
                    match local.try_splice_from(pipe.output(), *bytes) {
                        Ok(count) => {
                            *bytes -= count;
                            self.down_turn.moved(count);
                        }
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
                    match local.try_write(buffer.get(*start..*end).unwrap_or_default(), *last) {
                        Ok(count) => {
                            *start += count;
                            self.down_turn.moved(count);
                        }
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
        self.down_turn.cut();
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
                self.down_turn.moved(start);
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
                self.end_down(local);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// The session has no more: the local side is told.
    pub(super) fn end_down(&mut self, local: &Local) {
        self.down = Down::Ended;
        if let Err(error) = local.shutdown_write() {
            self.break_down(error);
        }
    }
}
