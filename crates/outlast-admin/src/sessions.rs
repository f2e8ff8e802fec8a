//! The page of `outlast listen` and `outlast connect`: what they serve, and their sessions.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a process serves and carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sessions {
    /// One line for each address: `listen 0.0.0.0:7000 to 127.0.0.1:22`.
    pub serves: Vec<String>,
    /// It was told to stop, and waits for its sessions.
    pub draining: bool,
    /// What all sessions hold. Not known of an earlier version.
    pub memory: Option<Memory>,
    /// Connections that were turned away, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// All of them, the oldest first.
    pub sessions: Vec<Session>,
    /// The latest that have not ended in order, the last first.
    pub failures: Vec<Failure>,
    /// Sums over all sessions since the start, live ones included: they never go back.
    pub totals: Totals,
}

/// What all sessions of the process hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// What they may hold (`--memory`).
    pub budget_bytes: u64,
    /// What they hold of that.
    pub used_bytes: u64,
    /// What the kernel holds for them besides, in the buffers of their links.
    pub kernel_bytes: u64,
    /// Sessions without a link that were ended to free memory or descriptors.
    pub shed_sessions: u64,
    /// What those held.
    pub shed_bytes: u64,
}

/// One session, as one of its ends knows it. Times and counts as in `outlast_session::Info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// The same at both ends. Without a key it is all that a client needs to take the session: it may be a secret.
    pub id: String,
    /// `client` or `server`.
    pub role: String,
    /// `opening`, `connected`, `lost`, `passive`, `closed` or `failed`.
    pub state: String,
    /// How the present link acknowledges: `kernel`, `inband` or `udp`; none without a link.
    pub mode: Option<String>,
    /// Number of the present or last link, from 1.
    pub epoch: u64,
    /// `open`, `psk` or `tls`.
    pub security: String,
    /// Bytes written by the local program.
    pub written_bytes: u64,
    /// Bytes read by the local program, or ready to be.
    pub read_bytes: u64,
    /// Bytes written and not known to be delivered.
    pub unacked_bytes: u64,
    /// For how long, at least, the oldest of them has waited.
    pub unacked_age_ms: u64,
    /// Time that writers were held up.
    pub blocked_ms: u64,
    /// Links lost so far.
    pub outages: u64,
    /// How long the present outage has lasted; none while connected.
    pub pause_now_ms: Option<u64>,
    /// The longest outage so far, the present one included.
    pub pause_longest_ms: u64,
    /// All outages together.
    pub pause_total_ms: u64,
    /// Bytes that were sent more than once.
    pub resent_bytes: u64,
    /// Bytes of either direction that were passed on without being copied.
    pub spliced_bytes: u64,
    /// Own address of the present link.
    pub local_addr: Option<String>,
    /// The peer's address on the present or last link.
    pub peer_addr: Option<String>,
    /// Time since the session was opened.
    pub age_ms: u64,
}

/// A session that has not ended in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// Which.
    pub id: String,
    /// Where its other end was.
    pub peer_addr: Option<String>,
    /// How long ago it ended.
    pub ago_ms: u64,
    /// Why.
    pub why: String,
}

/// Sums since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Sessions that were begun.
    pub opened: u64,
    /// Sessions that ended with everything delivered.
    pub completed: u64,
    /// Sessions that ended by an error: their own, or a reset by the program or the service.
    pub failed: u64,
    /// Links lost and replaced, or not replaced in time.
    pub outages: u64,
    /// All outages of all sessions together.
    pub pause_ms: u64,
    /// Bytes sent more than once.
    pub resent_bytes: u64,
    /// Bytes passed on without being copied, both ways.
    pub spliced_bytes: u64,
    /// Bytes taken from local programs.
    pub written_bytes: u64,
    /// Bytes given to local programs.
    pub read_bytes: u64,
}
