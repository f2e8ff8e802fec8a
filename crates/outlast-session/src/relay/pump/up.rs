//! From the local side to the session.

use super::{Failure, Pump, ROUNDS_MAX, UP_BYTES_MAX, UP_BYTES_MIN, Up, would_block};
use crate::engine::Passed;
use crate::relay::Local;
use crate::tokio::Session;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

impl Pump {
    /// Moves bytes from the local side to the session. Ready when the local side's end has been passed on.
    pub(in crate::relay) fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        local: &Local,
    ) -> Poll<Result<(), Failure>> {
        self.listening = false;
        ready!(self.up_turn.poll_begin(cx));
        let polled = self.poll_up_in_turn(cx, session, local);
        self.up_turn.end(cx);
        polled
    }

    fn poll_up_in_turn(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        local: &Local,
    ) -> Poll<Result<(), Failure>> {
        for _ in 0..ROUNDS_MAX {
            if self.up_turn.is_used_up() {
                break;
            }
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
                    match readable {
                        Poll::Ready(readable) => {
                            readable.map_err(Failure::Local)?;
                            if local.is_ending() {
                                session.join_next_write();
                            }
                            ready!(self.poll_fill(cx, session, &mut |space| local.try_read(space), local))?;
                            self.asked = true;
                        }
                        Poll::Pending if !self.asked => {
                            let mut read = |space: &mut [u8]| local.try_read_early(space);
                            // Behind an urgent byte much may wait of which the reactor has told before. Where the session has no room now,
                            // that is still to be asked.
                            self.asked = !ready!(self.poll_fill(cx, session, &mut read, local))?;
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
        self.up_turn.cut();
        Poll::Pending
    }

    /// One read of the local side, straight into the session's ring. Whether it got all that there was room for: then there may be more.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        session: &Session,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
        local: &Local,
    ) -> Poll<Result<bool, Failure>> {
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
                let is_full = count == offered && count > 0;
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
                return Poll::Ready(Ok(is_full));
            }
        }
        Poll::Ready(Ok(false))
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
}
