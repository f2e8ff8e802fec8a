//! The relays that are running, and what those that have ended have added up to.

use crate::watcher::Slot;
use outlast_session::relay::{Control, Outcome};
use outlast_session::{Info, Role, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Sessions that are remembered with the reason for which they ended.
const FAILURES_MAX: usize = 16;

/// All relays of the process.
#[derive(Debug, Default)]
pub struct Registry {
    relays: Mutex<BTreeMap<u64, Relay>>,
    next: AtomicU64,
    left: Notify,
    /// Sessions that this process has accepted are handed over, those too that are entered later.
    leaving: AtomicBool,
    totals: Mutex<Totals>,
    /// The latest sessions that have not ended in order, the last first.
    failures: Mutex<VecDeque<Failed>>,
}

/// A session that has not ended in order, for people who ask why.
#[derive(Clone, Debug)]
pub struct Failed {
    pub id: SessionId,
    /// Where the other end was.
    pub peer: Option<String>,
    pub at: Instant,
    pub why: String,
}

#[derive(Clone, Debug)]
struct Relay {
    id: SessionId,
    role: Role,
    control: Control,
}

/// Sums over the relays that have ended. With the live ones added they only ever grow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub opened: u64,
    pub completed: u64,
    /// By an error of the session, or because a local program or `outlast kill` ended them.
    pub failed: u64,
    /// Killed or stopped by us, so that the peers have to hear of it.
    pub ended_early: u64,
    /// Of those: with something that is not known to be delivered.
    pub undelivered: u64,
    pub outages: u64,
    pub resent_bytes: u64,
    pub spliced_bytes: u64,
    pub written_bytes: u64,
    pub read_bytes: u64,
    pub pause_total_ms: u64,
}

impl Totals {
    /// Adds what a live session has seen. Of an outage that is not over it is not known yet whether it is one, or the end.
    pub fn add_live(&mut self, info: &Info) {
        self.add(info);
        self.outages -= info.outages.min(u64::from(info.pause_now_ms.is_some()));
    }

    /// Adds what a session, live or not, has seen.
    pub fn add(&mut self, info: &Info) {
        self.outages += info.outages;
        self.resent_bytes += info.resent_bytes;
        self.spliced_bytes += info.spliced_bytes;
        self.written_bytes += info.written_bytes;
        self.read_bytes += info.read_bytes;
        self.pause_total_ms += info.pause_total_ms;
    }
}

/// The place of one relay in the registry, until it is dropped.
#[derive(Debug)]
pub struct Place {
    registry: Arc<Registry>,
    number: u64,
    pub control: Control,
    /// What is said for the session if this process is killed.
    pub last_word: Option<Slot>,
}

impl Registry {
    /// Enters a relay.
    pub fn enter(self: &Arc<Self>, id: SessionId, role: Role) -> Place {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let control = Control::new();
        let mut relays = self.relays();
        relays.insert(number, Relay { id, role, control: control.clone() });
        // Looked at with the lock: a session is either entered before the hand-over, or knows of it.
        if role == Role::Server && self.is_leaving() {
            control.detach();
        }
        drop(relays);
        self.totals_mut().opened += 1;
        Place { registry: Arc::clone(self), number, control, last_word: None }
    }

    /// How many relays are running.
    pub fn open(&self) -> usize {
        self.relays().len()
    }

    /// Completes when no relay is running.
    pub async fn all_left(&self) {
        self.left_when(|registry| registry.open() == 0).await;
    }

    /// Completes when no relay of this role is running.
    pub async fn all_left_as(&self, role: Role) {
        self.left_when(|registry| registry.open_as(role) == 0).await;
    }

    async fn left_when(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            let left = self.left.notified();
            if is_so(self) {
                return;
            }
            left.await;
        }
    }

    /// Whether the sessions that this process has accepted are handed over to the next one.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// Tells every relay to hand over and end.
    pub fn stop_all(&self) {
        for relay in self.relays().values() {
            relay.control.stop();
        }
    }

    /// Tells the relays of sessions that this process has accepted to leave it, and all others to hand over and end.
    pub fn detach_all(&self) {
        let relays = self.relays();
        self.leaving.store(true, Ordering::SeqCst);
        for relay in relays.values() {
            match relay.role {
                Role::Server => relay.control.detach(),
                Role::Client => relay.control.stop(),
            }
        }
    }

    /// How many relays of this role are running.
    pub fn open_as(&self, role: Role) -> usize {
        self.relays().values().filter(|relay| relay.role == role).count()
    }

    /// Tells every relay to end at once, as its process does.
    pub fn end_all(&self) {
        for relay in self.relays().values() {
            relay.control.end();
        }
    }

    /// Ends the relays of a session. Whether there was one.
    pub fn kill(&self, id: SessionId) -> bool {
        let relays = self.relays();
        let matching = relays.values().filter(|relay| relay.id == id);
        matching.map(|relay| relay.control.kill()).count() > 0
    }

    /// Asks the relays of one role for the state of their sessions.
    pub async fn infos(&self, role: Role) -> Vec<Info> {
        let controls: Vec<Control> = {
            let relays = self.relays();
            relays.values().filter(|relay| relay.role == role).map(|relay| relay.control.clone()).collect()
        };
        let mut asked = JoinSet::new();
        for control in controls {
            asked.spawn(async move { control.info().await });
        }
        asked.join_all().await.into_iter().flatten().collect()
    }

    /// The latest sessions that have not ended in order, the last first.
    pub fn failures(&self) -> Vec<Failed> {
        self.failures_mut().iter().cloned().collect()
    }

    fn failures_mut(&self) -> MutexGuard<'_, VecDeque<Failed>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sums over the relays that have ended.
    pub fn totals(&self) -> Totals {
        *self.totals_mut()
    }

    fn relays(&self) -> MutexGuard<'_, BTreeMap<u64, Relay>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn totals_mut(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Notes that the relay has failed before it had two ends: its destination is not to be had, or its session failed.
    pub fn failed(&self, info: &Info) {
        let mut totals = self.registry.totals_mut();
        totals.add(info);
        totals.failed += 1;
    }

    /// Notes how the relay ended.
    pub fn ended(&self, info: &Info, outcome: &Outcome) {
        if let Outcome::SessionFailed(error) = outcome {
            let peer = info.peer_addr.map(|peer| peer.to_string());
            let failed = Failed { id: info.id, peer, at: Instant::now(), why: error.to_string() };
            let mut failures = self.registry.failures_mut();
            failures.push_front(failed);
            failures.truncate(FAILURES_MAX);
        }
        let mut totals = self.registry.totals_mut();
        totals.add(info);
        match outcome {
            Outcome::Completed => totals.completed += 1,
            Outcome::SessionFailed(_) | Outcome::LocalFailed(_) | Outcome::Misdirected(_) => {
                totals.failed += 1
            }
            Outcome::Stopped { delivered } => {
                totals.ended_early += 1;
                totals.undelivered += u64::from(!delivered);
            }
            Outcome::Killed => {
                totals.ended_early += 1;
                totals.failed += 1;
            }
            Outcome::Detached(_) => {}
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.registry.relays().remove(&self.number);
        self.registry.left.notify_waiters();
    }
}
