//! A running process as it shows itself: to `outlast status`, and to Prometheus.

use crate::admin::{Administered, Request};
use crate::registry::{Failed, Registry, Totals};
use outlast_session::tokio::Listener;
use outlast_session::{Info, Memory, Role, SessionId, SessionState};
use serde_json::{Value, json};
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

/// What there is to count.
#[derive(Debug)]
pub struct Numbers {
    pub sessions: Vec<Info>,
    pub totals: Totals,
    pub refusals: Vec<(&'static str, u64)>,
    pub memory: Memory,
}

/// What its sessions hold.
fn memory() -> Value {
    let Memory { budget_bytes, used_bytes, kernel_bytes, shed_sessions, shed_bytes } = Memory::now();
    json!({
        "budget_bytes": budget_bytes, "used_bytes": used_bytes, "kernel_bytes": kernel_bytes,
        "shed_sessions": shed_sessions, "shed_bytes": shed_bytes,
    })
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

    /// The numbers now. Sums include the live sessions, and never go back.
    pub async fn numbers(&self) -> Numbers {
        let sessions = self.sessions().await;
        let mut totals = self.registry.totals();
        for info in &sessions {
            totals.add_live(info);
        }
        let refusals = self.listeners.iter().flat_map(|listener| listener.refusals()).collect();
        Numbers { sessions, totals, refusals, memory: Memory::now() }
    }

    /// How many connections were turned away, by reason, all listeners together.
    fn refusals(&self) -> BTreeMap<String, Value> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, count) in self.listeners.iter().flat_map(|listener| listener.refusals()) {
            *counts.entry(reason).or_default() += count;
        }
        counts.into_iter().map(|(reason, count)| (reason.to_owned(), count.into())).collect()
    }

    /// The answer to `status`.
    async fn status(&self) -> Value {
        json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "serves": self.serves,
            "draining": self.draining.load(Ordering::Relaxed),
            "up_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "memory": memory(),
            "refusals": self.refusals().into_iter().collect::<serde_json::Map<String, Value>>(),
            "sessions": self.sessions().await,
            "failures": self.failures(),
        })
    }

    fn failures(&self) -> Vec<Value> {
        let failures = self.registry.failures().into_iter().map(|Failed { id, peer, at, why }| {
            let ago_ms = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
            json!({ "id": id.to_string(), "peer_addr": peer, "ago_ms": ago_ms, "why": why })
        });
        failures.collect()
    }

    /// The answer to `kill`: which sessions have been ended.
    async fn kill(&self, prefix: &str) -> Value {
        let mut matching: Vec<SessionId> = self
            .sessions()
            .await
            .iter()
            .map(|info| info.id)
            .filter(|id| id.to_string().starts_with(prefix))
            .collect();
        matching.dedup();
        if let [id] = matching.as_slice() {
            let relayed = self.registry.kill(*id);
            // A relay ends its session itself, and says at which end.
            if relayed || self.listeners.iter().any(|listener| listener.kill(id)) {
                tracing::warn!(session = %id, "killed by an administrator (outlast kill)");
            }
        }
        json!({ "matching": matching.iter().map(ToString::to_string).collect::<Vec<_>>() })
    }
}

impl Administered for Instance {
    async fn answer(&self, request: Request, _: Option<rustix::process::Pid>) -> Value {
        match request {
            Request::Status {} => self.status().await,
            Request::Kill { session } => self.kill(&session).await,
            Request::Upgrade { .. } | Request::Outcome { .. } | Request::Withdraw { .. } => {
                json!({ "error": "it runs no program" })
            }
        }
    }
}
