//! The server's side of making links: a table of sessions and what becomes of every connection that comes in.
//!
//! # Contract
//! A shell accepts a connection at once, asks [`Acceptor::admits`], makes it a link with [`Acceptor::server_link`], under TLS drives
//! [`Link::handshake`], then feeds what it receives to [`Acceptor::greet`] until there is an [`Outcome`]. How long and how
//! many may take for that says the [`Acceptor::door`].

mod booking;
mod door;
mod hooks;
mod listening;
#[cfg(test)]
mod tests;

pub(super) use door::say_no_by;
pub(super) use hooks::ServerHooks;
pub(crate) use listening::bind;

use super::memory::Shares;
use super::tls::server_tls;
use super::udp::Mailbox;
use super::{Engine, Event, Events, Info, Link};
use crate::config::{AckMode, Config, Security};
use crate::error::{Error, Result};
use crate::proto::{
    BINDING_LABEL, Demand, HANDSHAKE_BYTES_MAX, LinkMode, Modes, Policy, Progress, Refusal, Registry,
    RegistryLimits, ServerHandshake, ServerStep, SessionId, Shortage,
};
use crate::sys;
use ::tokio::sync::broadcast;
use parking_lot::Mutex;
use rand::RngExt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// When a client that is turned away for the time being may try again.
const RETRY_AFTER_MS: u64 = 1000;

/// The same while this server stops: the next one may be there in no time.
const DRAINING_RETRY_AFTER_MS: u64 = 300;

/// New sessions that wait for `accept`; beyond that openings are refused for the time being.
const UNACCEPTED_MAX: usize = 1024;

/// Between two warnings of a kind, as of failed handshakes.
const WARN_PAUSE_MS: u64 = 10_000;

/// Whether a warning is due, given when the last one was logged (0: never). If so, this one is noted as the last.
fn is_due(warned_ms: &AtomicU64) -> bool {
    let now_ms = sys::coarse_now_ms();
    let last_ms = warned_ms.load(Ordering::Relaxed);
    let due = last_ms == 0 || now_ms.saturating_sub(last_ms) >= WARN_PAUSE_MS;
    if due {
        warned_ms.store(now_ms, Ordering::Relaxed);
    }
    due
}

/// The table of a listener's sessions.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) config: Arc<Config>,
    pub(super) this: Weak<Acceptor>,
    pub(super) registry: Mutex<Registry<Arc<Engine>>>,
    origin: Instant,
    policy: Policy,
    draining: AtomicBool,
    /// The listener is gone.
    pub(super) closed: AtomicBool,
    /// Sessions that are open and that the application has not taken yet.
    unaccepted: AtomicUsize,
    pub(super) events: broadcast::Sender<Event>,
    /// Connections that spoke something else, or nothing, or broke off.
    failed_handshakes: AtomicU64,
    /// When the last warning about them was written.
    warned_ms: AtomicU64,
    /// Connections that had to make room for others before they had said who they are.
    crowded_out: AtomicU64,
    crowd_warned_ms: AtomicU64,
    accept_warned_ms: AtomicU64,
    /// By what there was too little of.
    full_warned_ms: [AtomicU64; Shortage::KINDS],
    /// About clients that insist on a mode that is not offered.
    mode_warned_ms: AtomicU64,
    /// For telling clients that there are no others.
    spare: Mutex<sys::SpareDescriptor>,
    /// Connections from addresses that are not to come.
    denied_peers: AtomicU64,
    /// Connections may have been accepted by the kernel before the listening socket had its options.
    has_early_connections: AtomicBool,
    /// What its sessions hold.
    pub(super) shares: Shares,
    /// Where acknowledgement datagrams arrive, if that mode is offered.
    mailbox: OnceLock<Arc<Mailbox>>,
}

/// A connection that has not said yet what it wants.
#[derive(Debug)]
pub(crate) struct Greeting {
    handshake: ServerHandshake,
    input: Vec<u8>,
    read_bytes: u64,
    progress: Progress,
    /// To be sent before anything more is received.
    pub(crate) output: Vec<u8>,
}

/// What a connection turned out to be.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Not known yet: send `output`, receive more.
    More,
    /// A new session.
    Opened(Arc<Engine>),
    /// A new link for a session that is there.
    Resumed,
    /// Turned away, with the reason if it would understand: close.
    Closed,
}

impl Greeting {
    /// How far the other side has come.
    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }
}

impl Acceptor {
    pub(crate) fn new(config: Arc<Config>) -> Arc<Self> {
        let limits = RegistryLimits {
            sessions_max: config.sessions_max,
            sessions_per_peer_max: config.sessions_per_peer_max,
            detached_max: config.sessions_max,
            detached_per_peer_max: config.sessions_per_peer_max,
            keep: config.keep,
            ..RegistryLimits::default()
        };
        let tls = matches!(config.security, Security::Tls(_));
        let modes = match config.ack {
            AckMode::Auto if tls => Modes::only(LinkMode::Inband),
            AckMode::Auto if !config.ring_holds_window() => Modes::ALL.without(LinkMode::Window),
            AckMode::Auto => Modes::ALL,
            AckMode::Fixed(fixed) => Modes::only(fixed),
        };
        let policy = Policy { modes, busy_retry_after_ms: RETRY_AFTER_MS, ..Policy::default() };
        let acceptor = Arc::new_cyclic(|this: &Weak<Self>| Self {
            config,
            this: this.clone(),
            registry: Mutex::new(Registry::new(limits)),
            origin: Instant::now(),
            policy,
            draining: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unaccepted: AtomicUsize::new(0),
            events: broadcast::channel(4096).0,
            failed_handshakes: AtomicU64::new(0),
            warned_ms: AtomicU64::new(0),
            crowded_out: AtomicU64::new(0),
            crowd_warned_ms: AtomicU64::new(0),
            accept_warned_ms: AtomicU64::new(0),
            full_warned_ms: Default::default(),
            mode_warned_ms: AtomicU64::new(0),
            spare: Mutex::new(sys::SpareDescriptor::take()),
            denied_peers: AtomicU64::new(0),
            has_early_connections: AtomicBool::new(false),
            shares: Shares::default(),
            mailbox: OnceLock::new(),
        });
        acceptor.join_budget();
        acceptor
    }

    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Whether a handshake keeps a processor busy for a while: signatures take about as long as a thousand small frames.
    pub(crate) fn calculates_long(&self) -> bool {
        matches!(self.config.security, Security::Tls(_))
    }

    /// Whether a connection that was just accepted may say anything. If not, closing it resets it: accepted sockets
    /// inherit that from the listening one.
    pub(crate) fn admits(&self, peer_addr: SocketAddr) -> bool {
        let admitted = self.config.peer_filter.as_ref().is_none_or(|filter| filter.admits(peer_addr.ip()));
        if !admitted {
            tracing::info!(peer = %peer_addr, "not allowed to connect: reset");
            self.denied_peers.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    /// A link from an accepted connection, in no mode yet.
    pub(crate) fn server_link(&self, socket: socket2::Socket, peer_addr: SocketAddr) -> Result<Link> {
        let tls = match &self.config.security {
            Security::Tls(tls) => Some(server_tls(tls)?),
            Security::Open | Security::Psk(_) => None,
        };
        if self.has_early_connections.load(Ordering::Relaxed) {
            self.season(&socket)?;
        }
        Ok(Link::new(socket, tls, 0, LinkMode::Inband, peer_addr, true))
    }

    /// The link is encrypted if it has to be: the handshake may begin.
    pub(crate) fn greeting(&self, link: &Link) -> Greeting {
        let (demand, nonce) = match &self.config.security {
            Security::Open => (Demand::Open, [0; 32]),
            Security::Psk(psk) => (Demand::Psk(psk.clone()), rand::rng().random()),
            Security::Tls(_) => {
                let binding = link.exporter(BINDING_LABEL).unwrap_or_else(|| rand::rng().random());
                (Demand::Tls { binding }, [0; 32])
            }
        };
        let handshake = ServerHandshake::new(demand, nonce);
        // Under TLS it has said much already.
        let progress = if link.is_tls() { Progress::Begun } else { Progress::Silent };
        Greeting { handshake, input: Vec::new(), read_bytes: 0, progress, output: Vec::new() }
    }

    /// More was received on a connection. Takes the link when there is an outcome that needs it.
    pub(crate) fn greet(&self, greeting: &mut Greeting, link: &mut Option<Link>, bytes: &[u8]) -> Outcome {
        greeting.input.extend_from_slice(bytes);
        greeting.read_bytes += bytes.len() as u64;
        greeting.progress = greeting.progress.max(Progress::Begun);
        let mut step = greeting.handshake.feed(&greeting.input);
        loop {
            step = match step {
                ServerStep::NeedMore if greeting.input.len() > HANDSHAKE_BYTES_MAX => {
                    return self.turn_away(link.as_ref(), Refusal::Malformed);
                }
                ServerStep::NeedMore => return Outcome::More,
                ServerStep::Send { bytes, consumed_bytes } => {
                    greeting.progress = greeting.progress.max(Progress::Greeted);
                    greeting.output.extend_from_slice(&bytes);
                    greeting.input.drain(..consumed_bytes.min(greeting.input.len()));
                    greeting.handshake.feed(&greeting.input)
                }
                ServerStep::NeedKey { id } => {
                    let registry = self.registry.lock();
                    let key = registry.key(&id).cloned();
                    if registry.get(&id).is_some() {
                        greeting.progress = Progress::Knows;
                    }
                    drop(registry);
                    greeting.handshake.provide_key(key)
                }
                ServerStep::Greeted(greeted) => {
                    let Some(link) = link.take() else { return Outcome::Closed };
                    return self.decide(greeting, link, &greeted);
                }
                ServerStep::Failed(error) => {
                    let error = error.at_listener(self.config.security.kind());
                    self.note_failed(link.as_ref(), &error);
                    self.count_failed();
                    return match error.refusal() {
                        Some(refusal) => self.turn_away(link.as_ref(), refusal),
                        None => Outcome::Closed,
                    };
                }
            };
        }
    }

    /// The application has taken a session that was opened.
    pub(crate) fn note_taken(&self) {
        self.unaccepted.fetch_sub(1, Ordering::AcqRel);
    }

    /// New sessions are refused from now on; links for those that are there are still taken.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    pub(crate) fn events(&self) -> Events {
        Events::new(self.events.subscribe())
    }

    pub(super) fn engines(&self) -> Vec<Arc<Engine>> {
        self.registry.lock().iter().map(|(_, engine)| engine.clone()).collect()
    }

    pub(crate) fn sessions(&self) -> Vec<Info> {
        self.engines().iter().map(|engine| engine.info()).collect()
    }

    pub(crate) fn kill(&self, id: &SessionId) -> bool {
        let engine = self.registry.lock().get(id).cloned();
        match engine {
            Some(engine) => {
                engine.fail(Error::killed(*id));
                // One that goes on in another process is not this one's.
                !engine.ctl().is_detached()
            }
            None => false,
        }
    }

    /// Counters of what was turned away, by reason.
    pub(crate) fn refusals(&self) -> Vec<(&'static str, u64)> {
        let stats = self.registry.lock().stats();
        let mut counts: Vec<(&'static str, u64)> = stats.refusals().filter(|(_, count)| *count > 0).collect();
        counts.push(("failed_handshakes", self.failed_handshakes.load(Ordering::Relaxed)));
        let crowded_out = self.crowded_out.load(Ordering::Relaxed);
        if crowded_out > 0 {
            counts.push(("crowded_out", crowded_out));
        }
        let denied_peers = self.denied_peers.load(Ordering::Relaxed);
        if denied_peers > 0 {
            counts.push(("denied_peers", denied_peers));
        }
        let ignored_datagrams = self.mailbox.get().map_or(0, |mailbox| mailbox.ignored());
        if ignored_datagrams > 0 {
            counts.push(("ignored_datagrams", ignored_datagrams));
        }
        counts
    }

    /// Gives up detached sessions whose time is over. How long to wait for the next; none if there is nothing to wait for.
    pub(crate) fn expire(&self) -> Option<Duration> {
        let (expired, next) = {
            let mut registry = self.registry.lock();
            let now = self.now();
            let expired = registry.expire(now);
            (expired, registry.next_expiry().map(|at| at.saturating_sub(now)))
        };
        for (id, engine) in expired {
            let info = engine.info();
            engine.fail(Error::Expired { id, keep: self.config.keep, unacked_bytes: info.unacked_bytes });
        }
        next
    }

    /// The listener is gone: so is everything that only it could have carried on.
    pub(crate) fn close(&self) {
        // First: a link that is lost from now on finds the listener gone (see `ServerHooks::lost`).
        self.closed.store(true, Ordering::SeqCst);
        for engine in self.engines() {
            let detached = engine.ctl().link.is_none();
            if detached {
                engine.fail(Error::Closed { id: engine.id });
            }
        }
    }
}
