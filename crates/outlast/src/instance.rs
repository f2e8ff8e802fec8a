//! A running process as it shows itself: to `outlast status`, and to Prometheus.

use crate::admin::Administered;
use crate::registry::{Failed, Registry, Totals};
use outlast_admin::exchange::Matching;
use outlast_admin::sessions::{self, Sessions};
use outlast_admin::{Answer, Page, Request, Status};
use outlast_session::tokio::Listener;
use outlast_session::{Info, Memory, Role, SessionId, SessionState};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a process serves and carries.
pub struct Instance {
    /// One line per front or listener: "listen 0.0.0.0:7000 to 127.0.0.1:22".
    pub serves: Vec<String>,
    pub listeners: Vec<Arc<Listener>>,
    pub registry: Arc<Registry>,
    pub draining: AtomicBool,
    pub started: Instant,
}

/// What its sessions hold.
fn memory() -> sessions::Memory {
    let Memory { budget_bytes, used_bytes, kernel_bytes, shed_sessions, shed_bytes } = Memory::now();
    sessions::Memory { budget_bytes, used_bytes, kernel_bytes, shed_sessions, shed_bytes }
}

/// A session as it is shown.
fn shown(info: &Info) -> sessions::Session {
    sessions::Session {
        id: info.id.to_string(),
        role: name(info.role),
        state: name(info.state),
        mode: info.mode.map(|mode| mode.to_string()),
        epoch: info.epoch,
        security: info.security.to_owned(),
        written_bytes: info.written_bytes,
        read_bytes: info.read_bytes,
        unacked_bytes: info.unacked_bytes,
        unacked_age_ms: info.unacked_age_ms,
        blocked_ms: info.blocked_ms,
        outages: info.outages,
        pause_now_ms: info.pause_now_ms,
        pause_longest_ms: info.pause_longest_ms,
        pause_total_ms: info.pause_total_ms,
        resent_bytes: info.resent_bytes,
        spliced_bytes: info.spliced_bytes,
        local_addr: info.local_addr.map(|address| address.to_string()),
        peer_addr: info.peer_addr.map(|address| address.to_string()),
        age_ms: info.age_ms,
    }
}

fn name(value: impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

fn totals(totals: Totals) -> sessions::Totals {
    let Totals { opened, completed, failed, outages, resent_bytes, .. } = totals;
    let Totals { spliced_bytes, written_bytes, read_bytes, pause_total_ms: pause_ms, .. } = totals;
    sessions::Totals {
        opened,
        completed,
        failed,
        outages,
        pause_ms,
        resent_bytes,
        spliced_bytes,
        written_bytes,
        read_bytes,
    }
}

impl Instance {
    /// All sessions of the process, attached and detached.
    pub async fn sessions(&self) -> Vec<Info> {
        let mut sessions = self.registry.infos(Role::Client).await;
        sessions.extend(self.listeners.iter().flat_map(|listener| listener.sessions()));
        sessions.sort_by_key(|info| std::cmp::Reverse(info.age_ms));
        sessions
    }

    /// Waits, for at most `limit`, until no listener has a connected session any more.
    pub async fn farewell(&self, limit: Duration) {
        let gone = async {
            let connected = |info: &Info| info.state == SessionState::Connected;
            while self.listeners.iter().any(|listener| listener.sessions().iter().any(connected)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(limit, gone).await.ok();
    }

    /// How many connections were turned away, by reason, all listeners together.
    fn refusals(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (reason, count) in self.listeners.iter().flat_map(|listener| listener.refusals()) {
            *counts.entry(reason.to_owned()).or_default() += count;
        }
        counts
    }

    fn failures(&self) -> Vec<sessions::Failure> {
        let failures = self.registry.failures().into_iter().map(|Failed { id, peer, at, why }| {
            let ago_ms = millis(at);
            sessions::Failure { id: id.to_string(), peer_addr: peer, ago_ms, why }
        });
        failures.collect()
    }

    /// The answer to `kill`: which sessions have been ended.
    async fn kill(&self, prefix: &str) -> Matching {
        let mut matching: Vec<SessionId> = self
            .sessions()
            .await
            .iter()
            .map(|info| info.id)
            .filter(|id| id.to_string().starts_with(prefix))
            .collect();
        // A process may have both ends of one.
        matching.sort_unstable();
        matching.dedup();
        if let [id] = matching.as_slice() {
            let relayed = self.registry.kill(*id);
            // A relay ends its session itself, and says at which end.
            if relayed || self.listeners.iter().any(|listener| listener.kill(id)) {
                tracing::warn!(session = %id, "killed by an administrator (outlast kill)");
            } else {
                // It has ended meanwhile.
                matching.clear();
            }
        }
        Matching { matching: matching.iter().map(ToString::to_string).collect() }
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Administered for Instance {
    async fn status(&self) -> Status {
        let sessions = self.sessions().await;
        let mut sums = self.registry.totals();
        for info in &sessions {
            sums.add_live(info);
        }
        let page = Sessions {
            serves: self.serves.clone(),
            draining: self.draining.load(Ordering::Relaxed),
            memory: Some(memory()),
            refusals: self.refusals(),
            sessions: sessions.iter().map(shown).collect(),
            failures: self.failures(),
            totals: totals(sums),
        };
        Status::of_this_process(env!("CARGO_PKG_VERSION"), millis(self.started), Page::Sessions(page))
    }

    async fn answer(&self, request: Request, _: Option<rustix::process::Pid>) -> Answer {
        match request {
            Request::Status {} => self.status().await.into(),
            Request::Kill { session } => Answer::Matching(self.kill(&session).await),
            Request::Upgrade { .. } | Request::Outcome { .. } | Request::Withdraw { .. } => {
                Answer::refused("it runs no program")
            }
            Request::Switchover { .. }
            | Request::Evict { .. }
            | Request::Recover { .. }
            | Request::Drain {}
            | Request::Join {}
            | Request::Why {} => Answer::refused("it is no node of a group of replicas"),
        }
    }
}
