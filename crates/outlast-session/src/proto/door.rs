//! The door of a server: connections that have not proved yet who they are.
//!
//! Everybody may connect, and a connection that says nothing costs a descriptor and memory. If silent connections
//! only waited for a place, the kernel's queue, first in, first out, would be the attack. So a listener accepts at
//! once, always, and the door decides who may stay and who has to go.
//!
//! # Contract
//! The shell accepts a connection, looks what it has said so far, and goes on with it. If that did not settle it, the
//! shell tells [`Accepted`](DoorInput::Accepted); each time that the connection has come further,
//! [`Progressed`](DoorInput::Progressed); when it has become a link, was refused or broke, [`Left`](DoorInput::Left).
//! After each input, and when [`poll_timeout`](Door::poll_timeout) says so after [`Timeout`](DoorInput::Timeout), it
//! carries out what [`poll_effect`](Door::poll_effect) says, until there is no more. Numbers of connections rise.
//!
//! # Policy
//! * While half of the places are free everybody gets one: a thousand clients behind one address that all come back at
//!   once are no crowd.
//! * From then on a *peer*, an IPv4 address or an IPv6 network of 64 bits, that has 1/16 of the places gets no more, and
//!   neither does a [`Block`], an IPv4 network of 24 bits or an IPv6 network of 48, that has a quarter.
//! * 1/8 of the places is for peers that have a session here.
//! * Where a peer or a block gets no more, the newcomer takes one of its own: of the one that has come least
//!   far, and among these of the oldest. Whoever has said something and has a session here goes after all who have none.
//! * Where all places are taken, the same happens to the block that has most of them, if that has more than the
//!   newcomer's would have. Otherwise the newcomer has to go.
//! * Who has proved that it knows a session that is here ([`Progress::Knows`]) stays until its time is over.
//! * A Hello is due in time. From three quarters of the places on, the first byte is due in a second.
//!
//! So k blocks of attackers leave a stranger's block 7/8 / (k + 1) of the places.

use super::registry::{Block, PeerName};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::net::IpAddr;
use core::time::Duration;

/// How many may stand at a door, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorLimits {
    /// Most connections. Default 1,024.
    pub places: usize,
    /// Time from being accepted to the end of the handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// Time to the first byte when three quarters of the places are taken. Default 1 s.
    pub first_byte_timeout: Duration,
}

impl Default for DoorLimits {
    fn default() -> Self {
        Self {
            places: 1024,
            handshake_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(1),
        }
    }
}

impl DoorLimits {
    /// Most places of one peer, where they are sought after.
    pub fn places_per_peer(&self) -> usize {
        (self.places / 16).max(1)
    }

    /// Most places of one block, where they are sought after.
    pub fn places_per_block(&self) -> usize {
        (self.places / 4).max(1)
    }

    /// Most places of those who have no session here.
    pub fn places_of_strangers(&self) -> usize {
        (self.places - self.places / 8).max(1)
    }

    fn crowded_from(&self) -> usize {
        self.places - self.places / 4
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// It has said nothing.
    Silent,
    /// It has said something.
    Begun,
    /// Its Hello is there; what is missing is the proof.
    Greeted,
    /// And the Hello names a session that is here.
    Knows,
}

/// What happens at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorInput {
    /// A new connection, which has not become a link at once.
    Accepted {
        /// Its number, higher than all before.
        conn: u64,
        /// Where it comes from.
        peer: IpAddr,
        /// Whether this peer has a session here.
        known: bool,
        /// How far it has come already.
        progress: Progress,
    },
    /// A connection has come so far.
    Progressed {
        /// Which.
        conn: u64,
        /// How far.
        progress: Progress,
    },
    /// A connection has left the door: it has become a link, was refused, or broke.
    Left {
        /// Which.
        conn: u64,
    },
    /// There is no descriptor for the next connection: who says nothing, or next to nothing, has to go.
    Short,
    /// Time has passed.
    Timeout,
}

impl DoorInput {
    /// The connection that it is about; 0 for none.
    pub fn conn(&self) -> u64 {
        match *self {
            Self::Accepted { conn, .. } | Self::Progressed { conn, .. } | Self::Left { conn } => conn,
            Self::Short | Self::Timeout => 0,
        }
    }
}

/// Why a connection had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedAway {
    /// Somebody else needed the place more.
    Crowded,
    /// Its time was over.
    Late,
}

/// What the shell has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorEffect {
    /// Reset this connection; it has left the door.
    Reset {
        /// Which.
        conn: u64,
        /// Why.
        why: TurnedAway,
    },
}

#[derive(Clone, Copy, Debug)]
struct Guest {
    peer: PeerName,
    block: Block,
    known: bool,
    progress: Progress,
    since: Duration,
}

/// Who goes when somebody has to: the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Of a peer without a session, or one that has said nothing.
    Stranger(Progress),
    /// Its peer has a session here, and it has said something. With TLS a client names its session only after a round trip or more.
    Known,
    /// It has proved that it knows a session that is here.
    Knows,
}

/// Guests by their rank, then by age.
type Line = BTreeSet<(Rank, u64)>;

/// Who stands at the door.
#[derive(Clone, Debug)]
pub struct Door {
    limits: DoorLimits,
    /// By number, and therefore by age.
    guests: BTreeMap<u64, Guest>,
    silent: BTreeSet<u64>,
    strangers: usize,
    peers: BTreeMap<PeerName, Line>,
    blocks: BTreeMap<Block, Line>,
    /// Blocks by the number of their places.
    sizes: BTreeSet<(usize, Block)>,
    effects: VecDeque<DoorEffect>,
}

impl Door {
    /// A door at which nobody stands.
    pub fn new(limits: DoorLimits) -> Self {
        Self {
            limits,
            guests: BTreeMap::new(),
            silent: BTreeSet::new(),
            strangers: 0,
            peers: BTreeMap::new(),
            blocks: BTreeMap::new(),
            sizes: BTreeSet::new(),
            effects: VecDeque::new(),
        }
    }

    /// Something has happened.
    pub fn handle(&mut self, now: Duration, input: DoorInput) {
        match input {
            DoorInput::Accepted { conn, peer, known, progress } => {
                let (peer, block) = (PeerName::of(peer), Block::of(peer));
                self.admit(conn, Guest { peer, block, known, progress, since: now });
            }
            DoorInput::Progressed { conn, progress } => {
                // Nobody becomes a stranger again.
                if let Some(guest) = self.guests.get(&conn).filter(|guest| guest.progress < progress) {
                    let guest = Guest { progress, ..*guest };
                    self.remove(conn);
                    self.insert(conn, guest);
                }
            }
            DoorInput::Left { conn } => self.remove(conn),
            DoorInput::Short => {
                let largest = || self.sizes.iter().rev().find_map(|(_, block)| self.stranger_of(block));
                if let Some(conn) = self.silent.first().copied().or_else(largest) {
                    self.turn_away(conn, TurnedAway::Crowded);
                }
            }
            DoorInput::Timeout => {}
        }
        self.expire(now);
    }

    /// What is to be done.
    pub fn poll_effect(&mut self) -> Option<DoorEffect> {
        self.effects.pop_front()
    }

    /// When to tell [`DoorInput::Timeout`] next.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let oldest = self.guests.values().next()?;
        let hello_due = oldest.since.saturating_add(self.limits.handshake_timeout);
        let silent = self.silent.first().and_then(|conn| self.guests.get(conn));
        let byte_due = silent
            .filter(|_| self.is_crowded())
            .map(|guest| guest.since.saturating_add(self.limits.first_byte_timeout));
        Some(byte_due.map_or(hello_due, |due| due.min(hello_due)))
    }

    /// Whether this connection may stay.
    pub fn holds(&self, conn: u64) -> bool {
        self.guests.contains_key(&conn)
    }

    /// How many stand there.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    fn is_crowded(&self) -> bool {
        self.guests.len() >= self.limits.crowded_from()
    }

    /// Room for one more of this peer and this block, then room at all.
    fn admit(&mut self, conn: u64, guest: Guest) {
        let of_peer = self.peers.get(&guest.peer);
        let peer_full = of_peer.is_some_and(|line| line.len() >= self.limits.places_per_peer());
        let in_block = self.blocks.get(&guest.block).map_or(0, BTreeSet::len);
        let sought_after = self.guests.len() >= self.limits.places / 2;
        let stranger = !guest.known && guest.progress < Progress::Knows;
        let gone = if sought_after && peer_full {
            weakest(of_peer, guest.rank())
        } else if sought_after && in_block >= self.limits.places_per_block() {
            weakest(self.blocks.get(&guest.block), guest.rank())
        } else if self.guests.len() >= self.limits.places {
            self.largest(in_block)
        } else if stranger && self.strangers >= self.limits.places_of_strangers() {
            // The places of those who have a session here are not to be had.
            self.largest(in_block).filter(|gone| self.guests.get(gone).is_some_and(Guest::is_stranger))
        } else {
            return self.insert(conn, guest);
        };
        match gone {
            Some(gone) => {
                self.turn_away(gone, TurnedAway::Crowded);
                self.insert(conn, guest);
            }
            None => self.effects.push_back(DoorEffect::Reset { conn, why: TurnedAway::Crowded }),
        }
    }

    /// Who has to go in the block with most places, if it has more than a newcomer's would have.
    fn largest(&self, in_block: usize) -> Option<u64> {
        let (size, block) = self.sizes.last()?;
        if *size <= in_block + 1 {
            return None;
        }
        weakest(self.blocks.get(block), Rank::Known)
    }

    /// The weakest of a block, if it is a stranger's.
    fn stranger_of(&self, block: &Block) -> Option<u64> {
        let gone = weakest(self.blocks.get(block), Rank::Known)?;
        self.guests.get(&gone).filter(|guest| guest.is_stranger()).map(|_| gone)
    }

    fn insert(&mut self, conn: u64, guest: Guest) {
        if guest.progress == Progress::Silent {
            self.silent.insert(conn);
        }
        self.strangers += usize::from(guest.is_stranger());
        self.peers.entry(guest.peer).or_default().insert((guest.rank(), conn));
        let line = self.blocks.entry(guest.block).or_default();
        self.sizes.remove(&(line.len(), guest.block));
        line.insert((guest.rank(), conn));
        self.sizes.insert((line.len(), guest.block));
        self.guests.insert(conn, guest);
    }

    fn remove(&mut self, conn: u64) {
        let Some(guest) = self.guests.remove(&conn) else { return };
        self.silent.remove(&conn);
        self.strangers -= usize::from(guest.is_stranger());
        if let Some(line) = self.peers.get_mut(&guest.peer) {
            line.remove(&(guest.rank(), conn));
            if line.is_empty() {
                self.peers.remove(&guest.peer);
            }
        }
        if let Some(line) = self.blocks.get_mut(&guest.block) {
            self.sizes.remove(&(line.len(), guest.block));
            line.remove(&(guest.rank(), conn));
            if line.is_empty() {
                self.blocks.remove(&guest.block);
            } else {
                self.sizes.insert((line.len(), guest.block));
            }
        }
    }

    fn turn_away(&mut self, conn: u64, why: TurnedAway) {
        self.remove(conn);
        self.effects.push_back(DoorEffect::Reset { conn, why });
    }

    fn expire(&mut self, now: Duration) {
        while let Some((&conn, guest)) = self.guests.first_key_value()
            && guest.since.saturating_add(self.limits.handshake_timeout) <= now
        {
            self.turn_away(conn, TurnedAway::Late);
        }
        while self.is_crowded()
            && let Some(&conn) = self.silent.first()
            && let Some(guest) = self.guests.get(&conn)
            && guest.since.saturating_add(self.limits.first_byte_timeout) <= now
        {
            self.turn_away(conn, TurnedAway::Late);
        }
    }
}

impl Guest {
    fn is_stranger(&self) -> bool {
        !self.known && self.progress < Progress::Knows
    }

    fn rank(&self) -> Rank {
        match self.progress {
            Progress::Knows => Rank::Knows,
            Progress::Begun | Progress::Greeted if self.known => Rank::Known,
            progress => Rank::Stranger(progress),
        }
    }
}

/// The one of the lowest rank, and of these the oldest; none of a higher rank than this, and none that knows a session.
fn weakest(line: Option<&Line>, most: Rank) -> Option<u64> {
    let (least, conn) = line?.first()?;
    (*least <= most && *least < Rank::Knows).then_some(*conn)
}

#[cfg(test)]
mod tests;
