//! A code for bytes with patterns: how many bits it takes to write a key down.
//!
//! Each byte is either given as it is, or is what one of three guesses says. Which of these it is costs what the shares below make it
//! cost: they add up to one at most, so that it is a code.

/// One bit, in the unit of the costs.
const BIT: usize = 64;

/// After a byte that was given: another one, with a share of 7/8.
const GIVEN_AFTER_GIVEN: usize = 8 * BIT + 13;
/// Or one that a guess says, 1/24 for each guess.
const GUESSED_AFTER_GIVEN: usize = 294;
/// After a byte that a guess has said: the same guess is right, 3/4.
const GUESSED_AGAIN: usize = 27;
/// Or another one, 1/32 for each.
const GUESSED_OTHERWISE: usize = 5 * BIT;
/// Or a byte is given, 3/16.
const GIVEN_AFTER_GUESSED: usize = 8 * BIT + 155;

const GUESSES: usize = 3;

/// The least number of bits, over two orders of the bytes: as they are, and every second one first. The latter shows patterns in
/// numbers and texts of 16 bits.
pub(super) fn bits(key: &[u8]) -> usize {
    let even = key.len().div_ceil(2);
    let in_order = |place: usize| key.get(place).copied();
    let by_twos = |place: usize| {
        let from = if place < even { 2 * place } else { 2 * (place - even) + 1 };
        key.get(from).copied()
    };
    cost(in_order).min(cost(by_twos)) / BIT
}

fn cost(byte_at: impl Fn(usize) -> Option<u8>) -> usize {
    let (mut cost, mut last_right) = (0, None);
    let mut place = 0;
    while let Some(byte) = byte_at(place) {
        let is_right = |guess: usize| guessed(&byte_at, place, guess) == Some(byte);
        let right = last_right
            .filter(|guess| is_right(*guess))
            .or_else(|| (0..GUESSES).find(|guess| is_right(*guess)));
        cost += match (last_right, right) {
            (None, None) => GIVEN_AFTER_GIVEN,
            (None, Some(_)) => GUESSED_AFTER_GIVEN,
            (Some(last), Some(now)) if last == now => GUESSED_AGAIN,
            (Some(_), Some(_)) => GUESSED_OTHERWISE,
            (Some(_), None) => GIVEN_AFTER_GUESSED,
        };
        last_right = right;
        place += 1;
    }
    cost
}

/// The same as before; as much more as before; or what has followed the last two bytes where they were first.
fn guessed(byte_at: &impl Fn(usize) -> Option<u8>, place: usize, guess: usize) -> Option<u8> {
    let last = byte_at(place.checked_sub(1)?)?;
    if guess == 0 {
        return Some(last);
    }
    let last_two = [byte_at(place.checked_sub(2)?), Some(last)];
    let [Some(before), _] = last_two else { return None };
    if guess == 1 {
        return Some(last.wrapping_add(last.wrapping_sub(before)));
    }
    (2..place).find(|earlier| [byte_at(earlier - 2), byte_at(earlier - 1)] == last_two).and_then(byte_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What makes it a code: Kraft's inequality.
    #[test]
    fn shares_add_up_to_one_at_most() {
        let share = |cost: usize| (-(cost as f64) / BIT as f64).exp2();
        let guesses = GUESSES as f64;
        let after_given = 256.0 * share(GIVEN_AFTER_GIVEN) + guesses * share(GUESSED_AFTER_GIVEN);
        let others = (guesses - 1.0) * share(GUESSED_OTHERWISE);
        let after_guessed = 256.0 * share(GIVEN_AFTER_GUESSED) + share(GUESSED_AGAIN) + others;
        for total in [after_given, after_guessed] {
            assert!((0.98..=1.0).contains(&total), "{total}");
        }
    }

    #[test]
    fn a_pattern_counts_for_what_it_takes_to_write_it_down() {
        let random = [0x9f, 0x3c, 0x71, 0xe8, 0xb2, 0x04, 0x6d, 0xa5];
        let with = |rest: [u8; 8]| bits(&[random, rest].concat());
        for rest in [[0; 8], random, [3, 5, 7, 9, 11, 13, 15, 17]] {
            assert!((64..96).contains(&with(rest)), "{rest:?}: {}", with(rest));
        }
        let others = [0x1b, 0xd7, 0x40, 0x2e, 0xc9, 0x86, 0xf3, 0x5a];
        assert!(with(others) >= 128);
    }
}
