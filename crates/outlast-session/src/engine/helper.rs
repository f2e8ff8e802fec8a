//! The one thread that works for sessions while their applications look away.
//!
//! Started when the first session needs it, one for the whole process, in both shells. It
//! * sends what small writes left in the ring, at most [`flush_delay`](crate::Config::flush_delay) after them;
//! * goes on sending when a full link can take more;
//! * takes acknowledgements in while a writer waits for room and nobody reads;
//! * sees sessions to their end that the application has let go of;
//! * gives the memory of idle rings back, once, and then leaves them alone;
//! * hears of address and route changes and tells the clients;
//! * listens whether anybody is behind a proxy ([`silence`](super::silence));
//! * lets detached sessions expire;
//! * starts threads in its own network namespace ([`place`](super::place)).
//!
//! It sleeps without a time-out when there is nothing of that to do: an idle session causes no wake-ups of its own.

use super::place::{Job, helper_lives_here};
use super::server::Acceptor;
use super::silence::{Listened, Silences};
use super::udp::{Mailbox, REPEAT};
use super::{Engine, Link};
use crate::proto::LinkMode;
use crate::sys::RouteWatch;
use mio::unix::SourceFd;
use mio::{Interest, Poll, Registry, Token, Waker};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How often what was joined is sent, and sessions that were let go of are looked at.
const TICK: Duration = Duration::from_millis(1);
/// So many ticks without work, and the ticking stops: restarting it costs a system call and a thread switch.
const QUIET_TICKS_MAX: u32 = 100;
/// How often sessions that have sent something are checked for having fallen idle, and detached ones for their age.
const IDLE_CHECK: Duration = Duration::from_millis(500);
/// After so many ticks a session that was let go of is watched instead of polled.
const LINGER_TICKS_MAX: u32 = 4;
/// A session that was let go of and whose peer does not end its side is given up after this time, as TCP does with
/// orphaned connections (tcp_fin_timeout).
const LINGER_MAX: Duration = Duration::from_secs(60);

const WAKE: Token = Token(0);
const ROUTES: Token = Token(1);
const FIRST_WATCH: usize = 2;
/// Tokens of links are even, those of mailboxes odd; both follow from the descriptor, which is unique while it is open.
const MAILBOX: usize = 1;

/// What the thread is asked to do.
#[derive(Debug, Default)]
struct Requests {
    flush: Vec<Weak<Engine>>,
    idle: Vec<Weak<Engine>>,
    linger: Vec<(Arc<Engine>, Instant, u32)>,
    watch: Vec<(Weak<Engine>, Arc<Link>)>,
    acceptors: Vec<Weak<Acceptor>>,
    clients: Vec<Weak<Engine>>,
    mailboxes: Vec<Weak<Mailbox>>,
    ends: Vec<(Arc<Engine>, u64)>,
    listened: Vec<Listened>,
    jobs: Jobs,
}

/// Threads to be started here, in the helper's network namespace.
#[derive(Default)]
struct Jobs(Vec<Job>);

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs", self.0.len())
    }
}

/// The handle to the thread.
#[derive(Debug)]
pub(crate) struct Helper {
    requests: Mutex<Requests>,
    /// The thread looks at the requests every tick: no need to wake it.
    ticking: AtomicBool,
    waker: Option<Waker>,
}

static HELPER: OnceLock<&'static Helper> = OnceLock::new();

impl Helper {
    /// The process's helper, started if need be.
    pub(crate) fn get() -> &'static Helper {
        HELPER.get_or_init(Self::start)
    }

    fn start() -> &'static Helper {
        helper_lives_here();
        let poll = Poll::new();
        let waker = poll.as_ref().ok().and_then(|poll| Waker::new(poll.registry(), WAKE).ok());
        let helper: &'static Helper = Box::leak(Box::new(Helper {
            requests: Mutex::new(Requests::default()),
            ticking: AtomicBool::new(false),
            waker,
        }));
        let spawned = poll.map(|poll| {
            std::thread::Builder::new()
                .name("outlast-helper".into())
                .spawn(move || Thread::new(helper, poll).run())
        });
        match spawned {
            Ok(Ok(_)) => {}
            Ok(Err(error)) | Err(error) => {
                // Sessions work on, without joining of writes and without background resending.
                tracing::error!(%error, "cannot start the helper thread");
            }
        }
        helper
    }

    fn ask(&self, urgent: bool, request: impl FnOnce(&mut Requests)) {
        request(&mut self.requests.lock());
        if (urgent || !self.ticking.load(Ordering::Acquire))
            && let Some(waker) = &self.waker
            && let Err(error) = waker.wake()
        {
            tracing::error!(%error, "cannot wake the helper thread");
        }
    }

    /// Flush (and acknowledge) at the next tick.
    pub(crate) fn flush_soon(&self, engine: &Engine) {
        if !engine.flush_listed.swap(true, Ordering::AcqRel) {
            self.ask(false, |requests| requests.flush.push(engine.weak()));
        }
    }

    /// Look whether the session has fallen idle, in a while. The caller has set `idle_listed`.
    pub(crate) fn watch_idle(&self, engine: &Engine) {
        self.ask(false, |requests| requests.idle.push(engine.weak()));
    }

    /// A writer waits for the peer.
    pub(crate) fn watch_stalled(&self, engine: &Engine) {
        self.flush_soon(engine);
    }

    /// Go on sending when `link` can take more.
    pub(crate) fn watch_writable(&self, engine: &Engine, link: &Arc<Link>) {
        self.ask(true, |requests| requests.watch.push((engine.weak(), link.clone())));
    }

    /// See a session to its end.
    pub(crate) fn linger(&self, engine: &Arc<Engine>) {
        self.ask(false, |requests| requests.linger.push((engine.clone(), Instant::now(), 0)));
    }

    /// Take datagrams in.
    pub(crate) fn watch_mailbox(&self, mailbox: &Arc<Mailbox>) {
        self.ask(true, |requests| requests.mailboxes.push(Arc::downgrade(mailbox)));
    }

    /// Tell the peer again that its stream was read to the end, on the link of `epoch`, until it confirms.
    pub(crate) fn repeat_end(&self, engine: Arc<Engine>, epoch: u64) {
        self.ask(false, |requests| requests.ends.push((engine, epoch)));
    }

    /// Notice when nobody is at the other end of a link of mode `inband`.
    pub(crate) fn listen_to(&self, engine: &Engine, link: &Arc<Link>) {
        let listened = Listened::new(engine, link);
        self.ask(false, |requests| requests.listened.push(listened));
    }

    /// Do this here, at once.
    pub(super) fn run(&self, job: Job) {
        self.ask(true, |requests| requests.jobs.0.push(job));
    }

    /// Let this listener's detached sessions expire.
    pub(crate) fn watch_expiry(&self, acceptor: &Arc<Acceptor>) {
        self.ask(false, |requests| requests.acceptors.push(Arc::downgrade(acceptor)));
    }

    /// Tell this client when the network changes.
    pub(crate) fn watch_network(&self, engine: &Engine) {
        self.ask(false, |requests| requests.clients.push(engine.weak()));
    }
}

/// The end of a stream that the peer has to hear of (`udp`).
struct End {
    engine: Arc<Engine>,
    epoch: u64,
    repeats: u32,
    next: Instant,
}

/// A link that the helper watches.
struct Watch {
    engine: Weak<Engine>,
    /// Weak: a link is closed when its session is through with it, watched or not.
    link: Weak<Link>,
    interest: Interest,
}

/// What has become of a watched link.
#[derive(Clone, Copy)]
struct Ready {
    write: bool,
    /// Hung up, or in error.
    end: bool,
}

impl Ready {
    fn of(event: &mio::event::Event) -> Self {
        Self { write: event.is_writable(), end: event.is_error() || event.is_write_closed() }
    }
}

fn link_token(fd: RawFd) -> Option<Token> {
    usize::try_from(fd).ok().map(|fd| Token(FIRST_WATCH + 2 * fd))
}

/// What a look at a session came to that has sent something.
enum Idle {
    /// In use: look again later.
    Busy,
    /// Everything is acknowledged, or nothing can be learned.
    Forget,
    /// The link still owes acknowledgements: watch it.
    Unacked {
        link: Arc<Link>,
        interest: Interest,
        /// And look again later.
        again: bool,
    },
}

/// What only the thread itself touches.
struct Thread {
    helper: &'static Helper,
    poll: Poll,
    routes: Option<RouteWatch>,
    watches: HashMap<usize, Watch>,
    idle: Vec<Weak<Engine>>,
    lingering: Vec<(Arc<Engine>, Instant, u32)>,
    acceptors: Vec<Weak<Acceptor>>,
    clients: Vec<Weak<Engine>>,
    mailboxes: HashMap<usize, Weak<Mailbox>>,
    ends: Vec<End>,
    silences: Silences,
    next_idle_check: Instant,
    quiet_ticks: u32,
}

impl Thread {
    fn new(helper: &'static Helper, poll: Poll) -> Self {
        Self {
            helper,
            poll,
            routes: None,
            watches: HashMap::new(),
            idle: Vec::new(),
            lingering: Vec::new(),
            acceptors: Vec::new(),
            clients: Vec::new(),
            mailboxes: HashMap::new(),
            ends: Vec::new(),
            silences: Silences::default(),
            next_idle_check: Instant::now() + IDLE_CHECK,
            quiet_ticks: 0,
        }
    }

    fn run(mut self) {
        let mut events = mio::Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the helper thread cannot wait for events");
                return;
            }
            for event in &events {
                match event.token() {
                    WAKE => {}
                    ROUTES => self.network_changed(),
                    Token(token) if token % 2 == MAILBOX => self.take_datagrams(token),
                    Token(token) => self.ready(token, Ready::of(event)),
                }
            }
            self.tick();
        }
    }

    /// Until when to sleep. Ticks while there is work; the flag tells others not to wake this thread meanwhile.
    fn timeout(&mut self) -> Option<Duration> {
        if self.quiet_ticks < QUIET_TICKS_MAX {
            self.helper.ticking.store(true, Ordering::Release);
            return Some(TICK);
        }
        self.helper.ticking.store(false, Ordering::Release);
        let waiting = {
            let requests = self.helper.requests.lock();
            // A request that came before the flag was lowered woke nobody.
            !requests.flush.is_empty()
                || !requests.linger.is_empty()
                || !requests.idle.is_empty()
                || !requests.ends.is_empty()
                || !requests.listened.is_empty()
        };
        if waiting {
            return Some(Duration::ZERO);
        }
        let repeat = self.ends.iter().map(|end| end.next).min();
        let checking = !self.idle.is_empty() || !self.lingering.is_empty() || !self.acceptors.is_empty();
        let checks = checking.then_some(self.next_idle_check);
        let next = checks.into_iter().chain(repeat).chain(self.silences.next()).min()?;
        Some(next.saturating_duration_since(Instant::now()).max(TICK))
    }

    fn tick(&mut self) {
        let (flush, watch) = {
            let mut requests = self.helper.requests.lock();
            self.idle.append(&mut requests.idle);
            self.lingering.append(&mut requests.linger);
            self.acceptors.append(&mut requests.acceptors);
            if !requests.clients.is_empty() {
                self.clients.append(&mut requests.clients);
            }
            for (engine, epoch) in requests.ends.drain(..) {
                self.ends.push(End { engine, epoch, repeats: 0, next: Instant::now() + REPEAT });
            }
            if !requests.listened.is_empty() {
                self.silences.add(std::mem::take(&mut requests.listened));
            }
            let mailboxes = std::mem::take(&mut requests.mailboxes);
            let jobs = std::mem::take(&mut requests.jobs.0);
            let work = (std::mem::take(&mut requests.flush), std::mem::take(&mut requests.watch));
            drop(requests);
            jobs.into_iter().for_each(|job| job());
            for mailbox in mailboxes {
                self.open_mailbox(&mailbox);
            }
            work
        };
        self.repeat_ends();
        self.silences.look();
        if !self.clients.is_empty() && self.routes.is_none() {
            self.open_routes();
        }
        let busy = !flush.is_empty() || !watch.is_empty();
        for (engine, link) in watch {
            self.watch(engine, &link, Interest::WRITABLE);
        }
        for engine in flush {
            if let Some(engine) = engine.upgrade() {
                engine.flush_listed.store(false, Ordering::Release);
                self.look_after(&engine);
            }
        }
        let busy = self.linger() || busy;
        self.quiet_ticks = if busy { 0 } else { self.quiet_ticks.saturating_add(1) };
        if Instant::now() >= self.next_idle_check {
            self.next_idle_check = Instant::now() + IDLE_CHECK;
            self.check_idle();
            self.acceptors.retain(|acceptor| acceptor.upgrade().is_some_and(|acceptor| acceptor.expire()));
            self.clients.retain(|client| client.strong_count() > 0);
        }
    }

    /// Sessions that have sent something: what is acknowledged is forgotten, and a link that owes an
    /// acknowledgement while the application looks away is watched for its end.
    fn check_idle(&mut self) {
        let mut watch = Vec::new();
        self.idle.retain(|engine| {
            let Some(engine) = engine.upgrade() else { return false };
            let idle = engine.check_idle();
            if let Idle::Unacked { link, interest, .. } = &idle {
                watch.push((Arc::downgrade(&engine), link.clone(), *interest));
            }
            matches!(idle, Idle::Busy | Idle::Unacked { again: true, .. })
        });
        self.idle.shrink_to(64);
        for (engine, link, interest) in watch {
            self.watch(engine, &link, interest);
        }
    }

    /// Flushes, acknowledges, and looks for acknowledgements if a writer waits for them.
    fn look_after(&mut self, engine: &Arc<Engine>) {
        if engine.owes_ack() {
            engine.send_ack();
        } else {
            engine.flush();
        }
        if engine.writer_waits.load(Ordering::Acquire) && !engine.make_room() {
            // Look again at the next tick: the application has nothing else to wait for.
            self.helper.flush_soon(engine);
        }
    }

    /// Watches a link for one thing more. Edge-triggered: what is registered once is told again when it is news.
    fn watch(&mut self, engine: Weak<Engine>, link: &Arc<Link>, interest: Interest) {
        let fd = link.as_fd().as_raw_fd();
        let Some(token) = link_token(fd) else { return };
        let registry = self.poll.registry();
        let known = self.watches.get(&token.0).filter(|watch| watch.link.ptr_eq(&Arc::downgrade(link)));
        let result = match known {
            Some(watch) if (watch.interest | interest) == watch.interest => return,
            Some(watch) => {
                let interest = watch.interest | interest;
                registry.reregister(&mut SourceFd(&fd), token, interest).map(|()| interest)
            }
            None => registry.register(&mut SourceFd(&fd), token, interest).map(|()| interest),
        };
        match result {
            Ok(interest) => {
                self.watches.insert(token.0, Watch { engine, link: Arc::downgrade(link), interest });
            }
            Err(error) => tracing::warn!(%error, "cannot watch a link"),
        }
    }

    /// Narrows what a link is watched for.
    fn unwatch(&mut self, token: usize, link: &Link, interest: Interest) {
        let Some(watch) = self.watches.get_mut(&token) else { return };
        let fd = link.as_fd().as_raw_fd();
        match watch.interest.remove(interest) {
            Some(left) => {
                watch.interest = left;
                let _ = self.poll.registry().reregister(&mut SourceFd(&fd), Token(token), left);
            }
            None => {
                self.watches.remove(&token);
                deregister(self.poll.registry(), link);
            }
        }
    }

    fn ready(&mut self, token: usize, event: Ready) {
        let Some(watch) = self.watches.get(&token) else { return };
        let interest = watch.interest;
        let (Some(engine), Some(link)) = (watch.engine.upgrade(), watch.link.upgrade()) else {
            // A closed descriptor leaves the poll by itself.
            self.watches.remove(&token);
            return;
        };
        if event.write && interest.is_writable() {
            self.unwatch(token, &link, Interest::WRITABLE);
            engine.flush();
        }
        let over = engine.attend(&link, event.end);
        if over || link.is_dead() {
            self.watches.remove(&token);
            deregister(self.poll.registry(), &link);
        } else if interest.is_readable() && !engine.needs_input() {
            self.unwatch(token, &link, Interest::READABLE);
            // The ring's memory can go.
            engine.list_idle();
        }
    }

    fn open_mailbox(&mut self, mailbox: &Weak<Mailbox>) {
        // Closed descriptors leave the poll by themselves.
        self.mailboxes.retain(|_, mailbox| mailbox.strong_count() > 0);
        let Some(open) = mailbox.upgrade() else { return };
        let fd = open.as_fd().as_raw_fd();
        let Some(Token(token)) = link_token(fd).map(|token| Token(token.0 + MAILBOX)) else { return };
        match self.poll.registry().register(&mut SourceFd(&fd), Token(token), Interest::READABLE) {
            Ok(()) => {
                self.mailboxes.insert(token, mailbox.clone());
            }
            Err(error) => tracing::error!(%error, "cannot wait for datagrams"),
        }
    }

    fn take_datagrams(&mut self, token: usize) {
        let Some(mailbox) = self.mailboxes.get(&token).and_then(Weak::upgrade) else { return };
        if mailbox.receive() {
            // The poll reports only what is new: have the rest reported again.
            let fd = mailbox.as_fd().as_raw_fd();
            let _ = self.poll.registry().reregister(&mut SourceFd(&fd), Token(token), Interest::READABLE);
        }
    }

    fn repeat_ends(&mut self) {
        if self.ends.is_empty() {
            return;
        }
        let now = Instant::now();
        self.ends.retain_mut(|end| {
            if end.next > now {
                return true;
            }
            end.repeats += 1;
            let pause = end.engine.repeat_end(end.epoch, end.repeats);
            end.next = now + pause.unwrap_or_default();
            pause.is_some()
        });
        self.ends.shrink_to(64);
    }

    /// Sessions that nobody holds any more. True if any is young enough to be worth a look every tick.
    fn linger(&mut self) -> bool {
        let mut young = false;
        let mut watch = Vec::new();
        self.lingering.retain_mut(|(engine, since, ticks)| {
            *ticks = ticks.saturating_add(1);
            let due = *ticks <= LINGER_TICKS_MAX || ticks.is_power_of_two() || *ticks % 256 == 0;
            if !due {
                return true;
            }
            if engine.linger_step() {
                return false;
            }
            if since.elapsed() >= LINGER_MAX && engine.is_delivered() {
                engine.give_up_lingering();
                return false;
            }
            if *ticks == LINGER_TICKS_MAX
                && let Some(link) = engine.link()
            {
                watch.push((Arc::downgrade(engine), link));
            }
            young |= *ticks < LINGER_TICKS_MAX;
            true
        });
        for (engine, link) in watch {
            self.watch(engine, &link, Interest::READABLE);
        }
        young
    }

    fn open_routes(&mut self) {
        match RouteWatch::open() {
            Ok(routes) => {
                let fd = routes.as_fd().as_raw_fd();
                if let Err(error) =
                    self.poll.registry().register(&mut SourceFd(&fd), ROUTES, Interest::READABLE)
                {
                    tracing::warn!(%error, "cannot watch address and route changes");
                }
                self.routes = Some(routes);
            }
            Err(error) => {
                tracing::info!(%error, "address and route changes will not be noticed");
                self.clients.clear();
            }
        }
    }

    fn network_changed(&mut self) {
        if self.routes.as_ref().is_some_and(RouteWatch::drain) {
            for client in self.clients.iter().filter_map(Weak::upgrade) {
                client.network_changed();
            }
        }
    }
}

fn deregister(registry: &Registry, link: &Link) {
    let fd = link.as_fd().as_raw_fd();
    // Gone already if the descriptor was closed: then there is nothing to undo.
    let _ = registry.deregister(&mut SourceFd(&fd));
}

impl Engine {
    /// For a writer that waits: acknowledgements are looked for. True if there is room now.
    fn make_room(&self) -> bool {
        self.pump_input();
        let room = {
            let mut tx = self.tx();
            self.learn_acked(&mut tx);
            tx.sender.room_bytes() > 0
        };
        if room || self.is_over() {
            self.writer_waits.store(false, Ordering::Release);
            self.wake_all();
            return true;
        }
        false
    }

    /// Looks at a session that has sent something since it was last idle.
    fn check_idle(&self) -> Idle {
        let Some(mut tx) = self.tx.try_lock() else { return Idle::Busy };
        if let Some(link) = &tx.link {
            link.guard(self.config.detect_timeout);
        }
        let end_offset = tx.sender.end_offset();
        if tx.idle_end_offset != end_offset {
            tx.idle_end_offset = end_offset;
            return Idle::Busy;
        }
        self.learn_acked(&mut tx);
        let acked = tx.sender.retained_bytes() == 0;
        if acked {
            if tx.hold.as_ref().is_some_and(|hold| hold.is_sent()) {
                tx.hold = None;
            }
            tx.sender.shrink();
        }
        let idle = match &tx.link {
            Some(link) if !acked => {
                let interest = match link.mode() {
                    // Acknowledgements come with the input.
                    LinkMode::Inband => Interest::READABLE,
                    LinkMode::Kernel | LinkMode::Window | LinkMode::Udp => Interest::PRIORITY,
                };
                let again = link.mode() == LinkMode::Kernel;
                Idle::Unacked { link: link.clone(), interest, again }
            }
            // Without a link there is nothing to learn; the next link lists the session again.
            _ => Idle::Forget,
        };
        if !matches!(idle, Idle::Unacked { again: true, .. }) {
            self.idle_listed.store(false, Ordering::Release);
        }
        idle
    }

    /// Something has happened on a watched link. True when the session has no more use for the helper.
    fn attend(&self, link: &Arc<Link>, ended: bool) -> bool {
        if self.ctl().released && self.linger_step() {
            return true;
        }
        self.pump_input();
        // What had come before the end was taken in first: it may say why.
        if ended && !link.is_dead() && link.is_broken() {
            self.lost(link, "connection lost while the application did nothing");
        }
        false
    }

    /// Whether input is looked for on the application's behalf.
    fn needs_input(&self) -> bool {
        self.ctl().released || self.tx.try_lock().is_none_or(|tx| tx.sender.retained_bytes() > 0)
    }

    fn network_changed(&self) {
        let hooks = self.ctl().hooks.clone();
        if let (Some(hooks), Some(engine)) = (hooks, self.arc()) {
            hooks.network_changed(&engine);
        }
    }
}
