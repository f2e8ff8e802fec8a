//! Who a client is. It proves that it knows a password for what one server has asked, and each server asks for something else: a salt (md5), or a proof that
//! has random bytes of the server in it (SCRAM, RFC 5802 and 7677). From what a server keeps of the password, and from the right proof for one server, the
//! right one for another follows:
//!
//! * md5: `md5(kept, salt)`, where `kept` is what the server keeps;
//! * SCRAM: `ClientProof = ClientKey ^ HMAC(StoredKey, AuthMessage)` (RFC 5802, section 3). The server keeps `StoredKey = H(ClientKey)`, so the proof says the
//!   `ClientKey`, and whether it is right.
//!
//! So no node needs passwords, and a wrong one stays wrong.

use super::message::{HEADER_BYTES, four, message};
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, str};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use md5::Md5;
use sha2::{Digest as _, Sha256};

/// Kinds of a question (`Authentication...`), by their numbers.
pub(super) const OK: u32 = 0;
pub(super) const CLEAR: u32 = 3;
pub(super) const MD5: u32 = 5;
pub(super) const SASL: u32 = 10;
pub(super) const SASL_GOES_ON: u32 = 11;
pub(super) const SASL_ENDS: u32 = 12;

/// What a client says to prove it.
pub(super) const PROOF: u8 = b'p';
pub(super) const QUESTION: u8 = b'R';
const SALT_BYTES: usize = 4;
/// Of SHA-256.
const KEY_BYTES: usize = 32;
type Key = [u8; KEY_BYTES];
const MD5_MARK: &str = "md5";
const SCRAM_MARK: &str = "SCRAM-SHA-256$";

/// What a server has asked, and the answer depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Md5([u8; SALT_BYTES]),
    /// All that it has said of it: nonce, salt and rounds.
    Scram(Vec<u8>),
}

impl Question {
    /// Of a whole message.
    pub(super) fn of(message: &[u8]) -> Option<Self> {
        let payload = message.get(HEADER_BYTES..).filter(|_| message.first() == Some(&QUESTION))?;
        let said = payload.get(4..)?;
        match four(payload)? {
            MD5 => said.first_chunk().map(|salt| Self::Md5(*salt)),
            SASL_GOES_ON => Some(Self::Scram(said.to_vec())),
            _ => None,
        }
    }
}

/// An answer to such a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    user: Vec<u8>,
    /// What the client has answered, what it had been asked, and what this node's server has asked.
    answer: Vec<u8>,
    said: Question,
    own: Question,
    /// What the client has said first of SCRAM, without the part that is about channels.
    first: Vec<u8>,
    /// For this node's server, with a proof that is wrong.
    wrong: Vec<u8>,
}

impl Login {
    /// None: that is no answer to it.
    pub(super) fn new(
        user: &[u8],
        answer: &[u8],
        (said, own): (&Question, &Question),
        first: &[u8],
    ) -> Option<Self> {
        let mut login = Self {
            user: user.to_vec(),
            answer: answer.get(HEADER_BYTES..)?.to_vec(),
            said: said.clone(),
            own: own.clone(),
            first: first.to_vec(),
            wrong: Vec::new(),
        };
        login.wrong = match (said, own) {
            (Question::Md5(_), Question::Md5(_)) => md5_answer(&[b'0'; 32]),
            (Question::Scram(_), Question::Scram(own)) => {
                let (without_proof, _) = login.scram_answer()?;
                scram_answer(&own_without_proof(&without_proof, own)?, &[0; KEY_BYTES])
            }
            _ => return None,
        };
        Some(login)
    }

    pub(crate) fn user(&self) -> &[u8] {
        &self.user
    }

    pub(crate) fn length(&self) -> usize {
        self.wrong.len()
    }

    pub(crate) fn for_server(&self, kept: &[String]) -> Vec<u8> {
        kept.iter().find_map(|kept| self.right(kept)).unwrap_or_else(|| self.wrong.clone())
    }

    /// If the client knows the password of which a server keeps this.
    fn right(&self, kept: &str) -> Option<Vec<u8>> {
        match (&self.said, &self.own) {
            (Question::Md5(said), Question::Md5(own)) => {
                let kept = kept.strip_prefix(MD5_MARK)?;
                let is_right = self.answer.strip_suffix(&[0])?.strip_prefix(MD5_MARK.as_bytes())?
                    == md5_hex(kept, said).as_bytes();
                is_right.then(|| md5_answer(md5_hex(kept, own).as_bytes()))
            }
            (Question::Scram(said), Question::Scram(own)) => {
                let (without_proof, proof) = self.scram_answer()?;
                // Rounds and salt, and both keys.
                let (asks, keys) = kept.strip_prefix(SCRAM_MARK)?.split_once('$')?;
                let stored: Key = BASE64.decode(keys.split_once(':')?.0).ok()?.try_into().ok()?;
                let (rounds, salt) = asks.split_once(':')?;
                let is_of_account =
                    |question: &[u8]| question.ends_with(format!(",s={salt},i={rounds}").as_bytes());
                // Where servers have salted the password otherwise, it has another key at each.
                if !is_of_account(said) || !is_of_account(own) {
                    return None;
                }
                let key = xor(proof, signature(&stored, &[&self.first, said, &without_proof]));
                if Key::from(Sha256::digest(key)) != stored {
                    return None;
                }
                let without_proof = own_without_proof(&without_proof, own)?;
                let proof = xor(key, signature(&stored, &[&self.first, own, &without_proof]));
                Some(scram_answer(&without_proof, &proof))
            }
            _ => None,
        }
    }

    /// What the client has said of SCRAM at last: what is in front of the proof, and that.
    fn scram_answer(&self) -> Option<(Vec<u8>, Key)> {
        let at = self.answer.windows(3).rposition(|window| window == b",p=")?;
        let proof = BASE64.decode(self.answer.get(at + 3..)?).ok()?;
        Some((self.answer.get(..at)?.to_vec(), proof.try_into().ok()?))
    }
}

/// The same, with the nonce that this node's server has asked with.
fn own_without_proof(answer: &[u8], own: &[u8]) -> Option<Vec<u8>> {
    let at = answer.windows(3).position(|window| window == b",r=")?;
    let nonce = own.strip_prefix(b"r=")?.split(|byte| *byte == b',').next()?;
    Some([answer.get(..at + 3)?, nonce].concat())
}

fn scram_answer(without_proof: &[u8], proof: &Key) -> Vec<u8> {
    message(PROOF, &[without_proof, b",p=", BASE64.encode(proof).as_bytes()].concat())
}

fn md5_answer(hex: &[u8]) -> Vec<u8> {
    message(PROOF, &[MD5_MARK.as_bytes(), hex, &[0]].concat())
}

fn md5_hex(kept: &str, salt: &[u8]) -> String {
    let digest = Md5::new().chain_update(kept).chain_update(salt).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Of the parts of what both have said, with commas between them (AuthMessage).
fn signature(stored: &Key, parts: &[&[u8]]) -> Key {
    // A key of any length will do.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(stored) else { return [0; KEY_BYTES] };
    mac.update(&parts.join(&b','));
    mac.finalize().into_bytes().into()
}

fn xor(mut one: Key, other: Key) -> Key {
    one.iter_mut().zip(other).for_each(|(one, other)| *one ^= other);
    one
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_right_proof_by_md5_is_right_for_the_other_server_and_a_wrong_one_stays_wrong() {
        let kept = format!("md5{}", md5_hex("secret", b"me"));
        let answer = |salt: &[u8]| md5_answer(md5_hex(&kept[3..], salt).as_bytes());
        let questions = (&Question::Md5(*b"salt"), &Question::Md5(*b"SALT"));
        let login = |said: &[u8]| Login::new(b"me", said, questions, b"").unwrap();
        let right = login(&answer(b"salt"));
        assert_eq!(right.for_server(&["md5".to_string(), kept.clone()]), answer(b"SALT"));
        assert_eq!(right.length(), answer(b"SALT").len());
        let wrong = login(&answer(b"else"));
        assert_ne!(wrong.for_server(std::slice::from_ref(&kept)), answer(b"SALT"));
        assert_ne!(right.for_server(&[]), answer(b"SALT"));
    }

    #[test]
    fn a_right_proof_by_scram_is_right_for_the_other_server() {
        // The client's key may be any: what a server keeps follows from it.
        let key: Key = core::array::from_fn(|at| u8::try_from(at).unwrap());
        let stored: Key = Sha256::digest(key).into();
        let kept =
            format!("SCRAM-SHA-256$4096:c2FsdA==${}:{}", BASE64.encode(stored), BASE64.encode([7; 32]));
        let first = b"n=,r=mine".as_slice();
        let answer = |question: &[u8], nonce: &str, key: Key| {
            let without_proof = format!("c=biws,r=mine{nonce}");
            let said = signature(&stored, &[first, question, without_proof.as_bytes()]);
            scram_answer(without_proof.as_bytes(), &xor(key, said))
        };
        let (here, there) = (b"r=mineHERE,s=c2FsdA==,i=4096", b"r=mineTHERE,s=c2FsdA==,i=4096");
        let questions = (&Question::Scram(here.to_vec()), &Question::Scram(there.to_vec()));
        let right = Login::new(b"me", &answer(here, "HERE", key), questions, first).unwrap();
        let expected = answer(there, "THERE", key);
        assert_eq!(right.for_server(std::slice::from_ref(&kept)), expected);
        assert_eq!(right.length(), expected.len());
        let wrong = Login::new(b"me", &answer(here, "HERE", [9; KEY_BYTES]), questions, first).unwrap();
        assert_ne!(wrong.for_server(std::slice::from_ref(&kept)), expected);
        assert_eq!(wrong.for_server(std::slice::from_ref(&kept)).len(), expected.len());
        // Another salt at this server: the same password has another key there.
        assert_ne!(right.for_server(&[kept.replace("c2FsdA", "U2FsdA")]), expected);
    }
}
