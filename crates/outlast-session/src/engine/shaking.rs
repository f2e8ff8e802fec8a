//! A server's handshake on one connection, one non-blocking step at a time: the same for both shells.

use super::{Acceptor, Engine, Greeting, Link, Outcome, Waiting};
use crate::proto::Progress;
use crate::sys;
use std::io;
use std::sync::Arc;

/// Received in one go: a Hello, and the first of the stream.
const READ_BYTES: usize = 4096;

const LEFT_AFTER_CHALLENGE: &str = "the client left when it was asked to prove its key: its key (--psk-file) is another one, or it tests guesses";

/// A connection that has not become a link yet.
#[derive(Debug)]
pub(crate) struct Shaking {
    link: Option<Link>,
    greeting: Option<Greeting>,
}

/// How far it has come.
#[derive(Debug)]
pub(crate) enum Shaken {
    /// Call again when the socket is ready.
    Wait,
    /// A new session.
    Opened(Arc<Engine>),
    /// A link for a session that is there, or turned away.
    Done,
}

impl Shaking {
    pub(crate) fn new(link: Link) -> Self {
        Self { link: Some(link), greeting: None }
    }

    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// The socket, for as long as somebody has to watch it.
    pub(crate) fn socket(&self) -> Option<Arc<socket2::Socket>> {
        self.link.as_ref().map(Link::shared_socket)
    }

    /// Whether it waits for room to send, besides input.
    pub(crate) fn wants_write(&self) -> bool {
        self.greeting.as_ref().is_some_and(|greeting| !greeting.output.is_empty())
            || self.link.as_ref().is_some_and(Link::handshake_wants_write)
    }

    /// How far the other side has come.
    pub(crate) fn progress(&self) -> Progress {
        match (&self.greeting, &self.link) {
            (Some(greeting), _) => greeting.progress(),
            // Within the handshake of TLS only the kernel knows.
            (None, Some(link)) if sys::tcp_info(link).is_ok_and(|info| info.bytes_received > 0) => {
                Progress::Begun
            }
            _ => Progress::Silent,
        }
    }

    /// Goes on until the socket has nothing more.
    pub(crate) fn step(&mut self, acceptor: &Acceptor) -> io::Result<Shaken> {
        match self.run(acceptor) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Shaken::Wait),
            Err(error) => {
                // PROTOCOL 6.3: a client whose key is another one sees that first, by the Challenge, and leaves.
                if self.greeting.as_ref().is_some_and(|greeting| greeting.progress() == Progress::Greeted) {
                    acceptor.note_failed(self.link.as_ref(), &LEFT_AFTER_CHALLENGE);
                }
                Err(error)
            }
            other => other,
        }
    }

    fn run(&mut self, acceptor: &Acceptor) -> io::Result<Shaken> {
        loop {
            let Some(link) = &self.link else { return Ok(Shaken::Done) };
            let Some(greeting) = &mut self.greeting else {
                match link.handshake() {
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        acceptor.tls_failed(link, &error);
                        return Ok(Shaken::Done);
                    }
                    other => other?,
                };
                self.greeting = Some(acceptor.greeting(link));
                continue;
            };
            while !greeting.output.is_empty() {
                let count = link.send_one(&greeting.output)?;
                greeting.output.drain(..count.min(greeting.output.len()));
            }
            let mut buffer = [0u8; READ_BYTES];
            let count = match link.receive(&mut buffer, &mut Waiting::Never) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match acceptor.greet(greeting, &mut self.link, buffer.get(..count).unwrap_or_default()) {
                Outcome::More => {}
                Outcome::Opened(engine) => return Ok(Shaken::Opened(engine)),
                Outcome::Resumed | Outcome::Closed => return Ok(Shaken::Done),
            }
        }
    }
}
