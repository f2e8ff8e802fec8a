//! How clients of MySQL and MariaDB prove who they are, to servers that each have greeted them with random bytes of their own (the salt).
//!
//! A client hears one greeting, that of the primary's server, and its proof (`mysql_native_password`) is good for that salt alone:
//! `SHA1(password) XOR SHA1(salt, SHA1(SHA1(password)))`. Each server keeps the inner part, `SHA1(SHA1(password))`, of each account. With both, and only then,
//! a node can work out `SHA1(password)`, and from that the proof for the salt of its own server. So no node needs passwords, and a wrong one stays wrong.
//!
//! Other ways to prove it sign the salt with a key that no server has, or need TLS: a server gets zeros in place of such a proof, and refuses it, as all
//! others do.

use super::packet::{Fields, HEADER_BYTES};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use sha1::{Digest as _, Sha1};

/// Of a salt, of a proof, and of what a server keeps.
pub(super) const PROOF_BYTES: usize = 20;
/// Of SHA-1.
pub type Hash = [u8; PROOF_BYTES];

const NATIVE: &[u8] = b"mysql_native_password";
/// Capabilities, by their bits: those of the server that clients are not told of ...
const HIDDEN: u32 = COMPRESSION
    | LOCAL_FILES
    | TLS
    | ZSTD
    | TRACKS_STATE
    | NO_END_OF_LISTS
    | OPTIONAL_METADATA
    | QUERY_ATTRIBUTES
    | SEVERAL_PROOFS;
const COMPRESSION: u32 = 1 << 5;
const LOCAL_FILES: u32 = 1 << 7;
const TLS: u32 = 1 << 11;
const TRACKS_STATE: u32 = 1 << 23;
const NO_END_OF_LISTS: u32 = 1 << 24;
const OPTIONAL_METADATA: u32 = 1 << 25;
const ZSTD: u32 = 1 << 26;
const QUERY_ATTRIBUTES: u32 = 1 << 27;
const SEVERAL_PROOFS: u32 = 1 << 28;
/// ... and those that tell how a client's proof is written down.
const PROTOCOL_41: u32 = 1 << 9;
const SECURE: u32 = 1 << 15;
const HAS_PLUGIN: u32 = 1 << 19;
const LENGTH_IN_FRONT: u32 = 1 << 21;
const WITH_DATABASE: u32 = 1 << 3;

/// Places in a greeting, behind the server's name of its version.
const GREETING: u8 = 10;
const SALT_BEGINS: usize = 4;
const SALT_BEGIN_BYTES: usize = 8;
const LOW_CAPABILITIES: usize = SALT_BEGINS + SALT_BEGIN_BYTES + 1;
const HIGH_CAPABILITIES: usize = LOW_CAPABILITIES + 5;
const OWN_CAPABILITIES: usize = HIGH_CAPABILITIES + 9;
const SALT_ENDS: usize = OWN_CAPABILITIES + 4;
pub(super) const ASKS_AGAIN: u8 = 0xfe;
/// And in what a client says first.
const OWN_WISHES: usize = 28;

/// A greeting, without what clients are not to ask for.
pub(super) fn hide_capabilities(packet: &mut [u8]) -> Option<()> {
    let from = behind_version(packet)?;
    let mut hide = |at: usize, bits: u32, count: usize| {
        let place = packet.get_mut(from + at..from + at + count)?;
        place.iter_mut().zip(bits.to_le_bytes()).for_each(|(byte, bits)| *byte &= !bits);
        Some(())
    };
    hide(LOW_CAPABILITIES, HIDDEN, 2)?;
    hide(HIGH_CAPABILITIES, HIDDEN >> 16, 2)?;
    hide(OWN_CAPABILITIES, u32::MAX, 4)
}

/// What a client says first, without what it is not to have. Some ask for it though they have not heard that it is there.
pub(super) fn hide_wishes(packet: &mut [u8]) {
    let mut hide = |at: usize, bits: u32| {
        let place = packet.get_mut(HEADER_BYTES + at..HEADER_BYTES + at + 4).unwrap_or_default();
        place.iter_mut().zip(bits.to_le_bytes()).for_each(|(byte, bits)| *byte &= !bits);
    };
    hide(0, HIDDEN);
    hide(OWN_WISHES, u32::MAX);
}

/// The salt of a greeting, or of a packet that asks for another proof; and whether that is to be the one that is understood here.
pub(super) fn salt(packet: &[u8]) -> Option<(Hash, bool)> {
    let payload = packet.get(HEADER_BYTES..)?;
    let mut salt = [0; PROOF_BYTES];
    if payload.first() == Some(&ASKS_AGAIN) {
        let mut fields = Fields(payload.get(1..)?);
        let plugin = fields.text()?;
        let bytes = fields.0.get(..PROOF_BYTES);
        salt.copy_from_slice(bytes.unwrap_or(&[0; PROOF_BYTES]));
        return Some((salt, plugin == NATIVE && bytes.is_some()));
    }
    let from = behind_version(packet)?;
    let first = packet.get(from + SALT_BEGINS..)?.get(..SALT_BEGIN_BYTES)?;
    let rest = packet.get(from + SALT_ENDS..)?.get(..PROOF_BYTES - SALT_BEGIN_BYTES)?;
    salt[..SALT_BEGIN_BYTES].copy_from_slice(first);
    salt[SALT_BEGIN_BYTES..].copy_from_slice(rest);
    Some((salt, true))
}

/// The number that a server has for the connection, of its greeting.
pub(super) fn number(packet: &[u8]) -> Option<u32> {
    Fields(packet.get(behind_version(packet)?..)?).four()
}

fn behind_version(packet: &[u8]) -> Option<usize> {
    let mut fields = Fields(packet.get(HEADER_BYTES..)?);
    (fields.byte()? == GREETING).then_some(())?;
    fields.text()?;
    Some(packet.len() - fields.0.len())
}

/// Where the proof is in a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) user: Vec<u8>,
    /// That it chooses with it.
    pub(super) database: Vec<u8>,
    pub(super) place: Range<usize>,
    /// It is of the kind that is understood here, as far as the client says.
    pub(super) is_native: bool,
}

impl Proof {
    /// In what a client says first.
    pub(super) fn of_response(packet: &[u8]) -> Option<Self> {
        let mut fields = Fields(packet.get(HEADER_BYTES..)?);
        let capabilities = fields.four()?;
        if capabilities & (PROTOCOL_41 | SECURE) != PROTOCOL_41 | SECURE {
            return None;
        }
        // The largest packet, the alphabet, and room.
        fields.take(4 + 1 + 23)?;
        let user = fields.text()?.to_vec();
        let length = if capabilities & LENGTH_IN_FRONT == 0 {
            usize::from(fields.byte()?)
        } else {
            usize::try_from(fields.number()?).ok()?
        };
        let place = take(packet, &mut fields, length)?;
        let database = if capabilities & WITH_DATABASE == 0 { Vec::new() } else { fields.text()?.to_vec() };
        let plugin = if capabilities & HAS_PLUGIN == 0 { NATIVE } else { until_zero(fields.0) };
        Some(Self { user, database, is_native: plugin == NATIVE && length == PROOF_BYTES, place })
    }

    /// In a request to go on as somebody else.
    pub(super) fn of_change(packet: &[u8]) -> Option<Self> {
        let mut fields = Fields(packet.get(HEADER_BYTES + 1..)?);
        let user = fields.text()?.to_vec();
        let length = usize::from(fields.byte()?);
        let place = take(packet, &mut fields, length)?;
        // A server takes one without its zero.
        let database = until_zero(fields.0).to_vec();
        let _ = fields.take(database.len() + 1);
        // The alphabet. Older clients end here.
        let _ = fields.take(2);
        let plugin = until_zero(fields.0);
        let is_native = (plugin.is_empty() || plugin == NATIVE) && length == PROOF_BYTES;
        Some(Self { user, database, is_native, place })
    }

    /// That is all of the packet: another proof was asked for, of this user.
    pub(super) fn again(packet: &[u8], user: Vec<u8>, is_native: bool) -> Self {
        let place = HEADER_BYTES..packet.len();
        Self { user, database: Vec::new(), is_native: is_native && place.len() == PROOF_BYTES, place }
    }
}

fn take(packet: &[u8], fields: &mut Fields<'_>, length: usize) -> Option<Range<usize>> {
    let from = packet.len() - fields.0.len();
    fields.take(length)?;
    Some(from..from + length)
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// What a client says to prove who it is. A server has to get the same for the salt of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    packet: Vec<u8>,
    proof: Proof,
    /// What the client was greeted with, and what this node's server has said.
    said: Hash,
    own: Hash,
}

impl Login {
    pub(super) fn new(packet: Vec<u8>, proof: Proof, said: Hash, own: Hash) -> Self {
        Self { packet, proof, said, own }
    }

    /// Who the client says it is.
    #[must_use]
    pub fn user(&self) -> &[u8] {
        &self.proof.user
    }

    /// How many bytes the server gets.
    #[must_use]
    pub fn length(&self) -> usize {
        self.packet.len()
    }

    /// What this node's server gets, which keeps these of the accounts of that name. Where none of them is that of the client's password, it
    /// gets what is wrong for it, too.
    #[must_use]
    pub fn for_server(&self, kept: &[String]) -> Vec<u8> {
        let kept: Vec<Hash> = kept.iter().filter_map(|text| hash(text)).collect();
        let mut packet = self.packet.clone();
        let Some(place) = packet.get_mut(self.proof.place.clone()) else { return packet };
        let Ok(proof) = Hash::try_from(&*place) else { return packet };
        let password = kept.iter().find_map(|kept| {
            let password = xor(proof, mask(&self.said, kept));
            (sha1(&password) == *kept).then_some((password, kept))
        });
        match password {
            Some((password, kept)) => place.copy_from_slice(&xor(password, mask(&self.own, kept))),
            // By chance it might be right for this salt: nobody can know that, but zeros never are.
            None => place.fill(0),
        }
        packet
    }
}

/// What a server keeps of a password: a star, and the bytes in hexadecimal.
fn hash(text: &str) -> Option<Hash> {
    let digits =
        text.strip_prefix('*').filter(|digits| digits.len() == 2 * PROOF_BYTES && digits.is_ascii())?;
    let mut hash = Hash::default();
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// A proof, for this salt.
#[cfg(any(test, feature = "io"))]
pub(crate) fn prove(password: &[u8], salt: &Hash) -> Hash {
    let once = sha1(password);
    xor(once, mask(salt, &sha1(&once)))
}

fn mask(salt: &Hash, kept: &Hash) -> Hash {
    Sha1::new().chain_update(salt).chain_update(kept).finalize().into()
}

fn sha1(bytes: &[u8]) -> Hash {
    Sha1::digest(bytes).into()
}

fn xor(mut one: Hash, other: Hash) -> Hash {
    one.iter_mut().zip(other).for_each(|(one, other)| *one ^= other);
    one
}
