//! The page of the process that keeps the sessions of a listener that was stopped, until the next one takes them.

use serde::{Deserialize, Serialize};

/// What it keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// Address of the listener.
    pub keeps_for: String,
    /// Then what nobody came for is given up.
    pub left_ms: u64,
    /// The sessions.
    pub sessions: Vec<KeptSession>,
}

/// A session that is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptSession {
    /// Which.
    pub id: String,
    /// Always `kept`.
    pub state: String,
    /// IP address of its client.
    pub peer: Option<String>,
    /// Bytes that its client is not known to have.
    pub unacked_bytes: u64,
    /// Bytes that its service has not read.
    pub unread_bytes: u64,
    /// It is given up earlier than others, when the client has been away for `--keep`.
    pub keep_left_ms: Option<u64>,
}
