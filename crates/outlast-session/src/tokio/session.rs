//! A session as a task uses it.

use super::halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::reconnect;
use crate::config::Config;
use crate::engine::{
    Engine, Events, FAREWELL_TIMEOUT, FINISH_POLL_MAX, FINISH_POLL_MIN, Info, Link, Passed, Progress, Role,
    ServiceLent, Tx, UrgentAhead, Waiting,
};
use crate::error::{Error, Result};
use crate::proto::{Detached, LastWord, SessionId};
use crate::sys::Pipe;
use crate::targets::Targets;
use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use parking_lot::MutexGuard;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// A byte stream that outlives the TCP connection it rides on.
///
/// Reads and writes as a `TcpStream` does. While there is no link, a write fills the ring and then waits, and a read
/// waits; neither fails. An error means that the session is over. At most one task may wait to read, and one to write.
///
/// Dropping it closes the session: what was written is still delivered in the background, while the process lives.
/// Await [`finish`](Session::finish) to be sure before the process ends.
#[derive(Debug)]
pub struct Session {
    engine: Arc<Engine>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.release();
    }
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Opens a session with the default settings. `targets` is `host:port[,host:port ...]`.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with).
    pub async fn connect(targets: &str) -> Result<Session> {
        Self::connect_with(&targets.parse()?, &Arc::new(Config::default())).await
    }

    /// Opens a session: returns when a link is up. Later links are made by a task, in the network namespace of the
    /// runtime's threads. The opening rides with the first bytes written, without a round trip of its own; what the server says to it is found by the first read. To wait for it: [`established`].
    ///
    /// # Errors
    /// [`Error::Connect`] if no address can be reached, or every connection that was made in the time of a handshake broke
    /// before the server's answer, [`Error::Config`] for settings that cannot work,
    /// [`Error::Refused`], [`Error::Untrusted`], [`Error::Tls`] and [`Error::Protocol`] if the server says no before any byte is sent
    /// (psk, tls).
    ///
    /// [`established`]: Session::established
    pub async fn connect_with(targets: &Targets, config: &Arc<Config>) -> Result<Session> {
        config.check()?;
        Ok(Session::new(reconnect::connect(targets, config).await?))
    }

    /// Waits until the server has welcomed the session.
    ///
    /// # Errors
    /// What the server said instead.
    pub async fn established(&self) -> Result<()> {
        self.engine.flush();
        let mut pause = Duration::from_micros(200);
        loop {
            self.engine.check_alive()?;
            if self.engine.is_established() {
                return Ok(());
            }
            self.engine.pump_input();
            if !self.engine.is_established() {
                ::tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    }

    /// The session's name, the same on both sides. In `open` security anyone who knows it can resume the session.
    pub fn id(&self) -> SessionId {
        self.engine.id
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn role(&self) -> Role {
        self.engine.role
    }

    /// A snapshot: bytes, outages, the link now.
    pub fn info(&self) -> Info {
        self.engine.notice_error();
        self.engine.info()
    }

    /// What happens to the session from now on.
    pub fn events(&self) -> Events {
        self.engine.events()
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

    /// Ends the writing direction without waiting for anything.
    pub(crate) fn end_writing(&self) -> Result<()> {
        self.engine.shutdown(Shutdown::Write)
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
    pub async fn finish(&self) -> Result<()> {
        self.engine.shutdown(Shutdown::Write)?;
        let mut pause = FINISH_POLL_MIN;
        while !self.engine.is_delivered() {
            self.engine.check_alive()?;
            self.look(&mut pause).await;
        }
        self.engine.may_exit();
        let started = Instant::now();
        let mut pause = FINISH_POLL_MIN;
        while self.engine.awaits_farewell() && started.elapsed() < FAREWELL_TIMEOUT {
            self.look(&mut pause).await;
        }
        Ok(())
    }

    /// The kernel does not tell when its queue is empty: asks, less and less often.
    async fn look(&self, pause: &mut Duration) {
        self.engine.flush();
        self.engine.pump_input();
        ::tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(FINISH_POLL_MAX);
    }

    /// Drops the link of a quiet session until the next byte is written. False if the session is not quiet.
    ///
    /// # Errors
    /// The session has failed, or this is the server's end: only a client can make links.
    pub fn passivate(&self) -> Result<bool> {
        self.engine.passivate()
    }

    /// Ends the session at once; both sides get an error, and what is not delivered is lost.
    ///
    /// Does not wait: the peer hears of it in the background, for half a minute at the most. If it cannot be reached, or
    /// this process ends first, a server keeps its end as long as it keeps any: see [`kill_told`](Self::kill_told).
    pub fn kill(&self) {
        self.engine.fail(Error::killed(self.engine.id));
    }

    /// As [`kill`](Self::kill), and the peer's application hears why. What exceeds 255 bytes is cut off.
    pub fn kill_with(&self, reason: &str) {
        self.engine.fail(Error::Killed { id: self.engine.id, reason: reason.to_owned() });
    }

    /// After a kill: waits until the peer has heard of it, at most `timeout`. False if it has not.
    pub async fn kill_told(&self, timeout: Duration) -> bool {
        ::tokio::time::timeout(timeout, self.engine.abort_told()).await.is_ok()
    }

    /// Why it has ended, if it has failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.engine.failure()
    }

    /// The right to give this session up, for a process that outlives this one: see [`say_last_word`](super::say_last_word). None at a server.
    pub fn last_word(&self) -> Option<LastWord> {
        self.engine.last_word()
    }

    /// Takes a server's session out of this process, for the listener of the next one to
    /// [go on with](super::Listener::from_std_with). Its client sees an outage, from now until that listens.
    ///
    /// # Errors
    /// The session is over, or this is a client.
    pub fn detach(self) -> Result<Detached> {
        self.engine.detach()
    }

    /// Borrows the two directions.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf::new(self), WriteHalf::new(self))
    }

    /// Parts the two directions. The session is let go of when both halves are dropped; dropping the writing half
    /// ends its direction.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let session = Arc::new(self);
        (OwnedReadHalf::new(session.clone()), OwnedWriteHalf::new(session))
    }

    /// Has `fill` write up to `bytes_max` bytes right where they will be retained, for instance by a non-blocking
    /// `read`: saves a copy. What `fill` returns is passed through; on 0 or an error nothing is written.
    ///
    /// # Errors
    /// As a write, and those of `fill`.
    pub fn poll_write_with(
        &self,
        cx: &mut Context<'_>,
        bytes_max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.poll_commit_with(cx, bytes_max, fill, Engine::commit)
    }

    #[inline]
    fn poll_commit_with(
        &self,
        cx: &mut Context<'_>,
        bytes_max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
        commit: impl Fn(&Engine, MutexGuard<'_, Tx>, usize),
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut tx = self.engine.tx();
            let room = self.engine.reserve(&mut tx, bytes_max)?;
            if !room.is_empty() || bytes_max == 0 {
                let count = fill(room)?;
                if count > 0 {
                    commit(&self.engine, tx, count);
                }
                return Poll::Ready(Ok(count));
            }
            match self.engine.no_room(tx, Some(cx.waker())) {
                Progress::Done(_) => {}
                Progress::Wait(link) => ready!(poll_writable(&link, cx))?,
                Progress::Stalled => return Poll::Pending,
            }
        }
    }

    /// As [`poll_write_with`](Self::poll_write_with) with one byte, which is sent as urgent where that is possible.
    pub(crate) fn poll_write_urgent_with(
        &self,
        cx: &mut Context<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.poll_commit_with(cx, 1, fill, Engine::commit_urgent)
    }

    /// How often a read was pending though there may be more: [`Engine::asked_again`].
    pub(crate) fn asked_again(&self) -> u32 {
        self.engine.asked_again()
    }

    /// How many control frames of the peer have been handled, but for those that acknowledge something new: [`Engine::controls`].
    pub(crate) fn controls(&self) -> u32 {
        self.engine.controls()
    }

    /// Whether, and where, the peer's stream has an urgent byte that was not read yet.
    pub(crate) fn urgent_ahead(&self) -> UrgentAhead {
        self.engine.urgent_ahead()
    }

    /// More follows what is written next, if only the end: both may go together.
    pub(crate) fn join_next_write(&self) {
        self.engine.join_next_write();
    }

    /// Has `fill` splice up to so many bytes into a pipe, which are then sent without being copied. What is under way
    /// goes first.
    pub(crate) fn poll_pass_on(
        &self,
        cx: &mut Context<'_>,
        fill: &mut dyn FnMut(BorrowedFd<'_>, usize) -> io::Result<usize>,
    ) -> Poll<io::Result<Passed>> {
        loop {
            match self.engine.pass_on(fill, Some(cx.waker()))? {
                Progress::Done(passed) => return Poll::Ready(Ok(passed)),
                Progress::Wait(link) => ready!(poll_writable(&link, cx))?,
                Progress::Stalled => return Poll::Pending,
            }
        }
    }

    /// Makes the connection to a server's service known: [`Engine::lend_service`].
    pub(crate) fn lend_service(&self, fd: BorrowedFd<'_>) -> Option<ServiceLent> {
        self.engine.lend_service(fd)
    }

    /// Asks whether the service may have more under way: [`Engine::let_service_send`].
    pub(crate) fn let_service_send(&self) -> bool {
        self.engine.let_service_send()
    }

    /// What was received waits for somebody who does not take it: nobody reads for now, and the end of a link is noticed all
    /// the same.
    pub(crate) fn leave_unattended(&self) {
        self.engine.leave_unattended();
    }

    /// Whether the peer's stream has come whole, to its end.
    pub(crate) fn has_peer_end(&self) -> bool {
        self.engine.has_peer_end()
    }

    /// Completes when the session is over; with its error if it has failed.
    pub fn over(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let engine = self.engine.clone();
        async move {
            engine.over().await;
            engine.check_alive()
        }
    }

    /// After [`poll_pass_on`](Self::poll_pass_on): what is under way is part of the session's output from now on.
    pub(crate) fn stop_passing(&self) {
        self.engine.stop_passing();
    }

    /// Splices what was received into `pipe`. `None` if that is not possible now.
    pub(crate) fn poll_read_into(
        &self,
        cx: &mut Context<'_>,
        pipe: &Pipe,
    ) -> Poll<io::Result<Option<usize>>> {
        match self.engine.read_into(pipe, Waiting::Task(cx))? {
            Some(Progress::Done(count)) => Poll::Ready(Ok(Some(count))),
            None => Poll::Ready(Ok(None)),
            Some(Progress::Wait(_) | Progress::Stalled) => Poll::Pending,
        }
    }

    pub(super) fn poll_read_shared(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let buffer = buf.initialize_unfilled();
        match self.engine.read(buffer, Waiting::Task(cx))? {
            Progress::Done(count) => {
                buf.advance(count);
                Poll::Ready(Ok(()))
            }
            // The reactor, or whoever makes the next link, wakes the task.
            Progress::Wait(_) | Progress::Stalled => Poll::Pending,
        }
    }

    pub(super) fn poll_write_shared(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.engine.write(bytes, Some(cx.waker()))? {
                Progress::Done(count) => return Poll::Ready(Ok(count)),
                Progress::Wait(link) => ready!(poll_writable(&link, cx))?,
                Progress::Stalled => return Poll::Pending,
            }
        }
    }

    pub(super) fn flush_shared(&self) -> io::Result<()> {
        self.engine.flush();
        Ok(self.engine.check_alive()?)
    }
}

/// Waits until a link that was full may take more. Returns after the readiness was taken back, so that the caller
/// has to try; if that fails again the next call waits.
fn poll_writable(link: &Link, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    let Some(reactor) = link.reactor() else {
        return Poll::Ready(Err(io::Error::other("the link belongs to no tokio runtime")));
    };
    let mut ready = ready!(reactor.poll_write_ready(cx))?;
    ready.clear_ready();
    Poll::Ready(Ok(()))
}

impl AsyncRead for Session {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_read_shared(cx, buf)
    }
}

impl AsyncWrite for Session {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_shared(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.flush_shared())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(self.engine.shutdown(Shutdown::Write)?))
    }
}
