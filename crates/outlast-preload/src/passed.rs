//! What a generation that executes another program before it serves passes on to that, such as a script to the server that it
//! starts: which numbers, in few words, as they are a part of the environment.

use crate::left::Known;
use crate::sys;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::RawFd;

/// More are not passed on: the kernel takes no longer variables.
const RANGES_MAX: usize = 1000;

/// Descriptors, and which sockets those are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// The first and the last of each.
    ranges: Vec<(RawFd, RawFd)>,
    /// Of all numbers and sockets.
    sum: u64,
}

impl Passed {
    /// Those that are open under these numbers.
    pub fn find(numbers: impl Iterator<Item = RawFd>) -> Self {
        let found: BTreeMap<RawFd, u64> =
            numbers.filter_map(|number| Some((number, sys::inode(number)?))).collect();
        Self::of(&found)
    }

    fn of(all: &Known) -> Self {
        let mut ranges: Vec<(RawFd, RawFd)> = Vec::new();
        for &number in all.keys() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        if ranges.len() > RANGES_MAX { Self::default() } else { Self { ranges, sum: sum(all.iter()) } }
    }

    /// What was passed on, if so: `open` without it, and whether there is any. All of it, or nothing: other numbers are the
    /// program's own.
    pub fn apart(&self, open: Known) -> (Known, bool) {
        let within =
            |number: &RawFd| self.ranges.iter().any(|(first, last)| (first..=last).contains(&number));
        let (passed, rest): (Known, Known) = open.iter().partition(|(number, _)| within(number));
        if passed.is_empty() || sum(passed.iter()) != self.sum { (open, false) } else { (rest, true) }
    }

    /// As it is [written](fmt::Display).
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.split_ascii_whitespace();
        let sum = parts.next()?.parse().ok()?;
        let range = |part: &str| {
            let (first, last) = part.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(Self { ranges: parts.map(range).collect::<Option<_>>()?, sum })
    }
}

impl fmt::Display for Passed {
    /// Nothing, or behind a space each: the sum, and ranges of numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.ranges.is_empty() {
            write!(f, " {}", self.sum)?;
        }
        self.ranges.iter().try_for_each(|(first, last)| write!(f, " {first}-{last}"))
    }
}

/// Differs where a number or a socket does (FNV-1a).
fn sum<'a>(all: impl Iterator<Item = (&'a RawFd, &'a u64)>) -> u64 {
    let words = all.flat_map(|(number, inode)| [u64::from(number.unsigned_abs()), *inode]);
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_is_told_from_what_is_the_programs() {
        let passed = Known::from([(500, 71), (501, 72), (502, 73), (700, 1 << 40)]);
        let text = Passed::of(&passed).to_string();
        assert!(text.ends_with(" 500-502 700-700"), "{text}");
        let read = Passed::read(&text).unwrap();
        assert_eq!(read, Passed::of(&passed));
        let own = Known::from([(0, 1), (2, 3), (503, 74)]);
        let mut open: Known = passed.iter().chain(&own).map(|(number, inode)| (*number, *inode)).collect();
        assert_eq!(read.apart(open.clone()), (own, true));
        // Another socket by now, or none.
        open.insert(501, 75);
        assert_eq!(read.apart(open.clone()), (open.clone(), false));
        open.remove(&501);
        assert_eq!(read.apart(open.clone()), (open.clone(), false));
        assert_eq!(Passed::default().to_string(), "");
        assert_eq!(Passed::default().apart(open.clone()), (open, false));
        assert_eq!([Passed::read(""), Passed::read("x 1-2"), Passed::read("1 2")], [None, None, None]);
        // In the worst case.
        let scattered: Known = (0..32_000).map(|number| (number * 2, 7)).collect();
        assert_eq!(Passed::of(&scattered), Passed::default());
    }
}
