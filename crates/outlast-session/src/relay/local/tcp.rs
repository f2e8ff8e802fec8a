//! A program's TCP connection.
//!
//! Two things are kept for the program that plain `recv` and `close` would lose. A close is a reset until both streams
//! have ended in order, whatever ends this process. And urgent data (RFC 6093) keep their place in the stream.

use super::Local;
use crate::relay::sys;
use crate::sys::urgent::{self, Ahead};
use crate::sys::{accept, register_owned, splice};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

/// A TCP connection of a local program, known to the reactor with its urgent data.
#[derive(Debug)]
pub struct TcpLocal {
    pub(super) fd: AsyncFd<std::net::TcpStream>,
    /// A read was held up by an urgent byte that the reactor may not know of yet.
    ask_for_urgent: AtomicBool,
    /// The reactor has spoken of input before the last read: the next one may find what the reactor has not told of.
    outruns_reactor: AtomicBool,
    /// See [`Local::written`].
    pub(super) has_failed: AtomicBool,
}

impl TcpLocal {
    /// From a connection that another registration of the reactor has let go of.
    ///
    /// # Errors
    /// The reactor does not take it.
    pub(in crate::relay) fn new(stream: std::net::TcpStream) -> io::Result<Self> {
        set_options(&socket2::SockRef::from(&stream));
        Self::prepared(stream)
    }

    fn prepared(stream: std::net::TcpStream) -> io::Result<Self> {
        Ok(Self {
            fd: register_owned(stream)?,
            ask_for_urgent: AtomicBool::new(false),
            outruns_reactor: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        })
    }

    pub(in crate::relay) fn from_tokio(stream: TcpStream) -> io::Result<Self> {
        Self::new(stream.into_std()?)
    }

    /// Waits until a connection that is being made is there.
    pub(in crate::relay) async fn connected(&self) -> io::Result<()> {
        drop(self.fd.writable().await?);
        self.fd.get_ref().take_error()?.map_or(Ok(()), Err)
    }

    /// Refuses a connection to itself: nobody listens, and the kernel has chosen the very port that was asked for (RFC 9293, section
    /// 3.5: a simultaneous open).
    pub(in crate::relay) fn refuse_itself(&self) -> io::Result<()> {
        let stream = self.fd.get_ref();
        // One that was reset already has no address: that is found by who reads.
        let is_itself = stream.peer_addr().is_ok_and(|peer| stream.local_addr().is_ok_and(|own| own == peer));
        if is_itself { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(()) }
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd.into_inner().into()
    }

    /// Chooses what a close does, and the end of this process with it.
    pub(super) fn reset_on_close(&self, reset: bool) {
        reset_on_close(self.fd.get_ref(), reset);
    }

    /// Whether the next byte to be read is urgent. A system call only if there is, or may be, an urgent byte.
    pub(super) fn is_urgent_next(&self) -> bool {
        if self.ask_for_urgent.load(Ordering::Relaxed) {
            if urgent::is_next(self.fd.get_ref()) {
                return true;
            }
            self.ask_for_urgent.store(false, Ordering::Relaxed);
        }
        let look = |stream: &std::net::TcpStream| match urgent::is_next(stream) {
            true => Ok(true),
            // Bytes come before it.
            false if urgent::is_there(stream) => Ok(false),
            // It was read.
            false => Err(io::ErrorKind::WouldBlock.into()),
        };
        self.fd.try_io(Interest::PRIORITY, look).unwrap_or(false)
    }

    /// A read that begins at an urgent byte takes it for one like the others. The reactor tells of both at once, input and that a byte
    /// of it is urgent; a read that may find more than the reactor has told of looks first. `Interrupted` if the next byte is urgent.
    fn look_first(&self) -> io::Result<()> {
        match urgent::ahead(self.fd.get_ref()) {
            Ahead::Other => Ok(()),
            Ahead::Nothing => Err(io::ErrorKind::WouldBlock.into()),
            Ahead::Urgent => {
                self.ask_for_urgent.store(true, Ordering::Relaxed);
                Err(io::ErrorKind::Interrupted.into())
            }
        }
    }

    /// One read that the reactor calls for. While the readiness is not cleared, the next read may find what the reactor has not told of, and
    /// looks first.
    fn try_input(
        &self,
        mut read: impl FnMut(&std::net::TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let result = self.fd.try_io(Interest::READABLE, |stream| {
            if self.outruns_reactor.load(Ordering::Relaxed) {
                self.look_first()?;
            }
            read(stream)
        });
        let is_ready = self.fd.try_io(Interest::READABLE, |_| Ok(())).is_ok();
        self.outruns_reactor.store(is_ready, Ordering::Relaxed);
        result
    }

    /// Reads what is there, up to the next urgent byte. `WouldBlock` clears the readiness; so does a short read.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut short = None;
        let result = self.try_input(|stream| {
            let count = sys::recv(stream.as_fd(), buffer)?;
            if 0 < count && count < buffer.len() {
                short = Some(count);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(count)
        });
        short.map_or(result, Ok)
    }

    /// As [`try_read`](Self::try_read), before the reactor has said anything.
    pub(super) fn try_read_early(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.look_first()?;
        self.read_past_reactor(buffer)
    }

    /// Reads the urgent byte that is known to be next, whatever the reactor has said.
    pub(super) fn try_read_urgent(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.read_past_reactor(buffer) {
            // The reactor is told that nothing is there, or it would say again and again that something is.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.try_read(buffer),
            other => other,
        }
    }

    fn read_past_reactor(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.outruns_reactor.store(true, Ordering::Relaxed);
        sys::recv(self.fd.as_fd(), buffer)
    }

    /// Splices what is there into a pipe, up to the next urgent byte. `WouldBlock` clears the readiness.
    pub(super) fn try_splice_to(&self, pipe: BorrowedFd<'_>, bytes_max: usize) -> io::Result<usize> {
        self.try_input(|stream| {
            let count = splice(stream.as_fd(), pipe, bytes_max)?;
            // At an urgent byte with the end of the stream behind it the kernel answers as at the end itself.
            if count == 0 && urgent::is_next(stream) {
                self.ask_for_urgent.store(true, Ordering::Relaxed);
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(count)
        })
    }
}

/// What every connection of a program needs. Best effort: these fail only on what is no TCP socket.
pub(in crate::relay) fn set_options(socket: &socket2::Socket) {
    // A relay hands on what it has: waiting for more is the business of the program behind it.
    let _ = socket.set_tcp_nodelay(true);
    // Whatever ends this process, SIGKILL included: the program sees a reset, unless its stream was ended in order.
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = urgent::keep_in_place(socket);
}

/// Listens for programs that a relay is to carry.
#[derive(Debug)]
pub struct LocalListener {
    fd: AsyncFd<std::net::TcpListener>,
}

impl LocalListener {
    /// From a socket that listens and does not block. Needs a tokio runtime.
    ///
    /// # Errors
    /// The reactor does not take it.
    pub fn new(listener: std::net::TcpListener) -> io::Result<Self> {
        // Accepted connections inherit them: no system call each.
        set_options(&socket2::SockRef::from(&listener));
        Ok(Self { fd: register_owned(listener)? })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().local_addr()
    }

    /// The next program.
    ///
    /// # Errors
    /// Of accept(2), or the reactor does not take it.
    pub async fn accept(&self) -> io::Result<Local> {
        loop {
            let mut ready = self.fd.readable().await?;
            // Err: there is none any more.
            if let Ok(accepted) = ready.try_io(|listener| accept(listener.get_ref())) {
                return TcpLocal::prepared(accepted?.0.into()).map(Local::Tcp);
            }
        }
    }
}

fn reset_on_close(stream: &std::net::TcpStream, reset: bool) {
    // Best effort: it fails only on what is no socket.
    let _ = socket2::SockRef::from(stream).set_linger(reset.then_some(Duration::ZERO));
}
