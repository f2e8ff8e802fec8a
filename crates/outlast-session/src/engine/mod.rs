//! The engine: one endpoint of a session, shared by the blocking and the tokio shell.
//!
//! # Who holds what
//! Three locks, always taken in the order `ctl`, `tx`, `rx`, and never the other way round:
//! * `tx` belongs to writers. It is never held while a system call blocks.
//! * `rx` belongs to readers. A blocking reader holds it while it waits in `recv`; a thread that needs it first kills the
//!   link ([`Link::kill`]), which wakes the reader.
//! * `ctl` belongs to the thread that changes the link: a loss, a resume, an end.
//!
//! In the steady state a write takes `tx`, a read takes `rx`, and nobody takes `ctl`. There is no task, no thread and
//! no timer per session. What has to happen while the application looks away (flushing joined writes, sending again
//! after a resume, giving memory back) is done by one helper thread for the process, [`helper`].

mod abort;
mod client;
mod detach;
mod end;
mod fruitless;
mod gap;
mod helper;
mod inbox;
mod info;
mod link;
mod memory;
mod opening;
mod place;
mod pool;
mod retrying;
mod rx;
mod server;
mod service;
mod shaking;
mod silence;
mod splice;
mod standstill;
mod switch;
mod tls;
mod tx;
mod udp;
mod urgent;

pub(crate) use abort::ABORT_MAX;
pub(crate) use client::{Begun, ClientState, OpeningAttempts, Shake, Verdict, new_session_id};
pub(crate) use end::{FAREWELL_TIMEOUT, FINISH_POLL_MAX, FINISH_POLL_MIN};
pub(crate) use gap::Gap;
pub(crate) use gap::reached as gap_reached;
pub(crate) use helper::Helper;
pub use info::{Event, EventKind, Events, Info, Role, SessionState};
pub(crate) use link::{Link, NotTls, Waiting, set_detection, set_link_options};
pub use memory::Memory;
pub(crate) use memory::is_scarce as is_memory_scarce;
pub(crate) use retrying::{ARRIVAL_LOOK, Attempt, Next, Outage};

pub(crate) use rx::{Pumped, Rx};
pub(crate) use server::{Acceptor, Greeting, Outcome, bind};
pub(crate) use service::ServiceLent;
pub(crate) use shaking::{Shaken, Shaking};
pub(crate) use splice::{Passed, WAY_SLOTS_BYTES};
pub(crate) use tx::Tx;
pub(crate) use urgent::UrgentAhead;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::proto::{Fingerprint, Happening, Life, LifeRole, SessionId, SessionKey};
use crate::sys;
use ::tokio::sync::broadcast;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// What a step on behalf of the application came to.
#[derive(Debug)]
pub(crate) enum Progress<T> {
    /// Done.
    Done(T),
    /// The link is busy: wait until it is ready for this direction, or dead.
    Wait(Arc<Link>),
    /// There is no link, or the peer has to acknowledge first: wait for a change of the session.
    Stalled,
}

/// One endpoint of a session.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) id: SessionId,
    pub(crate) role: Role,
    pub(crate) config: Arc<Config>,
    this: Weak<Engine>,
    opened_at: Instant,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
    /// A task that waits for input. Set with `rx` held and taken without: whoever brings news need not wait for `rx`.
    reader: Mutex<Option<Waker>>,
    ctl: Mutex<Ctl>,
    /// The connection to a server's service. Taken last.
    service: Mutex<Option<service::Service>>,
    /// With `ctl`: the link, the state or the room in the ring changed.
    changed: Condvar,
    /// For tasks that wait to try again: told when it is worth it.
    pub(crate) hurry: ::tokio::sync::Notify,
    /// Something was written since the last read: the next small write may be joined to it.
    wrote: AtomicBool,
    /// Output waits in the ring and nobody is about to send it.
    dirty: AtomicBool,
    /// Only a Welcome is buffered; reads need not flush it.
    welcome_waits: AtomicBool,
    /// The receiving half has taken in everything before this.
    received_offset: AtomicU64,
    /// It has taken in all of the peer's stream, the end included. Not under `rx`, which others may hold for a moment.
    peer_end_received: AtomicBool,
    /// And the peer was told so up to here (`inband`, `udp`).
    ack_told_offset: AtomicU64,
    /// On the helper's list of sessions to look after when they fall idle.
    idle_listed: AtomicBool,
    /// On the helper's list of sessions to flush at the next tick.
    flush_listed: AtomicBool,
    pump_listed: AtomicBool,
    /// A writer waits for room or a link.
    writer_waits: AtomicBool,
    /// The helper's looks since there was room for it.
    looks_in_vain: AtomicU32,
    /// The application reads no more; what comes is thrown away. Not under `rx`, which a reader may hold asleep.
    read_shut: AtomicBool,
    /// Bytes of either direction that were passed on without being copied.
    spliced_bytes: AtomicU64,
    /// The network that it comes from holds more memory than it is guaranteed.
    above_share: AtomicBool,
    /// The application did not read what there was: the end of a link is noticed without it.
    unattended: AtomicBool,
    standstill: Mutex<Option<Box<standstill::Standstill>>>,
    /// Time that writers were held up.
    blocked_us: AtomicU64,
    udp: udp::UdpState,
    /// Where the peer's frames say that an urgent byte is.
    urgent_offset: AtomicU64,
    /// How often a task that read was asked to come back at once.
    asked_again: AtomicU32,
    controls: AtomicU32,
    /// The helper looks at its patience now and then.
    patience_watched: AtomicBool,
}

/// Links of a session whose application does not read, and where it would read on.
#[derive(Clone, Copy, Debug, Default)]
struct Overfull {
    offset: u64,
    /// What it held before the first of them.
    held_bytes: u64,
    links: u32,
}

/// What changes with the link.
#[derive(Debug)]
pub(crate) struct Ctl {
    /// What happens to it goes through [`Engine::happens`].
    pub(crate) life: Life,
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) epoch: u64,
    pub(crate) key: Option<SessionKey>,
    /// At a server, the certificate of the client that opened the session.
    pub(crate) owner: Option<Fingerprint>,
    /// What a client's attempts remember.
    pub(crate) client: ClientState,
    /// Where the peer takes acknowledgement datagrams.
    pub(crate) peer_udp_port: Option<u16>,
    /// The links that it got though nobody read what those before had left.
    overfull: Overfull,
    /// Where this end takes them.
    pub(crate) mailbox: Option<Arc<udp::Mailbox>>,
    /// The server has answered once: from now on the client resumes.
    pub(crate) welcomed: bool,
    /// Somebody is at work making a new link.
    pub(crate) reconnecting: bool,
    /// Counts reasons to try again at once.
    pub(crate) hurry: u64,
    /// Whether the server has said that it is through with the session.
    pub(crate) farewell: Farewell,
    /// The application has let go; the session ends when everything is delivered.
    pub(crate) released: bool,
    /// It goes on in another process: clients that come for it are asked to wait.
    detached: bool,
    pub(crate) failure: Option<Error>,
    pub(crate) lost_at: Option<Instant>,
    /// When the last passed that is known to have, before it was noticed that the link is lost.
    paused_at: Option<Instant>,
    /// Where a client of limited patience has tried last, and what came of it.
    last_attempt: Option<Box<(String, String)>>,
    outages: u64,
    pause_longest: Duration,
    pause_total: Duration,
    last_peer: Option<std::net::SocketAddr>,
    /// Where the client of a session that another process had was last.
    ip_before: Option<std::net::IpAddr>,
    /// When this process has taken it over from another one.
    adopted_at: Option<Instant>,
    events: Option<broadcast::Sender<Event>>,
    /// Events of all sessions of a listener.
    listener_events: Option<broadcast::Sender<Event>>,
    /// Called, once, when a link is lost and somebody has to make a new one (clients), or when the
    /// session has to be booked as detached or ended (servers).
    hooks: Option<Arc<dyn Hooks>>,
}

/// What a client has heard of its server's last word: in mode `inband` the Goodbye (PROTOCOL 4.8), in mode `udp` the
/// confirmation that the server knows that its end was read (5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    Unheard,
    /// All else is done: it is waited for on the link of this epoch.
    Awaited {
        epoch: u64,
    },
    Heard,
}

/// What a shell or a listener does about changes. Called without any lock of the engine held.
pub(crate) trait Hooks: Send + Sync + std::fmt::Debug {
    /// The link of this epoch is gone. There may be a later one already: others are not held up meanwhile.
    fn lost(&self, engine: &Arc<Engine>, epoch: u64);
    /// The session is over, in order or not.
    fn over(&self, engine: &Arc<Engine>);
    /// The peer does not answer what was sent to it; the link is as good as it was otherwise.
    fn stuck(&self, _engine: &Arc<Engine>) {}
    /// Addresses or routes of this host changed.
    fn network_changed(&self, _engine: &Arc<Engine>) {}
}

impl Engine {
    pub(crate) fn new(id: SessionId, role: Role, config: Arc<Config>) -> Arc<Self> {
        Self::opened_at(id, role, config, Instant::now())
    }

    fn opened_at(id: SessionId, role: Role, config: Arc<Config>, opened_at: Instant) -> Arc<Self> {
        let retain_bytes_max = config.retain_bytes_max;
        Arc::new_cyclic(|this| Engine {
            id,
            role,
            this: this.clone(),
            opened_at,
            tx: Mutex::new(Tx::new(retain_bytes_max)),
            rx: Mutex::new(Rx::new()),
            reader: Mutex::new(None),
            ctl: Mutex::new(Ctl {
                life: Life::new(match role {
                    Role::Client => LifeRole::Client,
                    Role::Server => LifeRole::Server,
                }),
                link: None,
                epoch: 0,
                key: None,
                owner: None,
                client: ClientState::new(&config),
                peer_udp_port: None,
                overfull: Overfull::default(),
                mailbox: None,
                welcomed: false,
                reconnecting: false,
                hurry: 0,
                farewell: Farewell::Unheard,
                released: false,
                detached: false,
                failure: None,
                lost_at: None,
                paused_at: None,
                last_attempt: None,
                outages: 0,
                pause_longest: Duration::ZERO,
                pause_total: Duration::ZERO,
                last_peer: None,
                ip_before: None,
                adopted_at: None,
                events: None,
                listener_events: None,
                hooks: None,
            }),
            config,
            service: Mutex::new(None),
            changed: Condvar::new(),
            hurry: ::tokio::sync::Notify::new(),
            wrote: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            welcome_waits: AtomicBool::new(false),
            received_offset: AtomicU64::new(0),
            peer_end_received: AtomicBool::new(false),
            ack_told_offset: AtomicU64::new(0),
            idle_listed: AtomicBool::new(false),
            flush_listed: AtomicBool::new(false),
            pump_listed: AtomicBool::new(false),
            writer_waits: AtomicBool::new(false),
            looks_in_vain: AtomicU32::new(0),
            read_shut: AtomicBool::new(false),
            spliced_bytes: AtomicU64::new(0),
            above_share: AtomicBool::new(false),
            unattended: AtomicBool::new(false),
            standstill: Mutex::new(None),
            blocked_us: AtomicU64::new(0),
            udp: udp::UdpState::default(),
            urgent_offset: AtomicU64::new(urgent::NO_URGENT),
            asked_again: AtomicU32::new(0),
            controls: AtomicU32::new(0),
            patience_watched: AtomicBool::new(false),
        })
    }

    /// A counted reference to this engine.
    pub(crate) fn arc(&self) -> Option<Arc<Engine>> {
        self.this.upgrade()
    }

    pub(crate) fn weak(&self) -> Weak<Engine> {
        self.this.clone()
    }

    pub(crate) fn ctl(&self) -> MutexGuard<'_, Ctl> {
        self.ctl.lock()
    }

    /// Takes note of what happened to the session. PROTOCOL 8 has the table of what follows.
    ///
    /// Attempts that come to nothing are not told: to an application a session that is being resumed is a lost one.
    pub(crate) fn happens(&self, ctl: &mut Ctl, happening: Happening) {
        if let Err(illegal) = ctl.life.on(happening) {
            debug_assert!(false, "{illegal}");
            tracing::error!(session = %self.id, %illegal, "a mistake of the engine");
        }
    }

    pub(crate) fn set_hooks(&self, hooks: Arc<dyn Hooks>) {
        self.ctl.lock().hooks = Some(hooks);
    }

    pub(crate) fn set_listener_events(&self, events: broadcast::Sender<Event>) {
        self.ctl.lock().listener_events = Some(events);
    }

    /// Subscribes to what happens from now on.
    pub(crate) fn events(&self) -> Events {
        let mut ctl = self.ctl.lock();
        let sender = ctl.events.get_or_insert_with(|| broadcast::channel(256).0);
        Events::new(sender.subscribe())
    }

    pub(crate) fn emit(&self, ctl: &Ctl, kind: EventKind) {
        tracing::debug!(session = %self.id, ?kind, "session event");
        if let Some(outages) = &self.config.outages
            && self.role == Role::Client
            && ctl.outages > 0
        {
            outages.note(self.id, ctl.last_peer, ctl.paused_at, &kind);
        }
        for sender in [&ctl.events, &ctl.listener_events].into_iter().flatten() {
            // Nobody listening is fine.
            let _ = sender.send(Event { session: self.id, kind: kind.clone() });
        }
    }

    /// The present link.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.ctl.lock().link.clone()
    }

    /// Waits until the session changes, at most until `deadline`; false if that has passed.
    ///
    /// `unless` is asked under the lock that every change takes, so that none is missed.
    pub(crate) fn wait_change(&self, deadline: Option<Instant>, unless: impl Fn(&Ctl) -> bool) -> bool {
        let mut ctl = self.ctl.lock();
        while !unless(&ctl) {
            match deadline {
                None => self.changed.wait(&mut ctl),
                Some(deadline) => {
                    if self.changed.wait_until(&mut ctl, deadline).timed_out() {
                        return unless(&ctl);
                    }
                }
            }
        }
        true
    }

    /// Whether a writer found no room and nothing has changed since.
    pub(crate) fn writer_is_stalled(&self) -> bool {
        self.writer_waits.load(Ordering::Acquire)
    }

    /// Wakes everybody who waits for a change: threads, and tasks of either half.
    pub(crate) fn wake_all(&self) {
        self.writer_waits.store(false, Ordering::Release);
        // Taking the lock orders this after the check of a waiter that is about to sleep.
        drop(self.ctl.lock());
        self.changed.notify_all();
        self.wake_writer();
        self.wake_reader();
    }

    /// Wakes a task that waits to read.
    pub(crate) fn wake_reader(&self) {
        let waker = self.reader.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes a task that waits to write.
    pub(crate) fn wake_writer(&self) {
        let waker = self.tx.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The link may have been reset while nobody reads it, as the application is slow: it is lost all the same, and the sooner
    /// that is noticed the better.
    pub(crate) fn notice_error(&self) {
        if let Some(link) = self.link().filter(|link| sys::has_error(&**link)) {
            self.lost(&link, "connection reset by peer");
        }
    }

    /// There is input, and the application takes none for now: from here on the end of this link and of later ones is noticed
    /// without it.
    pub(crate) fn leave_unattended(&self) {
        if !self.unattended.swap(true, Ordering::Relaxed) {
            self.watch_end();
        }
    }

    /// Has the end of the present link noticed if the application may not.
    fn watch_end(&self) {
        // Whoever makes a link looks at the flag after that, whoever raises the flag looks for a link.
        if let Some(link) = self.link()
            && self.unattended.load(Ordering::Relaxed)
        {
            Helper::get().watch_end(self, &link);
        }
    }

    /// A snapshot.
    pub(crate) fn info(&self) -> Info {
        let (state, mode, epoch, outages, longest, total, paused_at, local_addr, peer_addr) = {
            let ctl = self.ctl.lock();
            let link = ctl.link.as_ref();
            (
                SessionState::from(ctl.life.state()),
                link.map(|link| link.mode()),
                ctl.epoch,
                ctl.outages,
                ctl.pause_longest,
                ctl.pause_total,
                ctl.paused_at,
                link.and_then(|link| link.local_addr()),
                link.map(|link| link.peer_addr).or(ctl.last_peer),
            )
        };
        let pause_now = paused_at.map(|at| at.elapsed());
        let mut tx = self.tx.lock();
        self.learn_acked(&mut tx);
        let unacked_bytes = tx.sender.end_offset() - tx.sender.acked_offset();
        let unacked_age_ms =
            if unacked_bytes == 0 { 0 } else { sys::coarse_now_ms().saturating_sub(tx.mark_ms) };
        Info {
            id: self.id,
            role: self.role,
            state,
            mode,
            epoch,
            security: self.config.security.kind().name(),
            written_bytes: tx.sender.end_offset(),
            read_bytes: self.received_offset.load(Ordering::Acquire),
            unacked_bytes,
            unacked_age_ms,
            blocked_ms: self.blocked_us.load(Ordering::Relaxed) / 1000,
            outages,
            pause_now_ms: pause_now.map(millis),
            pause_longest_ms: millis(longest.max(pause_now.unwrap_or_default())),
            pause_total_ms: millis(total + pause_now.unwrap_or_default()),
            resent_bytes: tx.sender.resent_bytes(),
            spliced_bytes: self.spliced_bytes.load(Ordering::Relaxed),
            local_addr,
            peer_addr,
            age_ms: millis(self.opened_at.elapsed()),
        }
    }

    pub(crate) fn count_blocked(&self, time: Duration) {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.blocked_us.fetch_add(time_us, Ordering::Relaxed);
    }

    /// The error that ended the session, if one did.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.ctl.lock().failure.clone()
    }

    /// Fails unless the session is still alive.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
