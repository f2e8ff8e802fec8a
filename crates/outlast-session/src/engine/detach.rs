//! A server's session on its way from one process to the next: taken out of this one, put into that one.
//!
//! To the client it is an outage: its link is reset, and a process that listens where the first one did goes on with
//! the session.

use super::inbox::Inbox;
use super::memory::ROOM_BYTES_FIRST;
use super::pool::SharedPool;
use super::rx::Segment;
use super::server::ServerHooks;
use super::{Acceptor, Ctl, Engine, Helper, Role, Rx, millis};
use crate::config::{Config, Security};
use crate::error::{Error, Result};
use crate::proto::{Detached, Happening, Receiving, SecurityKind, Times};
use crate::sys;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often to look whether an application is through with a reservation.
const LENT_LOOK: Duration = Duration::from_millis(5);

/// An instant before `now` as all processes of the machine can tell it.
fn clock_ms(at: Instant, now: Instant) -> u64 {
    sys::coarse_now_ms().saturating_sub(millis(now.saturating_duration_since(at)))
}

/// And back. What is later than `now` was told by another clock.
fn instant_of(ms: u64, now: Instant) -> Instant {
    let ago = Duration::from_millis(sys::coarse_now_ms().saturating_sub(ms));
    now.checked_sub(ago).unwrap_or(now)
}

impl Config {
    pub(crate) fn security_kind(&self) -> SecurityKind {
        match self.security {
            Security::Open => SecurityKind::Open,
            Security::Psk(_) => SecurityKind::Psk,
            Security::Tls(_) => SecurityKind::Tls,
        }
    }
}

impl Engine {
    /// Takes the session out of this process: the link is reset, and here the session is over. What had arrived and was
    /// not read is read now.
    ///
    /// # Errors
    /// The session is over, or a client's: only that knows where its servers are.
    pub(crate) fn detach(&self) -> Result<Detached> {
        let mut ctl = self.ctl.lock();
        while self.tx.lock().sender.is_lent() {
            // What is written there belongs to the session as well. Whoever gives it back wakes nobody for it.
            self.changed.wait_for(&mut ctl, LENT_LOOK);
        }
        if let Some(failure) = &ctl.failure {
            return Err(failure.clone());
        }
        if ctl.life.is_over() {
            return Err(Error::Closed { id: self.id });
        }
        if self.role == Role::Client {
            return Err(Error::Config("only a server's session can be detached".into()));
        }
        let had_link = self.take_link(&mut ctl).is_some();
        let now = Instant::now();
        let times = self.times(&ctl, now);
        let (sending, receiving) = {
            let mut tx = self.tx.lock();
            let mut rx = self.rx.lock();
            let receiving = match rx.rest() {
                Ok(receiving) => receiving,
                Err(error) => {
                    drop((rx, tx));
                    // It has no link any more, and what its peer takes for delivered cannot be read.
                    self.fail_with(ctl, error.clone());
                    return Err(error);
                }
            };
            let over = Error::Closed { id: self.id };
            rx.failure = Some(over.clone());
            tx.failure = Some(over);
            (tx.sender.rest(), receiving)
        };
        let detached = Detached {
            id: self.id,
            epoch: ctl.epoch,
            security: self.config.security_kind(),
            key: ctl.key.clone(),
            owner: ctl.owner,
            peer: ctl.last_ip().unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            outages: ctl.outages + u64::from(had_link),
            times: Some(times),
            sending,
            receiving,
        };
        self.happens(&mut ctl, Happening::Abandoned);
        ctl.detached = true;
        // The listener is not told that it is over: it has to turn the client away for the time being, not for good.
        ctl.hooks = None;
        self.finish_up(ctl);
        Ok(detached)
    }

    /// What the next process goes on counting from. The link is gone from now on, if it was not before.
    fn times(&self, ctl: &Ctl, now: Instant) -> Times {
        let lost_at = ctl.lost_at.unwrap_or(now);
        Times {
            opened_ms: clock_ms(self.opened_at, now),
            lost_ms: clock_ms(lost_at, now),
            paused_ms: clock_ms(ctl.paused_at.unwrap_or(lost_at), now),
            detached_ms: clock_ms(now, now),
            pause_longest_ms: millis(ctl.pause_longest),
            pause_total_ms: millis(ctl.pause_total),
            keep_ms: millis(self.config.keep),
        }
    }

    /// Goes on with a session that another process has detached. It has no link until its client comes back.
    pub(crate) fn adopt(detached: Detached, config: Arc<Config>) -> Arc<Self> {
        let now = Instant::now();
        let times = detached.times;
        let at = |ms: fn(&Times) -> u64| times.map_or(now, |times| instant_of(ms(&times), now));
        let opened_at = at(|times| times.opened_ms);
        let engine = Engine::opened_at(detached.id, Role::Server, config, opened_at);
        {
            let mut ctl = engine.ctl.lock();
            engine.happens(&mut ctl, Happening::LinkLost);
            ctl.epoch = detached.epoch;
            ctl.key = detached.key.clone();
            ctl.owner = detached.owner;
            ctl.welcomed = true;
            ctl.outages = detached.outages;
            ctl.adopted_at = Some(now);
            ctl.ip_before = Some(detached.peer).filter(|peer| !peer.is_unspecified());
            ctl.lost_at = Some(at(|times| times.lost_ms));
            ctl.paused_at = Some(at(|times| times.paused_ms));
            ctl.pause_longest = Duration::from_millis(times.map_or(0, |times| times.pause_longest_ms));
            ctl.pause_total = Duration::from_millis(times.map_or(0, |times| times.pause_total_ms));
            engine.tx.lock().sender = detached.sender(SharedPool, engine.config.retain_bytes_max);
            Engine::limit_room(&mut engine.tx.lock(), ROOM_BYTES_FIRST);
            let mut rx = engine.rx.lock();
            rx.receiver = detached.receiver();
            let unread = detached.receiving.unread;
            if !unread.is_empty() {
                rx.backlog_bytes = unread.len() as u64;
                rx.backlog.push_back(Segment::Bytes(Inbox::from(unread)));
            }
            engine.received_offset.store(rx.consumed_offset(), Ordering::Release);
            engine.peer_end_received.store(rx.receiver.is_complete(), Ordering::Release);
        }
        engine
    }
}

impl Acceptor {
    /// Goes on with a session that another process has detached.
    ///
    /// # Errors
    /// [`Error::Config`] if it was opened under another security than this listener's, belongs to a certificate that this
    /// listener does not ask for, or is here already.
    pub(crate) fn adopt(&self, detached: Detached) -> Result<Arc<Engine>> {
        let Detached { id, epoch, peer, owner, .. } = detached;
        let key = detached.key.clone();
        if detached.security != self.config.security_kind() {
            return Err(Error::Config(format!(
                "session {id} was opened with security {}, this listener has {}",
                detached.security,
                self.config.security_kind()
            )));
        }
        // PROTOCOL 6.10: it stays the certificate's, and nobody could show that here.
        if owner.is_some() && self.config.client_certificates == Some(false) {
            return Err(Error::Config(format!(
                "session {id} belongs to the certificate of its client, and this listener asks for none (--tls-client-ca)"
            )));
        }
        let engine = Engine::adopt(detached, self.config.clone());
        // Before anybody can find it, and lose its first link.
        engine.set_hooks(Arc::new(ServerHooks { acceptor: self.this.clone() }));
        engine.set_listener_events(self.events.clone());
        let mut registry = self.registry.lock();
        if registry.insert(id, engine.clone(), epoch, peer).is_err() {
            return Err(Error::Config(format!("session {id} is here already")));
        }
        self.shares.note_adoption();
        registry.set_key(&id, key);
        registry.set_owner(&id, owner);
        let waited = engine.ctl().lost_at.map_or(Duration::ZERO, |at| at.elapsed());
        registry.detach_after(&id, epoch, self.now(), waited);
        drop(registry);
        if let Some(this) = self.this.upgrade() {
            Helper::get().watch_expiry(&this);
        }
        Ok(engine)
    }
}

impl Ctl {
    /// Where the client is, or was last.
    pub(super) fn last_ip(&self) -> Option<IpAddr> {
        let here = self.link.as_ref().map(|link| link.peer_addr).or(self.last_peer);
        here.map(|peer| peer.ip()).or(self.ip_before)
    }

    /// Whether the session goes on in another process.
    pub(super) fn is_detached(&self) -> bool {
        self.detached
    }
}

impl Rx {
    /// What the next process has to know. There is no link.
    fn rest(&mut self) -> Result<Receiving> {
        let unread_bytes = usize::try_from(self.backlog_bytes).unwrap_or(usize::MAX);
        let mut unread = vec![0; unread_bytes];
        let mut filled_bytes = 0;
        while let Some(room) = unread.get_mut(filled_bytes..).filter(|room| !room.is_empty()) {
            let Some(count) = self.read_backlog(room).transpose()? else { break };
            filled_bytes += count;
        }
        unread.truncate(filled_bytes);
        Ok(Receiving {
            next_offset: self.receiver.next_offset(),
            end_offset: self.receiver.end_offset(),
            unread,
        })
    }
}
