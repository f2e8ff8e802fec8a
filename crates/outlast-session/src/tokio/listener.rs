//! Accepting sessions with tasks.

use super::Session;
use super::turns::{Turn, Turns};
use crate::config::Config;
use crate::engine::{self, Acceptor, Engine, Events, Info, Shaken, Shaking};
use crate::error::{Error, Result};
use crate::proto::{Detached, Door, DoorEffect, DoorInput, SessionId};
use crate::sys;
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::net::{ToSocketAddrs, lookup_host};
use ::tokio::sync::{Mutex, Notify, mpsc};
use ::tokio::task::AbortHandle;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause before accepting again when that was not possible.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// The same, when room was made.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// How often a listener that is closing looks whether everybody has left its door.
const CLOSING_PAUSE: Duration = Duration::from_millis(50);

/// Accepts sessions, and carries those it has accepted over to their next links.
///
/// A task of its own takes connections, so that a session can resume whatever the application is doing. Dropping the
/// listener ends that: its sessions live on as long as their present links.
#[derive(Debug)]
pub struct Listener {
    acceptor: Arc<Acceptor>,
    accepted: Mutex<mpsc::UnboundedReceiver<Arc<Engine>>>,
    closing: Arc<Closing>,
    local_addr: SocketAddr,
}

/// Whether the port is to be closed.
#[derive(Debug, Default)]
struct Closing {
    yes: AtomicBool,
    told: Notify,
    /// It is.
    done: AtomicBool,
}

impl Closing {
    fn tell(&self) {
        self.yes.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    fn is_told(&self) -> bool {
        self.yes.load(Ordering::Acquire)
    }
}

impl Listener {
    /// Listens on `address` with the default settings.
    ///
    /// # Errors
    /// As [`bind_with`](Self::bind_with).
    pub async fn bind(address: impl ToSocketAddrs) -> Result<Listener> {
        Self::bind_with(address, &Arc::new(Config::default())).await
    }

    /// Listens on the first of the addresses that can be had.
    ///
    /// # Errors
    /// [`Error::System`] if none can, [`Error::Config`] for settings that cannot work.
    pub async fn bind_with(address: impl ToSocketAddrs, config: &Arc<Config>) -> Result<Listener> {
        config.check()?;
        let failed = |error: io::Error| Error::system("listen", &error);
        let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(failed)?.collect();
        Self::from_std(engine::bind(&addresses)?, config)
    }

    /// Takes a listening socket over. Has to be called in a tokio runtime.
    ///
    /// It need only be bound. One that listens already may have taken connections that prove no direct path.
    ///
    /// # Errors
    /// [`Error::System`] if its options cannot be set.
    pub fn from_std(listener: std::net::TcpListener, config: &Arc<Config>) -> Result<Listener> {
        Self::from_std_with(listener, config, Vec::new()).map(|(listener, _)| listener)
    }

    /// Takes a listening socket over, and goes on with sessions that another process has detached: they are without a
    /// link until their clients come back, which they can from now on. A session that this listener cannot go on with
    /// (it was opened under another security) is an error in its place.
    ///
    /// # Errors
    /// As [`from_std`](Self::from_std).
    pub fn from_std_with(
        listener: std::net::TcpListener,
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
        let listener = sys::register(&Arc::new(socket)).map_err(failed)?;
        // Before the first client can ask for one.
        let adopted = detached.into_iter().map(|one| acceptor.adopt(one).map(Session::new)).collect();
        let (opened, receiver) = mpsc::unbounded_channel();
        let hall = Hall { door: acceptor.door(), tasks: HashMap::new(), next: 1 };
        let turns = acceptor.calculates_long().then(Turns::new);
        let shared =
            Shared { acceptor: acceptor.clone(), hall: parking_lot::Mutex::new(hall), opened, turns };
        let closing = Arc::<Closing>::default();
        ::tokio::spawn(accept_all(listener, Arc::new(shared), closing.clone()));
        Ok((Listener { acceptor, accepted: Mutex::new(receiver), closing, local_addr }, adopted))
    }

    /// Waits for a new session. Resumed ones are carried on without being seen here.
    ///
    /// # Errors
    /// [`Error::System`] when the listening socket broke.
    pub async fn accept(&self) -> Result<Session> {
        match self.accepted.lock().await.recv().await {
            Some(engine) => {
                self.acceptor.note_taken();
                Ok(Session::new(engine))
            }
            None => Err(Error::system("accept", &io::Error::from_raw_os_error(libc::EBADF))),
        }
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

    /// Closes the port: nobody can connect any more, and [`accept`](Self::accept) fails once the sessions are taken that
    /// have been opened. The present ones stay as they are, for as long as their links last.
    pub fn stop_listening(&self) {
        self.closing.tell();
    }

    /// Whether nobody can connect any more.
    pub fn is_closed(&self) -> bool {
        self.closing.done.load(Ordering::Acquire)
    }

    /// Whether new sessions are refused; the present ones go on and can resume.
    pub fn set_draining(&self, draining: bool) {
        self.acceptor.set_draining(draining);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closing.tell();
        self.acceptor.close();
    }
}

/// Connections that have not proved yet who they are: a task each.
#[derive(Debug)]
struct Hall {
    door: Door,
    tasks: HashMap<u64, AbortHandle>,
    next: u64,
}

/// What the tasks of a listener share.
#[derive(Debug)]
struct Shared {
    acceptor: Arc<Acceptor>,
    hall: parking_lot::Mutex<Hall>,
    opened: mpsc::UnboundedSender<Arc<Engine>>,
    /// Where a step of a handshake takes long.
    turns: Option<Turns>,
}

impl Shared {
    /// Tells the door something, and resets whom it turns away: with its task a connection goes.
    fn tell_door(&self, hall: &mut Hall, input: DoorInput) {
        if let DoorInput::Left { conn } = input {
            hall.tasks.remove(&conn);
        }
        hall.door.handle(self.acceptor.now(), input);
        while let Some(DoorEffect::Reset { conn, why }) = hall.door.poll_effect() {
            self.acceptor.note_turned_away(conn, why);
            if let Some(task) = hall.tasks.remove(&conn) {
                task.abort();
            }
        }
    }

    /// Resets those whose time is over; returns how long that need not be done again.
    fn expire(&self) -> Option<Duration> {
        let mut hall = self.hall.lock();
        self.tell_door(&mut hall, DoorInput::Timeout);
        let due = hall.door.poll_timeout()?.saturating_sub(self.acceptor.now());
        Some(due.max(Duration::from_millis(1)))
    }

    /// There is no descriptor for the next connection. Whether somebody has to go for it.
    fn make_room(&self) -> bool {
        let mut hall = self.hall.lock();
        let before = hall.tasks.len();
        self.tell_door(&mut hall, DoorInput::Short);
        hall.tasks.len() < before
    }

    /// One more that has not said enough yet. It is at the door before its task begins.
    fn wait_for(self: &Arc<Self>, shaking: Shaking, peer_addr: SocketAddr) {
        let known = self.acceptor.knows(peer_addr);
        let mut hall = self.hall.lock();
        let conn = hall.next;
        hall.next = conn.wrapping_add(1);
        let (peer, progress) = (peer_addr.ip(), shaking.progress());
        self.tell_door(&mut hall, DoorInput::Accepted { conn, peer, known, progress });
        if hall.door.holds(conn) {
            let task = ::tokio::spawn(shake_hands(shaking, conn, known, self.clone()));
            hall.tasks.insert(conn, task.abort_handle());
        }
    }

    /// A connection's handshake is over: the session, if it has opened one.
    fn conclude(&self, shaken: io::Result<Shaken>) {
        match shaken {
            // A listener that is gone has no use for it.
            Ok(Shaken::Opened(engine)) => drop(self.opened.send(engine)),
            Ok(Shaken::Wait | Shaken::Done) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection ended before its handshake");
                self.acceptor.count_failed();
            }
        }
    }
}

/// Accepts at once, always: who may stay is for the door to say. Ends when the port is closed and nobody stands there.
async fn accept_all(listener: AsyncFd<sys::Shared>, shared: Arc<Shared>, closing: Arc<Closing>) {
    let acceptor = &shared.acceptor;
    let mut closed = pin!(closing.told.notified());
    while !closing.is_told() {
        let due = shared.expire();
        let timeout = async {
            match due {
                Some(due) => ::tokio::time::sleep(due).await,
                None => std::future::pending().await,
            }
        };
        let accepted = ::tokio::select! {
            accepted = listener.async_io(Interest::READABLE, |socket| sys::accept(socket)) => accepted,
            () = timeout => continue,
            () = &mut closed => break,
        };
        let (socket, peer_addr) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: the rest stays in the kernel's queue for a moment.
                acceptor.note_not_accepted(&error);
                if sys::is_short(&error) && shared.make_room() {
                    // Its task lets go of it.
                    ::tokio::time::sleep(ROOM_PAUSE).await;
                    continue;
                }
                acceptor.turn_one_away(&error, || sys::accept(listener.get_ref()));
                ::tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !acceptor.admits(peer_addr) {
            continue;
        }
        match acceptor.server_link(socket, peer_addr) {
            Ok(link) => {
                let mut shaking = Shaking::new(link);
                // What it says first is there already, as a rule (TCP_DEFER_ACCEPT): then it needs no place.
                let begun = if shared.turns.is_some() {
                    register(&shaking).map(|()| Shaken::Wait)
                } else {
                    begin(&mut shaking, acceptor)
                };
                match begun {
                    Ok(Shaken::Wait) => shared.wait_for(shaking, peer_addr),
                    shaken => shared.conclude(shaken),
                }
            }
            Err(error) => tracing::warn!(%error, "cannot use a connection"),
        }
    }
    drop(listener);
    closing.done.store(true, Ordering::Release);
    while let Some(due) = shared.expire() {
        ::tokio::time::sleep(due.min(CLOSING_PAUSE)).await;
    }
}

/// Aborted when it is turned away: nothing is awaited once a session is open, until that is passed on.
async fn shake_hands(mut shaking: Shaking, conn: u64, known: bool, shared: Arc<Shared>) {
    let (shaken, turn) = shake(&mut shaking, conn, known, &shared).await;
    {
        let mut hall = shared.hall.lock();
        shared.tell_door(&mut hall, DoorInput::Left { conn });
    }
    shared.conclude(shaken);
    if let Some(turn) = turn {
        turn.pass_on().await;
    }
}

/// As far as the first step goes.
fn begin(shaking: &mut Shaking, acceptor: &Acceptor) -> io::Result<Shaken> {
    register(shaking)?;
    shaking.step(acceptor)
}

fn register(shaking: &Shaking) -> io::Result<()> {
    shaking.link().map_or(Ok(()), |link| link.register())
}

/// What it came to, and the turn of its last step.
async fn shake<'a>(
    shaking: &mut Shaking,
    conn: u64,
    known: bool,
    shared: &'a Shared,
) -> (io::Result<Shaken>, Option<Turn<'a>>) {
    loop {
        let write = shaking.wants_write();
        let Some(link) = shaking.link() else { return (Ok(Shaken::Done), None) };
        if let Err(error) = link.ready(write).await {
            return (Err(error), None);
        }
        let turn = match &shared.turns {
            Some(turns) => Some(turns.enter(known).await),
            None => None,
        };
        match shaking.step(&shared.acceptor) {
            Ok(Shaken::Wait) => {
                {
                    let progress = shaking.progress();
                    let mut hall = shared.hall.lock();
                    shared.tell_door(&mut hall, DoorInput::Progressed { conn, progress });
                }
                if let Some(turn) = turn {
                    turn.pass_on().await;
                }
            }
            done => return (done, turn),
        }
    }
}
