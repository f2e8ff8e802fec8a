//! A server's session at rest: without a link and without a process, as bytes that the next process goes on from.
//!
//! These bytes never go over a link. They go from a process that stops to the one that follows it, on one machine and
//! between programs of one user, and contain the session's key.

use super::auth::SessionKey;
use super::registry::Fingerprint;
use super::wire::{Fields, SecurityKind, SessionId, WireError};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

const MAGIC: [u8; 4] = *b"\xd7OLD";
/// Of this layout. A next process of another version does not go on with sessions that it cannot read.
const VERSION: u8 = 1;

/// Before what it carries.
const HEAD_BYTES: usize = 4 + 3 + 16 + 32 + 16 + 9 * 8;

const FLAG_KEY: u8 = 1;
const FLAG_END_KNOWN: u8 = 2;
const FLAG_ENDED: u8 = 4;
const FLAG_END_ACKED: u8 = 8;
/// The certificate's fingerprint follows at the end.
const FLAG_OWNER: u8 = 16;
/// Its times follow after that. Earlier processes did without.
const FLAG_TIMES: u8 = 32;

/// Everything that a server has to know of a session to go on with it: positions, the bytes that the peer may not have,
/// the bytes that the application has not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    pub(crate) id: SessionId,
    /// Of the last link.
    pub(crate) epoch: u64,
    pub(crate) security: SecurityKind,
    pub(crate) key: Option<SessionKey>,
    /// The certificate that opened it.
    pub(crate) owner: Option<Fingerprint>,
    /// Whom the session counts for, in quotas.
    pub(crate) peer: IpAddr,
    pub(crate) outages: u64,
    pub(crate) times: Option<Times>,
    pub(crate) sending: Sending,
    pub(crate) receiving: Receiving,
}

/// What happened when, in milliseconds of the machine's monotonic clock, which is the same for all of its processes; and
/// for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) opened_ms: u64,
    /// The last link was gone. A session is kept for `keep_ms` from here, in however many processes.
    pub(crate) lost_ms: u64,
    /// The last byte passed that is known to have.
    pub(crate) paused_ms: u64,
    /// It left its process.
    pub(crate) detached_ms: u64,
    pub(crate) pause_longest_ms: u64,
    pub(crate) pause_total_ms: u64,
    /// How long its listener keeps a session without a link.
    pub(crate) keep_ms: u64,
}

/// The sending half at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sending {
    pub(crate) retained_offset: u64,
    pub(crate) acked_offset: u64,
    pub(crate) sent_offset: u64,
    pub(crate) ended: bool,
    pub(crate) end_acked: bool,
    /// From `retained_offset` on.
    pub(crate) retained: Vec<u8>,
}

/// The receiving half at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receiving {
    pub(crate) next_offset: u64,
    pub(crate) end_offset: Option<u64>,
    /// Up to `next_offset`.
    pub(crate) unread: Vec<u8>,
}

impl Detached {
    /// The session's name.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Bytes that the peer is not known to have.
    pub fn unacked_bytes(&self) -> u64 {
        (self.sending.retained_offset + self.sending.retained.len() as u64)
            .saturating_sub(self.sending.acked_offset)
    }

    /// Bytes that have come from the peer and were not read.
    pub fn unread_bytes(&self) -> u64 {
        self.receiving.unread.len() as u64
    }

    /// Where its client was.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// How long the session may still wait for its client from the moment at which it was detached: what the listener that
    /// had it allows (`Config::keep`), less what has passed since the link was lost. None if that is not known.
    pub fn keep_left(&self) -> Option<Duration> {
        let times = self.times?;
        let waited_ms = times.detached_ms.saturating_sub(times.lost_ms);
        Some(Duration::from_millis(times.keep_ms.saturating_sub(waited_ms)))
    }

    /// As bytes for [`decode`](Self::decode). They hold the key of the session and what it carries: keep them as secret
    /// as both.
    pub fn encode(&self) -> Vec<u8> {
        [&self.head()[..], &self.sending.retained, &self.receiving.unread, &self.tail()].concat()
    }

    /// The same, in parts: what it carries is not copied.
    pub fn into_parts(self) -> [Vec<u8>; 4] {
        let (head, tail) = (self.head(), self.tail());
        [head, self.sending.retained, self.receiving.unread, tail]
    }

    fn head(&self) -> Vec<u8> {
        let Sending { retained, .. } = &self.sending;
        let Receiving { unread, .. } = &self.receiving;
        let flags = [
            (FLAG_KEY, self.key.is_some()),
            (FLAG_END_KNOWN, self.receiving.end_offset.is_some()),
            (FLAG_ENDED, self.sending.ended),
            (FLAG_END_ACKED, self.sending.end_acked),
            (FLAG_OWNER, self.owner.is_some()),
            (FLAG_TIMES, self.times.is_some()),
        ];
        let flags = flags.iter().filter(|(_, set)| *set).fold(0, |flags, (flag, _)| flags | flag);
        let mut out = Vec::with_capacity(HEAD_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, flags, self.security as u8]);
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(self.key.as_ref().map_or(&[0; 32][..], |key| key.expose()));
        let peer = match self.peer {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        out.extend_from_slice(&peer.octets());
        for number in [
            self.epoch,
            self.outages,
            self.sending.retained_offset,
            self.sending.acked_offset,
            self.sending.sent_offset,
            self.receiving.next_offset,
            self.receiving.end_offset.unwrap_or_default(),
            retained.len() as u64,
            unread.len() as u64,
        ] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out
    }

    fn tail(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(self.owner.as_ref().map_or(&[], |owner| &owner[..]));
        for number in self.times.iter().flat_map(Times::numbers) {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out
    }

    /// Reads what [`encode`](Self::encode) wrote, all of `bytes`.
    ///
    /// # Errors
    /// Another version or layout, or positions that contradict each other.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        Self::from_vec(bytes.to_vec())
    }

    /// The same, and most of what it carries stays where it is.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self, WireError> {
        let mut fields = Fields::new(&bytes);
        if fields.array::<4>()? != MAGIC {
            return Err(WireError::Value("magic"));
        }
        if fields.byte()? != VERSION {
            return Err(WireError::Value("version"));
        }
        let flags = fields.byte()?;
        let security = SecurityKind::from_u8(fields.byte()?).ok_or(WireError::Value("security"))?;
        let id = SessionId::from_bytes(fields.array()?);
        let key = SessionKey::from_bytes(fields.array()?);
        let peer = Ipv6Addr::from(fields.array::<16>()?);
        let epoch = fields.offset("epoch")?;
        let outages = fields.u64()?;
        let retained_offset = fields.offset("retained offset")?;
        let acked_offset = fields.offset("acknowledged offset")?;
        let sent_offset = fields.offset("sent offset")?;
        let next_offset = fields.offset("next offset")?;
        let end_offset = fields.offset("end offset")?;
        let (retained_bytes, unread_bytes) = (fields.u64()?, fields.u64()?);
        let retained = fields.bytes(retained_bytes)?.len();
        let unread = fields.bytes(unread_bytes)?.len();
        let owner = if flags & FLAG_OWNER != 0 { Some(fields.array()?) } else { None };
        let times = if flags & FLAG_TIMES != 0 { Some(Times::read(&mut fields)?) } else { None };
        if !fields.is_empty() {
            return Err(WireError::Value("length"));
        }
        let (retained, unread) = carried(bytes, retained, unread);
        let sending = Sending {
            retained_offset,
            acked_offset,
            sent_offset,
            ended: flags & FLAG_ENDED != 0,
            end_acked: flags & FLAG_END_ACKED != 0,
            retained,
        };
        let end_offset = (flags & FLAG_END_KNOWN != 0).then_some(end_offset);
        let receiving = Receiving { next_offset, end_offset, unread };
        sending.check()?;
        receiving.check()?;
        if epoch == 0 {
            return Err(WireError::Value("epoch"));
        }
        let key = (flags & FLAG_KEY != 0).then_some(key);
        Ok(Self {
            id,
            epoch,
            security,
            key,
            owner,
            peer: peer.to_canonical(),
            outages,
            times,
            sending,
            receiving,
        })
    }
}

/// The bytes that are retained, and those that are not read, which follow the head in this order. The larger ones of the two are not copied to
/// other memory.
fn carried(mut bytes: Vec<u8>, retained_bytes: usize, unread_bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let unread_at = HEAD_BYTES + retained_bytes;
    let part = |bytes: &[u8], from: usize, length: usize| {
        bytes.get(from..from + length).unwrap_or_default().to_vec()
    };
    let keep = |bytes: &mut Vec<u8>, from: usize, length: usize| {
        bytes.truncate(from + length);
        bytes.drain(..from.min(bytes.len()));
    };
    if unread_bytes > retained_bytes {
        let retained = part(&bytes, HEAD_BYTES, retained_bytes);
        keep(&mut bytes, unread_at, unread_bytes);
        (retained, bytes)
    } else {
        let unread = part(&bytes, unread_at, unread_bytes);
        keep(&mut bytes, HEAD_BYTES, retained_bytes);
        (bytes, unread)
    }
}

impl Times {
    fn numbers(&self) -> [u64; 7] {
        let Self { opened_ms, lost_ms, paused_ms, detached_ms, pause_longest_ms, pause_total_ms, keep_ms } =
            *self;
        [opened_ms, lost_ms, paused_ms, detached_ms, pause_longest_ms, pause_total_ms, keep_ms]
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(Self {
            opened_ms: fields.u64()?,
            lost_ms: fields.u64()?,
            paused_ms: fields.u64()?,
            detached_ms: fields.u64()?,
            pause_longest_ms: fields.u64()?,
            pause_total_ms: fields.u64()?,
            keep_ms: fields.u64()?,
        })
    }
}

/// Going on with it.
#[cfg(any(feature = "io", feature = "fuzzing", test))]
mod restoring {
    use super::Detached;
    use crate::proto::{Receiver, Sender};
    use outlast_stream::BufferSource;

    impl Detached {
        /// The sending half, with room for what is retained even if that is more than `retain_bytes_max`.
        pub(crate) fn sender<S: BufferSource>(&self, source: S, retain_bytes_max: usize) -> Sender<S> {
            Sender::restored(source, retain_bytes_max, &self.sending)
        }

        /// The receiving half.
        pub(crate) fn receiver(&self) -> Receiver {
            Receiver::restored(&self.receiving)
        }
    }
}

impl Sending {
    fn check(&self) -> Result<(), WireError> {
        // PROTOCOL 1.6
        let written_offset = self.retained_offset.saturating_add(self.retained.len() as u64);
        let sound = self.retained_offset <= self.acked_offset
            && self.acked_offset <= self.sent_offset
            && self.sent_offset <= written_offset
            && (self.ended || !self.end_acked);
        sound.then_some(()).ok_or(WireError::Value("positions of the sending half"))
    }
}

impl Receiving {
    fn check(&self) -> Result<(), WireError> {
        let sound = self.unread.len() as u64 <= self.next_offset
            && self.end_offset.is_none_or(|end_offset| end_offset >= self.next_offset);
        sound.then_some(()).ok_or(WireError::Value("positions of the receiving half"))
    }
}
