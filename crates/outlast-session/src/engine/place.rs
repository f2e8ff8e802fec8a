//! Network namespaces: the later links of a session are made where its first one was.
//!
//! A thread is in the network namespace of the thread that started it, until it moves, which takes a privilege. But
//! the thread that notices a loss starts the one that makes the next link, and that can be any: the helper, or a reader
//! in another namespace. So it is left to a thread of the session's own place: to the helper where that lives, and in
//! every other namespace that has sessions to one starter, which does nothing else.
//!
//! Tasks are different: they run wherever the threads of their runtime are.

use super::gap::{self, Gap};
use super::{Engine, Helper};
use crate::sys;
use parking_lot::Mutex;
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, SendError, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// A thread of a session to be started.
pub(super) struct Job {
    engine: Arc<Engine>,
    name: &'static str,
    work: Box<dyn FnOnce() + Send>,
    /// Gets the reason if it could not be started.
    failed: Box<dyn FnOnce(&io::Error) + Send>,
}

/// A network namespace with sessions in it.
#[derive(Debug)]
pub(crate) struct Place {
    /// The kernel's name for it, which it never gives to another.
    cookie: u64,
    /// Starts threads there; none where the helper does. Ends with the last session.
    starter: Option<Sender<Job>>,
}

/// Where the helper is. Nothing if the kernel has no names for namespaces (before Linux 5.14).
static HOME: OnceLock<Option<Arc<Place>>> = OnceLock::new();
/// All others.
static ELSEWHERE: Mutex<Vec<Weak<Place>>> = Mutex::new(Vec::new());

/// The calling thread starts the helper.
pub(super) fn helper_lives_here() {
    let here = || Some(Arc::new(Place { cookie: sys::netns_cookie_here()?, starter: None }));
    // There is one helper.
    let _ = HOME.set(here());
}

impl Place {
    /// Where the calling thread has just made `socket`; `None` if that is not known.
    fn of(socket: impl AsFd) -> Option<Arc<Place>> {
        let cookie = sys::netns_cookie(socket).ok()?;
        Helper::get();
        let home = HOME.get()?.as_ref()?;
        if home.cookie == cookie {
            return Some(home.clone());
        }
        let mut elsewhere = ELSEWHERE.lock();
        elsewhere.retain(|place| place.strong_count() > 0);
        if let Some(known) = elsewhere.iter().filter_map(Weak::upgrade).find(|place| place.cookie == cookie) {
            return Some(known);
        }
        let (starter, jobs) = mpsc::channel::<Job>();
        let spawned = std::thread::Builder::new()
            .name("outlast-starter".into())
            .spawn(move || jobs.into_iter().for_each(Job::spawn));
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread for a network namespace");
            return None;
        }
        let place = Arc::new(Place { cookie, starter: Some(starter) });
        elsewhere.push(Arc::downgrade(&place));
        Some(place)
    }

    fn start(&self, job: Job) {
        if sys::netns_cookie_here() == Some(self.cookie) {
            return job.spawn();
        }
        match &self.starter {
            None => Helper::get().start_thread(Duration::ZERO, job),
            Some(starter) => {
                if let Err(SendError(job)) = starter.send(job) {
                    (job.failed)(&io::Error::other("the thread for a network namespace is gone"));
                }
            }
        }
    }
}

impl Job {
    /// In the session's network namespace.
    pub(super) fn start(self) {
        let place = self.engine.ctl().client.place.clone();
        match place {
            Some(place) => place.start(self),
            None => self.spawn(),
        }
    }

    /// The same, by the helper's thread: it is where most sessions are. To ask the kernel for that may take a descriptor, and
    /// there may be none.
    pub(super) fn start_at_home(self) {
        let place = self.engine.ctl().client.place.clone();
        match place.filter(|place| place.starter.is_some()) {
            Some(place) => place.start(self),
            None => self.spawn(),
        }
    }

    /// In the calling thread's.
    fn spawn(self) {
        let spawned = if gap::reached(Gap::StartsThread, &self.engine) {
            Err(io::Error::from_raw_os_error(libc::EAGAIN))
        } else {
            std::thread::Builder::new().name(self.name.into()).spawn(self.work)
        };
        if let Err(error) = spawned {
            (self.failed)(&error);
        }
    }
}

impl Engine {
    /// A socket of this session was made by the thread that opens it.
    pub(crate) fn note_place(&self, socket: impl AsFd) {
        let mut ctl = self.ctl();
        if ctl.client.place.is_none() && ctl.epoch == 0 {
            ctl.client.place = Place::of(socket);
        }
    }

    /// Whether the helper hears of the network changes that concern this session.
    pub(crate) fn is_at_home(&self) -> bool {
        self.ctl().client.place.as_ref().is_none_or(|place| place.starter.is_none())
    }

    /// Runs `work` in a thread of its own, in the session's network namespace, after so long. If the thread cannot be
    /// started, `failed` is told, by any thread and without a lock.
    pub(crate) fn start_thread(
        self: &Arc<Self>,
        name: &'static str,
        after: Duration,
        work: impl FnOnce() + Send + 'static,
        failed: impl FnOnce(&io::Error) + Send + 'static,
    ) {
        let job = Job { engine: self.clone(), name, work: Box::new(work), failed: Box::new(failed) };
        if after.is_zero() {
            job.start();
        } else {
            Helper::get().start_thread(after, job);
        }
    }
}
