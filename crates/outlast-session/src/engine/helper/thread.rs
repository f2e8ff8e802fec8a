//! What the helper thread does, tick by tick and event by event.

mod refused;
mod repeats;
mod stalled;

use super::super::memory::trim::Trim;
use super::super::pool::pool_bytes;
use super::super::server::Acceptor;
use super::super::silence::Silences;
use super::super::udp::Mailbox;
use super::super::{Engine, Link, memory};
use super::looks::Idle;
use super::{Helper, Job, Requests, WAKE, Watched};
use crate::sys::RouteWatch;
use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};
use refused::Refused;
use repeats::Repeats;
use stalled::Stalled;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often what was joined is sent, and sessions that were let go of are looked at.
const TICK: Duration = Duration::from_millis(1);
/// So many ticks without work, and the ticking stops: restarting it costs a system call and a thread switch.
const QUIET_TICKS_MAX: u32 = 100;
/// How often sessions that have sent something are checked for having fallen idle, and detached ones for their age.
const IDLE_CHECK: Duration = Duration::from_millis(500);
/// After so many looks a session that was let go of is watched instead of polled.
const LINGER_LOOKS_MAX: u32 = 4;
/// And looked at less and less often, down to this: what is lost beside a link, or with it, nobody reports.
const LINGER_PAUSE_MAX: Duration = Duration::from_secs(1);
/// A session that was let go of and whose peer does not end its side is given up after this time, as TCP does with
/// orphaned connections (tcp_fin_timeout).
const LINGER_MAX: Duration = Duration::from_secs(60);

const ROUTES: Token = Token(1);
const FIRST_WATCH: usize = 2;
/// Tokens of links are even, those of mailboxes odd; both follow from the descriptor, which is unique while it is open.
const MAILBOX: usize = 1;

/// A session that nobody holds any more.
struct Lingering {
    engine: Arc<Engine>,
    since: Instant,
    looks: u32,
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

/// What was asked for since the last tick, and is done now.
struct Taken {
    flush: Vec<Weak<Engine>>,
    pump: Vec<Weak<Engine>>,
    watch: Vec<Watched>,
}

/// What only the thread itself touches.
pub(super) struct Thread {
    helper: &'static Helper,
    poll: Poll,
    routes: Option<RouteWatch>,
    watches: HashMap<usize, Watch>,
    idle: Vec<Weak<Engine>>,
    lingering: Vec<Lingering>,
    acceptors: Vec<Weak<Acceptor>>,
    /// When one of them has something to do.
    next_expiry: Option<Instant>,
    clients: Vec<Weak<Engine>>,
    mailboxes_to_open: Vec<Weak<Mailbox>>,
    /// Threads to be started, and when.
    later: Vec<(Instant, Job)>,
    mailboxes: HashMap<usize, Weak<Mailbox>>,
    repeats: Repeats,
    stalled: Stalled,
    refused: Refused,
    trim: Trim,
    silences: Silences,
    next_idle_check: Instant,
    quiet_ticks: u32,
}

impl Thread {
    pub(super) fn new(helper: &'static Helper, poll: Poll) -> Self {
        Self {
            helper,
            poll,
            routes: None,
            watches: HashMap::new(),
            idle: Vec::new(),
            lingering: Vec::new(),
            acceptors: Vec::new(),
            next_expiry: None,
            clients: Vec::new(),
            mailboxes_to_open: Vec::new(),
            later: Vec::new(),
            mailboxes: HashMap::new(),
            repeats: Repeats::default(),
            stalled: Stalled::default(),
            refused: Refused::default(),
            trim: Trim::default(),
            silences: Silences::default(),
            next_idle_check: Instant::now() + IDLE_CHECK,
            quiet_ticks: 0,
        }
    }

    pub(super) fn run(mut self) {
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
        // A request that came before the flag was lowered woke nobody.
        if !self.helper.requests.lock().is_empty() {
            return Some(Duration::ZERO);
        }
        let repeat = self.repeats.next();
        let checking = !self.idle.is_empty() || !self.lingering.is_empty();
        let checks = checking.then_some(self.next_idle_check);
        // With the other checks, for which it can wait a moment. When memory is short sessions go before their time.
        let expiry = self.next_expiry.map(|at| if memory::needs_looks() { self.next_idle_check } else { at });
        let expiry = expiry.map(|at| at.max(self.next_idle_check));
        let later = self.later.iter().map(|(at, _)| *at).min();
        let next =
            [checks, expiry, repeat, later, self.trim.next(), self.silences.next(), self.refused.next()];
        let next = next.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()).max(TICK))
    }

    fn tick(&mut self) {
        let Taken { flush, pump, watch } = self.take_requests();
        self.run_jobs();
        self.repeats.work();
        self.silences.look();
        self.trim.look(pool_bytes);
        if !self.clients.is_empty() && self.routes.is_none() {
            self.open_routes();
        }
        let mut watch = watch;
        watch.retain(|watched| !self.refused.put_off(watched));
        let busy = !flush.is_empty() || !pump.is_empty() || !watch.is_empty();
        for (engine, link, interest) in self.refused.due().into_iter().chain(watch) {
            self.watch(engine, &link, interest);
        }
        for engine in flush {
            if let Some(engine) = engine.upgrade() {
                self.look_after(&engine);
            }
        }
        self.stalled.look(self.helper);
        for engine in pump.iter().filter_map(Weak::upgrade) {
            engine.pump_again();
        }
        let busy = self.linger() || busy || !self.stalled.is_empty();
        self.quiet_ticks = if busy { 0 } else { self.quiet_ticks.saturating_add(1) };
        if Instant::now() >= self.next_idle_check {
            self.next_idle_check = Instant::now() + IDLE_CHECK;
            self.check_idle();
            memory::look();
            self.expire();
            self.clients.retain(|client| client.strong_count() > 0);
        }
    }

    /// Everything that was asked for since the last tick is on a list of this thread's; what to do now is returned.
    fn take_requests(&mut self) -> Taken {
        let requests = &mut *self.helper.requests.lock();
        // All of them, by name, so that none is forgotten.
        let Requests {
            flush,
            pump,
            idle,
            linger,
            watch,
            acceptors,
            clients,
            mailboxes,
            repeats,
            listened,
            jobs,
            trim,
        } = requests;
        if std::mem::take(trim) {
            self.trim.plan(pool_bytes(), Instant::now());
        }
        self.idle.append(idle);
        for engine in linger.drain(..) {
            let since = Instant::now();
            self.lingering.push(Lingering { engine, since, looks: 0, next: since });
        }
        for acceptor in acceptors.drain(..) {
            // It asks for every link that is lost, and is looked at as a whole.
            if !self.acceptors.iter().any(|known| known.ptr_eq(&acceptor)) {
                self.acceptors.push(acceptor);
            }
            // What it waits for now is asked with the next checks.
            self.next_expiry = Some(self.next_idle_check);
        }
        self.clients.append(clients);
        self.mailboxes_to_open.append(mailboxes);
        self.repeats.add(repeats.drain(..));
        if !listened.is_empty() {
            self.silences.add(std::mem::take(listened));
        }
        self.later.append(&mut jobs.0);
        Taken { flush: std::mem::take(flush), pump: std::mem::take(pump), watch: std::mem::take(watch) }
    }

    /// What need not be done with the requests' lock held.
    fn run_jobs(&mut self) {
        for mailbox in std::mem::take(&mut self.mailboxes_to_open) {
            self.open_mailbox(&mailbox);
        }
        if self.later.is_empty() {
            return;
        }
        let now = Instant::now();
        for (_, job) in self.later.extract_if(.., |(at, _)| *at <= now) {
            job.start_at_home();
        }
    }

    /// Sessions that have sent something: what is acknowledged is forgotten, and a link that owes an
    /// acknowledgement while the application looks away is watched for its end.
    fn check_idle(&mut self) {
        let mut watch = Vec::new();
        let (mut unwelcome, mut unanswered, mut stuck) = (Vec::new(), Vec::new(), Vec::new());
        self.idle.retain(|engine| {
            let Some(engine) = engine.upgrade() else { return false };
            let idle = engine.check_idle();
            if let Idle::Unacked { link, interest, .. } = &idle {
                engine.request_ack();
                watch.push((Arc::downgrade(&engine), link.clone(), *interest));
            }
            let again = !matches!(idle, Idle::Forget | Idle::Unacked { again: false, .. });
            match idle {
                Idle::Unwelcome(link) => unwelcome.push((engine, link)),
                Idle::Unanswered(link) => unanswered.push((engine, link)),
                Idle::Stuck => stuck.push(engine),
                _ => {}
            }
            again
        });
        stuck.iter().for_each(|engine| engine.is_stuck());
        for (engine, link) in unanswered {
            // As the kernel says it.
            engine.lost(&link, "connection timed out");
        }
        for (engine, link) in unwelcome {
            engine.give_up_opening(&link);
        }
        self.idle.shrink_to(64);
        for (engine, link, interest) in watch {
            self.watch(engine, &link, interest);
        }
    }

    /// Lets detached sessions expire.
    fn expire(&mut self) {
        let now = Instant::now();
        let mut next = None;
        self.acceptors.retain(|acceptor| {
            let Some(left) = acceptor.upgrade().and_then(|acceptor| acceptor.expire()) else { return false };
            next = next.into_iter().chain(now.checked_add(left)).min();
            true
        });
        self.next_expiry = next;
    }

    /// Flushes and acknowledges. If a writer waits for acknowledgements, it is about to be looked after.
    fn look_after(&mut self, engine: &Arc<Engine>) {
        // Those that stay on a list stay marked: whoever asks for them meanwhile must not list them twice.
        let (rests, is_stalled) = (engine.rests_from_looks(), engine.writer_is_stalled());
        if !rests && !is_stalled {
            engine.flush_listed.store(false, Ordering::Release);
        }
        if engine.owes_ack() {
            engine.send_ack();
        }
        if rests {
            self.helper.ask(false, |requests| requests.flush.push(engine.weak()));
        } else if is_stalled {
            self.stalled.add(engine);
        } else {
            stalled::look_at(self.helper, engine);
        }
    }

    /// Watches a link for one thing more. Edge-triggered: what is registered once is reported again when it is news.
    ///
    /// A link is in the poll exactly as long as it is in the table: the request that comes next finds it in both, or in none.
    fn watch(&mut self, engine: Weak<Engine>, link: &Arc<Link>, interest: Interest) {
        if engine.strong_count() == 0 {
            // The session ended while the request waited.
            return;
        }
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
            Err(error) => {
                link.awaits_room.store(false, Ordering::Release);
                tracing::warn!(
                    peer = %link.peer_addr, %error,
                    "cannot watch a link: its session may notice late that it has broken"
                );
            }
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
            None => self.forget(token, link),
        }
    }

    /// Watches a link no more.
    fn forget(&mut self, token: usize, link: &Link) {
        self.watches.remove(&token);
        let fd = link.as_fd().as_raw_fd();
        // It may have left the poll already.
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
    }

    fn ready(&mut self, token: usize, event: Ready) {
        let Some(watch) = self.watches.get(&token) else { return };
        let interest = watch.interest;
        let (engine, link) = (watch.engine.upgrade(), watch.link.upgrade());
        let Some(link) = link else {
            // A closed descriptor leaves the poll by itself.
            self.watches.remove(&token);
            return;
        };
        let Some(engine) = engine else {
            // A request of the session's may still hold the link, and with it the descriptor.
            self.forget(token, &link);
            return;
        };
        if event.write && interest.is_writable() {
            self.unwatch(token, &link, Interest::WRITABLE);
            link.awaits_room.store(false, Ordering::Release);
            Refused::flush(&engine, &link);
            if engine.owes_ack() {
                // There was no room for it.
                engine.send_ack();
            }
        }
        let over = engine.attend(&link, event.end);
        if over || link.is_dead() {
            self.forget(token, &link);
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

    /// Sessions that nobody holds any more. True if any is young enough to be worth a look every tick.
    fn linger(&mut self) -> bool {
        let now = Instant::now();
        let mut young = false;
        let mut watch = Vec::new();
        self.lingering.retain_mut(|session| {
            if session.next > now {
                return true;
            }
            if session.engine.linger_step() {
                return false;
            }
            if session.since.elapsed() >= LINGER_MAX && session.engine.is_delivered() {
                session.engine.give_up_lingering();
                return false;
            }
            session.looks += 1;
            if session.looks <= LINGER_LOOKS_MAX {
                young |= session.looks < LINGER_LOOKS_MAX;
            } else {
                session.next = now + (now - session.since).min(LINGER_PAUSE_MAX);
            }
            if session.looks == LINGER_LOOKS_MAX
                && let Some(link) = session.engine.link()
            {
                watch.push((Arc::downgrade(&session.engine), link));
            }
            true
        });
        self.lingering.shrink_to(64);
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

#[cfg(test)]
mod tests;
