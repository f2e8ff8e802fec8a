//! The local side of a relay: a byte stream with readiness, half-close and abort.

mod tcp;
mod unix;

pub(super) use tcp::set_options;
pub use tcp::{LocalListener, TcpLocal};
pub use unix::UnixLocal;

use super::stdio::Stdio;
use super::sys;
use crate::sys::{splice, urgent};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// A byte stream of a local program.
#[derive(Debug)]
pub enum Local {
    /// A TCP connection.
    Tcp(TcpLocal),
    /// A UNIX stream socket. It cannot be reset: a failed session shows as a reset if the program has sent little and at
    /// least a byte, else as an early end of stream.
    Unix(UnixLocal),
    /// Standard input and output. A failed session shows in the exit code.
    Stdio(Stdio),
}

impl From<UnixStream> for Local {
    fn from(stream: UnixStream) -> Self {
        Local::Unix(UnixLocal::new(stream))
    }
}

impl Local {
    /// A program's TCP connection, just accepted or connected. From now on its close is a reset, until the streams have ended
    /// in order.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        TcpLocal::from_tokio(stream).map(Local::Tcp)
    }

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
            _ => TcpLocal::new(socket.into()).map(Local::Tcp),
        }
    }

    /// The connection itself, for another process.
    ///
    /// # Errors
    /// Standard input and output are none.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        match self {
            Local::Tcp(stream) => Ok(stream.into_fd()),
            Local::Unix(socket) => socket.into_fd(),
            Local::Stdio(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Local {
    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Local::Tcp(stream) => stream.fd.poll_read_ready(cx).map_ok(drop),
            Local::Unix(socket) => socket.stream.poll_read_ready(cx),
            Local::Stdio(stdio) => stdio.poll_read_ready(cx),
        }
    }

    /// Whether the end of the stream is known to follow what is there to be read. The reactor knows, or nobody.
    pub(super) fn is_ending(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let ready = match self {
            Local::Tcp(stream) => {
                let ready = pin!(stream.fd.ready(Interest::READABLE)).poll(&mut cx);
                return matches!(ready, Poll::Ready(Ok(guard)) if guard.ready().is_read_closed());
            }
            Local::Unix(socket) => pin!(socket.stream.ready(Interest::READABLE)).poll(&mut cx),
            Local::Stdio(_) => return false,
        };
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// Reads what is there. `WouldBlock` clears the readiness; so does a short read, which has emptied the socket, without
    /// another system call.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len();
        match self {
            Local::Tcp(stream) => self.read_of(stream.try_read(buffer), length),
            Local::Unix(socket) => self.read_of(socket.try_read(buffer), length),
            Local::Stdio(stdio) => stdio.try_read(buffer),
        }
    }

    /// As [`try_read`](Self::try_read), before the reactor has said anything: a program that has just connected may have
    /// spoken already. `Interrupted` if an urgent byte is next.
    pub(super) fn try_read_early(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len();
        match self {
            Local::Tcp(stream) => self.read_of(stream.try_read_early(buffer), length),
            Local::Unix(socket) => self.read_of(socket.read(buffer), length),
            Local::Stdio(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Whether the next byte to be read is urgent. No read goes past such a byte, but the one that begins at it.
    pub(super) fn is_urgent_next(&self) -> bool {
        matches!(self, Local::Tcp(stream) if stream.is_urgent_next())
    }

    /// Reads the urgent byte that is known to be next.
    pub(super) fn try_read_urgent(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Local::Tcp(stream) => self.read_of(stream.try_read_urgent(buffer), buffer.len()),
            Local::Unix(_) | Local::Stdio(_) => self.try_read(buffer),
        }
    }

    /// Writes a byte, as urgent where there is such a thing.
    pub(super) fn try_write_urgent(&self, byte: u8) -> io::Result<()> {
        match self {
            Local::Tcp(stream) => {
                self.written(stream.fd.try_io(Interest::WRITABLE, |stream| urgent::send(stream, byte)))
            }
            Local::Unix(_) | Local::Stdio(_) => match self.try_write(&[byte], false)? {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            },
        }
    }

    /// Its descriptor, if it is a TCP connection.
    pub(super) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Local::Tcp(stream) => Some(stream.fd.as_fd()),
            Local::Unix(_) | Local::Stdio(_) => None,
        }
    }

    /// Whether its bytes can be spliced.
    pub(super) fn can_splice(&self) -> bool {
        matches!(self, Local::Tcp(_))
    }

    /// Splices what is there into a pipe. `WouldBlock` clears the readiness.
    pub(super) fn try_splice_to(&self, pipe: BorrowedFd<'_>, bytes_max: usize) -> io::Result<usize> {
        let Local::Tcp(stream) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        self.read_of(stream.try_splice_to(pipe, bytes_max), bytes_max)
    }

    /// Takes the next `bytes` out of a pipe.
    pub(super) fn try_splice_from(&self, pipe: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        let Local::Tcp(stream) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        self.written(stream.fd.try_io(Interest::WRITABLE, |stream| splice(pipe, stream.as_fd(), bytes)))
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Local::Tcp(stream) => stream.fd.poll_write_ready(cx).map_ok(drop),
            Local::Unix(socket) => socket.stream.poll_write_ready(cx),
            Local::Stdio(stdio) => stdio.poll_write_ready(cx),
        }
    }

    /// Writes what it takes. With `last` the end of the stream follows at once, and the last bytes may wait for it.
    pub(super) fn try_write(&self, bytes: &[u8], last: bool) -> io::Result<usize> {
        match self {
            Local::Tcp(stream) => {
                let send = |stream: &std::net::TcpStream| sys::send(stream.as_fd(), bytes, last);
                self.written(stream.fd.try_io(Interest::WRITABLE, send))
            }
            Local::Unix(socket) => {
                let stream = &socket.stream;
                self.written(stream.try_io(Interest::WRITABLE, || sys::send(stream.as_fd(), bytes, false)))
            }
            Local::Stdio(stdio) => stdio.try_write(bytes),
        }
    }

    /// As [`try_write`](Self::try_write), whatever the reactor has said.
    pub(super) fn try_write_early(&self, bytes: &[u8], last: bool) -> io::Result<usize> {
        match self {
            Local::Tcp(stream) => self.written(sys::send(stream.fd.as_fd(), bytes, last)),
            Local::Unix(socket) => self.written(sys::send(socket.stream.as_fd(), bytes, false)),
            Local::Stdio(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// What became of a write. A socket tells its error once: who reads from it afterwards finds an end that looks as if it were in
    /// order. (EPIPE comes first only behind the peer's own end.)
    fn written<T>(&self, result: io::Result<T>) -> io::Result<T> {
        use io::ErrorKind::{BrokenPipe, Interrupted, WouldBlock};
        if let Err(error) = &result
            && !matches!(error.kind(), WouldBlock | Interrupted | BrokenPipe)
            && let Some(has_failed) = self.has_failed()
        {
            has_failed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// What became of a read that had room for so many bytes.
    fn read_of(&self, result: io::Result<usize>, length: usize) -> io::Result<usize> {
        let has_failed = || self.has_failed().is_some_and(|has_failed| has_failed.load(Ordering::Relaxed));
        match result {
            Ok(0) if length > 0 && has_failed() => Err(io::ErrorKind::ConnectionReset.into()),
            other => other,
        }
    }

    /// Whether a write has been told the socket's error.
    fn has_failed(&self) -> Option<&AtomicBool> {
        match self {
            Local::Tcp(stream) => Some(&stream.has_failed),
            Local::Unix(socket) => Some(&socket.has_failed),
            Local::Stdio(_) => None,
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
            Local::Tcp(stream) => stream.fd.get_ref().shutdown(std::net::Shutdown::Write),
            Local::Unix(socket) => socket2::SockRef::from(&socket.stream).shutdown(std::net::Shutdown::Write),
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
            Local::Tcp(stream) => stream.fd.ready(Interest::ERROR).await.is_ok(),
            Local::Unix(socket) => socket.stream.ready(Interest::ERROR).await.is_ok(),
            Local::Stdio(stdio) => return stdio.failed().await,
        };
        if !ready {
            // The reactor is shutting down: nothing will ever be reported.
            std::future::pending::<()>().await;
        }
    }

    /// Completes when the local program is gone, or has closed before it had anything to say.
    pub async fn hung_up(&self) {
        let ready = match self {
            Local::Tcp(stream) => stream.fd.ready(Interest::READABLE).await.map(|guard| guard.ready()),
            Local::Unix(socket) => socket.stream.ready(Interest::READABLE).await,
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
            Local::Tcp(stream) => socket2::SockRef::from(stream.fd.get_ref()).peek(&mut byte),
            Local::Unix(socket) => socket2::SockRef::from(&socket.stream).peek(&mut byte),
            Local::Stdio(_) => Ok(1),
        };
        !matches!(peeked, Ok(count) if count > 0)
    }

    /// What was written and the program's side of a TCP connection does not have yet, or the program has not read from another socket;
    /// 0 where that is unknown.
    pub(super) fn unsent_bytes(&self) -> usize {
        match self {
            Local::Tcp(stream) => sys::unsent_bytes(stream.fd.as_fd()),
            Local::Unix(socket) => sys::unsent_bytes(socket.stream.as_fd()),
            Local::Stdio(_) => 0,
        }
    }

    /// Waits, for at most `limit`, until the kernel on the program's side has all that was written.
    pub(super) async fn settle(&self, limit: Duration) {
        if !matches!(self, Local::Tcp(_)) {
            return;
        }
        let taken = async {
            while self.unsent_bytes() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, taken).await;
    }

    /// Everything was said: from now on a close sends what is left, and the end of the stream, in order. Before, the
    /// close of a TCP connection is a reset.
    ///
    /// To be called when both directions have ended, or when what was written is a refusal and all there is to say.
    pub fn end_in_order(&self) {
        match self {
            Local::Tcp(stream) => stream.reset_on_close(false),
            Local::Unix(socket) => socket.end_in_order(),
            Local::Stdio(_) => {}
        }
    }

    /// Ends the stream with a reset where there is such a thing: what was sent so far is not all there was.
    pub fn abort(self) {
        if let Local::Tcp(stream) = &self {
            stream.reset_on_close(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// What it has sent comes, and then that it has gone, whoever hears of that first.
    fn what_is_read(local: &Local) -> (usize, io::Error) {
        let (mut count, mut room) = (0, [0; 4]);
        loop {
            match local.try_read_early(&mut room) {
                Ok(0) => return (count, io::Error::other("an end in order")),
                Ok(some) => count += some,
                Err(error) => return (count, error),
            }
        }
    }

    /// A program that has written 10 bytes, and its connection here.
    fn program_that_has_written() -> (std::net::TcpStream, Local) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut program = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let local = listener.accept().unwrap().0;
        local.set_nonblocking(true).unwrap();
        let local = TcpLocal::new(local).map(Local::Tcp).unwrap();
        program.write_all(&[1; 10]).unwrap();
        (program, local)
    }

    #[tokio::test]
    async fn a_reset_that_a_write_has_heard_of_is_no_end_in_order() {
        let (program, local) = program_that_has_written();
        socket2::SockRef::from(&program).set_linger(Some(Duration::ZERO)).unwrap();
        drop(program);
        let error = local.try_write_early(b"x", false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let (count, error) = what_is_read(&local);
        assert_eq!((count, error.kind()), (10, io::ErrorKind::ConnectionReset), "{error}");
    }

    fn send_urgent(program: &std::net::TcpStream) {
        program.set_nodelay(true).unwrap();
        urgent::send(program, b'u').unwrap();
    }

    /// It is found by a look of ours, as no task waits here: the reactor does not get its turn.
    fn urgent_byte_is_taken_alone(local: &Local) {
        let mut room = [0; 4];
        assert!(local.is_urgent_next());
        assert_eq!(local.try_read_urgent(&mut room).unwrap(), 1);
        assert_eq!(room[0], b'u');
        assert!(!local.is_urgent_next());
    }

    #[tokio::test]
    async fn an_urgent_byte_that_the_reactor_does_not_know_of_stops_an_early_read() {
        let (program, local) = program_that_has_written();
        assert_eq!(local.try_read_early(&mut [0; 64]).unwrap(), 10);
        send_urgent(&program);
        assert!(!local.is_urgent_next(), "nobody has told");
        assert_eq!(local.try_read_early(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::Interrupted);
        urgent_byte_is_taken_alone(&local);
    }

    #[tokio::test]
    async fn an_urgent_byte_that_the_reactor_does_not_know_of_stops_a_read_that_it_called_for() {
        for full in [true, false] {
            let (program, local) = program_that_has_written();
            std::future::poll_fn(|cx| local.poll_read_ready(cx)).await.unwrap();
            if full {
                assert_eq!(local.try_read(&mut [0; 10]).unwrap(), 10);
            } else {
                // Past the reactor, which still believes that there is something.
                assert_eq!(local.try_read_early(&mut [0; 64]).unwrap(), 10);
            }
            send_urgent(&program);
            assert!(!local.is_urgent_next(), "nobody has told");
            assert_eq!(local.try_read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::Interrupted);
            urgent_byte_is_taken_alone(&local);
        }
    }

    #[tokio::test]
    async fn a_connection_to_itself_is_none() {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let own = socket.local_addr().unwrap();
        socket.connect(&own).unwrap();
        socket.set_nonblocking(true).unwrap();
        let local = TcpLocal::new(socket.into()).unwrap();
        let error = local.refuse_itself().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn an_end_in_order_is_one_also_where_a_write_fails() {
        let (program, local) = program_that_has_written();
        drop(program);
        // The first is answered by a reset.
        let failed = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            local.try_write_early(b"x", false).err()
        });
        assert_eq!(failed.unwrap().kind(), io::ErrorKind::BrokenPipe);
        let (count, error) = what_is_read(&local);
        assert_eq!((count, error.to_string().as_str()), (10, "an end in order"));
    }
}
