//! Keys and proofs. `PROTOCOL.md`, section 6.
//!
//! Everything rests on HMAC-SHA-256 (RFC 2104, FIPS 198-1) with a label per purpose and every part prefixed by its
//! length, so that no two inputs ever read the same. Comparisons take the same time whatever they compare.
//! Keys are wiped when they are dropped, their memory is left out of core dumps, and printing one prints no secret.

mod randomness;

#[cfg(not(feature = "io"))]
use super::secret::Secret;
use super::wire::SessionId;
#[cfg(feature = "io")]
use crate::sys::Secret;
use alloc::vec::Vec;
use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// The shortest shared key: 128 bits.
pub const PSK_BYTES_MIN: usize = 16;
/// The longest shared key that is taken from a file; anything above is not a key.
pub const PSK_BYTES_MAX: usize = 1024;

/// What ties a proof to one TLS connection: keying material exported from it (RFC 5705, RFC 8446 section 7.5).
/// `None` without TLS.
pub type Binding = Option<[u8; 32]>;

/// The label under which [`Binding`] is exported.
pub const BINDING_LABEL: &[u8] = b"EXPORTER-outlast-session-1";

/// A key that both sides hold.
#[derive(Clone)]
pub struct Psk(Secret);

/// A text or a file that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Fewer than [`PSK_BYTES_MIN`] bytes.
    #[error(
        "key of {bytes} bytes: at least {PSK_BYTES_MIN} are needed, for example from `openssl rand -hex 32`"
    )]
    TooShort {
        /// How many there were.
        bytes: usize,
    },
    /// More than [`PSK_BYTES_MAX`] bytes.
    #[error("key of {bytes} bytes: at most {PSK_BYTES_MAX} are allowed")]
    TooLong {
        /// How many there were.
        bytes: usize,
    },
    /// Neither hexadecimal nor base64.
    #[error("key is neither hexadecimal nor base64: make one with `openssl rand -hex 32`")]
    Text,
    /// A password, a sentence or a pattern.
    #[error("key is not random, so that others can guess it: make one with `openssl rand -hex 32`")]
    NotRandom,
}

impl Psk {
    /// A key of [`PSK_BYTES_MIN`] to [`PSK_BYTES_MAX`] unpredictable bytes. At least 128 bits of them have to be random:
    /// guesses can be tried against what a server says to everybody.
    ///
    /// # Errors
    /// [`KeyError`] for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        match bytes.len() {
            bytes if bytes < PSK_BYTES_MIN => Err(KeyError::TooShort { bytes }),
            bytes if bytes > PSK_BYTES_MAX => Err(KeyError::TooLong { bytes }),
            length => Ok(Self(Secret::fill(length, |key| key.copy_from_slice(bytes)))),
        }
    }

    /// A key as it stands in a file: hexadecimal digits, or base64 in either alphabet; white space is ignored.
    /// A text that could be both is hexadecimal.
    ///
    /// # Errors
    /// [`KeyError`] if it is neither, has the wrong length, or cannot have been drawn at random.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        // With room from the start: what a vector leaves behind when it grows is not wiped.
        let mut digits = Zeroizing::new(Vec::with_capacity(text.len()));
        digits.extend(text.bytes().filter(|byte| !byte.is_ascii_whitespace()));
        let (key, weakness) = decoded(&digits).ok_or(KeyError::Text)?;
        let psk = Self::from_bytes(&key)?;
        match weakness.or_else(|| randomness::of_bytes(&key)) {
            None => Ok(psk),
            Some(_) => Err(KeyError::NotRandom),
        }
    }

    /// The server's proof in the Challenge of an opening.
    pub(crate) fn server_proof(&self, hello: &[u8], server_nonce: &[u8; 32]) -> Proof {
        Proof::new(&self.0, b"server open", &[hello, server_nonce])
    }

    /// The client's proof in the Answer of an opening.
    pub(crate) fn client_proof(&self, hello: &[u8], server_nonce: &[u8; 32]) -> Proof {
        Proof::new(&self.0, b"client open", &[hello, server_nonce])
    }

    /// The key of the session that this opening begins.
    pub(crate) fn session_key(
        &self,
        id: &SessionId,
        client_nonce: &[u8; 32],
        server_nonce: &[u8; 32],
    ) -> SessionKey {
        Proof::new(&self.0, b"session", &[id.as_bytes(), client_nonce, server_nonce]).into_key()
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(..)")
    }
}

/// The key of one session: its holder may resume the session.
#[derive(Clone)]
pub struct SessionKey(Secret);

impl SessionKey {
    /// A key kept from earlier, for example by a server that restarts without losing its sessions.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Secret::fill(bytes.len(), |key| key.copy_from_slice(&bytes)))
    }

    /// The secret itself, to be kept across a restart and nowhere else.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The key of a session opened over TLS, from the nonce in its Hello, which nobody but the two ends can see.
    ///
    /// An opening that is repeated carries the same nonce and so gives the same key: that is how the server
    /// tells the client that opened a session from one that only knows its id.
    pub(crate) fn from_opening(id: &SessionId, client_nonce: &[u8; 32]) -> Self {
        Proof::new(client_nonce, b"tls session", &[id.as_bytes()]).into_key()
    }

    /// The client's proof in a Hello that resumes. `hello` is the message without its proof field.
    pub(crate) fn resume_proof(&self, binding: &Binding, hello: &[u8]) -> Proof {
        Proof::new(&self.0, b"resume", &[bound(binding), hello])
    }

    /// The right to give the session up, and nothing else: for a process that outlives the client (PROTOCOL 6.9).
    pub fn abort_key(&self, id: &SessionId) -> AbortKey {
        AbortKey(Proof::new(&self.0, b"abort key", &[id.as_bytes()]).into_bytes())
    }

    /// The server's proof in a Welcome. `welcome` is the message without its proof field.
    pub(crate) fn welcome_proof(&self, binding: &Binding, client_nonce: &[u8; 32], welcome: &[u8]) -> Proof {
        Proof::new(&self.0, b"welcome", &[bound(binding), client_nonce, welcome])
    }

    /// The key for the acknowledgement datagrams of the link with this epoch.
    pub(crate) fn datagram_mac(&self, sender_is_client: bool, datagram: &[u8]) -> [u8; 16] {
        let label: &[u8] = if sender_is_client { b"client datagram" } else { b"server datagram" };
        let mut mac = [0; 16];
        for (to, from) in mac.iter_mut().zip(Proof::new(&self.0, label, &[datagram]).into_bytes()) {
            *to = from;
        }
        mac
    }
}

impl PartialEq for SessionKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&*other.0).into()
    }
}

impl Eq for SessionKey {}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

/// Its holder may give a session up. It does not lead back to the [`SessionKey`] that it was made from.
#[derive(Clone)]
pub struct AbortKey([u8; 32]);

impl AbortKey {
    /// One that another process has made.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The secret itself, for the process that is to give the session up.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The proof in a Hello that aborts. `hello` is the message without its proof field.
    pub(crate) fn abort_proof(&self, binding: &Binding, hello: &[u8]) -> Proof {
        Proof::new(&self.0, b"abort", &[bound(binding), hello])
    }
}

impl Drop for AbortKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PartialEq for AbortKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for AbortKey {}

impl fmt::Debug for AbortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AbortKey(..)")
    }
}

fn bound(binding: &Binding) -> &[u8] {
    binding.as_ref().map_or(&[], |binding| binding)
}

/// One MAC, made or to be compared.
pub(crate) struct Proof([u8; 32]);

impl Proof {
    fn new(key: &[u8], label: &[u8], parts: &[&[u8]]) -> Self {
        let proof = Self::computed(key, label, parts);
        wipe_stack();
        proof
    }

    /// Leaves copies of the key on the stack, as itself and as HMAC's two pads.
    #[inline(never)]
    fn computed(key: &[u8], label: &[u8], parts: &[&[u8]]) -> Self {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
            // HMAC takes keys of every length.
            return Self([0; 32]);
        };
        // PROTOCOL 6.1: label and parts are preceded by their lengths.
        for part in core::iter::once(&label).chain(parts) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        Self(mac.finalize().into_bytes().into())
    }

    pub(crate) const fn into_bytes(self) -> [u8; 32] {
        self.0
    }

    fn into_key(mut self) -> SessionKey {
        let key = SessionKey(Secret::fill(self.0.len(), |key| key.copy_from_slice(&self.0)));
        self.0.zeroize();
        key
    }

    /// Whether the peer's proof is this one, in constant time.
    pub(crate) fn is(&self, other: &[u8; 32]) -> bool {
        self.0.ct_eq(other).into()
    }
}

/// Overwrites what functions called before have left on the stack: core dumps have it.
#[inline(never)]
fn wipe_stack() {
    /// More than HMAC-SHA-256 takes, with all that it calls.
    const WORDS: usize = 4096 / size_of::<u64>();
    let mut below = [0_u64; WORDS];
    below.zeroize();
}

/// Decodes exactly as many bytes as `out` has.
pub(crate) fn decode_hex(text: &str, out: &mut [u8]) -> Option<()> {
    hex_into(text.as_bytes(), out)
}

fn hex_into(text: &[u8], out: &mut [u8]) -> Option<()> {
    if text.len() != out.len() * 2 {
        return None;
    }
    for (digits, byte) in text.chunks_exact(2).zip(out) {
        let mut value = 0;
        for digit in digits {
            let digit = char::from(*digit).to_digit(16)?;
            value = value << 4 | u8::try_from(digit).ok()?;
        }
        *byte = value;
    }
    Some(())
}

/// The bytes of a key, from hexadecimal or base64, and what shows in the latter.
fn decoded(digits: &[u8]) -> Option<(Zeroizing<Vec<u8>>, Option<randomness::Weakness>)> {
    let mut key = Zeroizing::new(alloc::vec![0; digits.len() / 2]);
    match hex_into(digits, &mut key) {
        Some(()) => Some((key, None)),
        None => Some((base64(digits)?, randomness::of_base64(digits))),
    }
}

/// RFC 4648 sections 4 and 5, padding optional.
fn base64(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    // A last group of one digit holds no byte.
    if digits.len() % 4 == 1 || (digits.len() != text.len() && !text.len().is_multiple_of(4)) {
        return None;
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 4 * 3 + 2));
    let (mut held, mut held_bits) = (0u32, 0u32);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        held_bits += 6;
        if held_bits >= 8 {
            held_bits -= 8;
            bytes.push(u8::try_from(held >> held_bits & 0xFF).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn keys_are_read_from_text() {
        let bytes: Vec<u8> = (0..32u8).map(|n| n.wrapping_mul(n).wrapping_mul(7) ^ n >> 1).collect();
        let hex: alloc::string::String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(*Psk::from_text(&format!("  {}\n{}\n", &hex[..20], &hex[20..])).unwrap().0, *bytes);
        assert_eq!(*Psk::from_text(&hex.to_uppercase()).unwrap().0, *bytes);
        let base64 = "AAcdPnKt/1TEM7lK9plbIAjv1db6BTd8zBtx4n7xk0g=";
        assert_eq!(*Psk::from_text(base64).unwrap().0, *bytes);
        assert_eq!(*Psk::from_text(&base64.replace('+', "-").replace('=', "")).unwrap().0, *bytes);
    }

    #[test]
    fn what_is_no_key_says_so() {
        assert_eq!(Psk::from_text("").err(), Some(KeyError::TooShort { bytes: 0 }));
        assert_eq!(Psk::from_text("00112233").err(), Some(KeyError::TooShort { bytes: 4 }));
        assert_eq!(Psk::from_text("this is not a key!").err(), Some(KeyError::Text));
        assert_eq!(Psk::from_text("AAAAA").err(), Some(KeyError::Text));
        assert_eq!(Psk::from_text("AAAAAA=").err(), Some(KeyError::Text));
        assert_eq!(Psk::from_bytes(&[0; 2000]).err(), Some(KeyError::TooLong { bytes: 2000 }));
    }

    #[test]
    fn the_mac_is_hmac_sha_256() {
        // RFC 4231, test case 2, through the same functions.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let bytes: [u8; 32] = mac.finalize().into_bytes().into();
        let mut expected = [0; 32];
        decode_hex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", &mut expected)
            .unwrap();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn moving_a_byte_from_one_part_to_the_next_changes_the_proof() {
        let proof = |label: &[u8], parts: &[&[u8]]| Proof::new(b"key", label, parts).into_bytes();
        let all = [
            proof(b"ab", &[b"c", b"d"]),
            proof(b"a", &[b"bc", b"d"]),
            proof(b"ab", &[b"cd"]),
            proof(b"abcd", &[]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all.iter().skip(index + 1).all(|other| one != other));
        }
    }

    #[test]
    fn printing_a_key_prints_no_secret() {
        let psk = Psk::from_bytes(&[0x41; 16]).unwrap();
        let key = SessionKey::from_bytes([0x41; 32]);
        for text in [format!("{psk:?}"), format!("{key:?}")] {
            assert!(!text.contains("41") && !text.contains("65") && !text.contains("AAAA"), "{text}");
        }
    }

    #[test]
    fn the_purposes_do_not_mix() {
        let key = SessionKey::from_bytes([1; 32]);
        let hello = b"hello";
        let free = key.resume_proof(&None, hello).into_bytes();
        assert_ne!(free, key.resume_proof(&Some([0; 32]), hello).into_bytes());
        assert_ne!(free, key.welcome_proof(&None, &[0; 32], hello).into_bytes());
        assert_ne!(key.datagram_mac(true, hello), key.datagram_mac(false, hello));
        assert!(key.resume_proof(&None, hello).is(&free));
        assert!(!key.resume_proof(&None, b"hellp").is(&free));
    }
}
