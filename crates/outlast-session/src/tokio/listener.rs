//! Accepting sessions with tasks.

use super::Session;
use crate::config::Config;
use crate::engine::{self, Acceptor, Engine, Events, Info, Shaken, Shaking};
use crate::error::{Error, Result};
use crate::proto::{Detached, SessionId};
use crate::sys;
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::net::{ToSocketAddrs, lookup_host};
use ::tokio::sync::mpsc::error::TrySendError;
use ::tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use ::tokio::task::AbortHandle;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// New sessions that wait for `accept`; beyond that they wait in the kernel.
const ACCEPTED_MAX: usize = 1024;

/// Accepts sessions, and carries those it has accepted over to their next links.
///
/// A task of its own takes connections, so that a session can resume whatever the application is doing. Dropping the
/// listener ends that: its sessions live on as long as their present links.
#[derive(Debug)]
pub struct Listener {
    acceptor: Arc<Acceptor>,
    accepted: Mutex<mpsc::Receiver<Arc<Engine>>>,
    task: AbortHandle,
    local_addr: SocketAddr,
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
        Self::from_std_with(listener, config, &[]).map(|(listener, _)| listener)
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
        detached: &[Detached],
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
        let adopted = detached.iter().map(|one| acceptor.adopt(one).map(Session::new)).collect();
        let (sender, receiver) = mpsc::channel(ACCEPTED_MAX);
        let task = ::tokio::spawn(accept_all(listener, acceptor.clone(), sender)).abort_handle();
        Ok((Listener { acceptor, accepted: Mutex::new(receiver), task, local_addr }, adopted))
    }

    /// Waits for a new session. Resumed ones are carried on without being seen here.
    ///
    /// # Errors
    /// [`Error::System`] when the listening socket broke.
    pub async fn accept(&self) -> Result<Session> {
        match self.accepted.lock().await.recv().await {
            Some(engine) => Ok(Session::new(engine)),
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
        self.task.abort();
    }

    /// Whether nobody can connect any more.
    pub fn is_closed(&self) -> bool {
        self.task.is_finished()
    }

    /// Whether new sessions are refused; the present ones go on and can resume.
    pub fn set_draining(&self, draining: bool) {
        self.acceptor.set_draining(draining);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
        self.acceptor.close();
    }
}

async fn accept_all(
    listener: AsyncFd<sys::Shared>,
    acceptor: Arc<Acceptor>,
    sender: mpsc::Sender<Arc<Engine>>,
) {
    let handshakes = Arc::new(Semaphore::new(acceptor.config.handshakes_max));
    loop {
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let (socket, peer_addr) =
            match listener.async_io(Interest::READABLE, |socket| sys::accept(socket)).await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, most likely: the rest stays in the kernel's queue for a moment.
                    acceptor.note_not_accepted(&error);
                    ::tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
        if !acceptor.admits(peer_addr) {
            continue;
        }
        match acceptor.server_link(socket, peer_addr) {
            Ok(link) => {
                let mut shaking = Shaking::new(link);
                // What it says first is there already, as a rule (TCP_DEFER_ACCEPT): then it needs no task.
                match begin(&mut shaking, &acceptor) {
                    Ok(Shaken::Wait) => {
                        ::tokio::spawn(shake_hands(shaking, acceptor.clone(), sender.clone(), permit));
                    }
                    shaken => {
                        if let Some(engine) = conclude(shaken, &acceptor)
                            && let Err(TrySendError::Full(engine)) = sender.try_send(engine)
                        {
                            // A queue that is full holds up new sessions, not those that resume.
                            let sender = sender.clone();
                            ::tokio::spawn(async move {
                                let _ = sender.send(engine).await;
                                drop(permit);
                            });
                        }
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "cannot use a connection"),
        }
    }
}

async fn shake_hands(
    mut shaking: Shaking,
    acceptor: Arc<Acceptor>,
    sender: mpsc::Sender<Arc<Engine>>,
    permit: OwnedSemaphorePermit,
) {
    let shaken =
        ::tokio::time::timeout(acceptor.config.handshake_timeout, shake(&mut shaking, &acceptor)).await;
    drop(permit);
    let silent = || Err(io::Error::from(io::ErrorKind::TimedOut));
    if let Some(engine) = conclude(shaken.unwrap_or_else(|_| silent()), &acceptor) {
        // A listener that is gone has no use for it.
        let _ = sender.send(engine).await;
    }
}

/// A connection's handshake is over: the session, if it has opened one.
fn conclude(shaken: io::Result<Shaken>, acceptor: &Acceptor) -> Option<Arc<Engine>> {
    match shaken {
        Ok(Shaken::Opened(engine)) => Some(engine),
        Ok(Shaken::Wait | Shaken::Done) => None,
        Err(error) => {
            tracing::debug!(%error, "a connection ended before its handshake");
            acceptor.count_failed();
            None
        }
    }
}

/// As far as the first step goes.
fn begin(shaking: &mut Shaking, acceptor: &Acceptor) -> io::Result<Shaken> {
    if let Some(link) = shaking.link() {
        link.register()?;
    }
    shaking.step(acceptor)
}

async fn shake(shaking: &mut Shaking, acceptor: &Acceptor) -> io::Result<Shaken> {
    loop {
        let write = shaking.wants_write();
        let Some(link) = shaking.link() else { return Ok(Shaken::Done) };
        link.ready(write).await?;
        match shaking.step(acceptor)? {
            Shaken::Wait => {}
            done => return Ok(done),
        }
    }
}
