//! How much a server takes, and what it is willing to do.

use super::super::shortage::Shortage;
use super::super::wire::Modes;
use core::time::Duration;

/// How much a registry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryLimits {
    /// Most sessions, with a link or without.
    pub sessions_max: usize,
    /// Most sessions of one peer: an IPv4 address, or an IPv6 network of 64 bits.
    pub sessions_per_peer_max: usize,
    /// No new sessions while so many have no link.
    pub detached_max: usize,
    /// No new sessions for a peer while so many of its own have no link.
    pub detached_per_peer_max: usize,
    /// How long a session without a link is kept.
    pub keep: Duration,
    /// How long it is remembered that a session ended or expired, so that latecomers hear which. A client that
    /// was never welcomed and opens again after that opens a second session: longer is safer, and
    /// [`tombstones_max`](Self::tombstones_max) bounds the cost.
    pub tombstone_keep: Duration,
    /// How many of those are remembered; the oldest is forgotten first.
    pub tombstones_max: usize,
}

impl Default for RegistryLimits {
    fn default() -> Self {
        Self {
            sessions_max: 65_536,
            sessions_per_peer_max: 1_000,
            detached_max: 65_536,
            detached_per_peer_max: 1_000,
            keep: Duration::from_secs(24 * 3600),
            tombstone_keep: Duration::from_secs(3600),
            tombstones_max: 16_384,
        }
    }
}

/// What a server is willing to do at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The modes on offer.
    pub modes: Modes,
    /// Modes that need a direct path need the proof, even from clients that insist on the mode.
    pub proof_required: bool,
    /// No new sessions are taken, because the server is about to stop; try again after so many milliseconds.
    /// Sessions that are there still get links: without one they could not deliver what they have.
    pub draining_retry_after_ms: Option<u64>,
    /// No new sessions are taken for the time being: there is too little of something that this table does not count.
    pub short_of: Option<Shortage>,
    /// New sessions only from blocks that have fewer than so many; and from peers that have few themselves, until they have as
    /// many together.
    pub sessions_per_block_max: usize,
    /// After so long a client that finds the server full may try again.
    pub busy_retry_after_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            modes: Modes::ALL,
            proof_required: true,
            draining_retry_after_ms: None,
            short_of: None,
            sessions_per_block_max: usize::MAX,
            busy_retry_after_ms: 1000,
        }
    }
}
