//! Whether a shared key can have been drawn at random. Nobody can tell how random bytes are; but what people type, and
//! what they make up for a test, shows. A key that can be guessed is none: whoever sees one Challenge, or asks a server
//! for one, can try guesses against it for as long as they like (PROTOCOL 6.3). The digits of pi, a hash of a password and whatever
//! else is computed from little pass: they look as random ones do.
//!
//! A key is refused if a code for patterns or texts makes it much shorter. Of all keys of a length at most one in 2^k can be made k bits
//! shorter by one code, so that the limits below say how many random keys are refused: of those with 128 bits, which are refused most
//! often, fewer than one in a million, in hexadecimal and in base64.

mod pattern;
mod text;

use super::decoded;

/// Fewer different bytes than this occur among 16 random ones in one of some hundred million keys.
const DIFFERENT_BYTES_MIN: usize = 10;

/// Patterns that can be written down in less are no keys. Of keys with 128 random bits, one in 2^23 for each of the two codes.
const PATTERN_BITS_MIN: usize = 105;

/// A text gets shorter by so much as one. One random key in 2^22 does.
const TEXT_BITS_SAVED: usize = 22;

/// So many random digits of base64 are all of one case, or none, once in three million keys.
const BOTH_CASES_FROM: usize = 30;

/// Why it is not random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// The same few bytes again and again, or counting.
    Pattern,
    /// A text: a password, a sentence, a date.
    Text,
}

/// What shows in the bytes of a key.
pub(super) fn of_bytes(key: &[u8]) -> Option<Weakness> {
    // 16 random bytes are a text once in five million keys.
    if key.iter().all(|byte| matches!(byte, 0x20..0x7f | b'\t' | b'\n' | b'\r')) {
        return (!holds_key(key)).then_some(Weakness::Text);
    }
    let mut seen = [false; 256];
    for byte in key {
        if let Some(seen) = seen.get_mut(usize::from(*byte)) {
            *seen = true;
        }
    }
    let different = seen.iter().filter(|seen| **seen).count();
    let is_pattern = different < DIFFERENT_BYTES_MIN || pattern::bits(key) < PATTERN_BITS_MIN;
    is_pattern.then_some(Weakness::Pattern)
}

/// Whether a text has a word that is a random key: somebody has encoded one twice.
fn holds_key(text: &[u8]) -> bool {
    text.split(u8::is_ascii_whitespace).any(|word| match decoded(word) {
        Some((key, None)) => key.len() >= super::PSK_BYTES_MIN && of_bytes(&key).is_none(),
        _ => false,
    })
}

/// What shows in a text that was read as base64: random digits are of both cases, and are not the words of a language.
pub(super) fn of_base64(text: &[u8]) -> Option<Weakness> {
    let digits = || text.iter().copied().filter(|byte| *byte != b'=');
    let count = digits().count();
    let has = |is: fn(&u8) -> bool| digits().any(|digit| is(&digit));
    let one_case = !has(u8::is_ascii_uppercase) || !has(u8::is_ascii_lowercase);
    let only_letters = digits().all(|digit| digit.is_ascii_alphabetic());
    let random_bits = count * 6 / 8 * 8;
    let is_text = one_case && (only_letters || count >= BOTH_CASES_FROM)
        || text::bits(digits()) + TEXT_BITS_SAVED <= random_bits;
    is_text.then_some(Weakness::Text)
}

#[cfg(test)]
mod tests {
    use super::super::{KeyError, Psk};
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_that_people_make_up_are_refused() {
        let counting: [u8; 32] = core::array::from_fn(|n| n.to_le_bytes()[0]);
        let sevens: [u8; 32] = core::array::from_fn(|n| (n * 7).to_le_bytes()[0]);
        for text in [
            hex(&[0; 32]),
            hex(&[0xab; 16]),
            hex(&counting),
            hex(&sevens),
            "00112233445566778899aabbccddeeff".into(),
            "deadbeefdeadbeefdeadbeefdeadbeef".into(),
            "0123456789abcdef0123456789abcdef".into(),
            // A password in hexadecimal, in base64, and as it is.
            hex(b"correct horse battery"),
            "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5IHN0YXBsZQ==".into(),
            "correct horse battery staple rains".into(),
            "TheRainInSpainStaysMainlyOnThePlains".into(),
            "Monkey2015Dragon2016Tigers".into(),
            "correcthorsebatterystaples".into(),
            "hunter2hunter2hunter2hunter2".into(),
            // Random, but for too little of it.
            "9f3c71e8b2046da50000000000000000".into(),
            "ffffffffffffffff9f3c71e8b2046da5".into(),
            "9f3c71e8b2046da59f3c71e8b2046da5".into(),
            "9f3c71e8b2046da5000102030405060708090a0b0c0d0e0f".into(),
            "9f003c007100e800b20004006d00a500".into(),
            "9f3c71e8b2046da59f3c71e8b2046da59f3c71e8b2046da5ff".into(),
            // What `date | base64`, `whoami | md5sum | head -c 20 | xxd -p`, and a password twice in base64 give.
            "TW9uIE5vdiAyMyAxNjowNDo1MiBVVEMgMjAyNgo=".into(),
            hex(b"7d793037a0760186574b\n"),
            hex(b"correct\thorse\nbattery\r\n"),
            "WTI5eWNtVmpkQ0JvYjNKelpTQmlZWFIwWlhKNUlITjBZWEJzWlE9PQ==".into(),
        ] {
            assert_eq!(Psk::from_text(&text).err(), Some(KeyError::NotRandom), "{text}");
        }
    }

    /// A generator of good quality; the seed is fixed so that the test says the same each time.
    fn generator() -> impl FnMut() -> u8 {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)).to_le_bytes()[0]
        }
    }

    fn in_base64(bytes: &[u8]) -> String {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in bytes.chunks(3) {
            let held =
                group.iter().fold(0_u32, |held, byte| held << 8 | u32::from(*byte)) << (24 - 8 * group.len());
            for digit in 0..=group.len() {
                text.push(char::from(alphabet[(held >> (18 - 6 * digit) & 63) as usize]));
            }
        }
        text
    }

    #[test]
    fn random_keys_are_taken() {
        let mut next = generator();
        for round in 0..60_000 {
            let length = [16, 17, 18, 20, 24, 32, 48, 64][round % 8];
            let key: Vec<u8> = (0..length).map(|_| next()).collect();
            for text in [hex(&key), in_base64(&key)] {
                assert!(Psk::from_text(&text).is_ok(), "{text}");
            }
        }
    }

    /// `openssl rand -hex 32 | base64` has 256 random bits.
    #[test]
    fn random_keys_that_were_encoded_twice_are_taken() {
        let mut next = generator();
        for round in 0..2_000 {
            let length = [16, 24, 32][round % 3];
            let key: Vec<u8> = (0..length).map(|_| next()).collect();
            for inner in [hex(&key), in_base64(&key), format!("{}  -", hex(&key))] {
                for inner in [format!("{inner}\n"), inner] {
                    assert!(Psk::from_text(&in_base64(inner.as_bytes())).is_ok(), "{inner}");
                    assert!(Psk::from_text(&hex(inner.as_bytes())).is_ok(), "{inner}");
                }
            }
        }
    }
}
