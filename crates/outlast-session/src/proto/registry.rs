//! The server's table of sessions: who may come in, who is still expected, who is not.
//!
//! # Contract
//!
//! The shell holds one [`Registry`] behind a lock. With a Hello at hand it calls [`decide`](Registry::decide), which
//! marks nothing; then, under the same lock, [`insert`](Registry::insert) or [`attach`](Registry::attach), which
//! book the newcomer, and [`set_key`](Registry::set_key), and sends the Welcome. It reports a broken link by [`detach`](Registry::detach), the end of a
//! session by [`end`](Registry::end), and calls [`expire`](Registry::expire) when
//! [`next_expiry`](Registry::next_expiry) says so. Times are durations since one origin of the shell's choice.
//!
//! Every count is bounded by [`RegistryLimits`]. A place that a session already has is not taken from it to make room:
//! what is full turns newcomers away. Only when memory is short are sessions without a link
//! [given up](Registry::shed), by the rules of the [`Budget`](super::Budget).

mod limits;
mod peers;

pub use self::limits::{Policy, RegistryLimits};
pub use self::peers::Block;
pub(super) use self::peers::PeerName;
use self::peers::Peers;
use super::auth::SessionKey;
use super::direct::DirectVerdict;
use super::handshake::Auth;
use super::hello::{Hello, Intent};
use super::shortage::Shortage;
use super::wire::{REASON_BYTES_MAX, Refusal, SessionId, truncated};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

/// What is to become of a Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<T> {
    /// A new session: [`Registry::insert`] it.
    Create,
    /// One more link of this session: [`Registry::attach`] it.
    Resume(T),
    /// The client gives this session up: end it with an error, then answer [`Refusal::Ended`].
    Abort(T),
    /// Turn it away.
    Refuse(Refusal),
}

/// A newcomer that came too late to be booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The session is gone.
    #[error("session is gone")]
    Unknown,
    /// The session is there already.
    #[error("session is there already")]
    Exists,
    /// A link of the same or a later epoch was faster.
    #[error("link {current} was faster")]
    Stale {
        /// The epoch of the present link.
        current: u64,
    },
}

/// Counts since the beginning, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistryStats {
    /// Sessions with a link, now.
    pub attached: usize,
    /// Sessions without, now.
    pub detached: usize,
    /// Sessions remembered as ended or expired, now.
    pub tombstones: usize,
    /// Sessions ever opened.
    pub created: u64,
    /// Links ever accepted for sessions that were there already.
    pub resumed: u64,
    /// Sessions that ended.
    pub ended: u64,
    /// Sessions that nobody came back for.
    pub expired: u64,
    refused: [u64; Refusal::KINDS + 1],
}

impl RegistryStats {
    /// How often a Hello was refused for the reason of `refusal`, whatever goes with it.
    pub fn refused(&self, refusal: &Refusal) -> u64 {
        self.refused.get(slot(refusal)).copied().unwrap_or_default()
    }

    /// How often a Hello was refused, by the names of the reasons; zeroes included.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.refused.iter().enumerate().map(|(slot, count)| (Refusal::name_of(slot), *count))
    }

    /// Refusals for all reasons.
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }
}

/// All reasons of later versions share slot 0.
fn slot(refusal: &Refusal) -> usize {
    let code = usize::from(refusal.code());
    if code <= Refusal::KINDS { code } else { 0 }
}

/// SHA-256 of the certificate that a client presented.
pub type Fingerprint = [u8; 32];

#[derive(Clone, Debug)]
struct Entry<T> {
    value: T,
    epoch: u64,
    /// What a newcomer proves itself with.
    key: Option<SessionKey>,
    /// Whose it is besides, if that is known: only the same one may come.
    owner: Option<Fingerprint>,
    peer: PeerName,
    /// `None` while there is a link.
    deadline: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Tombstone {
    refusal: Refusal,
    why: Option<Box<str>>,
    /// Only a client that proves itself learns more than others.
    key: Option<SessionKey>,
    owner: Option<Fingerprint>,
    deadline: Duration,
}

/// The table; `T` is what the shell knows a session by.
#[derive(Clone, Debug)]
pub struct Registry<T> {
    limits: RegistryLimits,
    sessions: BTreeMap<SessionId, Entry<T>>,
    /// Sessions without a link, by the time at which they are given up.
    deadlines: BTreeSet<(Duration, SessionId)>,
    peers: Peers,
    tombstones: BTreeMap<SessionId, Tombstone>,
    tombstone_deadlines: BTreeSet<(Duration, SessionId)>,
    stats: RegistryStats,
}

impl<T: Clone> Registry<T> {
    /// An empty table.
    pub fn new(limits: RegistryLimits) -> Self {
        Self {
            limits,
            sessions: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            peers: Peers::default(),
            tombstones: BTreeMap::new(),
            tombstone_deadlines: BTreeSet::new(),
            stats: RegistryStats::default(),
        }
    }

    /// What is to become of `hello`. Books nothing but the refusal, if it is one.
    ///
    /// `peer` counts for quotas only; a session may move from one address to another. IPv4 addresses that a
    /// dual-stack socket gives as IPv6 count as what they are; of others the first 64 bits count, as the rest is for
    /// one customer, or one host, to choose.
    pub fn decide(
        &mut self,
        now: Duration,
        hello: &Hello,
        peer: IpAddr,
        auth: Auth,
        direct: DirectVerdict,
        policy: &Policy,
    ) -> Decision<T> {
        match self.admit(now, hello, peer, auth, direct, policy) {
            Ok(Some(value)) if hello.intent == Intent::Abort => Decision::Abort(value),
            Ok(Some(value)) => Decision::Resume(value),
            Ok(None) => Decision::Create,
            // PROTOCOL 3.11: to one who gives the session up, this is not a no.
            Err(refusal @ Refusal::Ended { .. }) if hello.intent == Intent::Abort => {
                Decision::Refuse(refusal)
            }
            Err(refusal) => {
                self.count_refusal(&refusal);
                Decision::Refuse(refusal)
            }
        }
    }

    fn admit(
        &self,
        now: Duration,
        hello: &Hello,
        peer: IpAddr,
        auth: Auth,
        direct: DirectVerdict,
        policy: &Policy,
    ) -> Result<Option<T>, Refusal> {
        // PROTOCOL 3.7: who cannot prove itself learns nothing, not even whether there is such a session.
        if auth != Auth::Proven {
            return Err(match hello.intent {
                Intent::Open => Refusal::BadKey,
                Intent::Resume | Intent::Abort => Refusal::UnknownSession,
            });
        }
        let known = self.sessions.get(&hello.id).filter(|entry| entry.deadline.is_none_or(|at| at > now));
        let value = match known {
            Some(entry) => {
                // PROTOCOL 3.4: epochs rise, an older link never wins.
                if hello.epoch <= entry.epoch {
                    return Err(Refusal::StaleEpoch { current: entry.epoch });
                }
                Some(entry.value.clone())
            }
            None => {
                if self.sessions.contains_key(&hello.id) {
                    return Err(Refusal::Expired);
                }
                if let Some(tombstone) = self.tombstones.get(&hello.id).filter(|stone| stone.deadline > now) {
                    return Err(tombstone.refusal);
                }
                if hello.intent != Intent::Open {
                    return Err(Refusal::UnknownSession);
                }
                None
            }
        };
        // PROTOCOL 3.11: nothing of a link matters to one that carries nothing.
        if hello.intent == Intent::Abort {
            return Ok(value);
        }
        // PROTOCOL 3.3: a client opens until it was welcomed, and before that it has received and forgotten nothing.
        if hello.intent == Intent::Open && (hello.next_offset, hello.retained_offset) != (0, 0) {
            return Err(Refusal::OffsetOutOfRange);
        }
        if let (None, Some(retry_after_ms)) = (&value, policy.draining_retry_after_ms) {
            return Err(Refusal::Draining { retry_after_ms });
        }
        if !policy.modes.has(hello.mode) {
            return Err(Refusal::ModeRefused { offered: policy.modes });
        }
        // PROTOCOL 7.1: what is not proven is not direct. Clients that can do with another mode always hear of it.
        let proof_required = policy.proof_required || hello.auto;
        if hello.mode.needs_direct_path() && proof_required && !direct.is_direct() {
            return Err(Refusal::NotDirect);
        }
        match &value {
            None => self
                .shortage(peer, policy)
                .map_or(Ok(value), |shortage| Err(shortage.refusal(policy.busy_retry_after_ms))),
            Some(_) => Ok(value),
        }
    }

    /// What there is too little of for a new session of this peer: why an opening was refused with [`Refusal::Busy`] or
    /// [`Refusal::Quota`], for the server's operator.
    pub fn shortage(&self, peer: IpAddr, policy: &Policy) -> Option<Shortage> {
        let counts = self.peers.of(PeerName::of(peer));
        let limits = &self.limits;
        let of_address = counts.sessions >= limits.sessions_per_peer_max
            || counts.detached >= limits.detached_per_peer_max;
        let of_network = || self.peers.has_its_share(PeerName::of(peer), policy.sessions_per_block_max);
        let of_all =
            || self.sessions.len() >= limits.sessions_max || self.deadlines.len() >= limits.detached_max;
        of_address
            .then_some(Shortage::Address)
            .or(policy.short_of)
            .or_else(|| of_network().then_some(Shortage::Network))
            .or_else(|| of_all().then_some(Shortage::Sessions))
    }

    /// Whether the peer has a session here.
    pub fn knows(&self, peer: IpAddr) -> bool {
        self.peers.of(PeerName::of(peer)).sessions > 0
    }

    /// Counts a refusal that was decided elsewhere, in the handshake for example.
    pub fn count_refusal(&mut self, refusal: &Refusal) {
        if let Some(count) = self.stats.refused.get_mut(slot(refusal)) {
            *count += 1;
        }
    }

    /// Books a new session with its first link.
    ///
    /// # Errors
    /// [`AttachError::Exists`] if the session is there already: decide again.
    pub fn insert(&mut self, id: SessionId, value: T, epoch: u64, peer: IpAddr) -> Result<(), AttachError> {
        if self.sessions.contains_key(&id) {
            return Err(AttachError::Exists);
        }
        let peer = PeerName::of(peer);
        self.sessions.insert(id, Entry { value, epoch, key: None, owner: None, peer, deadline: None });
        self.peers.enter(peer);
        self.stats.created += 1;
        Ok(())
    }

    /// Books one more link of a session. The older link, if there still is one, has lost from now on.
    ///
    /// The session does not expire from here on: if the link comes to nothing after all,
    /// [`detach`](Self::detach) has to be told, with this epoch.
    ///
    /// # Errors
    /// [`AttachError`] if the session is gone, or a later link was faster.
    pub fn attach(&mut self, id: &SessionId, epoch: u64, peer: IpAddr) -> Result<(), AttachError> {
        let entry = self.sessions.get_mut(id).ok_or(AttachError::Unknown)?;
        if epoch <= entry.epoch {
            return Err(AttachError::Stale { current: entry.epoch });
        }
        entry.epoch = epoch;
        let peer = PeerName::of(peer);
        let old_peer = core::mem::replace(&mut entry.peer, peer);
        let deadline = entry.deadline.take();
        self.stats.resumed += 1;
        self.forget_deadline(id, old_peer, deadline);
        self.peers.leave(old_peer);
        self.peers.enter(peer);
        Ok(())
    }

    /// The session's key from now on; nothing if there is no such session.
    pub fn set_key(&mut self, id: &SessionId, key: Option<SessionKey>) {
        if let Some(entry) = self.sessions.get_mut(id) {
            entry.key = key;
        }
    }

    /// From now on the session belongs to the holder of this certificate; nothing if there is no such session.
    pub fn set_owner(&mut self, id: &SessionId, owner: Option<Fingerprint>) {
        if let Some(entry) = self.sessions.get_mut(id) {
            entry.owner = owner;
        }
    }

    /// Whether a newcomer with this certificate, or none, may be the one that opened the session. PROTOCOL 6.10
    pub fn may_own(&self, id: &SessionId, newcomer: Option<&Fingerprint>) -> bool {
        let owner = match self.sessions.get(id) {
            Some(entry) => entry.owner.as_ref(),
            None => self.tombstones.get(id).and_then(|tombstone| tombstone.owner.as_ref()),
        };
        owner.is_none() || owner == newcomer
    }

    /// The key of a session that is there, or is remembered as ended or expired.
    pub fn key(&self, id: &SessionId) -> Option<&SessionKey> {
        match self.sessions.get(id) {
            Some(entry) => entry.key.as_ref(),
            None => self.tombstones.get(id).and_then(|tombstone| tombstone.key.as_ref()),
        }
    }

    /// The link with this epoch is gone: the session is kept for a while. False if it has another link by now,
    /// has none already, or is gone.
    pub fn detach(&mut self, id: &SessionId, epoch: u64, now: Duration) -> bool {
        self.detach_after(id, epoch, now, Duration::ZERO)
    }

    /// The same for a session that had waited for its client for so long already, in another process.
    pub fn detach_after(&mut self, id: &SessionId, epoch: u64, now: Duration, waited: Duration) -> bool {
        let Some(entry) = self.sessions.get_mut(id).filter(|entry| entry.epoch == epoch) else {
            return false;
        };
        if entry.deadline.is_some() {
            return false;
        }
        // What is kept for longer than time can be told stays so.
        let keep = self.limits.keep;
        let left = if keep == Duration::MAX { keep } else { keep.saturating_sub(waited) };
        let deadline = now.saturating_add(left);
        entry.deadline = Some(deadline);
        self.deadlines.insert((deadline, *id));
        self.peers.detach(entry.peer);
        true
    }

    /// The session is over. Latecomers hear so, that everything before `offset` of the client's stream was
    /// delivered, and why it ended if that is worth telling. Returns what the shell knew it by.
    pub fn end(&mut self, id: &SessionId, offset: u64, why: Option<&str>, now: Duration) -> Option<T> {
        let Entry { value, key, owner, .. } = self.remove(id)?;
        self.stats.ended += 1;
        let why = why.map(|why| truncated(why, REASON_BYTES_MAX).into());
        self.bury(*id, Tombstone { refusal: Refusal::Ended { offset }, why, key, owner, deadline: now });
        Some(value)
    }

    /// Why a session ended that is remembered. Only for those who may know that it was there (PROTOCOL 3.7).
    pub fn why_ended(&self, id: &SessionId) -> Option<&str> {
        self.tombstones.get(id)?.why.as_deref()
    }

    /// Gives up every session whose time is over by `now`, and returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<(SessionId, T)> {
        let mut expired = Vec::new();
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            if let Some(Entry { value, key, owner, .. }) = self.remove(&id) {
                expired.push((id, value));
                self.stats.expired += 1;
                let refusal = Refusal::Expired;
                self.bury(id, Tombstone { refusal, why: None, key, owner, deadline: now });
            }
            self.deadlines.remove(&(deadline, id));
        }
        while let Some(&(deadline, id)) = self.tombstone_deadlines.first()
            && deadline <= now
        {
            self.tombstone_deadlines.remove(&(deadline, id));
            self.tombstones.remove(&id);
        }
        expired
    }

    /// Gives up a session before its time, to make room, unless it has a link. Latecomers hear that it has expired.
    pub fn shed(&mut self, id: &SessionId, now: Duration) -> Option<T> {
        self.sessions.get(id)?.deadline?;
        let Entry { value, key, owner, .. } = self.remove(id)?;
        self.stats.expired += 1;
        self.bury(*id, Tombstone { refusal: Refusal::Expired, why: None, key, owner, deadline: now });
        Some(value)
    }

    /// When [`expire`](Self::expire) has something to do next. What is kept for longer than time can be told, is
    /// kept for ever: there is no `Some(Duration::MAX)` that a clock could overflow on.
    pub fn next_expiry(&self) -> Option<Duration> {
        let session = self.deadlines.first().map(|(deadline, _)| *deadline);
        let tombstone = self.tombstone_deadlines.first().map(|(deadline, _)| *deadline);
        session.into_iter().chain(tombstone).min().filter(|at| *at < Duration::MAX)
    }

    /// What the shell knows a session by.
    pub fn get(&self, id: &SessionId) -> Option<&T> {
        self.sessions.get(id).map(|entry| &entry.value)
    }

    /// All sessions, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (&SessionId, &T)> {
        self.sessions.iter().map(|(id, entry)| (id, &entry.value))
    }

    /// Number of sessions, with a link or without.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// True if there is no session.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The counts.
    pub fn stats(&self) -> RegistryStats {
        let detached = self.deadlines.len();
        RegistryStats {
            attached: self.sessions.len() - detached,
            detached,
            tombstones: self.tombstones.len(),
            ..self.stats
        }
    }

    fn remove(&mut self, id: &SessionId) -> Option<Entry<T>> {
        let entry = self.sessions.remove(id)?;
        self.forget_deadline(id, entry.peer, entry.deadline);
        self.peers.leave(entry.peer);
        Some(entry)
    }

    fn forget_deadline(&mut self, id: &SessionId, peer: PeerName, deadline: Option<Duration>) {
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, *id));
            self.peers.attach(peer);
        }
    }

    /// The tombstone's deadline is counted from the one it comes with.
    fn bury(&mut self, id: SessionId, mut tombstone: Tombstone) {
        if self.limits.tombstones_max == 0 {
            return;
        }
        if self.tombstones.len() >= self.limits.tombstones_max
            && let Some((_, oldest)) = self.tombstone_deadlines.pop_first()
        {
            self.tombstones.remove(&oldest);
        }
        let deadline = tombstone.deadline.saturating_add(self.limits.tombstone_keep);
        tombstone.deadline = deadline;
        if let Some(old) = self.tombstones.insert(id, tombstone) {
            self.tombstone_deadlines.remove(&(old.deadline, id));
        }
        self.tombstone_deadlines.insert((deadline, id));
    }
}

#[cfg(test)]
mod tests;
