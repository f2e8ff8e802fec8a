//! Changes that happen all at once or not at all, whatever instruction a crash comes at.
//!
//! Before a word is changed, what was there goes to the undo log; after that the log is made to count, by one store, and
//! after that the word is changed. A transaction counts from the store of its sequence number on: that also ends the log,
//! which counts for one number only. Who takes the lock looks whether the log counts, and takes the changes back: he may
//! die of that, too, as old words can be restored any number of times.
//!
//! An entry of the log is the old words, then where and how many: so it is read from its end.

use super::error::{Result, StateError, damaged};
use super::fields::fields;
use super::heap;
use super::layout::{self, COMMITTED, CONTROL, Layout};
use super::lock::Held;
use super::words::{Words, index};

/// What a region contains, as long as nobody changes it.
pub struct View<'a> {
    pub(crate) words: Words<'a>,
    pub(crate) layout: &'a Layout,
    _held: Option<Held<'a>>,
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").finish_non_exhaustive()
    }
}

/// A transaction that is under way. It [counts](super::Region::transaction) as a whole or not at all.
pub struct Transaction<'a> {
    view: View<'a>,
    sequence: u64,
    /// Words of the log.
    used: usize,
    /// From here on there was nothing before, and there is nothing to undo.
    fresh: usize,
    /// Neither committed nor taken back.
    open: bool,
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.open {
            // A log that is damaged by now is found so by whoever comes next.
            let _ = self.roll_back_to(0);
        }
    }
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl<'a> std::ops::Deref for Transaction<'a> {
    type Target = View<'a>;

    fn deref(&self) -> &View<'a> {
        &self.view
    }
}

fields! { LogHead { words: 0..32, sequence: 32..64 } }
fields! { Entry { words: 0..24, begin: 24..64 } }
/// More words are several entries.
const ENTRY_WORDS_MAX: usize = (1 << 24) - 1;

/// Which transaction a log is about: as much of its number as there is room for. The log of the last one never counts, and
/// each begins with an empty one, so older ones are not met.
fn tag(sequence: u64) -> u64 {
    sequence & u64::from(u32::MAX)
}

impl<'a> View<'a> {
    /// With what somebody who has died has left, as long as nobody [recovers](Self::recover) it.
    #[inline]
    pub(crate) fn new(words: Words<'a>, layout: &'a Layout, held: Option<Held<'a>>) -> Self {
        Self { words, layout, _held: held }
    }

    /// Takes back what a transaction of somebody who has died has changed. Whether there was one.
    ///
    /// # Errors
    /// The log is damaged: nothing has changed.
    #[inline]
    pub(crate) fn recover(&self) -> Result<bool> {
        let used = self.undoable()?;
        if used > 0 {
            self.take_back(used)?;
        }
        Ok(used > 0)
    }

    /// So many words of the log count.
    #[inline]
    fn undoable(&self) -> Result<usize> {
        let head = LogHead(self.words.load(layout::LOG)?);
        let next = self.words.load(COMMITTED)?.wrapping_add(1);
        Ok(if head.sequence() == tag(next) { index(head.words()) } else { 0 })
    }

    #[cold]
    fn take_back(&self, used: usize) -> Result<()> {
        // All of it before any of it.
        self.undo(used, 0, |_, _| Ok(()))?;
        self.undo(used, 0, |at, old| self.words.store(at, old))?;
        self.words.store(layout::LOG, 0)
    }

    /// Walks the log from its end at `used` back to `mark`.
    fn undo(
        &self,
        used: usize,
        mark: usize,
        mut restore: impl FnMut(usize, u64) -> Result<()>,
    ) -> Result<()> {
        let log = &self.layout.log;
        let wrong = || damaged("the undo log contradicts itself", layout::LOG);
        let mut end = used;
        while end > mark {
            if end > log.len() {
                return Err(wrong());
            }
            let entry = Entry(self.words.load(log.start + end - 1)?);
            let (count, begin) = (index(entry.words()), index(entry.begin()));
            let start = (end - 1).checked_sub(count).filter(|start| *start >= mark && count > 0);
            let start = start.ok_or_else(wrong)?;
            if begin < CONTROL || begin + count > self.layout.heap.end {
                return Err(wrong());
            }
            for n in 0..count {
                restore(begin + n, self.words.load(log.start + start + n)?)?;
            }
            end = start;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn load(&self, at: usize) -> Result<u64> {
        self.words.load(at)
    }
}

impl<'a> Transaction<'a> {
    pub(crate) fn begin(view: View<'a>) -> Result<Self> {
        let fresh = view.frontier()?;
        Self::begin_below(view, fresh)
    }

    /// That everything from `fresh` on is nobody's is not looked up.
    fn begin_below(view: View<'a>, fresh: usize) -> Result<Self> {
        let sequence = view.words.load(COMMITTED)?.wrapping_add(1);
        view.words.store(layout::LOG, LogHead::new(0, tag(sequence)).0)?;
        Ok(Self { view, sequence, used: 0, fresh, open: true })
    }

    /// What [`committed`](super::Region::committed) is from this transaction on, if it is committed.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// From here on it counts. Dropped without, it has never been.
    ///
    /// # Errors
    /// None that can be met; the words of a region are looked up with care.
    #[inline]
    pub fn commit(mut self) -> Result<()> {
        self.view.words.store(COMMITTED, self.sequence)?;
        self.open = false;
        Ok(())
    }

    fn roll_back_to(&mut self, mark: usize) -> Result<()> {
        self.view.undo(self.used, mark, |at, old| self.view.words.store(at, old))?;
        self.view.words.store(layout::LOG, LogHead::new(mark as u64, tag(self.sequence)).0)?;
        self.used = mark;
        Ok(())
    }

    /// A part of the transaction that happens as a whole or not at all: after an error the transaction is as it was
    /// before the part, and can go on.
    ///
    /// # Errors
    /// Those of `part`.
    pub fn attempt<T, E: From<StateError>>(
        &mut self,
        part: impl FnOnce(&mut Self) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mark = self.used;
        // What this transaction has made before is not fresh to the part.
        let made = self.frontier()?;
        let fresh = self.fresh;
        self.fresh = fresh.max(made);
        let result = part(self);
        self.fresh = fresh;
        if result.is_err() {
            self.roll_back_to(mark)?;
        }
        result
    }

    /// Makes `count` words undoable.
    #[inline]
    fn log(&mut self, at: usize, count: usize) -> Result<()> {
        let end = at.checked_add(count).filter(|end| *end <= self.view.layout.heap.end && at >= CONTROL);
        let end = end.ok_or_else(|| damaged("a change outside of what may be changed", at))?;
        let count = end.min(self.fresh.max(at)) - at;
        if count == 0 {
            return Ok(());
        }
        let (log, words) = (&self.view.layout.log, self.view.words);
        let mut done = 0;
        while done < count {
            let part = (count - done).min(ENTRY_WORDS_MAX);
            if part + 1 > log.len() - self.used {
                return Err(StateError::TransactionTooLarge { limit: log.len() * 8 });
            }
            let base = log.start + self.used;
            for n in 0..part {
                words.store(base + n, words.load(at + done + n)?)?;
            }
            words.store(base + part, Entry::new(part as u64, (at + done) as u64).0)?;
            self.used += part + 1;
            done += part;
        }
        words.store(layout::LOG, LogHead::new(self.used as u64, tag(self.sequence)).0)
    }

    #[inline]
    pub(crate) fn store(&mut self, at: usize, value: u64) -> Result<()> {
        self.log(at, 1)?;
        self.view.words.store(at, value)
    }

    /// Bytes from `skip` on behind the beginning of a word. All of them or none: nothing is stored after an error.
    pub(crate) fn store_bytes(&mut self, at: usize, skip: usize, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (mut at, mut skip) = (at.saturating_add(skip / 8), skip % 8);
        self.log(at, (skip + bytes.len()).div_ceil(8))?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(8 - skip));
            let mut word = [0; 8];
            if part.len() < 8 {
                word = self.view.words.load(at)?.to_ne_bytes();
            }
            word[skip..skip + part.len()].copy_from_slice(part);
            self.view.words.store(at, u64::from_ne_bytes(word))?;
            (rest, at, skip) = (behind, at + 1, 0);
        }
        Ok(())
    }

    /// Commits a transaction after which everything is as in a new region. What was damaged before does not matter.
    pub(crate) fn clear_all(view: View<'a>) -> Result<()> {
        let heap = view.layout.heap.clone();
        let root = view.layout.root.clone();
        let mut tx = Self::begin_below(view, heap.end)?;
        tx.clear(CONTROL, heap::CONTROL_END - CONTROL)?;
        tx.clear(root.start, root.len())?;
        tx.store(heap::FRONTIER, heap.start as u64)?;
        tx.commit()
    }

    /// Zeroes from the beginning of a word.
    pub(crate) fn clear(&mut self, at: usize, count: usize) -> Result<()> {
        self.log(at, count)?;
        (at..at + count).try_for_each(|at| self.view.words.store(at, 0))
    }
}
