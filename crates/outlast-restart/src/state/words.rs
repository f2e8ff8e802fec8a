//! The memory of a region, as words: every access is checked, and every store is one instruction.

use super::error::{Result, damaged};
use crate::sys::region;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words from the beginning of a region.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(&'a [AtomicU64]);

impl<'a> Words<'a> {
    pub(crate) fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    pub(crate) fn atomic(self, at: usize) -> Result<&'a AtomicU64> {
        self.0.get(at).ok_or_else(|| damaged("it points outside", at))
    }

    #[inline]
    pub(crate) fn load(self, at: usize) -> Result<u64> {
        self.atomic(at).map(|word| word.load(Ordering::Acquire))
    }

    /// Behind everything that was stored before: a crash finds the first of a row of stores without the later ones, never
    /// the other way round.
    #[inline]
    pub(crate) fn store(self, at: usize, value: u64) -> Result<()> {
        #[cfg(test)]
        if super::fuse::burn() {
            return Ok(());
        }
        self.atomic(at).map(|word| word.store(value, Ordering::Release))
    }

    /// Bytes from the beginning of a word, which nobody changes as long as the region's lock is held.
    pub(crate) fn bytes(self, at: usize, length: usize) -> Result<&'a [u8]> {
        let end = at.checked_add(length.div_ceil(8));
        let words =
            end.and_then(|end| self.0.get(at..end)).ok_or_else(|| damaged("it points outside", at))?;
        Ok(region::bytes(words, length))
    }

    pub(crate) fn len(self) -> usize {
        self.0.len()
    }
}

/// Of words that came from a region: too large a number is found to be outside.
#[inline]
pub(crate) fn index(word: u64) -> usize {
    usize::try_from(word).unwrap_or(usize::MAX)
}
