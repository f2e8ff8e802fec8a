//! Whether a shared key can have been drawn at random. Nobody can tell how random bytes are; but what people type, and
//! what they make up for a test, shows. A key that can be guessed is none: whoever sees one Challenge, or asks a server
//! for one, can try guesses against it for as long as they like (PROTOCOL 6.3).

/// Fewer different bytes than this occur among 16 random ones in one of some ten million keys.
const DIFFERENT_BYTES_MIN: usize = 9;

/// Why it is not random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// The same few bytes again and again, or counting.
    Pattern,
    /// A text: a password, a sentence.
    Text,
}

/// What shows in the bytes of a key.
pub(super) fn of_bytes(key: &[u8]) -> Option<Weakness> {
    // 16 random bytes are all printable once in seven million keys.
    if key.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return Some(Weakness::Text);
    }
    let mut seen = [false; 256];
    for byte in key {
        if let Some(seen) = seen.get_mut(usize::from(*byte)) {
            *seen = true;
        }
    }
    let different = seen.iter().filter(|seen| **seen).count();
    // Two bytes that follow each other differ by the same as the two before them, again and again.
    let steps = key.windows(3).filter(|window| match window {
        [a, b, c] => b.wrapping_sub(*a) == c.wrapping_sub(*b),
        _ => false,
    });
    // The second half is the first one.
    let (first, second) = key.split_at(key.len() / 2);
    let repeats = second.ends_with(first);
    (different < DIFFERENT_BYTES_MIN || 2 * steps.count() > key.len() || repeats).then_some(Weakness::Pattern)
}

/// What shows in a text that was read as base64: random digits are of both cases, and are not the letters of a language.
pub(super) fn of_base64(text: &[u8]) -> Option<Weakness> {
    let digits = || text.iter().filter(|byte| **byte != b'=');
    let count = digits().count();
    let has = |is: fn(&u8) -> bool| digits().any(is);
    if !has(u8::is_ascii_uppercase) || !has(u8::is_ascii_lowercase) {
        return Some(Weakness::Text);
    }
    // A text in English consists of these to some 74 %, random digits to 31 %. The limits are where one of some hundred
    // thousand random keys ends up.
    let common = digits().filter(|byte| b"etaoinshrl".contains(&byte.to_ascii_lowercase())).count();
    let is_text = if count < 32 { 4 * common > 3 * count } else { 3 * common > 2 * count };
    is_text.then_some(Weakness::Text)
}

#[cfg(test)]
mod tests {
    use super::super::{KeyError, Psk};
    use alloc::format;
    use alloc::string::String;

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
        ] {
            assert_eq!(Psk::from_text(&text).err(), Some(KeyError::NotRandom), "{text}");
        }
    }

    #[test]
    fn random_keys_are_taken() {
        // A generator of good quality; the seed is fixed so that the test says the same each time.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)).to_le_bytes()[0]
        };
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for round in 0..5_000 {
            let length = if round % 2 == 0 { 16 } else { 32 };
            let key: alloc::vec::Vec<u8> = (0..length).map(|_| next()).collect();
            assert!(Psk::from_text(&hex(&key)).is_ok(), "{key:?}");
            let text: String = (0..43).map(|_| char::from(alphabet[usize::from(next() % 64)])).collect();
            assert!(Psk::from_text(&text).is_ok(), "{text}");
        }
    }
}
