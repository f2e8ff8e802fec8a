//! A held connection whose waits are tokio's.

use super::attribute::attributed;
use crate::state::{StateError, Transaction};
use crate::sys::reactor::{self, Held};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A [`Connection`](crate::Connection) for a task: what is read stays held until it is [done](Self::done).
#[derive(Debug)]
pub struct Connection(AsyncFd<Held>);

impl Connection {
    /// Makes the socket non-blocking. To be called within a runtime that has I/O enabled.
    ///
    /// # Errors
    /// The runtime cannot wait for it, or the socket cannot be made non-blocking.
    pub fn new(held: crate::Connection) -> io::Result<Self> {
        set_nonblocking(held.socket())?;
        reactor::wait_for(Held(held)).map(Self)
    }

    /// The connection below, for what it tells without waiting.
    #[must_use]
    pub fn get_ref(&self) -> &crate::Connection {
        &self.0.get_ref().0
    }

    /// Not for others: one connection must not be exchanged for another one below [`AsyncFd`].
    fn held(&mut self) -> &mut crate::Connection {
        &mut self.0.get_mut().0
    }

    /// What `serve` makes of it, as a task: while that is polled, the thread is known to deal with a request of this
    /// connection, and a poll that takes too long is a hang.
    pub fn attributed<F: Future>(self, serve: impl FnOnce(Self) -> F) -> impl Future<Output = F::Output> {
        let held = self.get_ref();
        let threads = held.shared.control.threads(held.shared.number);
        let descriptor = held.socket().as_raw_fd();
        attributed(threads, Some(descriptor), serve(self))
    }

    /// Receives more, behind what is held: how many bytes, 0 at the end of the input. Nothing is lost when the wait is
    /// cancelled.
    ///
    /// # Errors
    /// As [`receive`](crate::Connection::receive).
    pub async fn receive(&mut self) -> io::Result<usize> {
        if let Some(held_bytes) = self.held().see() {
            return Ok(held_bytes);
        }
        loop {
            let mut ready = self.0.readable_mut().await?;
            if let Ok(received) = ready.try_io(|socket| socket.get_mut().0.receive()) {
                return received;
            }
        }
    }

    /// What was received and is not [done](Self::done).
    pub fn input(&mut self) -> &[u8] {
        self.held().input()
    }

    /// The next `bytes` of the input were dealt with, and everything was written that is to be written for them: no
    /// later generation sees them.
    pub fn done(&mut self, bytes: usize) {
        self.held().done(bytes);
    }

    /// As [`done`](Self::done), for everything that was read through [`AsyncRead`].
    pub fn done_read(&mut self) {
        self.held().done_read();
    }

    /// How much of the input is done, from when the connection was held.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.get_ref().done_bytes()
    }

    /// What was [noted](Self::set_note) with the last request that is done.
    #[must_use]
    pub fn note(&self) -> &[u8] {
        self.get_ref().note()
    }

    /// Leaves up to [`NOTE_BYTES`](crate::NOTE_BYTES) to the next generation, with the next request that is done.
    ///
    /// # Errors
    /// It is too long.
    pub fn set_note(&mut self, content: &[u8]) -> io::Result<()> {
        self.held().set_note(content)
    }

    /// As [`transact`](crate::Connection::transact): a change of the state, the request and its answer as one. Waits until
    /// the answer is sent.
    ///
    /// `change` is called once at most, without a wait in between: other tasks of this thread, and other transactions,
    /// wait meanwhile. Cancelled while it waits, everything has happened or nothing; the answer is sent with the next call.
    ///
    /// # Errors
    /// Those of `change`, and of the state: nothing has changed, and the request is not done. Those of the socket: it may
    /// be done.
    pub async fn transact<E: From<StateError> + From<io::Error>>(
        &mut self,
        request_bytes: usize,
        change: impl FnOnce(&mut Transaction<'_>) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        // Answers of a client that does not read are not piled up.
        self.flush_answers().await?;
        self.held().transact(request_bytes, change)?;
        Ok(self.flush_answers().await?)
    }

    /// Sends what is left of answers of [`transact`](Self::transact). To be called first with every connection: the last
    /// generation may have left one.
    ///
    /// # Errors
    /// As for any socket.
    pub async fn flush_answers(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_flush_answers(context)).await
    }

    fn poll_flush_answers(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.held().flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            flushed => return Poll::Ready(flushed),
        }
        loop {
            let mut ready = ready!(self.0.poll_write_ready_mut(context))?;
            if let Ok(flushed) = ready.try_io(|socket| socket.get_mut().0.flush()) {
                return Poll::Ready(flushed);
            }
        }
    }

    /// As `sendfile`: up to `count` bytes of `file`, from `offset` on. How many it was, also of those that an earlier
    /// generation has sent.
    ///
    /// # Errors
    /// As for any socket.
    pub async fn write_file(&mut self, file: BorrowedFd<'_>, offset: u64, count: usize) -> io::Result<usize> {
        loop {
            let mut ready = self.0.writable_mut().await?;
            if let Ok(sent) = ready.try_io(|socket| socket.get_mut().0.write_file(file, offset, count)) {
                return sent;
            }
        }
    }
}

/// Without a second descriptor for that: there may be none left.
pub(super) fn set_nonblocking(socket: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true).map_err(Into::into)
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // What is held is there, and no event tells of it.
        if self.get_ref().is_readable() {
            let count = self.held().read(buffer.initialize_unfilled())?;
            buffer.advance(count);
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut ready = ready!(self.0.poll_read_ready_mut(context))?;
            let room = buffer.initialize_unfilled();
            if let Ok(read) = ready.try_io(|socket| socket.get_mut().0.read(room)) {
                return Poll::Ready(read.map(|count| buffer.advance(count)));
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready_mut(context))?;
            if let Ok(written) = ready.try_io(|socket| socket.get_mut().0.write(bytes)) {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_answers(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush_answers(context))?;
        Poll::Ready(self.held().shutdown_write())
    }
}
