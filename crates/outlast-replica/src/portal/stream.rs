//! A TCP connection that never waits: what it has for us, and what we have for it.

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

/// Room for what is read at a time.
pub(super) const READ_BYTES: usize = 64 << 10;

/// What came of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// So many bytes are in the room.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The peer has ended its stream.
    End,
    /// The connection is broken.
    Broken,
}

/// One.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: TcpStream,
    /// There may be something to read.
    pub(super) is_readable: bool,
    /// What is there may be more than one read gives: an end, or bytes behind an urgent one.
    has_more: bool,
    /// It may take more.
    is_writable: bool,
    out: VecDeque<u8>,
    ends: bool,
    has_ended: bool,
}

impl Stream {
    /// Events of it have this token.
    pub(super) fn new(mut socket: TcpStream, registry: &Registry, token: Token) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY;
        registry.register(&mut socket, token, interest)?;
        Ok(Self {
            socket,
            is_readable: true,
            has_more: false,
            is_writable: true,
            out: VecDeque::new(),
            ends: false,
            has_ended: false,
        })
    }

    /// It may be so: all is read that there is.
    pub(super) fn note_ready(&mut self, readable: bool, writable: bool) {
        self.is_readable |= readable;
        self.has_more |= readable;
        self.is_writable |= writable;
    }

    /// The kernel says this.
    pub(super) fn note_event(&mut self, event: &Event) {
        self.is_readable |= event.is_readable();
        self.has_more |= event.is_read_closed() || event.is_priority() || event.is_error();
        self.is_writable |= event.is_writable();
    }

    /// Reads what is there into `room`.
    pub(super) fn read(&mut self, room: &mut [u8]) -> Input {
        if !self.is_readable {
            return Input::Nothing;
        }
        loop {
            return match self.socket.read(room) {
                Ok(0) => {
                    self.is_readable = false;
                    Input::End
                }
                Ok(count) => {
                    // It was all that there was; the kernel says when more comes.
                    self.is_readable = count == room.len() || self.has_more;
                    Input::Bytes(count)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected) =>
                {
                    (self.is_readable, self.has_more) = (false, false);
                    Input::Nothing
                }
                Err(_) => {
                    self.is_readable = false;
                    Input::Broken
                }
            };
        }
    }

    /// Has these bytes sent, behind all others.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.out.extend(bytes);
    }

    /// Its stream ends behind what it has.
    pub(super) fn end(&mut self) {
        self.ends = true;
    }

    /// There may be something to read.
    pub(super) fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// What waits to be sent.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.out.len()
    }

    /// Sends what it takes. How many bytes those were; an error breaks the connection.
    pub(super) fn flush(&mut self) -> io::Result<usize> {
        let mut sent = 0;
        while self.is_writable && !self.out.is_empty() {
            let (front, _) = self.out.as_slices();
            match self.socket.write(front) {
                Ok(count) => {
                    self.out.drain(..count);
                    sent += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected) =>
                {
                    self.is_writable = false;
                }
                Err(error) => return Err(error),
            }
        }
        if self.ends && self.out.is_empty() && !self.has_ended {
            match self.socket.shutdown(Shutdown::Write) {
                // It is connected with the next event.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                ended => {
                    ended?;
                    self.has_ended = true;
                }
            }
        }
        Ok(sent)
    }

    /// Sends as much of these bytes, the second ones behind the first, as it takes at once: in one segment, if they fit. Not to be used beside
    /// [`push`](Self::push).
    pub(super) fn write(&mut self, (front, back): (&[u8], &[u8])) -> io::Result<usize> {
        let mut sent = 0;
        while self.is_writable && sent < front.len() + back.len() {
            let rest = front.get(sent..).unwrap_or_default();
            let behind = back.get(sent.saturating_sub(front.len())..).unwrap_or_default();
            let written = if behind.is_empty() {
                self.socket.write(rest)
            } else {
                self.socket.write_vectored(&[IoSlice::new(rest), IoSlice::new(behind)])
            };
            match written {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}
