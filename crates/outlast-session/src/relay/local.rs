//! The local side of a relay: a byte stream with readiness, half-close and abort.

use super::stdio::Stdio;
use super::sys;
use crate::sys::splice;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// A byte stream of a local program.
#[derive(Debug)]
pub enum Local {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A UNIX stream socket. It cannot be reset, so a failed session shows as an early end of stream.
    Unix(UnixStream),
    /// Standard input and output. A failed session shows in the exit code.
    Stdio(Stdio),
}

impl From<TcpStream> for Local {
    fn from(stream: TcpStream) -> Self {
        // A relay hands on what it has: waiting for more is the business of the program behind it.
        let _ = stream.set_nodelay(true);
        Local::Tcp(stream)
    }
}

impl From<UnixStream> for Local {
    fn from(stream: UnixStream) -> Self {
        Local::Unix(stream)
    }
}

impl Local {
    /// A connection that another process has left, of either kind. Has to be called in a tokio runtime.
    ///
    /// # Errors
    /// It is no stream socket, or cannot be waited for.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let socket = socket2::Socket::from(fd);
        if socket.r#type()? != socket2::Type::STREAM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        socket.set_nonblocking(true)?;
        match socket.domain()? {
            socket2::Domain::UNIX => UnixStream::from_std(OwnedFd::from(socket).into()).map(Local::from),
            _ => TcpStream::from_std(socket.into()).map(Local::from),
        }
    }

    /// The connection itself, for another process.
    ///
    /// # Errors
    /// Standard input and output are none.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        match self {
            Local::Tcp(stream) => stream.into_std().map(OwnedFd::from),
            Local::Unix(stream) => stream.into_std().map(OwnedFd::from),
            Local::Stdio(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Receives, and remembers without another system call that a short read has emptied the socket.
macro_rules! try_recv {
    ($stream:expr, $buffer:expr) => {{
        let mut short = None;
        let result = $stream.try_io(Interest::READABLE, || {
            let count = sys::recv($stream.as_fd(), $buffer)?;
            if 0 < count && count < $buffer.len() {
                short = Some(count);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(count)
        });
        match short {
            Some(count) => Ok(count),
            None => result,
        }
    }};
}

impl Local {
    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Local::Tcp(stream) => stream.poll_read_ready(cx),
            Local::Unix(stream) => stream.poll_read_ready(cx),
            Local::Stdio(stdio) => stdio.poll_read_ready(cx),
        }
    }

    /// Whether the end of the stream is known to follow what is there to be read. The reactor knows, or nobody.
    pub(super) fn is_ending(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let ready = match self {
            Local::Tcp(stream) => pin!(stream.ready(Interest::READABLE)).poll(&mut cx),
            Local::Unix(stream) => pin!(stream.ready(Interest::READABLE)).poll(&mut cx),
            Local::Stdio(_) => return false,
        };
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// Reads what is there. `WouldBlock` clears the readiness.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Local::Tcp(stream) => try_recv!(stream, buffer),
            Local::Unix(stream) => try_recv!(stream, buffer),
            Local::Stdio(stdio) => stdio.try_read(buffer),
        }
    }

    /// As [`try_read`](Self::try_read), before the reactor has said anything: a program that has just connected may have
    /// spoken already.
    pub(super) fn try_read_early(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Local::Tcp(stream) => sys::recv(stream.as_fd(), buffer),
            Local::Unix(stream) => sys::recv(stream.as_fd(), buffer),
            Local::Stdio(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Whether its bytes can be spliced.
    pub(super) fn can_splice(&self) -> bool {
        matches!(self, Local::Tcp(_))
    }

    /// Splices what is there into a pipe. `WouldBlock` clears the readiness.
    pub(super) fn try_splice_to(&self, pipe: BorrowedFd<'_>, bytes_max: usize) -> io::Result<usize> {
        let Local::Tcp(stream) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        stream.try_io(Interest::READABLE, || splice(stream.as_fd(), pipe, bytes_max))
    }

    /// Takes the next `bytes` out of a pipe.
    pub(super) fn try_splice_from(&self, pipe: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        let Local::Tcp(stream) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        stream.try_io(Interest::WRITABLE, || splice(pipe, stream.as_fd(), bytes))
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Local::Tcp(stream) => stream.poll_write_ready(cx),
            Local::Unix(stream) => stream.poll_write_ready(cx),
            Local::Stdio(stdio) => stdio.poll_write_ready(cx),
        }
    }

    /// Writes what it takes. With `last` the end of the stream follows at once, and the last bytes may wait for it.
    pub(super) fn try_write(&self, bytes: &[u8], last: bool) -> io::Result<usize> {
        match self {
            Local::Tcp(stream) => {
                stream.try_io(Interest::WRITABLE, || sys::send(stream.as_fd(), bytes, last))
            }
            Local::Unix(stream) => {
                stream.try_io(Interest::WRITABLE, || sys::send(stream.as_fd(), bytes, false))
            }
            Local::Stdio(stdio) => stdio.try_write(bytes),
        }
    }

    /// As [`try_write`](Self::try_write), whatever the reactor has said.
    pub(super) fn try_write_early(&self, bytes: &[u8], last: bool) -> io::Result<usize> {
        match self {
            Local::Tcp(stream) => sys::send(stream.as_fd(), bytes, last),
            Local::Unix(stream) => sys::send(stream.as_fd(), bytes, false),
            Local::Stdio(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes everything.
    ///
    /// # Errors
    /// Of the local side.
    pub async fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            std::future::poll_fn(|cx| self.poll_write_ready(cx)).await?;
            match self.try_write(bytes, false) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Half-closes: the program reads the end of the stream.
    pub(super) fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Local::Tcp(stream) => socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write),
            Local::Unix(stream) => socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write),
            Local::Stdio(stdio) => stdio.close_output(),
        }
    }

    /// Whether reading goes on for ever when nobody reads what is written: the two have nothing to do with each
    /// other.
    pub(super) fn has_two_ends(&self) -> bool {
        matches!(self, Local::Stdio(_))
    }

    /// Completes when the local program is gone for good, without reading a byte.
    pub async fn failed(&self) {
        let ready = match self {
            Local::Tcp(stream) => stream.ready(Interest::ERROR).await,
            Local::Unix(stream) => stream.ready(Interest::ERROR).await,
            Local::Stdio(stdio) => return stdio.failed().await,
        };
        if ready.is_err() {
            // The reactor is shutting down: nothing will ever be reported.
            std::future::pending::<()>().await;
        }
    }

    /// Completes when the local program is gone, or has closed before it had anything to say.
    pub async fn hung_up(&self) {
        let ready = match self {
            Local::Tcp(stream) => stream.ready(Interest::READABLE).await,
            Local::Unix(stream) => stream.ready(Interest::READABLE).await,
            Local::Stdio(_) => return self.failed().await,
        };
        match ready {
            Ok(ready) if ready.is_read_closed() && self.nothing_to_read() => {}
            _ => self.failed().await,
        }
    }

    fn nothing_to_read(&self) -> bool {
        let mut byte = [std::mem::MaybeUninit::uninit(); 1];
        let peeked = match self {
            Local::Tcp(stream) => socket2::SockRef::from(stream).peek(&mut byte),
            Local::Unix(stream) => socket2::SockRef::from(stream).peek(&mut byte),
            Local::Stdio(_) => Ok(1),
        };
        !matches!(peeked, Ok(count) if count > 0)
    }

    /// Waits, for at most `limit`, until the kernel on the program's side has all that was written.
    pub(super) async fn settle(&self, limit: Duration) {
        let Local::Tcp(stream) = self else { return };
        let taken = async {
            while sys::unsent_bytes(stream.as_fd()) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, taken).await;
    }

    /// Ends the stream with a reset where there is such a thing: what was sent so far is not all there was.
    pub fn abort(self) {
        if let Local::Tcp(stream) = &self {
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}
