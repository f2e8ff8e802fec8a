//! Accepting sessions with threads.

use super::Session;
use crate::config::Config;
use crate::engine::{self, Acceptor, Engine, Events, Info, Shaken, Shaking};
use crate::error::{Error, Result};
use crate::proto::{Detached, Door, DoorEffect, DoorInput, SessionId};
use crate::sys::{self, Poller, Ready};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const LISTENER: u64 = 0;
const FIRST_CONNECTION: u64 = 1;
/// Accepted in one turn, before those have their turn that are there already.
const ACCEPT_MAX: usize = 64;
/// Pause before accepting again when that was not possible.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Accepts sessions, and carries those it has accepted over to their next links.
///
/// Threads in [`accept`](Self::accept) shake hands with everybody who connects; one thread of the listener's own does
/// while there are none, so that a session can resume whatever the application is doing. They all wait for the same
/// events, the latest to wait is the first to be woken, and nobody hands anything over (leader–followers: Schmidt,
/// Stal, Rohnert, Buschmann, "Pattern-Oriented Software Architecture 2"). Dropping the listener ends that and closes its
/// socket: another one can listen on its address at once. Its sessions live on as long as their present links.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    background: Option<JoinHandle<()>>,
    local_addr: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    acceptor: Arc<Acceptor>,
    socket: socket2::Socket,
    poller: Poller,
    table: Mutex<Table>,
    stop: AtomicBool,
}

/// What the waiting threads share.
#[derive(Debug)]
struct Table {
    accepted: VecDeque<Arc<Engine>>,
    /// Threads in `accept` that found no session.
    waiting: usize,
    connections: HashMap<u64, Shaking>,
    /// Who may stay of them, and of those that a thread is just dealing with.
    door: Door,
    next: u64,
    /// More may wait to be accepted: look again after this time.
    more_waiting: Option<Duration>,
    /// The listener's own thread will wake up in time for the first deadline.
    guarded: bool,
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
        let addresses = address.to_socket_addrs().map_err(|error| Error::system("listen", &error))?;
        Self::from_std(engine::bind(&addresses.collect::<Vec<_>>())?, config)
    }

    /// Takes a listening socket over.
    ///
    /// It need only be bound. One that listens already may have taken connections that prove no direct path.
    ///
    /// # Errors
    /// [`Error::System`] if its options cannot be set or the thread cannot be started.
    pub fn from_std(listener: TcpListener, config: &Arc<Config>) -> Result<Listener> {
        Self::from_std_with(listener, config, Vec::new()).map(|(listener, _)| listener)
    }

    /// Takes a listening socket over, and goes on with sessions that another process has detached: they are without a
    /// link until their clients come back, which they can from now on. A session that this listener cannot go on with
    /// (it was opened under another security) is an error in its place.
    ///
    /// # Errors
    /// As [`from_std`](Self::from_std).
    pub fn from_std_with(
        listener: TcpListener,
        config: &Arc<Config>,
        detached: Vec<Detached>,
    ) -> Result<(Listener, Vec<Result<Session>>)> {
        config.check()?;
        let failed = |error: io::Error| Error::system("listen", &error);
        let acceptor = Acceptor::new(config.clone());
        let local_addr = listener.local_addr().map_err(failed)?;
        let socket = socket2::Socket::from(listener);
        acceptor.prepare(&socket)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let poller = Poller::new().map_err(failed)?;
        poller.watch_always(&socket, LISTENER).map_err(failed)?;
        let table = Table {
            accepted: VecDeque::new(),
            waiting: 0,
            connections: HashMap::new(),
            door: acceptor.door(),
            next: FIRST_CONNECTION,
            more_waiting: None,
            guarded: false,
        };
        let adopted = detached.into_iter().map(|one| acceptor.adopt(one).map(Session::new)).collect();
        let stop = AtomicBool::new(false);
        let shared = Arc::new(Shared { acceptor, socket, poller, table: Mutex::new(table), stop });
        let listening = shared.clone();
        let background = std::thread::Builder::new()
            .name("outlast-listen".into())
            .spawn(move || listening.run())
            .map_err(|error| Error::system("start a thread", &error))?;
        Ok((Listener { shared, background: Some(background), local_addr }, adopted))
    }

    /// Waits for a new session. Resumed ones are carried on without being seen here.
    ///
    /// # Errors
    /// [`Error::System`] when the listening socket broke.
    pub fn accept(&self) -> Result<Session> {
        let shared = &self.shared;
        loop {
            {
                let mut table = shared.table.lock();
                if let Some(engine) = table.accepted.pop_front() {
                    // Others may be there for what is left, and the listener's own thread for the rest.
                    let pass_on = table.more_waiting.is_some()
                        || (!table.guarded && !table.connections.is_empty())
                        || (table.waiting > 0 && !table.accepted.is_empty());
                    drop(table);
                    if pass_on {
                        shared.poller.wake();
                    }
                    shared.acceptor.note_taken();
                    return Ok(Session::new(engine));
                }
                table.waiting += 1;
            }
            let turn = if shared.stop.load(Ordering::Acquire) {
                Err(io::Error::from_raw_os_error(libc::EBADF))
            } else {
                shared.turn(shared.timeout())
            };
            shared.table.lock().waiting -= 1;
            turn.map_err(|error| Error::system("accept", &error))?;
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
        self.shared.acceptor.sessions()
    }

    /// Ends a session at once. False if there is none of that name.
    pub fn kill(&self, id: &SessionId) -> bool {
        self.shared.acceptor.kill(id)
    }

    /// What happens to any of the sessions from now on.
    pub fn events(&self) -> Events {
        self.shared.acceptor.events()
    }

    /// How many connections were turned away, by reason.
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        self.shared.acceptor.refusals()
    }

    /// Whether new sessions are refused; the present ones go on and can resume.
    pub fn set_draining(&self, draining: bool) {
        self.shared.acceptor.set_draining(draining);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.poller.wake();
        self.shared.acceptor.close();
        // The thread has the socket open, too. A callback of the configuration that it runs may drop the listener.
        if let Some(background) = self.background.take()
            && background.thread().id() != std::thread::current().id()
        {
            let _ = background.join();
        }
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

impl Shared {
    /// The listener's own thread.
    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let timeout = {
                let mut table = self.table.lock();
                let timeout = self.timeout_of(&table);
                // At once: a thread that puts somebody at the door in between would rely on this one.
                table.guarded = timeout.is_some();
                timeout
            };
            if let Err(error) = self.turn(timeout) {
                tracing::error!(%error, "a listener cannot wait for events");
                break;
            }
            let table = self.table.lock();
            if table.waiting > 0 && !table.accepted.is_empty() {
                drop(table);
                // For a thread in `accept`, which may have been on its way to sleep.
                self.poller.wake();
            }
        }
        self.stop.store(true, Ordering::Release);
        // Each thread in `accept` that wakes up wakes the next: see `turn`.
        self.poller.wake();
    }

    /// Waits for events and deals with them. Any number of threads may be in here.
    fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut ready = Ready::default();
        self.poller.wait(&mut ready, timeout)?;
        if self.stop.load(Ordering::Acquire) {
            self.poller.wake();
            return Ok(());
        }
        let mut accept = self.table.lock().more_waiting.take().is_some();
        for number in ready.numbers() {
            match number {
                LISTENER => accept = true,
                number => self.ready(number),
            }
        }
        if accept {
            self.accept();
        }
        self.tell_door(|_| DoorInput::Timeout);
        Ok(())
    }

    /// How long to sleep at most.
    fn timeout(&self) -> Option<Duration> {
        self.timeout_of(&self.table.lock())
    }

    fn timeout_of(&self, table: &Table) -> Option<Duration> {
        let due = table.door.poll_timeout().map(|at| at.saturating_sub(self.acceptor.now()));
        // Not less than the clock of a sleep can tell.
        let due = due.map(|due| due.max(Duration::from_millis(1)));
        table.more_waiting.into_iter().chain(due).min()
    }

    /// Takes in what waits in the kernel's queue. There may be more of it than can ever be dealt with.
    fn accept(&self) {
        for _ in 0..ACCEPT_MAX {
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    let Some(peer_addr) = peer.as_socket() else { continue };
                    if !self.acceptor.admits(peer_addr) {
                        continue;
                    }
                    match self.acceptor.server_link(socket, peer_addr) {
                        // What it says first is there already, as a rule (TCP_DEFER_ACCEPT): then it needs no place.
                        Ok(link) => self.progress(Shaking::new(link), None),
                        Err(error) => tracing::warn!(%error, "cannot use a connection"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors, most likely: the rest stays in the kernel's queue for a moment.
                    self.acceptor.note_not_accepted(&error);
                    if sys::is_short(&error) && self.make_room() {
                        continue;
                    }
                    self.acceptor.turn_one_away(&error, || {
                        let (socket, peer) = self.socket.accept()?;
                        let peer_addr = peer.as_socket().ok_or(io::ErrorKind::InvalidData)?;
                        Ok((socket, peer_addr))
                    });
                    self.table.lock().more_waiting = Some(ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.table.lock().more_waiting = Some(Duration::ZERO);
    }

    fn ready(&self, number: u64) {
        let shaking = self.table.lock().connections.remove(&number);
        if let Some(shaking) = shaking {
            self.progress(shaking, Some(number));
        }
    }

    /// Goes on with one connection, as far as it can go now. `known` is its number if it stands at the door.
    fn progress(&self, mut shaking: Shaking, known: Option<u64>) {
        // The link may go its own way in the step: a duplicate would be needed to take it out of the poll later.
        let watched = known.and_then(|_| shaking.socket());
        let step = shaking.step(&self.acceptor);
        if !matches!(step, Ok(Shaken::Wait)) {
            if let Some(socket) = &watched {
                self.poller.forget(socket.as_fd());
            }
            if let Some(conn) = known {
                self.tell_door(|_| DoorInput::Left { conn });
            }
        }
        match step {
            Ok(Shaken::Wait) => self.wait_for(shaking, known),
            Ok(Shaken::Opened(engine)) => self.table.lock().accepted.push_back(engine),
            Ok(Shaken::Done) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection ended before its handshake");
                self.acceptor.count_failed();
            }
        }
    }

    /// Has the connection reported, once, when it can go on, if it may stay. It is in the table before that can happen.
    fn wait_for(&self, shaking: Shaking, known: Option<u64>) {
        let (Some(socket), Some(peer_addr)) = (shaking.socket(), shaking.link().map(|link| link.peer_addr))
        else {
            return;
        };
        let (write, progress) = (shaking.wants_write(), shaking.progress());
        let peer_known = known.is_none() && self.acceptor.knows(peer_addr);
        let number = self.tell_door(|table| match known {
            Some(conn) => DoorInput::Progressed { conn, progress },
            None => {
                let conn = table.next;
                table.next = conn.checked_add(1).unwrap_or(FIRST_CONNECTION);
                DoorInput::Accepted { conn, peer: peer_addr.ip(), known: peer_known, progress }
            }
        });
        {
            let mut table = self.table.lock();
            if !table.door.holds(number) {
                drop(table);
                return;
            }
            table.connections.insert(number, shaking);
        }
        if let Err(error) = self.poller.watch_once(socket.as_fd(), number, write, known.is_some()) {
            tracing::warn!(%error, "cannot watch a connection");
            self.table.lock().connections.remove(&number);
            self.tell_door(|_| DoorInput::Left { conn: number });
        }
    }

    /// There is no descriptor for the next connection. Whether somebody has gone for it.
    fn make_room(&self) -> bool {
        let before = self.table.lock().connections.len();
        self.tell_door(|_| DoorInput::Short);
        self.table.lock().connections.len() < before
    }

    /// Tells the door something, and resets whom it turns away. Returns the connection in question.
    fn tell_door(&self, input: impl FnOnce(&mut Table) -> DoorInput) -> u64 {
        let mut gone = Vec::new();
        let mut table = self.table.lock();
        let input = input(&mut table);
        table.door.handle(self.acceptor.now(), input);
        while let Some(DoorEffect::Reset { conn, why }) = table.door.poll_effect() {
            self.acceptor.note_turned_away(conn, why);
            gone.extend(table.connections.remove(&conn));
        }
        drop(table);
        // Closing a descriptor takes it out of the poll.
        drop(gone);
        input.conn()
    }
}
