//! Whether what a region contains is consistent: every block, every list of free ones, every map and pool. The undo log
//! was dealt with before.

use super::error::{Result, damaged};
use super::heap::{self, Kind, LIST_COUNT, LISTS, LISTS_IN_USE, NEXT, PREVIOUS, list_of};
use super::layout::{Layout, Options};
use super::map::{Map, mark};
use super::pool;
use super::record::Record;
use super::transaction::View;
use super::words::{Words, index};
use std::sync::atomic::AtomicU64;

/// Whether these bytes are a region that [`from_fd`](super::Region::from_fd) with these options would take, and that is
/// consistent. Nothing is changed: what a transaction has left open is taken back in a copy.
///
/// # Errors
/// What is wrong with it.
pub fn check_image(image: &[u8], options: &Options<'_>) -> Result<()> {
    let words: Vec<AtomicU64> =
        image.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word).into()).collect();
    let words = Words::new(&words);
    let layout = Layout::read(words, image.len(), options)?;
    let view = View::new(words, &layout, None);
    view.recover()?;
    view.check()
}

impl View<'_> {
    /// See [`Region::check`](super::Region::check).
    pub(crate) fn check(&self) -> Result<()> {
        let free = self.check_blocks()?;
        self.check_lists(free)?;
        Ok(())
    }

    /// All blocks, one behind the other. How many are free.
    fn check_blocks(&self) -> Result<u64> {
        let (heap, frontier) = (&self.layout.heap, self.frontier()?);
        let (mut free, mut used_words, mut records) = (0, 0, 0);
        // The marks of what is to be in maps, and of what is.
        let (mut parts, mut owned) = (0u64, 0u64);
        let mut behind_free = false;
        let mut at = heap.start;
        while at < frontier {
            let block = self.block(at)?;
            if block.end() > frontier {
                return Err(damaged("a block is larger than the heap", at));
            }
            if block.behind_free != behind_free || (behind_free && !block.allocated) {
                return Err(damaged("a block and its neighbour contradict each other", at));
            }
            if block.allocated {
                used_words += block.words as u64;
                records += 1;
                let record = Record::of(&block);
                match block.kind {
                    kind if kind == Kind::Map as u64 => owned = owned.wrapping_add(Map::check(self, record)?),
                    kind if kind == Kind::Pool as u64 => pool::check(self, record)?,
                    kind if [Kind::Node as u64, Kind::Value as u64].contains(&kind) => {
                        parts = parts.wrapping_add(mark(record));
                    }
                    kind if kind == Kind::Bytes as u64 => {}
                    _ => return Err(damaged("a block is of an unknown kind", at)),
                }
            } else {
                free += 1;
                if self.load(block.end() - 1)? != block.words as u64 {
                    return Err(damaged("a free block does not end as it begins", at));
                }
            }
            behind_free = !block.allocated;
            at = block.end();
        }
        if behind_free {
            return Err(damaged("the last block of the heap is free", frontier));
        }
        if parts != owned {
            return Err(damaged("an entry is in no map, or a part is in two", heap.start));
        }
        if used_words != self.load(heap::USED)? || records != self.load(heap::RECORDS)? {
            return Err(damaged("the heap uses another number of words than it says", heap::USED));
        }
        Ok(free)
    }

    /// The lists have all free blocks, `free` of them, and nothing else.
    fn check_lists(&self, free: u64) -> Result<()> {
        let mut listed = 0;
        for list in 0..LIST_COUNT {
            let mut at = index(self.load(LISTS + list)?);
            let in_use = self.load(LISTS_IN_USE + list / 64)? >> (list % 64) & 1 != 0;
            if in_use != (at != 0) {
                return Err(damaged("a list of free blocks contradicts the summary", LISTS + list));
            }
            let mut before = 0;
            while at != 0 {
                let block = self.free_block(at)?;
                listed += 1;
                let is_in_place = list_of(block.words) == list && index(self.load(at + PREVIOUS)?) == before;
                if !is_in_place || listed > free {
                    return Err(damaged("a list of free blocks is in disorder", at));
                }
                (before, at) = (at, index(self.load(at + NEXT)?));
            }
        }
        if listed == free { Ok(()) } else { Err(damaged("a free block is in no list", LISTS)) }
    }
}
