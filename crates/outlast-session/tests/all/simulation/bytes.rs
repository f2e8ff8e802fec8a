//! The streams themselves: every byte follows from the stream's seed and its position, so that a byte lost, repeated,
//! moved or changed is noticed wherever it is read.

/// Steele, Lea and Flood's finaliser: neighbouring positions give unrelated bytes.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    mix(seed ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes()
}

/// The bytes of stream `seed` from `offset` on.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let within = (at % 8) as usize;
        let from = &word(seed, at / 8)[within..];
        let count = from.len().min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&from[..count]);
        rest = later;
        at += count as u64;
    }
}

/// Where `bytes`, read at `offset` of stream `seed`, are wrong first.
pub fn first_wrong(seed: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let within = (at % 8) as usize;
        let from = &word(seed, at / 8)[within..];
        let count = from.len().min(rest.len());
        if rest[..count] != from[..count] {
            let wrong = rest.iter().zip(from).take_while(|(is, should)| is == should).count();
            return Some(at + wrong as u64);
        }
        rest = &rest[count..];
        at += count as u64;
    }
    None
}
