//! Who counts as one peer, and how many sessions each has.

use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv6Addr};

/// What quotas count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerName(IpAddr);

impl PeerName {
    pub(super) const fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                // RFC 4291, 2.5.1: the other half names an interface, and whoever has the network chooses it.
                let [a, b, c, d, ..] = address.segments();
                Self(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
            }
            v4 => Self(v4),
        }
    }
}

/// Sessions of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerCounts {
    pub(super) sessions: usize,
    /// Those of them that have no link.
    pub(super) detached: usize,
}

/// Everybody who has sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers(BTreeMap<PeerName, PeerCounts>);

impl Peers {
    pub(super) fn of(&self, peer: PeerName) -> PeerCounts {
        self.0.get(&peer).copied().unwrap_or_default()
    }

    /// One more session.
    pub(super) fn enter(&mut self, peer: PeerName) {
        self.0.entry(peer).or_default().sessions += 1;
    }

    /// One session less; it is not detached.
    pub(super) fn leave(&mut self, peer: PeerName) {
        if let Some(counts) = self.0.get_mut(&peer) {
            counts.sessions -= 1;
            if counts.sessions == 0 {
                self.0.remove(&peer);
            }
        }
    }

    /// One of the peer's sessions has lost its link.
    pub(super) fn detach(&mut self, peer: PeerName) {
        self.0.entry(peer).or_default().detached += 1;
    }

    /// One of them has a link again, or is about to leave.
    pub(super) fn attach(&mut self, peer: PeerName) {
        if let Some(counts) = self.0.get_mut(&peer) {
            counts.detached -= 1;
        }
    }
}
