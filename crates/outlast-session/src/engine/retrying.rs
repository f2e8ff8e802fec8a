//! Between a client's attempts at a link: who makes them, when, and when no more.

use super::client::Verdict;
use super::gap::{self, Gap};
use super::{Ctl, Engine, EventKind, Helper, Link};
use crate::config::Patience;
use crate::error::Error;
use crate::proto::State;
use crate::targets::Targets;
use outlast_stream::Backoff;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A loss that is noticed late, or when patience is over, is tried to be mended for so long all the same.
const TRIED_FOR_LEAST: Duration = Duration::from_secs(1);

impl Engine {
    /// Whether the last refusal changed the mode, so that another attempt at once makes sense.
    pub(crate) fn has_other_mode(&self) -> bool {
        let ctl = self.ctl.lock();
        ctl.client.has_changed_mode() && !ctl.welcomed
    }

    /// Whether the server has welcomed the session.
    pub(crate) fn is_established(&self) -> bool {
        self.ctl.lock().welcomed
    }

    /// Claims the making of a new link. False if somebody is at it, or the session is over.
    pub(crate) fn begin_reconnecting(&self) -> bool {
        let mut ctl = self.ctl.lock();
        let over = ctl.life.is_over() || ctl.life.state() == State::Passive;
        !over && !std::mem::replace(&mut ctl.reconnecting, true)
    }

    /// An attempt beside the present link has come to nothing. True if that link is still there: nothing has to be done.
    pub(crate) fn end_beside(&self) -> bool {
        let mut ctl = self.ctl.lock();
        let linked = ctl.link.is_some();
        if linked {
            ctl.reconnecting = false;
        }
        linked
    }

    /// What an outage remembers from one attempt to the next.
    pub(crate) fn outage(&self) -> Outage {
        let ctl = self.ctl.lock();
        // Beside a link that is there nothing has to wait.
        let going_on = ctl.client.fruitless.backoff().filter(|_| ctl.link.is_none());
        let carried_nothing = going_on.is_some();
        Outage {
            backoff: going_on.unwrap_or_else(|| self.backoff()),
            attempts: 0,
            hurry: ctl.hurry,
            carried_nothing,
        }
    }

    /// A fresh back-off for one outage.
    pub(crate) fn backoff(&self) -> Backoff {
        self.config.backoff()
    }

    /// The network changed: an attempt that waits is made now.
    pub(crate) fn interrupt_backoff(&self) {
        self.interrupt_wait(&mut self.ctl.lock());
    }

    /// Ends the waits between two attempts, and for the last word.
    pub(super) fn interrupt_wait(&self, ctl: &mut Ctl) {
        ctl.hurry += 1;
        self.changed.notify_all();
        self.hurry.notify_waiters();
    }

    /// An attempt failed: says so.
    fn note_retry(&self, attempt: u32, error: &str, next: Duration) {
        let ctl = self.ctl.lock();
        self.emit(&ctl, EventKind::Retry { attempt, error: error.to_owned(), next });
    }

    /// Whether the kernel would now choose another source address for the peer than the present link has, or cannot
    /// reach it at all.
    pub(crate) fn path_changed(&self) -> bool {
        let Some(link) = self.link() else { return true };
        match source_address_for(link.peer_addr) {
            Ok(address) => link.local_addr().is_none_or(|local| address.ip() != local.ip()),
            Err(_) => false,
        }
    }

    /// Whether there was a reason to try again since `hurry` was read.
    pub(crate) fn is_hurried(&self, hurry: u64) -> bool {
        self.ctl.lock().hurry != hurry
    }

    /// Completes when there is one, or the session is over.
    pub(crate) async fn hurried(&self, hurry: u64) {
        loop {
            let mut told = std::pin::pin!(self.hurry.notified());
            told.as_mut().enable();
            if self.is_hurried(hurry) || self.is_over() {
                return;
            }
            told.await;
        }
    }

    /// Completes when the session is over.
    pub(crate) async fn over(&self) {
        loop {
            let mut told = std::pin::pin!(self.hurry.notified());
            told.as_mut().enable();
            if self.is_over() {
                return;
            }
            told.await;
        }
    }

    /// The server asks for some time before the next attempt.
    pub(super) fn hold_off(&self, after: Duration) {
        if !after.is_zero() {
            self.ctl.lock().client.not_before = Instant::now().checked_add(after);
        }
    }

    /// For how long a client has patience left; none if it never loses it.
    fn patience_left(&self) -> Option<Duration> {
        let Patience::For(limit) = self.config.patience else { return None };
        let (lost_at, paused_at, fruitless_since) = {
            let ctl = self.ctl.lock();
            (ctl.lost_at?, ctl.paused_at?, ctl.client.fruitless.since())
        };
        if let Some(since) = fruitless_since {
            return Some(limit.saturating_sub(since.min(paused_at).elapsed()));
        }
        let tried_for = limit.min(TRIED_FOR_LEAST).saturating_sub(lost_at.elapsed());
        Some(limit.saturating_sub(paused_at.elapsed()).max(tried_for))
    }

    /// The link is lost: the session ends when its patience is over, whatever the attempts at a new one wait for. One may have begun
    /// beside the link.
    pub(crate) fn watch_patience(&self) {
        if self.patience_left().is_some() && !self.patience_watched.swap(true, Ordering::AcqRel) {
            Helper::get().watch_patience(self);
        }
    }

    /// Ends the session if its patience is over, even if an attempt is under way: that may take longer. Otherwise when to
    /// look again; none if there is no reason to.
    pub(super) fn look_at_patience(&self) -> Option<Duration> {
        // Before: the thread that loses the next link from here on has it watched again.
        self.patience_watched.store(false, Ordering::Release);
        let last = {
            let mut ctl = self.ctl.lock();
            if ctl.life.is_over() || ctl.link.is_some() {
                return None;
            }
            let peer = ctl.last_peer;
            ctl.last_attempt.take().unwrap_or_else(|| {
                let server = peer.map_or_else(|| "the server".to_owned(), |peer| peer.to_string());
                Box::new((server, "no answer".to_owned()))
            })
        };
        let left = self.patience_left()?;
        if left.is_zero() {
            gap::reached(Gap::PatienceOver, self);
            let (targets, last) = *last;
            self.fail(self.give_up(targets, last));
            return None;
        }
        self.ctl.lock().last_attempt.get_or_insert(last);
        // Somebody may have, meanwhile.
        (!self.patience_watched.swap(true, Ordering::AcqRel)).then_some(left)
    }

    /// An error about all addresses.
    fn give_up(&self, targets: String, last: String) -> Error {
        let patience = match self.config.patience {
            Patience::For(limit) => limit,
            Patience::Forever => Duration::MAX,
        };
        let tx = self.tx.lock();
        let unacked_bytes = tx.sender.end_offset() - tx.sender.acked_offset();
        Error::PatienceExhausted { targets, patience, last, unacked_bytes }
    }
}

/// What an attempt at a link depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    /// If it is still connecting when there was another reason for hurry since, it is given up.
    hurry: Option<u64>,
    /// It is made beside a link that seems to be stuck: whichever answers first carries on.
    beside: bool,
}

impl Attempt {
    /// One for an outage.
    pub(crate) fn after(hurry: u64) -> Self {
        Self { hurry: Some(hurry), beside: false }
    }

    /// One beside the present link.
    pub(crate) fn beside(hurry: u64) -> Self {
        Self { hurry: Some(hurry), beside: true }
    }

    /// Whether to give it up before the new connection is a link.
    pub(crate) fn is_outrun(self, engine: &Engine) -> bool {
        self.hurry.is_some_and(|hurry| engine.is_hurried(hurry)) || self.is_needless(engine)
    }

    /// Whether to give up on the answer of a server: what it was asked does not arrive.
    pub(crate) fn is_unheard(self, link: &Link) -> bool {
        self.hurry.is_some() && link.is_unanswered()
    }

    /// Whether the present link has answered meanwhile.
    pub(crate) fn is_needless(self, engine: &Engine) -> bool {
        self.beside && engine.link().is_some_and(|link| !link.is_dead() && !link.is_unanswered())
    }
}

/// Whoever waits for the answer of a server looks so often whether what was asked has arrived at all. The kernel's own pauses
/// between retransmissions double: what is lost several times in a row, as by a server whose queue of new connections is
/// full, is sent sooner on a new connection. A server that is only slow has acknowledged what it was asked.
pub(crate) const ARRIVAL_LOOK: Duration = Duration::from_secs(1);

/// One outage of a client's session, or its opening: asked after every attempt what to do next.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    backoff: Backoff,
    attempts: u32,
    /// The reasons for hurry that there were when the attempt under way began.
    hurry: u64,
    /// The link before was welcomed, and carried nothing.
    carried_nothing: bool,
}

/// What a thread or task that makes links does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: there is a link, or the session is over.
    Nothing,
    /// Another attempt, after so long.
    AttemptAfter(Duration),
}

impl Outage {
    /// Before anything is tried: what the server has asked for; and where it welcomes links that carry nothing, as between any two attempts.
    pub(crate) fn first_delay(&mut self, engine: &Engine) -> Duration {
        let not_before = engine.ctl().client.not_before.take();
        let delay = not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        let own = if self.carried_nothing { self.backoff.next_delay() } else { Duration::ZERO };
        let (delay, left) = (delay.max(own), engine.patience_left());
        if self.carried_nothing && left == Some(Duration::ZERO) {
            let peer = engine.ctl().last_peer;
            let server = peer.map_or_else(|| "the server".to_owned(), |peer| peer.to_string());
            engine.fail(engine.give_up(server, "the links that it welcomed have carried nothing".to_owned()));
        }
        left.map_or(delay, |left| delay.min(left))
    }

    /// An attempt begins: what changes from now on is a reason for another one.
    pub(crate) fn begin(&mut self, engine: &Engine) -> u64 {
        self.hurry = engine.ctl().hurry;
        self.hurry
    }

    /// An attempt has ended.
    pub(crate) fn attempted(&mut self, engine: &Engine, targets: &Targets, verdict: Verdict) -> Next {
        let (error, after) = match verdict {
            Verdict::Installed => {
                engine.ctl().client.fruitless.attempted(self.backoff.clone());
                return Next::Nothing;
            }
            Verdict::Fatal(error) => {
                engine.fail(error);
                return Next::Nothing;
            }
            Verdict::Elsewhere { error } => (error, Duration::ZERO),
            Verdict::Again { error, after } => (error, after),
            Verdict::More(_) => return Next::AttemptAfter(Duration::ZERO),
        };
        self.failed(engine, targets, error, after)
    }

    /// An attempt has failed, or could not even begin.
    pub(crate) fn failed(
        &mut self,
        engine: &Engine,
        targets: &Targets,
        error: String,
        after: Duration,
    ) -> Next {
        self.attempts += 1;
        if engine.is_over() {
            return Next::Nothing;
        }
        let patience_left = engine.patience_left();
        if patience_left == Some(Duration::ZERO) {
            engine.fail(engine.give_up(targets.to_string(), error));
            return Next::Nothing;
        }
        let delay = self.backoff.next_delay().max(after);
        // Nobody sleeps longer than there is patience, whoever asks for it.
        let delay = patience_left.map_or(delay, |left| delay.min(left));
        if patience_left.is_some() {
            engine.ctl().last_attempt = Some(Box::new((targets.to_string(), error.clone())));
        }
        if self.attempts == 1 && !engine.is_established() {
            // There is no outage yet that would be logged.
            tracing::warn!(session = %engine.id, "not opened yet: {error}; trying again");
        }
        engine.note_retry(self.attempts, &error, delay);
        Next::AttemptAfter(delay)
    }

    /// Sleeps between two attempts, unless the network has changed since the last one began, or the session ends.
    pub(crate) fn wait(&self, engine: &Engine, delay: Duration) {
        // A time that no clock reaches is for ever.
        let deadline = Instant::now().checked_add(delay);
        engine.wait_change(deadline, |ctl| ctl.life.is_over() || ctl.hurry != self.hurry);
    }

    /// As [`wait`](Self::wait), for tasks.
    pub(crate) async fn waited(&self, engine: &Engine, delay: Duration) {
        // A timer that is due already would take up to 2 ms: tokio's count in whole milliseconds.
        if delay.is_zero() {
            return;
        }
        let _ = ::tokio::time::timeout(delay, engine.hurried(self.hurry)).await;
    }
}

/// Which address the host would send from: a connected datagram socket sends nothing.
fn source_address_for(peer: SocketAddr) -> io::Result<SocketAddr> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(peer)?;
    socket.local_addr()
}
