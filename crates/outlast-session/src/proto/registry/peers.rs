//! Who counts as one peer, and how many sessions each has.

use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What quotas count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::proto) struct PeerName(IpAddr);

impl PeerName {
    pub(in crate::proto) const fn of(address: IpAddr) -> Self {
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

/// What shares are counted by, where one peer's limit is not enough: an IPv4 network of 24 bits, an IPv6 network of 48.
/// That much is easily had at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(IpAddr);

impl Block {
    /// The block of an address.
    pub const fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => {
                let [a, b, c, _] = address.octets();
                IpAddr::V4(Ipv4Addr::new(a, b, c, 0))
            }
            IpAddr::V6(address) => {
                let [a, b, c, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0))
            }
        })
    }
}

/// Sessions of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerCounts {
    pub(super) sessions: usize,
    /// Those of them that have no link.
    pub(super) detached: usize,
}

/// So many sessions of a peer are no crowd.
const FEW: usize = 4;

/// Sessions of all peers of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BlockCounts {
    sessions: usize,
    /// The same, where the first [`FEW`] of each peer count.
    few_each: usize,
}

/// Everybody who has sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<PeerName, PeerCounts>,
    blocks: BTreeMap<Block, BlockCounts>,
}

impl Peers {
    pub(super) fn of(&self, peer: PeerName) -> PeerCounts {
        self.peers.get(&peer).copied().unwrap_or_default()
    }

    /// Whether a peer's block has `share` sessions, which is all that it may have. One peer alone does not use that up for its
    /// neighbours: those with few sessions may have as many together.
    pub(super) fn has_its_share(&self, peer: PeerName, share: usize) -> bool {
        let block = self.blocks.get(&Block::of(peer.0)).copied().unwrap_or_default();
        block.sessions >= share && (self.of(peer).sessions >= FEW || block.few_each >= share)
    }

    /// One more session.
    pub(super) fn enter(&mut self, peer: PeerName) {
        let counts = self.peers.entry(peer).or_default();
        counts.sessions += 1;
        let block = self.blocks.entry(Block::of(peer.0)).or_default();
        block.sessions += 1;
        block.few_each += usize::from(counts.sessions <= FEW);
    }

    /// One session less; it is not detached.
    pub(super) fn leave(&mut self, peer: PeerName) {
        let Some(counts) = self.peers.get_mut(&peer) else { return };
        counts.sessions -= 1;
        let is_of_few = counts.sessions < FEW;
        if counts.sessions == 0 {
            self.peers.remove(&peer);
        }
        let block = Block::of(peer.0);
        if let Some(counts) = self.blocks.get_mut(&block) {
            counts.sessions -= 1;
            counts.few_each -= usize::from(is_of_few);
            if counts.sessions == 0 {
                self.blocks.remove(&block);
            }
        }
    }

    /// One of the peer's sessions has lost its link.
    pub(super) fn detach(&mut self, peer: PeerName) {
        self.peers.entry(peer).or_default().detached += 1;
    }

    /// One of them has a link again, or is about to leave.
    pub(super) fn attach(&mut self, peer: PeerName) {
        if let Some(counts) = self.peers.get_mut(&peer) {
            counts.detached -= 1;
        }
    }
}
