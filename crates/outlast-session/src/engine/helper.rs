//! The one thread that works for sessions while their applications look away.
//!
//! Started when the first session needs it, one for the whole process, in both shells. It
//! * sends what small writes left in the ring, at most [`flush_delay`](crate::Config::flush_delay) after them;
//! * goes on sending when a full link can take more;
//! * takes acknowledgements in while a writer waits for room and nobody reads, of each session a bit at a time;
//! * sees sessions to their end that the application has let go of;
//! * gives the memory of idle rings back, once, and then leaves them alone;
//! * hears of address and route changes and tells the clients;
//! * listens whether anybody is behind a proxy ([`silence`](super::silence));
//! * lets detached sessions expire;
//! * starts threads in its own network namespace ([`place`](super::place)).
//!
//! It sleeps without a time-out when there is nothing of that to do: an idle session causes no wake-ups of its own.

mod looks;
mod thread;

use super::place::{Job, helper_lives_here};
use super::server::Acceptor;
use super::silence::Listened;
use super::udp::Mailbox;
use super::{Engine, Link};
use crate::sys;
use mio::{Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use thread::Thread;

const WAKE: Token = Token(0);

/// A link, and what it is to be watched for.
type Watched = (Weak<Engine>, Arc<Link>, Interest);

/// What the thread is asked to do.
#[derive(Debug, Default)]
struct Requests {
    flush: Vec<Weak<Engine>>,
    pump: Vec<Weak<Engine>>,
    idle: Vec<Weak<Engine>>,
    linger: Vec<Arc<Engine>>,
    watch: Vec<Watched>,
    acceptors: Vec<Weak<Acceptor>>,
    clients: Vec<Weak<Engine>>,
    mailboxes: Vec<Weak<Mailbox>>,
    repeats: Vec<Repeated>,
    listened: Vec<Listened>,
    jobs: Jobs,
    /// Much memory is free.
    trim: bool,
}

impl Requests {
    fn is_empty(&self) -> bool {
        // All of them, by name: the thread goes to sleep if there is none.
        let Self {
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
        } = self;
        flush.is_empty()
            && pump.is_empty()
            && idle.is_empty()
            && linger.is_empty()
            && watch.is_empty()
            && acceptors.is_empty()
            && clients.is_empty()
            && mailboxes.is_empty()
            && repeats.is_empty()
            && listened.is_empty()
            && jobs.0.is_empty()
            && !trim
    }
}

/// What is done again and again: mostly a datagram that is sent until it is confirmed (`udp`).
#[derive(Debug)]
enum Repeated {
    /// Also for a session that nobody holds any more.
    End {
        engine: Arc<Engine>,
        epoch: u64,
    },
    Ack {
        engine: Weak<Engine>,
    },
    /// No datagram: sessions are given up, a few at a time.
    Shedding {
        acceptor: Weak<Acceptor>,
    },
    /// No datagram: tells how many sessions were given up.
    Shed {
        acceptor: Weak<Acceptor>,
    },
    /// No datagram: looks whether a client's patience is over, whatever its attempts wait for.
    Patience {
        engine: Weak<Engine>,
    },
}

impl Repeated {
    /// Sends it. The pause before the next time, or none when that is enough.
    fn again(&self, repeats: u32) -> Option<Duration> {
        match self {
            Self::End { engine, epoch } => engine.repeat_end(*epoch, repeats),
            Self::Ack { engine } => engine.upgrade()?.repeat_ack(repeats),
            Self::Shedding { acceptor } => acceptor.upgrade()?.shed_some(),
            Self::Shed { acceptor } => acceptor.upgrade()?.tell_shedding(),
            Self::Patience { engine } => engine.upgrade()?.look_at_patience(),
        }
    }
}

/// Threads to be started here, in the helper's network namespace, and when.
#[derive(Default)]
struct Jobs(Vec<(Instant, Job)>);

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs", self.0.len())
    }
}

/// The handle to the thread.
#[derive(Debug, Default)]
pub(crate) struct Helper {
    requests: Mutex<Requests>,
    /// The thread looks at the requests every tick: no need to wake it.
    ticking: AtomicBool,
    /// Set when the thread runs.
    waker: OnceLock<Waker>,
    /// When it is tried again to start the thread, after a failure.
    next_start_ms: Mutex<u64>,
}

/// After a failure to start the thread, such as too few descriptors, it is tried again so much later, if somebody asks for anything.
const START_PAUSE_MS: u64 = 100;

static HELPER: OnceLock<&'static Helper> = OnceLock::new();

impl Helper {
    /// The process's helper, started if need be.
    pub(crate) fn get() -> &'static Helper {
        let helper: &'static Helper = HELPER.get_or_init(|| Box::leak(Box::default()));
        if helper.waker.get().is_none() {
            helper.start();
        }
        helper
    }

    /// Starts the thread. Where that fails now, what it is asked for waits for the next time.
    #[cold]
    fn start(&'static self) {
        let mut next_start_ms = self.next_start_ms.lock();
        let now_ms = sys::coarse_now_ms();
        if self.waker.get().is_some() || now_ms < *next_start_ms {
            return;
        }
        *next_start_ms = now_ms + START_PAUSE_MS;
        let started = Poll::new().and_then(|poll| {
            let waker = Waker::new(poll.registry(), WAKE)?;
            // It looks at what it was asked for before it sleeps for the first time.
            std::thread::Builder::new()
                .name("outlast-helper".into())
                .spawn(move || Thread::new(self, poll).run())?;
            Ok(waker)
        });
        match started {
            Ok(waker) => {
                helper_lives_here();
                let _ = self.waker.set(waker);
            }
            // Sessions work on, without joining of writes and without background resending.
            Err(error) => tracing::error!(%error, "cannot start the helper thread: it is tried again"),
        }
    }

    fn ask(&self, urgent: bool, request: impl FnOnce(&mut Requests)) {
        request(&mut self.requests.lock());
        if (urgent || !self.ticking.load(Ordering::Acquire))
            && let Some(waker) = self.waker.get()
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

    /// Take more input in at the next tick.
    pub(crate) fn pump_soon(&self, engine: &Engine) {
        if !engine.pump_listed.swap(true, Ordering::AcqRel) {
            self.ask(false, |requests| requests.pump.push(engine.weak()));
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

    /// Go on sending when `link` can take more. Once for each time that it is full: whoever looks at it again meanwhile, as this
    /// thread does, must not wake it for that.
    pub(crate) fn watch_writable(&self, engine: &Engine, link: &Arc<Link>) {
        if !link.awaits_room.swap(true, Ordering::AcqRel) {
            self.ask(true, |requests| requests.watch.push((engine.weak(), link.clone(), Interest::WRITABLE)));
        }
    }

    /// A session that was let go of has a new link: what comes on it is for this thread, beginning with what is there.
    pub(crate) fn attend(&self, engine: &Engine, link: &Arc<Link>) {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.ask(true, |requests| requests.watch.push((engine.weak(), link.clone(), interest)));
    }

    /// Notice when `link` breaks, whatever of its input is unread.
    pub(crate) fn watch_end(&self, engine: &Engine, link: &Arc<Link>) {
        // Of breaks the kernel tells whatever is asked for, and of this alone nothing else is told.
        self.ask(true, |requests| requests.watch.push((engine.weak(), link.clone(), Interest::PRIORITY)));
    }

    /// See a session to its end.
    pub(crate) fn linger(&self, engine: &Arc<Engine>) {
        self.ask(false, |requests| requests.linger.push(engine.clone()));
    }

    /// Take datagrams in.
    pub(crate) fn watch_mailbox(&self, mailbox: &Arc<Mailbox>) {
        self.ask(true, |requests| requests.mailboxes.push(Arc::downgrade(mailbox)));
    }

    /// Tell the peer again that its stream was read to the end, on the link of `epoch`, until it confirms.
    pub(crate) fn repeat_end(&self, engine: Arc<Engine>, epoch: u64) {
        self.ask(false, |requests| requests.repeats.push(Repeated::End { engine, epoch }));
    }

    /// Tell the server again what was read, until it confirms.
    pub(crate) fn repeat_ack(&self, engine: &Engine) {
        self.ask(false, |requests| requests.repeats.push(Repeated::Ack { engine: engine.weak() }));
    }

    /// Give up more of the sessions that this listener has no room for.
    pub(crate) fn go_on_shedding(&self, acceptor: Weak<Acceptor>) {
        self.ask(true, |requests| requests.repeats.push(Repeated::Shedding { acceptor }));
    }

    /// Tell how many sessions were given up, in a while.
    pub(crate) fn tell_shedding(&self, acceptor: Weak<Acceptor>) {
        self.ask(false, |requests| requests.repeats.push(Repeated::Shed { acceptor }));
    }

    /// End this client's session when its patience is over, unless it has a link by then.
    pub(crate) fn watch_patience(&self, engine: &Engine) {
        self.ask(false, |requests| requests.repeats.push(Repeated::Patience { engine: engine.weak() }));
    }

    /// Notice when nobody is at the other end of a link of mode `inband`.
    pub(crate) fn listen_to(&self, engine: &Engine, link: &Arc<Link>) {
        let listened = Listened::new(engine, link);
        self.ask(false, |requests| requests.listened.push(listened));
    }

    /// Start this thread after so long; at once if that is nothing, for those that belong here.
    pub(super) fn start_thread(&self, after: Duration, job: Job) {
        self.ask(true, |requests| requests.jobs.0.push((Instant::now() + after, job)));
    }

    /// Sessions have given much memory back: return it to the system.
    pub(crate) fn return_memory(&self) {
        self.ask(false, |requests| requests.trim = true);
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
