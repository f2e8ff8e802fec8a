//! What it takes to give a session up, and no more: for a process that outlives the client's (PROTOCOL 6.9).
//!
//! These bytes never go over a link. They go from a client's process to one of the same user and program that watches it.

use super::auth::AbortKey;
use super::wire::{Fields, SecurityKind, SessionId, WireError};
#[cfg(feature = "io")]
use super::{auth::Binding, handshake::Credentials};

/// Length of an encoded [`LastWord`].
pub const LAST_WORD_BYTES: usize = 50;

/// Of this layout. Zeroes are no last word.
const VERSION: u8 = 1;

/// The right to give one session up. With security `open` that is the session's id, which is the right to resume it as
/// well; else a key that proves nothing but an abort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWord {
    pub(crate) id: SessionId,
    pub(crate) security: SecurityKind,
    /// None with security `open`.
    pub(crate) key: Option<AbortKey>,
}

impl LastWord {
    /// The session's name.
    pub const fn id(&self) -> SessionId {
        self.id
    }

    /// What a Hello that aborts is proved with, on a link with this binding.
    #[cfg(feature = "io")]
    pub(crate) fn credentials(&self, binding: Binding) -> Credentials {
        match &self.key {
            None => Credentials::Open,
            Some(key) => Credentials::Abort { security: self.security, binding, key: key.clone() },
        }
    }

    /// As bytes for [`decode`](Self::decode): as secret as the right is.
    pub fn encode(&self) -> [u8; LAST_WORD_BYTES] {
        let mut out = [0; LAST_WORD_BYTES];
        let key = self.key.as_ref().map_or(&[0; 32], AbortKey::expose);
        let fields = [VERSION, self.security as u8];
        let bytes = fields.iter().chain(self.id.as_bytes()).chain(key);
        for (to, from) in out.iter_mut().zip(bytes) {
            *to = *from;
        }
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// Nothing is there, or another layout.
    pub fn decode(bytes: &[u8; LAST_WORD_BYTES]) -> Result<Self, WireError> {
        let mut fields = Fields::new(bytes);
        if fields.byte()? != VERSION {
            return Err(WireError::Value("version"));
        }
        let security = SecurityKind::from_u8(fields.byte()?).ok_or(WireError::Value("security"))?;
        let id = SessionId::from_bytes(fields.array()?);
        let key = AbortKey::from_bytes(fields.array()?);
        let key = (security != SecurityKind::Open).then_some(key);
        Ok(Self { id, security, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_zeroes_are_nothing() {
        let id = SessionId::from_bytes(*b"0123456789abcdef");
        for (security, key) in [
            (SecurityKind::Open, None),
            (SecurityKind::Psk, Some(AbortKey::from_bytes([7; 32]))),
            (SecurityKind::Tls, Some(AbortKey::from_bytes([8; 32]))),
        ] {
            let word = LastWord { id, security, key };
            assert_eq!(LastWord::decode(&word.encode()), Ok(word));
        }
        assert!(LastWord::decode(&[0; LAST_WORD_BYTES]).is_err());
        let mut other = LastWord { id, security: SecurityKind::Open, key: None }.encode();
        other[1] = 9;
        assert!(LastWord::decode(&other).is_err());
    }
}
