//! Urgent bytes, one at a time, between the reads that end at their place.

use super::{Down, Failure, Pump, Up, would_block};
use crate::engine::UrgentAhead;
use crate::relay::Local;
use crate::tokio::Session;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

impl Pump {
    /// One byte of the local side that is urgent.
    pub(super) fn poll_urgent_up(
        &mut self,
        cx: &mut Context<'_>,
        session: &Session,
        local: &Local,
    ) -> Poll<Result<(), Failure>> {
        // The reads before it have ended at it, and looked like the last ones.
        self.asked = false;
        let mut local_error = None;
        let mut fill = |space: &mut [u8]| {
            local.try_read_urgent(space).map_err(|error| {
                let kind = error.kind();
                local_error = Some(error);
                kind.into()
            })
        };
        let written = ready!(session.poll_write_urgent_with(cx, &mut fill));
        Poll::Ready(match (written, local_error) {
            (_, Some(error)) if would_block(&error) => {
                // It is announced, and still to come.
                ready!(local.poll_read_ready(cx)).map_err(Failure::Local)
            }
            (_, Some(error)) => Err(Failure::Local(error)),
            (Err(error), None) => Err(Failure::session(error)),
            (Ok(count), None) => {
                if count == 0 {
                    self.up = Up::Closing;
                }
                Ok(())
            }
        })
    }

    /// The next byte of the session, which is urgent.
    pub(super) fn poll_take_urgent(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        local: &Local,
    ) -> Poll<Result<(), Failure>> {
        let mut byte = [0];
        let mut read = ReadBuf::new(&mut byte);
        let polled = Pin::new(&mut *session).poll_read(cx, &mut read);
        let count = read.filled().len();
        self.drained = polled.is_pending();
        ready!(polled).map_err(Failure::session)?;
        match (byte, count) {
            ([byte], 1) => self.down = Down::Urgent(byte),
            // It was announced, and the stream has ended before it.
            _ => self.end_down(local),
        }
        Poll::Ready(Ok(()))
    }
}

/// The part of a buffer that ends where an urgent byte is expected.
pub(super) fn before_urgent(buffer: &mut [u8], ahead: UrgentAhead) -> &mut [u8] {
    match ahead {
        UrgentAhead::Behind(bytes) if bytes < buffer.len() => buffer.split_at_mut(bytes).0,
        _ => buffer,
    }
}
