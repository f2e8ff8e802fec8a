//! The server's side of making links: a table of sessions and what becomes of every connection that comes in.
//!
//! # Contract
//! A shell accepts a connection at once, asks [`Acceptor::admits`], makes it a link with [`Acceptor::server_link`], under TLS drives
//! [`Link::handshake`], then feeds what it receives to [`Acceptor::greet`] until there is an [`Outcome`]. How long and how
//! many may take for that says the [`Acceptor::door`].

mod hooks;
mod listening;
#[cfg(test)]
mod tests;

pub(super) use hooks::ServerHooks;
pub(crate) use listening::bind;

use super::memory::{self, Shares};
use super::switch::PeerPosition;
use super::tls::server_tls;
use super::udp::Mailbox;
use super::{Engine, Event, Events, Info, Link, Role};
use crate::config::{AckMode, Config, Security};
use crate::error::{Error, Result};
use crate::proto::{
    Auth, BINDING_LABEL, Block, Decision, Demand, Descriptors, DirectPath, DirectVerdict, Door, DoorLimits,
    Greeted, HANDSHAKE_BYTES_MAX, Intent, LinkMode, Message, NotDirect, Policy, Progress, Refusal, Refuse,
    Registry, RegistryLimits, SavedSyn, ServerHandshake, ServerStep, SessionId, State, TurnedAway, Welcome,
};
use crate::sys;
use ::tokio::sync::broadcast;
use parking_lot::Mutex;
use rand::RngExt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// When a client that is turned away for the time being may try again.
const RETRY_AFTER_MS: u64 = 1000;

/// The same while this server stops: the next one may be there in no time.
const DRAINING_RETRY_AFTER_MS: u64 = 300;

/// New sessions that wait for `accept`; beyond that openings are told to come back.
const UNACCEPTED_MAX: usize = 1024;

/// Between two warnings of a kind, as of failed handshakes.
const WARN_PAUSE_MS: u64 = 10_000;

/// Whether to warn again, given when it was done last (0: never): now, then.
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
    files_warned_ms: AtomicU64,
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
    /// Turned away, and told why if it would understand: close.
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
        let mut modes = [true; 4];
        for mode in [LinkMode::Kernel, LinkMode::Window, LinkMode::Udp, LinkMode::Inband] {
            let offered = match config.ack {
                AckMode::Auto => true,
                AckMode::Fixed(fixed) => mode == fixed,
            };
            if let Some(slot) = modes.get_mut(mode as usize - 1) {
                *slot = offered && (!tls || mode == LinkMode::Inband);
            }
        }
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
            files_warned_ms: AtomicU64::new(0),
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

    /// A door for a listener's connections.
    pub(crate) fn door(&self) -> Door {
        Door::new(DoorLimits {
            places: Descriptors { most: sys::descriptors_max() }.places(self.config.handshakes_max),
            handshake_timeout: self.config.handshake_timeout,
            ..DoorLimits::default()
        })
    }

    /// Whether this peer has a session here.
    pub(crate) fn knows(&self, peer_addr: SocketAddr) -> bool {
        self.registry.lock().knows(peer_addr.ip())
    }

    /// A connection had to leave the door.
    pub(crate) fn note_turned_away(&self, conn: u64, why: TurnedAway) {
        match why {
            TurnedAway::Crowded => &self.crowded_out,
            TurnedAway::Late => &self.failed_handshakes,
        }
        .fetch_add(1, Ordering::Relaxed);
        if why == TurnedAway::Crowded && is_due(&self.crowd_warned_ms) {
            tracing::warn!(
                "many connections say nothing, or not enough: the oldest are reset, sessions go on (told once in a while, \
                 counted always)"
            );
        } else {
            tracing::debug!(conn, ?why, "a connection ended before its handshake");
        }
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

    /// A peer with a wrong key or another protocol is worth a warning, but not a log full of them.
    pub(super) fn note_failed(&self, link: Option<&Link>, error: &dyn std::fmt::Display) {
        let peer = link.map(|link| link.peer_addr.to_string()).unwrap_or_default();
        if is_due(&self.warned_ms) {
            tracing::warn!(peer, %error, "handshake failed (rate-limited; see metrics for the count)");
        } else {
            tracing::info!(peer, %error, "handshake failed");
        }
    }

    /// Connections cannot be accepted now, most likely for lack of descriptors. They stay in the kernel's queue.
    pub(crate) fn note_not_accepted(&self, error: &std::io::Error) {
        if is_due(&self.accept_warned_ms) {
            tracing::warn!(
                "cannot accept connections: {error}; new clients queue until descriptors are free (rate-limited; for too many \
                 open files raise ulimit -n, or lower --max-sessions)"
            );
        }
    }

    /// Nothing can be accepted for want of descriptors: one client is told so, with the one that is kept for that.
    pub(crate) fn turn_one_away(
        &self,
        error: &io::Error,
        accept: impl FnOnce() -> io::Result<(socket2::Socket, SocketAddr)>,
    ) {
        if !matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            return;
        }
        let told = self.spare.lock().lend(|| {
            let (socket, peer_addr) = accept().ok()?;
            // Under TLS it would not understand it.
            if self.admits(peer_addr) && !matches!(self.config.security, Security::Tls(_)) {
                let link = Link::new(socket, None, 0, LinkMode::Inband, peer_addr, true);
                self.turn_away(Some(&link), Refusal::Busy { retry_after_ms: RETRY_AFTER_MS });
            }
            Some(())
        });
        if told.flatten().is_none() {
            tracing::debug!("no descriptor to say so with");
        }
    }

    fn turn_away(&self, link: Option<&Link>, refuse: impl Into<Refuse>) -> Outcome {
        let refuse = refuse.into();
        self.count_refusal(&refuse.refusal);
        if let Some(link) = link {
            say_no(link, refuse);
        }
        Outcome::Closed
    }

    /// A connection broke off, took too long or was no use.
    pub(crate) fn count_failed(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refusal(&self, refusal: &Refusal) {
        self.registry.lock().count_refusal(refusal);
    }

    fn decide(&self, greeting: &mut Greeting, mut link: Link, greeted: &Greeted) -> Outcome {
        let hello = &greeted.hello;
        if hello.mode == LinkMode::Udp && (self.mailbox.get().is_none() || hello.udp_port.is_none()) {
            return self.turn_away(Some(&link), Refusal::ModeRefused);
        }
        let direct = if hello.mode.needs_direct_path() {
            judge(&link, hello.direct_proof, hello.source_port)
        } else {
            DirectVerdict::NotDirect(NotDirect::NoProof)
        };
        link.mark(hello.epoch, hello.mode);
        if hello.mode == LinkMode::Window
            && let Err(error) = link.pin_buffers(self.config.window_buffer_bytes)
        {
            tracing::warn!(%error, "cannot fix the buffers of a link");
            return self.turn_away(Some(&link), Refusal::ModeRefused);
        }
        if hello.mode == LinkMode::Window && hello.intent == Intent::Open && memory::is_scarce() {
            // A window needs all of its ring at any time.
            return self.turn_away(Some(&link), Refusal::Busy { retry_after_ms: RETRY_AFTER_MS });
        }
        if hello.mode == LinkMode::Window
            && !Engine::holds_window(&self.config, &link, hello.receive_buffer_bytes)
        {
            // PROTOCOL 3.6: what the peer claims is compared with what is held here.
            return self.turn_away(Some(&link), Refusal::ModeRefused);
        }
        let link = Arc::new(link);
        match self.book(&link, greeted, direct) {
            Ok((engine, booked)) => self.enter(engine, greeting, &link, greeted, booked),
            Err(outcome) => outcome,
        }
    }

    /// Finds the session, or makes it. True: the registry has the newcomer as its link already.
    fn book(
        &self,
        link: &Arc<Link>,
        greeted: &Greeted,
        direct: DirectVerdict,
    ) -> Result<(Arc<Engine>, bool), Outcome> {
        let hello = &greeted.hello;
        let peer = link.peer_addr.ip();
        memory::look();
        let opens = hello.intent == Intent::Open;
        let files = Descriptors { most: sys::descriptors_max() };
        let own_number = u64::try_from(link.as_fd().as_raw_fd()).unwrap_or_default();
        // The lowest that was free is what can be told otherwise.
        let used = if opens { sys::descriptors_open().unwrap_or(own_number) } else { 0 };
        if opens && !files.admits(used) && is_due(&self.files_warned_ms) {
            tracing::warn!(
                used,
                limit = files.most,
                "no new sessions for now: three quarters of the descriptors are in use (ulimit -n; told once in a while)"
            );
        }
        // Who raises the limit of an address means it.
        let per_peer = self.config.sessions_per_peer_max;
        let meant = if per_peer > RegistryLimits::default().sessions_per_peer_max { per_peer } else { 0 };
        let certificate = link.peer_certificate();
        let mut registry = self.registry.lock();
        // PROTOCOL 6.10: with another certificate it is not proven, whatever it knows.
        let auth =
            if registry.may_own(&hello.id, certificate.as_ref()) { greeted.auth } else { Auth::Unproven };
        let draining = self.draining.load(Ordering::Relaxed) || self.closed.load(Ordering::Acquire);
        let policy = Policy {
            draining_retry_after_ms: draining.then_some(DRAINING_RETRY_AFTER_MS),
            // The application does not keep up. The sessions that it has are none of that.
            busy: self.unaccepted.load(Ordering::Acquire) >= UNACCEPTED_MAX
                || !files.admits(used)
                || !self.has_memory_for(Block::of(peer)),
            sessions_per_block_max: files.sessions_per_block_max(used).max(meant),
            ..self.policy
        };
        match registry.decide(self.now(), hello, peer, auth, direct, &policy) {
            Decision::Refuse(refusal) => {
                let ended = matches!(refusal, Refusal::Ended { .. });
                let why = registry.why_ended(&hello.id).filter(|_| ended).map(str::to_owned);
                drop(registry);
                tracing::info!(
                    session = %hello.id, peer = %link.peer_addr, refusal = refusal.name(), proof = ?auth, "refused"
                );
                say_no(link, Refuse { refusal, why });
                Err(Outcome::Closed)
            }
            Decision::Create => {
                let engine = Engine::new(hello.id, Role::Server, self.config.clone());
                engine.ctl().owner = certificate;
                // Before anybody else can find it: its next Hello may be here already.
                engine.set_hooks(Arc::new(ServerHooks { acceptor: self.this.clone() }));
                engine.set_listener_events(self.events.clone());
                match registry.insert(hello.id, engine.clone(), hello.epoch, peer) {
                    Ok(()) => {
                        registry.set_owner(&hello.id, certificate);
                        Ok((engine, true))
                    }
                    Err(_) => Err(Outcome::Closed),
                }
            }
            Decision::Abort(engine) => {
                drop(registry);
                if engine.ctl().is_detached() {
                    let refusal = Refusal::Draining { retry_after_ms: DRAINING_RETRY_AFTER_MS };
                    return Err(self.turn_away(Some(link), refusal));
                }
                say_no(link, engine.aborted_by_peer(hello));
                Err(Outcome::Closed)
            }
            Decision::Resume(engine) => Ok((engine, false)),
        }
    }

    /// One more link for a session. The first to have one opens it, whichever of its Hellos that came with.
    fn enter(
        &self,
        engine: Arc<Engine>,
        greeting: &mut Greeting,
        link: &Arc<Link>,
        greeted: &Greeted,
        booked: bool,
    ) -> Outcome {
        match self.attach(&engine, greeting, link, greeted, booked) {
            Ok(State::Opening) => {
                self.unaccepted.fetch_add(1, Ordering::AcqRel);
                Outcome::Opened(engine)
            }
            Ok(_) => Outcome::Resumed,
            Err(refusal) => self.turn_away(Some(link), refusal),
        }
    }

    /// The application has taken a session that was opened.
    pub(crate) fn note_taken(&self) {
        self.unaccepted.fetch_sub(1, Ordering::AcqRel);
    }

    /// Puts the link into the service of its session. The newcomer has proved itself; `booked`: the registry has it as the
    /// session's link already. Says what the session was until then.
    fn attach(
        &self,
        engine: &Arc<Engine>,
        greeting: &mut Greeting,
        link: &Arc<Link>,
        greeted: &Greeted,
        booked: bool,
    ) -> Result<State, Refuse> {
        let hello = &greeted.hello;
        let mut ctl = engine.ctl();
        if ctl.is_detached() {
            return Err(Refusal::Draining { retry_after_ms: DRAINING_RETRY_AFTER_MS }.into());
        }
        if ctl.life.is_over() {
            return Err(engine.ended_refusal(ctl.failure.as_ref()));
        }
        if ctl.epoch >= hello.epoch {
            return Err(Refusal::StaleEpoch { current: ctl.epoch }.into());
        }
        // PROTOCOL 3.6: what cannot be is refused before anything is touched.
        if !engine.could_continue_at(hello.next_offset) {
            return Err(Refusal::OffsetOutOfRange.into());
        }
        let before = ctl.life.state();
        if !booked && self.registry.lock().attach(&hello.id, hello.epoch, link.peer_addr.ip()).is_err() {
            return Err(Refusal::StaleEpoch { current: ctl.epoch }.into());
        }
        if let Some(mailbox) = self.mailbox.get().filter(|_| hello.mode == LinkMode::Udp) {
            engine.use_mailbox(&mut ctl, mailbox.clone());
        }
        let position = engine.retire(&mut ctl, "the client made a new link").position;
        let (send_buffer_bytes, receive_buffer_bytes) = link.buffer_bytes();
        let welcome = Welcome {
            next_offset: position.next_offset,
            retained_offset: position.retained_offset,
            sent_offset: position.sent_offset,
            end_offset: position.end_offset,
            send_buffer_bytes,
            receive_buffer_bytes,
            udp_port: ctl.udp_port(hello.mode),
            takes_urgent: link.takes_urgent(&self.config),
            keep_ms: u64::try_from(self.config.keep.as_millis()).unwrap_or(u64::MAX),
            ..Welcome::to_new(hello)
        };
        let mut head = std::mem::take(&mut greeting.output);
        head.extend_from_slice(&greeting.handshake.accept(welcome));
        let rest = greeting.input.get(greeted.consumed_bytes..).unwrap_or_default();
        let early = hello.carries_early_data();
        let peer = PeerPosition {
            next_offset: hello.next_offset,
            end_offset: hello.end_offset,
            receive_buffer_bytes: hello.receive_buffer_bytes,
            rest,
            read_bytes: greeting.read_bytes,
            takes_urgent: hello.takes_urgent && self.config.urgent,
        };
        if let Some(key) = &greeted.session_key {
            ctl.key = Some(key.clone());
            self.registry.lock().set_key(&hello.id, Some(key.clone()));
        }
        ctl.welcomed = true;
        ctl.peer_udp_port = hello.udp_port;
        match engine.install(&mut ctl, link, &peer, &head, None) {
            Ok(()) => {
                drop(ctl);
                if early {
                    // The Welcome rides with the first answer, or follows shortly.
                    engine.answer_with_first_write();
                } else {
                    engine.resume_io();
                }
                Ok(before)
            }
            Err(error) => {
                drop(ctl);
                engine.fail(error);
                Err(Refusal::OffsetOutOfRange.into())
            }
        }
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
                true
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

    /// Gives up detached sessions whose time is over. True while there is something to wait for.
    pub(crate) fn expire(&self) -> bool {
        let (expired, waiting) = {
            let mut registry = self.registry.lock();
            let expired = registry.expire(self.now());
            (expired, registry.next_expiry().is_some())
        };
        for (id, engine) in expired {
            let info = engine.info();
            engine.fail(Error::Expired { id, keep: self.config.keep, unacked_bytes: info.unacked_bytes });
        }
        waiting
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

/// Sends a refusal so that it arrives even though the connection is closed right after it: what the peer's kernel has
/// received before a reset stays readable.
fn say_no(link: &Link, refuse: impl Into<Refuse>) {
    say_no_by(link, refuse.into(), Link::send_one);
}

/// The same by another way of sending.
pub(super) fn say_no_by(link: &Link, refuse: Refuse, send: fn(&Link, &[u8]) -> io::Result<usize>) {
    let _ = sys::reset_on_close(link, false);
    let _ = send(link, &Message::Refuse(refuse).to_bytes());
    let _ = sys::shut_write(link);
}

fn judge(link: &Link, direct_proof: Option<u32>, source_port: Option<u16>) -> DirectVerdict {
    if !sys::can_freeze() {
        // PROTOCOL 3.5 could not be kept: what this kernel acknowledges would not be final. The client takes inband.
        return DirectVerdict::NotDirect(NotDirect::NoProof);
    }
    let syn = sys::saved_syn(link).ok().and_then(|headers| SavedSyn::parse(&headers).ok());
    DirectPath::default().judge(direct_proof, source_port, syn.as_ref())
}
