//! The two directions of a session, apart.

use super::Session;
use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The reading direction, borrowed.
#[derive(Debug)]
pub struct ReadHalf<'a> {
    session: &'a Session,
}

/// The writing direction, borrowed.
#[derive(Debug)]
pub struct WriteHalf<'a> {
    session: &'a Session,
}

/// The reading direction, owned.
#[derive(Debug)]
pub struct OwnedReadHalf {
    session: Arc<Session>,
}

/// The writing direction, owned. Dropping it ends the direction.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    session: Arc<Session>,
}

impl<'a> ReadHalf<'a> {
    pub(super) fn new(session: &'a Session) -> Self {
        Self { session }
    }
}

impl<'a> WriteHalf<'a> {
    pub(super) fn new(session: &'a Session) -> Self {
        Self { session }
    }
}

impl OwnedReadHalf {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// The session that this is a half of.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl OwnedWriteHalf {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// The session that this is a half of.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // A session that has failed has no direction to end.
        let _ = self.session.end_writing();
    }
}

macro_rules! reads {
    ($half:ty) => {
        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.session.poll_read_shared(cx, buf)
            }
        }
    };
}

macro_rules! writes {
    ($half:ty) => {
        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.session.poll_write_shared(cx, bytes)
            }

            fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.session.flush_shared())
            }

            fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(self.session.end_writing()?))
            }
        }
    };
}

reads!(ReadHalf<'_>);
reads!(OwnedReadHalf);
writes!(WriteHalf<'_>);
writes!(OwnedWriteHalf);
