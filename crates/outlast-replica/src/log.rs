//! Entries that somebody may still need, found by index.

use crate::Weigh;
use alloc::collections::VecDeque;

/// An entry, and the view in which it got its index. Those two say which entry it is: no primary gives an index twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered<E> {
    /// Epoch of that view.
    pub epoch: u64,
    /// The entry.
    pub entry: E,
}

/// Entries of consecutive indices. The first entry ever has index 1.
#[derive(Debug)]
pub(crate) struct Log<E> {
    /// Index of the oldest one that is kept.
    first: u64,
    entries: VecDeque<Ordered<E>>,
    bytes: usize,
}

impl<E: Weigh> Log<E> {
    /// Empty; the next entry is the one after `index`.
    pub(crate) fn after(index: u64) -> Self {
        Self { first: index + 1, entries: VecDeque::new(), bytes: 0 }
    }

    /// Index of the oldest entry that is kept.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Index of the newest entry.
    pub(crate) fn last(&self) -> u64 {
        self.first + self.entries.len() as u64 - 1
    }

    /// What all entries weigh.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry, if it is kept.
    pub(crate) fn get(&self, index: u64) -> Option<&Ordered<E>> {
        let at = index.checked_sub(self.first)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// Adds one behind the newest. Its index.
    pub(crate) fn push(&mut self, ordered: Ordered<E>) -> u64 {
        self.bytes += ordered.entry.weight_bytes();
        self.entries.push_back(ordered);
        self.last()
    }

    /// Drops all behind this index.
    pub(crate) fn truncate(&mut self, last: u64) {
        while self.last() > last
            && let Some(ordered) = self.entries.pop_back()
        {
            self.bytes -= ordered.entry.weight_bytes();
        }
    }

    /// Drops all up to this index.
    pub(crate) fn forget(&mut self, to: u64) {
        while self.first <= to
            && let Some(ordered) = self.entries.pop_front()
        {
            self.first += 1;
            self.bytes -= ordered.entry.weight_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_index_until_they_are_dropped() {
        let mut log = Log::after(10);
        assert_eq!((log.first(), log.last(), log.bytes()), (11, 10, 0));
        for entry in 11..=15_u64 {
            assert_eq!(log.push(Ordered { epoch: 1, entry }), entry);
        }
        log.forget(12);
        log.truncate(14);
        assert_eq!((log.first(), log.last(), log.bytes()), (13, 14, 2 * 8));
        let entries = [12, 13, 14, 15].map(|index| log.get(index).map(|ordered| ordered.entry));
        assert_eq!(entries, [None, Some(13), Some(14), None]);
        log.truncate(3);
        assert_eq!((log.first(), log.last(), log.bytes()), (13, 12, 0));
        log.forget(100);
        assert_eq!((log.first(), log.last(), log.get(0).is_none()), (13, 12, true));
    }
}
