//! A session as a thread uses it.

use super::reconnect;
use crate::config::Config;
use crate::engine::{
    Engine, Events, FAREWELL_TIMEOUT, FINISH_POLL_MAX, FINISH_POLL_MIN, Info, Progress, Waiting,
};
use crate::error::{Error, Result};
use crate::proto::{Detached, SessionId};
use crate::targets::Targets;
use outlast_stream::Lent;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A byte stream that outlives the TCP connection it rides on.
///
/// Reads and writes as a `TcpStream` does. While there is no link, a write fills the ring and then waits, and a read
/// waits; neither fails. An error means that the session is over.
///
/// Dropping the last handle closes the session: what was written is still delivered in the background, while the
/// process lives. Call [`finish`](Session::finish) to be sure before the process ends.
#[derive(Clone, Debug)]
pub struct Session {
    handle: Arc<Handle>,
}

/// What all clones share; the last one dropped lets go of the session.
#[derive(Debug)]
struct Handle {
    engine: Arc<Engine>,
    nonblocking: AtomicBool,
    read_timeout: Timeout,
    write_timeout: Timeout,
}

/// A limit that every call looks at, without a lock.
#[derive(Debug, Default)]
struct Timeout {
    /// 0 for none.
    limit_us: AtomicU64,
}

impl Timeout {
    fn get(&self) -> Option<Duration> {
        match self.limit_us.load(Ordering::Relaxed) {
            0 => None,
            limit_us => Some(Duration::from_micros(limit_us)),
        }
    }

    fn set(&self, limit: Option<Duration>) -> io::Result<()> {
        if limit == Some(Duration::ZERO) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a time-out of zero would never succeed",
            ));
        }
        let limit_us = limit.map_or(0, |limit| u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1));
        self.limit_us.store(limit_us, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.engine.release();
    }
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let handle = Handle {
            engine,
            nonblocking: AtomicBool::new(false),
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
        };
        Self { handle: Arc::new(handle) }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.handle.engine
    }

    /// Opens a session with the default settings. `targets` is `host:port[,host:port ...]`.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with).
    pub fn connect(targets: &str) -> Result<Session> {
        Self::connect_with(&targets.parse()?, &Arc::new(Config::default()))
    }

    /// Opens a session: returns when a link is up. Later links are made in the network namespace that the calling thread
    /// is in now. The opening rides with the first bytes written, without a round
    /// trip of its own; what the server says to it is found by the first read. To wait for it: [`established`].
    ///
    /// # Errors
    /// [`Error::Connect`] if no address can be reached, or every connection that was made in the time of a handshake broke
    /// before the server's answer, [`Error::Config`] for settings that cannot work,
    /// [`Error::Refused`], [`Error::Untrusted`], [`Error::Tls`] and [`Error::Protocol`] if the server says no before any byte is sent
    /// (psk, tls).
    ///
    /// [`established`]: Session::established
    pub fn connect_with(targets: &Targets, config: &Arc<Config>) -> Result<Session> {
        config.check()?;
        Ok(Session::new(reconnect::connect(targets, config)?))
    }

    /// Waits until the server has welcomed the session.
    ///
    /// # Errors
    /// What the server said instead.
    pub fn established(&self) -> Result<()> {
        self.engine().flush();
        while !self.engine().is_established() {
            self.engine().check_alive()?;
            match self.engine().link() {
                Some(link) => {
                    let _ = link.wait(true, false, Some(Duration::from_millis(50)));
                    self.engine().pump_input();
                }
                None => {
                    self.engine().wait_change(None, |ctl| ctl.link.is_some() || ctl.failure.is_some());
                }
            }
        }
        self.engine().check_alive()
    }

    /// Another handle to the same session.
    ///
    /// # Errors
    /// Never; as `TcpStream::try_clone` it could.
    pub fn try_clone(&self) -> io::Result<Session> {
        Ok(self.clone())
    }

    /// The session's name, the same on both sides. In `open` security anyone who knows it can resume the session.
    pub fn id(&self) -> SessionId {
        self.engine().id
    }

    /// A snapshot: bytes, outages, the link now.
    pub fn info(&self) -> Info {
        self.engine().info()
    }

    /// What happens to the session from now on.
    pub fn events(&self) -> Events {
        self.engine().events()
    }

    /// The other end of the present link, or of the last one.
    ///
    /// # Errors
    /// `NotConnected` if there never was one.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.info().peer_addr.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Our end of the present link.
    ///
    /// # Errors
    /// `NotConnected` while there is none.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.info().local_addr.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Ends one direction or both, across breaks: the peer reads the end after every byte before it.
    ///
    /// # Errors
    /// The session has failed.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.engine().shutdown(how)
    }

    /// Ends our direction and returns when the peer has everything.
    ///
    /// Then this process may exit. A client that has read the peer's end as well waits a few seconds more, if need be, for
    /// the server to hear of it (mode `inband`). One that exits without having read it leaves a server that sends
    /// something later with a session that nobody comes back for, which it keeps as long as it keeps any; in the mode
    /// `udp` whatever the server does.
    ///
    /// # Errors
    /// The session failed first.
    pub fn finish(&self) -> Result<()> {
        let engine = self.engine();
        engine.shutdown(Shutdown::Write)?;
        let mut wait = FINISH_POLL_MIN;
        while !engine.is_delivered() {
            engine.check_alive()?;
            self.look(&mut wait);
        }
        engine.may_exit();
        let started = Instant::now();
        let mut wait = FINISH_POLL_MIN;
        while engine.awaits_farewell() && started.elapsed() < FAREWELL_TIMEOUT {
            self.look(&mut wait);
        }
        Ok(())
    }

    /// The kernel does not tell when its queue is empty: asks, less and less often.
    fn look(&self, wait: &mut Duration) {
        self.engine().flush();
        self.engine().pump_input();
        self.engine().wait_change(Some(Instant::now() + *wait), |ctl| ctl.life.is_over());
        *wait = (*wait * 2).min(FINISH_POLL_MAX);
    }

    /// Drops the link of a quiet session until the next byte is written. False if the session is not quiet.
    ///
    /// # Errors
    /// The session has failed, or this is the server's end: only a client can make links.
    pub fn passivate(&self) -> Result<bool> {
        self.engine().passivate()
    }

    /// Ends the session at once; both sides get an error, and what is not delivered is lost.
    ///
    /// Does not wait: the peer hears of it in the background, for half a minute at the most. If it cannot be reached, or
    /// this process ends first, a server keeps its end as long as it keeps any: see [`kill_told`](Self::kill_told).
    pub fn kill(&self) {
        self.engine().fail(Error::killed(self.engine().id));
    }

    /// As [`kill`](Self::kill), and the peer's application hears why. What exceeds 255 bytes is cut off.
    pub fn kill_with(&self, reason: &str) {
        self.engine().fail(Error::Killed { id: self.engine().id, reason: reason.to_owned() });
    }

    /// Takes a server's session out of this process, for the listener of the next one to
    /// [go on with](super::Listener::from_std_with). Clones of it are over. Its client sees an outage, from now until that listens.
    ///
    /// # Errors
    /// The session is over, or this is a client.
    pub fn detach(self) -> Result<Detached> {
        self.engine().detach()
    }

    /// After a kill: waits until the peer has heard of it, at most `timeout`. False if it has not.
    pub fn kill_told(&self, timeout: Duration) -> bool {
        self.engine().wait_change(Instant::now().checked_add(timeout), |ctl| !ctl.client.owes_abort())
    }

    /// Whether reads and writes return `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// Never; as `TcpStream::set_nonblocking` it could.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.handle.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Reads fail with `TimedOut` after waiting so long. An outage counts as waiting.
    ///
    /// # Errors
    /// `InvalidInput` for a time of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.handle.read_timeout.set(timeout)
    }

    /// Writes fail with `TimedOut` after waiting so long.
    ///
    /// # Errors
    /// `InvalidInput` for a time of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.handle.write_timeout.set(timeout)
    }

    /// Room for up to `bytes_max` bytes right where they will be retained: fill it, then [`Reservation::commit`].
    /// Saves the copy that `write` makes. At least one byte, possibly fewer than asked for. Other writers wait meanwhile, and
    /// what is written already and not sent; links, reads and other sessions do not.
    ///
    /// # Errors
    /// As `write`.
    pub fn reserve(&self, bytes_max: usize) -> io::Result<Reservation<'_>> {
        let deadline = self.deadline(self.handle.write_timeout.get());
        loop {
            let mut tx = self.engine().tx();
            let room_bytes = self.engine().reserve(&mut tx, bytes_max)?.len();
            if room_bytes > 0 || bytes_max == 0 {
                return Ok(Reservation { session: self, lent: Engine::lend(&mut tx) });
            }
            match self.engine().no_room(tx, None) {
                Progress::Done(_) => {}
                waiting => self.wait_to_write(waiting, deadline)?,
            }
        }
    }

    fn deadline(&self, timeout: Option<Duration>) -> Wait {
        if self.handle.nonblocking.load(Ordering::Relaxed) {
            return Wait::Not;
        }
        // One that no clock can show is none.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        until.map_or(Wait::Forever, Wait::Until)
    }

    fn read_some(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let timeout = self.handle.read_timeout.get();
        let wait = self.deadline(timeout);
        // Without a limit the thread sleeps in recv, which costs one system call less.
        let in_kernel = matches!(wait, Wait::Forever);
        loop {
            match self.engine().read(buffer, if in_kernel { Waiting::Block } else { Waiting::Never })? {
                Progress::Done(count) => return Ok(count),
                Progress::Wait(link) => {
                    let left = wait.left()?;
                    if !link.wait(true, false, left)? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Progress::Stalled => {
                    if !self.wait_for_link(&wait, true)? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }

    fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.engine().write(bytes, None)? {
            Progress::Done(count) => Ok(count),
            waiting => {
                let wait = self.deadline(self.handle.write_timeout.get());
                self.wait_to_write(waiting, wait)?;
                loop {
                    match self.engine().write(bytes, None)? {
                        Progress::Done(count) => return Ok(count),
                        waiting => self.wait_to_write(waiting, wait)?,
                    }
                }
            }
        }
    }

    fn wait_to_write(&self, progress: Progress<usize>, wait: Wait) -> io::Result<()> {
        let began = Instant::now();
        let done = match progress {
            Progress::Done(_) => true,
            Progress::Wait(link) => link.wait(false, true, wait.left()?)?,
            Progress::Stalled => self.wait_for_link(&wait, false)?,
        };
        self.engine().count_blocked(began.elapsed());
        if done { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Waits for any change; spurious returns are fine.
    fn wait_for_link(&self, wait: &Wait, reading: bool) -> io::Result<bool> {
        // A stalled writer on a live link is woken by the helper; the limit is a safety net, not a pace.
        let net = Instant::now() + Duration::from_millis(if reading { 500 } else { 20 });
        let deadline = match wait.left()? {
            Some(left) => (Instant::now() + left).min(net),
            None => net,
        };
        let engine = self.engine();
        engine.wait_change(Some(deadline), |ctl| {
            let changed = if reading {
                ctl.link.is_some() || engine.is_read_shut()
            } else {
                !engine.writer_is_stalled()
            };
            changed || ctl.failure.is_some()
        });
        Ok(wait.left().is_ok())
    }
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Not,
    Forever,
    Until(Instant),
}

impl Wait {
    /// The time that is left; `None` for no limit.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self {
            Wait::Not => Err(io::ErrorKind::WouldBlock.into()),
            Wait::Forever => Ok(None),
            Wait::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
            }
        }
    }
}

impl Read for &Session {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_some(buffer)
    }
}

impl Write for &Session {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_some(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.engine().flush();
        Ok(self.engine().check_alive()?)
    }
}

impl Read for Session {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_some(buffer)
    }
}

impl Write for Session {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_some(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

/// Room in the ring, to be filled and committed. Other writers wait meanwhile; dropping it writes nothing.
#[derive(Debug)]
pub struct Reservation<'a> {
    session: &'a Session,
    /// None where nothing was asked for.
    lent: Option<Lent>,
}

impl Reservation<'_> {
    /// The first `bytes` of the room become part of the stream.
    pub fn commit(mut self, bytes: usize) {
        self.give_back(bytes);
    }

    fn give_back(&mut self, bytes: usize) {
        if let Some(lent) = self.lent.take() {
            let bytes = bytes.min(lent.reserved().len());
            self.session.engine().give_back(lent, bytes);
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.give_back(0);
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.lent.as_ref().map_or(&[], Lent::reserved)
    }
}

impl DerefMut for Reservation<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.lent.as_mut().map_or(&mut [], Lent::reserved_mut)
    }
}
