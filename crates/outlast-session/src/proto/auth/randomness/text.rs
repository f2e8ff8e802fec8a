//! A code for what people type: how many bits it takes to write a text down.
//!
//! Words have lower case behind one capital at most, numbers come in one piece, and letters are as frequent as in English, with a fifth
//! of them alike for names and other languages. All costs are -log2 of shares that add up to one at most, rounded up, so that it is a code.

/// One bit, in the unit of the costs.
const BIT: usize = 64;

/// From a to z, in either case.
const LETTERS: [usize; 26] = [
    242, 371, 324, 294, 205, 339, 345, 266, 255, 437, 396, 298, 334, 258, 249, 348, 441, 267, 263, 233, 325,
    385, 335, 437, 347, 443,
];

/// Years and counts have more of 0, 1, 2 and 9.
const DIGITS: [usize; 10] = [149, 149, 149, 277, 277, 277, 277, 277, 277, 213];

/// One of `+`, `/`, `-`, `_`.
const SYMBOL: usize = 2 * BIT;

/// What kind of character follows which: rows and columns are lower case, upper case, digits, symbols.
const FOLLOWS: [[usize; 4]; 4] =
    [[19, 234, 234, 362], [48, 112, 246, 324], [159, 159, 48, 298], [85, 97, 149, 277]];

/// Of digits of base64.
pub(super) fn bits(text: impl Iterator<Item = u8>) -> usize {
    let mut follows = FOLLOWS[3];
    let mut cost = 0;
    for byte in text {
        let (kind, own) = match byte {
            b'a'..=b'z' => (0, LETTERS.get(usize::from(byte - b'a'))),
            b'A'..=b'Z' => (1, LETTERS.get(usize::from(byte - b'A'))),
            b'0'..=b'9' => (2, DIGITS.get(usize::from(byte - b'0'))),
            _ => (3, Some(&SYMBOL)),
        };
        let kind_cost = follows.get(kind).copied().unwrap_or_default();
        cost += kind_cost + own.copied().unwrap_or_default();
        follows = FOLLOWS.get(kind).copied().unwrap_or_default();
    }
    cost / BIT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What makes it a code: Kraft's inequality.
    #[test]
    fn shares_add_up_to_one_at_most() {
        let total =
            |costs: &[usize]| -> f64 { costs.iter().map(|cost| (-(*cost as f64) / BIT as f64).exp2()).sum() };
        for costs in FOLLOWS.iter().map(|row| &row[..]).chain([&LETTERS[..], &DIGITS[..]]) {
            assert!((0.98..=1.0).contains(&total(costs)), "{costs:?}");
        }
    }
}
