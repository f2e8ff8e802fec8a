//! Acknowledgement datagrams of the `udp` mode, after Ekwall, Urbán and Schiper ("Robust TCP connections for
//! fault tolerant computing", ICPADS 2002): beside the link, so that the stream itself stays bare.
//!
//! A datagram may be lost, come twice or late. All of them are idempotent: positions only ever rise. Those that must
//! arrive are sent with the "needs confirmation" flag, again and again, until a Confirm names them.
//! `PROTOCOL.md`, section 5.

use super::auth::SessionKey;
use super::wire::{OFFSET_MAX, SessionId};
use subtle::ConstantTimeEq;

/// The length of a datagram without a MAC.
pub const DATAGRAM_BYTES: usize = 40;
/// The length of a datagram with a MAC.
pub const DATAGRAM_BYTES_MAX: usize = DATAGRAM_BYTES + MAC_BYTES;

const MAC_BYTES: usize = 16;
/// Differs from the magic of the handshake in the last byte: neither is ever taken for the other.
const MAGIC: [u8; 4] = [0xD7, b'O', b'L', b'U'];
const VERSION: u8 = 1;
const FLAG_NEEDS_CONFIRM: u8 = 1;

/// What a datagram says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// The sender has taken in everything before `offset`.
    Ack,
    /// Asks for an Ack; `offset` is what the asker has sent.
    RequestAck,
    /// The sender wants to close, its stream ends at `offset`.
    Close,
    /// The sender's stream ends at `offset`; it goes on receiving.
    HalfClose,
    /// The session is over, and not in order.
    Reset,
    /// Confirms the datagram of this kind with the same offset.
    Confirm {
        /// The number of the confirmed kind.
        of: u8,
    },
}

impl DatagramKind {
    /// The kind's number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            Self::Ack => 1,
            Self::RequestAck => 2,
            Self::Close => 3,
            Self::HalfClose => 4,
            Self::Reset => 5,
            Self::Confirm { .. } => 6,
        }
    }
}

/// One datagram.
///
/// On the wire, in network byte order:
///
/// | bytes | what |
/// |---|---|
/// | 0..4 | magic `D7 4F 4C 55` |
/// | 4 | version, 1 |
/// | 5 | [kind](DatagramKind::number) |
/// | 6 | flags: 1 needs confirmation, the others are 0 |
/// | 7 | of a Confirm: the confirmed kind; else 0 |
/// | 8..24 | session id |
/// | 24..32 | epoch |
/// | 32..40 | offset |
/// | 40..56 | MAC over all of that, if the session has a key; else nothing |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// What it says.
    pub kind: DatagramKind,
    /// The receiver is to answer with a Confirm, even if it has seen the datagram before. Never set in a Confirm.
    pub needs_confirm: bool,
    /// The session.
    pub id: SessionId,
    /// The link it belongs to. Positions hold whatever the link; a Reset or Close of an older link does not.
    pub epoch: u64,
    /// What it means depends on the kind.
    pub offset: u64,
}

/// Bytes that are no datagram of this session. They are dropped, nothing else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// Neither 40 nor 56 bytes.
    #[error("datagram of {0} bytes")]
    Length(usize),
    /// Another magic or version.
    #[error("not an outlast datagram of version 1")]
    Foreign,
    /// An unknown kind or flag, or an impossible position.
    #[error("garbled datagram")]
    Garbled,
    /// The session has a key, and the MAC is missing or wrong; or the other way round.
    #[error("datagram without a valid mac")]
    BadMac,
}

/// A datagram ready to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedDatagram {
    bytes: [u8; DATAGRAM_BYTES_MAX],
    length_bytes: usize,
}

impl AsRef<[u8]> for EncodedDatagram {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length_bytes).unwrap_or_default()
    }
}

impl Datagram {
    /// The bytes to be sent, with a MAC if the session has a key.
    pub fn encode(&self, key: Option<&SessionKey>, sender_is_client: bool) -> EncodedDatagram {
        // PROTOCOL 5.1
        let of = if let DatagramKind::Confirm { of } = self.kind { of } else { 0 };
        let flags = if self.needs_confirm { FLAG_NEEDS_CONFIRM } else { 0 };
        let parts: [&[u8]; 5] = [
            &MAGIC,
            &[VERSION, self.kind.number(), flags, of],
            self.id.as_bytes(),
            &self.epoch.to_be_bytes(),
            &self.offset.to_be_bytes(),
        ];
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        let mut length_bytes = DATAGRAM_BYTES;
        if let (Some(key), Some((message, mac))) = (key, bytes.split_first_chunk_mut::<DATAGRAM_BYTES>()) {
            mac.copy_from_slice(&key.datagram_mac(sender_is_client, message));
            length_bytes = DATAGRAM_BYTES_MAX;
        }
        EncodedDatagram { bytes, length_bytes }
    }

    /// The session a datagram claims to belong to, to find its key by. Nothing else has been checked.
    pub fn claimed_id(bytes: &[u8]) -> Option<SessionId> {
        let id: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
        bytes.starts_with(&MAGIC).then(|| SessionId::from_bytes(id))
    }

    /// Checks and decodes a received datagram.
    ///
    /// # Errors
    /// [`DatagramError`] for everything a peer of this version and with this key does not send.
    pub fn decode(
        bytes: &[u8],
        key: Option<&SessionKey>,
        sender_is_client: bool,
    ) -> Result<Self, DatagramError> {
        let (message, mac) =
            bytes.split_first_chunk::<DATAGRAM_BYTES>().ok_or(DatagramError::Length(bytes.len()))?;
        if !mac.is_empty() && mac.len() != MAC_BYTES {
            return Err(DatagramError::Length(bytes.len()));
        }
        let mut fields = super::wire::Fields::new(message);
        let garbled = |_| DatagramError::Garbled;
        if fields.array() != Ok(MAGIC) || fields.byte() != Ok(VERSION) {
            return Err(DatagramError::Foreign);
        }
        // PROTOCOL 5.2: a session with a key takes no word without a MAC.
        let genuine = match key {
            Some(key) => bool::from(key.datagram_mac(sender_is_client, message).as_slice().ct_eq(mac)),
            None => mac.is_empty(),
        };
        if !genuine {
            return Err(DatagramError::BadMac);
        }
        let [kind, flags, of] = fields.array().map_err(garbled)?;
        let id = SessionId::from_bytes(fields.array().map_err(garbled)?);
        let epoch = fields.u64().map_err(garbled)?;
        let offset = fields.u64().map_err(garbled)?;
        let kind = match (kind, of) {
            (1, 0) => DatagramKind::Ack,
            (2, 0) => DatagramKind::RequestAck,
            (3, 0) => DatagramKind::Close,
            (4, 0) => DatagramKind::HalfClose,
            (5, 0) => DatagramKind::Reset,
            (6, 1..=5) => DatagramKind::Confirm { of },
            _ => return Err(DatagramError::Garbled),
        };
        let confirms = matches!(kind, DatagramKind::Confirm { .. });
        if flags & !FLAG_NEEDS_CONFIRM != 0 || (confirms && flags != 0) {
            return Err(DatagramError::Garbled);
        }
        if offset >= OFFSET_MAX || epoch == 0 || epoch >= OFFSET_MAX {
            return Err(DatagramError::Garbled);
        }
        Ok(Self { kind, needs_confirm: flags & FLAG_NEEDS_CONFIRM != 0, id, epoch, offset })
    }

    /// The Confirm that answers this datagram, if it asks for one.
    pub fn confirmation(&self) -> Option<Self> {
        self.needs_confirm.then_some(Self {
            kind: DatagramKind::Confirm { of: self.kind.number() },
            needs_confirm: false,
            ..*self
        })
    }

    /// Whether `other` is the Confirm this datagram is waiting for.
    pub fn is_confirmed_by(&self, other: &Self) -> bool {
        self.confirmation().as_ref() == Some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [DatagramKind; 6] = [
        DatagramKind::Ack,
        DatagramKind::RequestAck,
        DatagramKind::Close,
        DatagramKind::HalfClose,
        DatagramKind::Reset,
        DatagramKind::Confirm { of: 3 },
    ];

    fn datagram(kind: DatagramKind) -> Datagram {
        let id = SessionId::from_bytes(*b"0123456789abcdef");
        let needs_confirm = matches!(kind, DatagramKind::Close | DatagramKind::Reset);
        Datagram { kind, needs_confirm, id, epoch: 3, offset: 1 << 40 }
    }

    #[test]
    fn every_kind_comes_back_with_and_without_a_key() {
        let key = SessionKey::from_bytes([7; 32]);
        for kind in KINDS {
            for key in [None, Some(&key)] {
                let sent = datagram(kind);
                let encoded = sent.encode(key, true);
                let length = if key.is_some() { DATAGRAM_BYTES_MAX } else { DATAGRAM_BYTES };
                assert_eq!(encoded.as_ref().len(), length);
                assert_eq!(Datagram::decode(encoded.as_ref(), key, true), Ok(sent));
                assert_eq!(Datagram::claimed_id(encoded.as_ref()), Some(sent.id));
            }
        }
    }

    #[test]
    fn any_changed_bit_is_noticed_when_there_is_a_key() {
        let key = SessionKey::from_bytes([7; 32]);
        let encoded = datagram(DatagramKind::Ack).encode(Some(&key), false);
        for bit in 0..DATAGRAM_BYTES_MAX * 8 {
            let mut bytes = encoded.as_ref().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Datagram::decode(&bytes, Some(&key), false).is_err(), "bit {bit}");
        }
        let other = SessionKey::from_bytes([8; 32]);
        for (key, from_client) in [(Some(&key), true), (Some(&other), false), (None, false)] {
            let outcome = Datagram::decode(encoded.as_ref(), key, from_client);
            assert_eq!(outcome, Err(DatagramError::BadMac));
        }
        let bare = datagram(DatagramKind::Ack).encode(None, false);
        assert_eq!(Datagram::decode(bare.as_ref(), Some(&key), false), Err(DatagramError::BadMac));
    }

    #[test]
    fn lengths_flags_and_kinds_are_strict() {
        let bytes = datagram(DatagramKind::Ack).encode(None, true).as_ref().to_vec();
        for length in 0..DATAGRAM_BYTES {
            assert_eq!(Datagram::decode(&bytes[..length], None, true), Err(DatagramError::Length(length)));
        }
        let mut long = bytes.clone();
        long.push(0);
        assert_eq!(Datagram::decode(&long, None, true), Err(DatagramError::Length(41)));
        for (index, value, error) in [
            (0, 0, DatagramError::Foreign),
            (3, b'S', DatagramError::Foreign),
            (4, 2, DatagramError::Foreign),
            (5, 0, DatagramError::Garbled),
            (5, 7, DatagramError::Garbled),
            (6, 2, DatagramError::Garbled),
            (7, 1, DatagramError::Garbled),
            (24, 0x80, DatagramError::Garbled),
            (32, 0x80, DatagramError::Garbled),
        ] {
            let mut bytes = bytes.clone();
            bytes[index] = value;
            assert_eq!(Datagram::decode(&bytes, None, true), Err(error), "byte {index} = {value}");
        }
    }

    #[test]
    fn the_layout_is_as_documented() {
        let close = datagram(DatagramKind::Close).encode(None, true);
        let mut expected = [0; DATAGRAM_BYTES];
        expected[..8].copy_from_slice(&[0xD7, 0x4F, 0x4C, 0x55, 1, 3, 1, 0]);
        expected[8..24].copy_from_slice(b"0123456789abcdef");
        expected[31] = 3;
        expected[34] = 1;
        assert_eq!(close.as_ref(), expected);
        let confirm = datagram(DatagramKind::Confirm { of: 3 }).encode(None, true);
        assert_eq!(confirm.as_ref()[5..8], [6, 0, 3]);
    }

    /// Without a key a changed byte can pass for another datagram, but never for one that nobody would send.
    #[test]
    fn any_changed_byte_is_refused_or_taken_for_what_it_says() {
        for kind in KINDS {
            let encoded = datagram(kind).encode(None, true);
            for index in 0..DATAGRAM_BYTES {
                for change in 1..=u8::MAX {
                    let mut bytes = encoded.as_ref().to_vec();
                    bytes[index] ^= change;
                    if let Ok(decoded) = Datagram::decode(&bytes, None, true) {
                        assert_eq!(decoded.encode(None, true).as_ref(), bytes, "byte {index} of {kind:?}");
                        assert!((5..DATAGRAM_BYTES).contains(&index));
                    }
                }
            }
        }
    }

    #[test]
    fn a_confirmation_fits_what_it_confirms_and_nothing_else() {
        let close = datagram(DatagramKind::Close);
        let confirm = close.confirmation().unwrap();
        assert!(close.is_confirmed_by(&confirm));
        assert!(confirm.confirmation().is_none());
        assert!(!datagram(DatagramKind::Reset).is_confirmed_by(&confirm));
        assert!(!close.is_confirmed_by(&Datagram { offset: 1, ..confirm }));
        assert!(!datagram(DatagramKind::Ack).is_confirmed_by(&confirm));
    }
}
