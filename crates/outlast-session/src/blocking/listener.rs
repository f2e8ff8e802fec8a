//! Accepting sessions with threads.

use super::Session;
use crate::config::Config;
use crate::engine::{Acceptor, Engine, Events, Info, Shaken, Shaking};
use crate::error::{Error, Result};
use crate::proto::SessionId;
use mio::unix::SourceFd;
use mio::{Interest, Poll, Token, Waker};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WAKE: Token = Token(0);
const LISTENER: Token = Token(1);
const FIRST_CONNECTION: usize = 2;
/// New sessions that wait for `accept`; beyond that they wait in the kernel.
const ACCEPTED_MAX: usize = 1024;
/// Pause before accepting again when there was no room.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Accepts sessions, and carries those it has accepted over to their next links.
///
/// One thread of its own shakes hands with everybody who connects, so that a session can resume whatever the
/// application is doing. Dropping the listener ends that: its sessions live on as long as their present links.
#[derive(Debug)]
pub struct Listener {
    acceptor: Arc<Acceptor>,
    shared: Arc<Shared>,
    local_addr: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    accepted: Mutex<VecDeque<Arc<Engine>>>,
    arrived: Condvar,
    waker: Waker,
    stop: AtomicBool,
}

impl Listener {
    /// Listens on `address` with the default settings.
    ///
    /// # Errors
    /// As [`bind_with`](Self::bind_with).
    pub fn bind(address: impl ToSocketAddrs) -> Result<Listener> {
        Self::bind_with(address, &Arc::new(Config::default()))
    }

    /// Listens on the first of the addresses that can be had.
    ///
    /// # Errors
    /// [`Error::System`] if none can, [`Error::Config`] for settings that cannot work.
    pub fn bind_with(address: impl ToSocketAddrs, config: &Arc<Config>) -> Result<Listener> {
        config.check()?;
        let listener = TcpListener::bind(address).map_err(|error| Error::system("listen", &error))?;
        Self::from_std(listener, config)
    }

    /// Takes a listening socket over.
    ///
    /// # Errors
    /// [`Error::System`] if its options cannot be set or the thread cannot be started.
    pub fn from_std(listener: TcpListener, config: &Arc<Config>) -> Result<Listener> {
        config.check()?;
        let failed = |error: io::Error| Error::system("listen", &error);
        let acceptor = Acceptor::new(config.clone());
        let local_addr = listener.local_addr().map_err(failed)?;
        let socket = socket2::Socket::from(listener);
        acceptor.prepare(&socket)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let poll = Poll::new().map_err(failed)?;
        let waker = Waker::new(poll.registry(), WAKE).map_err(failed)?;
        let fd = socket.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), LISTENER, Interest::READABLE).map_err(failed)?;
        let shared = Arc::new(Shared {
            accepted: Mutex::new(VecDeque::new()),
            arrived: Condvar::new(),
            waker,
            stop: AtomicBool::new(false),
        });
        let thread = Thread {
            acceptor: acceptor.clone(),
            shared: shared.clone(),
            socket,
            poll,
            connections: HashMap::new(),
            next: FIRST_CONNECTION,
            more_waiting: false,
        };
        std::thread::Builder::new()
            .name("outlast-listen".into())
            .spawn(move || thread.run())
            .map_err(|error| Error::system("start a thread", &error))?;
        Ok(Listener { acceptor, shared, local_addr })
    }

    /// Waits for a new session. Resumed ones are carried on without being seen here.
    ///
    /// # Errors
    /// [`Error::System`] when the listening socket broke.
    pub fn accept(&self) -> Result<Session> {
        let mut accepted = self.shared.accepted.lock();
        loop {
            if let Some(engine) = accepted.pop_front() {
                if accepted.len() == ACCEPTED_MAX - 1 {
                    let _ = self.shared.waker.wake();
                }
                return Ok(Session::new(engine));
            }
            if self.shared.stop.load(Ordering::Acquire) {
                return Err(Error::system("accept", &io::Error::from_raw_os_error(libc::EBADF)));
            }
            self.shared.arrived.wait(&mut accepted);
        }
    }

    /// Accepts for ever.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// The address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Snapshots of all sessions, with a link or without.
    pub fn sessions(&self) -> Vec<Info> {
        self.acceptor.sessions()
    }

    /// Ends a session at once. False if there is none of that name.
    pub fn kill(&self, id: &SessionId) -> bool {
        self.acceptor.kill(id)
    }

    /// What happens to any of the sessions from now on.
    pub fn events(&self) -> Events {
        self.acceptor.events()
    }

    /// How many connections were turned away, by reason.
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        self.acceptor.refusals()
    }

    /// Whether new sessions are refused; the present ones go on and can resume.
    pub fn set_draining(&self, draining: bool) {
        self.acceptor.set_draining(draining);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.waker.wake();
        self.acceptor.close();
    }
}

/// Endless iterator over new sessions.
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a Listener,
}

impl Iterator for Incoming<'_> {
    type Item = Result<Session>;
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept())
    }
}

/// A connection on its way to becoming a link.
#[derive(Debug)]
struct Connection {
    shaking: Shaking,
    deadline: Instant,
}

/// What the listener's thread owns.
struct Thread {
    acceptor: Arc<Acceptor>,
    shared: Arc<Shared>,
    socket: socket2::Socket,
    poll: Poll,
    connections: HashMap<usize, Connection>,
    next: usize,
    /// The queue or the number of handshakes was full: accept again when there is room.
    more_waiting: bool,
}

impl Thread {
    fn run(mut self) {
        let mut events = mio::Events::with_capacity(256);
        while !self.shared.stop.load(Ordering::Acquire) {
            if let Err(error) = self.poll.poll(&mut events, self.timeout())
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "a listener cannot wait for events");
                break;
            }
            let mut accept = std::mem::take(&mut self.more_waiting);
            for event in &events {
                match event.token() {
                    WAKE => {}
                    LISTENER => accept = true,
                    Token(number) => self.ready(number),
                }
            }
            if accept {
                self.accept();
            }
            self.expire();
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.arrived.notify_all();
    }

    fn timeout(&self) -> Option<Duration> {
        if self.more_waiting {
            return Some(ACCEPT_PAUSE);
        }
        let next = self.connections.values().map(|connection| connection.deadline).min()?;
        Some(next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
    }

    fn accept(&mut self) {
        loop {
            let full = self.connections.len() >= self.acceptor.config.handshakes_max
                || self.shared.accepted.lock().len() >= ACCEPTED_MAX;
            if full {
                self.more_waiting = true;
                return;
            }
            match self.socket.accept() {
                Ok((socket, _)) => match self.acceptor.server_link(socket) {
                    Ok(link) => {
                        let deadline = Instant::now() + self.acceptor.config.handshake_timeout;
                        // What it says first is often there already.
                        self.progress(Connection { shaking: Shaking::new(link), deadline });
                    }
                    Err(error) => tracing::warn!(%error, "cannot use a connection"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors, most likely: the rest stays in the kernel's queue for a moment.
                    tracing::warn!(%error, "cannot accept");
                    self.more_waiting = true;
                    return;
                }
            }
        }
    }

    fn ready(&mut self, number: usize) {
        let Some(connection) = self.connections.remove(&number) else { return };
        // Before the link may go its own way.
        if let Some(fd) = connection.shaking.raw_fd() {
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
        self.progress(connection);
    }

    /// Goes on with one connection, as far as it can go now.
    fn progress(&mut self, mut connection: Connection) {
        match connection.shaking.step(&self.acceptor) {
            Ok(Shaken::Wait) => {
                let Some(fd) = connection.shaking.raw_fd() else { return };
                let number = self.next;
                self.next = self.next.checked_add(1).unwrap_or(FIRST_CONNECTION);
                let write = connection.shaking.wants_write();
                let interest =
                    if write { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
                match self.poll.registry().register(&mut SourceFd(&fd), Token(number), interest) {
                    Ok(()) => {
                        self.connections.insert(number, connection);
                    }
                    Err(error) => tracing::warn!(%error, "cannot watch a connection"),
                }
            }
            Ok(Shaken::Opened(engine)) => {
                self.shared.accepted.lock().push_back(engine);
                self.shared.arrived.notify_one();
            }
            Ok(Shaken::Done) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection ended before its handshake");
                self.acceptor.count_failed();
            }
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let before = self.connections.len();
        // Closing a descriptor takes it out of the poll.
        self.connections.retain(|_, connection| connection.deadline > now);
        for _ in self.connections.len()..before {
            self.acceptor.count_failed();
        }
    }
}
