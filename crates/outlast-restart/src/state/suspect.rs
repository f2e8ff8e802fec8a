//! Memory that is kept but belongs to no transaction: caches, statistics, whatever is worth more than nothing. After a
//! crash it contains whatever was stored by then, so somebody has to look at it, or it is not taken over.

use super::cell::part;
use super::error::Result;
use super::layout::PAGE_BYTES;
use crate::sys::region::Mapping;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The part of a region that is not transactional.
#[derive(Clone, Copy, Debug)]
pub struct Suspect<'a> {
    mapping: &'a Mapping,
    words: &'a [AtomicU64],
    begin: usize,
}

impl<'a> Suspect<'a> {
    pub(crate) fn new(mapping: &'a Mapping, range: &Range<usize>) -> Self {
        let words = mapping.words().get(range.clone()).unwrap_or_default();
        Self { mapping, words, begin: range.start }
    }

    /// In words of 8 bytes, which any thread may change at any time. Zeroes at first.
    #[must_use]
    pub fn words(&self) -> &'a [AtomicU64] {
        self.words
    }

    /// How many bytes there are.
    #[must_use]
    pub fn length(&self) -> usize {
        size_of_val(self.words)
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// [`OutOfBounds`](super::StateError::OutOfBounds).
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        part(0, self.length(), offset, bytes.len())?;
        for (n, byte) in bytes.iter_mut().enumerate() {
            let at = offset + n;
            let word = self.words.get(at / 8).map_or(0, |word| word.load(Ordering::Relaxed));
            *byte = word.to_ne_bytes()[at % 8];
        }
        Ok(())
    }

    /// Copies bytes into it. Of those of a word that others change meanwhile, either may be lost.
    ///
    /// # Errors
    /// [`OutOfBounds`](super::StateError::OutOfBounds).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        part(0, self.length(), offset, bytes.len())?;
        for (n, byte) in bytes.iter().enumerate() {
            let at = offset + n;
            if let Some(word) = self.words.get(at / 8) {
                let mut value = word.load(Ordering::Relaxed).to_ne_bytes();
                value[at % 8] = *byte;
                word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Makes all of it zeroes.
    pub fn discard(&self) {
        debug_assert!(self.length().is_multiple_of(PAGE_BYTES));
        if self.mapping.discard(self.begin * 8, self.length()).is_err() {
            for word in self.words {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// What became of the suspect part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspectPart {
    /// It is as it was.
    Kept,
    /// It is zeroes.
    Discarded,
}
