//! Memory for records of any size, allocated and freed within transactions.
//!
//! Blocks lie one behind the other up to the *frontier*, and know their size. Free ones are in lists by size: four for
//! each power of two (after the two-level segregated fit of Masmano, Ripoll, Crespo and Real, 2004), and are joined with
//! their neighbours at once. So an allocation and a free change a few words whatever the heap looks like.

use super::error::{Result, StateError, damaged};
use super::fields::fields;
use super::layout::CONTROL;
use super::transaction::{Transaction, View};
use super::words::index;

/// Behind the last block that was ever used.
pub(crate) const FRONTIER: usize = CONTROL;
/// Words in records, with what belongs to them.
pub(crate) const USED: usize = CONTROL + 1;
/// How many records there are.
pub(crate) const RECORDS: usize = CONTROL + 2;
/// Which lists are not empty: a bit each.
pub(crate) const LISTS_IN_USE: usize = CONTROL + 8;
/// The first free block of each list, or 0.
pub(crate) const LISTS: usize = CONTROL + 16;
pub(crate) const LIST_COUNT: usize = 128;
pub(crate) const CONTROL_END: usize = LISTS + LIST_COUNT;

/// A free block has its header, two links, and its size once more at its end.
pub(crate) const BLOCK_WORDS_MIN: usize = 4;
const BLOCK_WORDS_MAX: usize = u32::MAX as usize;
/// How many blocks that might fit are looked at before there is no room.
const LOOK_AT_MAX: usize = 64;

pub(crate) const NEXT: usize = 1;
pub(crate) const PREVIOUS: usize = 2;

fields! { Header { allocated: 0..1, behind_free: 1..2, kind: 2..8, slack: 8..16, tag: 16..32, words: 32..64 } }

/// What a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bytes = 1,
    Map = 2,
    Node = 3,
    Pool = 4,
    Value = 5,
}

/// A block, as its header says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) at: usize,
    pub(crate) words: usize,
    pub(crate) allocated: bool,
    /// The block before it is free.
    pub(crate) behind_free: bool,
    pub(crate) kind: u64,
    /// Bytes at the end that nobody has asked for.
    pub(crate) slack: usize,
}

impl Block {
    pub(crate) fn end(&self) -> usize {
        self.at + self.words
    }

    /// What the application sees of it.
    pub(crate) fn length(&self) -> usize {
        ((self.words - 1) * 8).saturating_sub(self.slack)
    }

    fn free(at: usize, words: usize) -> Self {
        Self { at, words, allocated: false, behind_free: false, kind: 0, slack: 0 }
    }

    fn header(&self) -> Header {
        let (allocated, behind_free) = (u64::from(self.allocated), u64::from(self.behind_free));
        let header =
            |tag| Header::new(allocated, behind_free, self.kind, self.slack as u64, tag, self.words as u64);
        header(tag(self.at, header(0)))
    }
}

/// So that something else is hardly ever taken for a header.
fn tag(at: usize, header: Header) -> u64 {
    (header.0 ^ (at as u64).rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48
}

/// Of the list that has blocks of so many words.
pub(crate) fn list_of(words: usize) -> usize {
    let power = words.max(BLOCK_WORDS_MIN).ilog2() as usize;
    ((power - 2) * 4 + (words >> (power - 2) & 3)).min(LIST_COUNT - 1)
}

/// All blocks of this list and of those behind it have so many words.
fn list_for(words: usize) -> usize {
    let power = words.max(BLOCK_WORDS_MIN).ilog2();
    list_of(words + (1 << (power - 2)) - 1)
}

/// Words of a block for so many bytes, and the slack it has at least.
fn block_words(bytes: usize) -> usize {
    (bytes.div_ceil(8).saturating_add(1)).max(BLOCK_WORDS_MIN)
}

impl View<'_> {
    /// The block whose header is there, if one can be.
    #[inline]
    pub(crate) fn block(&self, at: usize) -> Result<Block> {
        let header = Header(self.load(at)?);
        let block = Block {
            at,
            words: index(header.words()),
            allocated: header.allocated() != 0,
            behind_free: header.behind_free() != 0,
            kind: header.kind(),
            slack: index(header.slack()),
        };
        let heap = &self.layout.heap;
        let fits = block.words >= BLOCK_WORDS_MIN && heap.contains(&at) && block.words <= heap.end - at;
        if !fits || block.header().tag() != header.tag() || block.slack > (block.words - 1) * 8 {
            return Err(damaged("no block of the heap begins here", at));
        }
        Ok(block)
    }

    #[inline]
    pub(crate) fn frontier(&self) -> Result<usize> {
        let frontier = index(self.load(FRONTIER)?);
        let heap = &self.layout.heap;
        let fits = (heap.start..=heap.end).contains(&frontier);
        fits.then_some(frontier).ok_or_else(|| damaged("the heap has an impossible end", FRONTIER))
    }

    /// A free block, taken for one by a list or a neighbour.
    pub(crate) fn free_block(&self, at: usize) -> Result<Block> {
        let block = self.block(at)?;
        if block.allocated { Err(damaged("a free block is in use", at)) } else { Ok(block) }
    }

    /// The first list in use from `list` on.
    fn list_in_use(&self, list: usize) -> Result<Option<usize>> {
        for word in list / 64..LIST_COUNT / 64 {
            let skip = if word == list / 64 { list % 64 } else { 0 };
            let bits = self.load(LISTS_IN_USE + word)? & (u64::MAX << skip);
            if bits != 0 {
                return Ok(Some(word * 64 + bits.trailing_zeros() as usize));
            }
        }
        Ok(None)
    }

    /// A free block of at least so many words.
    fn find(&self, words: usize) -> Result<Option<Block>> {
        if let Some(list) = self.list_in_use(list_for(words))? {
            let block = self.free_block(index(self.load(LISTS + list)?))?;
            return if block.words >= words {
                Ok(Some(block))
            } else {
                Err(damaged("a free block is in a list of larger ones", block.at))
            };
        }
        if self.frontier()? + words <= self.layout.heap.end {
            return Ok(None);
        }
        // Before it is full: the list before has some that fit, perhaps.
        let mut at = index(self.load(LISTS + list_of(words))?);
        for _ in 0..LOOK_AT_MAX {
            if at == 0 {
                break;
            }
            let block = self.free_block(at)?;
            if block.words >= words {
                return Ok(Some(block));
            }
            at = index(self.load(at + NEXT)?);
        }
        Ok(None)
    }

    /// What the heap uses of its room, in words, and how many there are.
    pub(crate) fn heap_usage(&self) -> Result<(u64, u64)> {
        Ok((self.load(USED)?, self.layout.heap.len() as u64))
    }
}

impl Transaction<'_> {
    fn put_header(&mut self, block: &Block) -> Result<()> {
        self.store(block.at, block.header().0)
    }

    fn unlist(&mut self, block: &Block) -> Result<()> {
        let (next, previous) = (index(self.load(block.at + NEXT)?), index(self.load(block.at + PREVIOUS)?));
        let list = list_of(block.words);
        if previous == 0 {
            self.store(LISTS + list, next as u64)?;
            if next == 0 {
                let bits = self.load(LISTS_IN_USE + list / 64)?;
                self.store(LISTS_IN_USE + list / 64, bits & !(1 << (list % 64)))?;
            }
        } else {
            self.free_block(previous)?;
            self.store(previous + NEXT, next as u64)?;
        }
        if next != 0 {
            self.free_block(next)?;
            self.store(next + PREVIOUS, previous as u64)?;
        }
        Ok(())
    }

    /// Into its list. The block behind it is not free, and will know.
    fn list(&mut self, block: &Block) -> Result<()> {
        let list = list_of(block.words);
        let next = index(self.load(LISTS + list)?);
        self.put_header(block)?;
        self.store(block.at + NEXT, next as u64)?;
        self.store(block.at + PREVIOUS, 0)?;
        self.store(block.end() - 1, block.words as u64)?;
        if next == 0 {
            let bits = self.load(LISTS_IN_USE + list / 64)?;
            self.store(LISTS_IN_USE + list / 64, bits | 1 << (list % 64))?;
        } else {
            self.free_block(next)?;
            self.store(next + PREVIOUS, block.at as u64)?;
        }
        self.store(LISTS + list, block.at as u64)
    }

    fn tell_behind(&mut self, end: usize, behind_free: bool) -> Result<()> {
        if end >= self.frontier()? {
            return Ok(());
        }
        let behind = self.block(end)?;
        self.put_header(&Block { behind_free, ..behind })
    }

    /// A block for so many bytes, whose content is whatever was there.
    pub(crate) fn take_block(&mut self, kind: Kind, bytes: usize) -> Result<Block> {
        let words = block_words(bytes);
        let (used, all) = self.heap_usage()?;
        if words > BLOCK_WORDS_MAX {
            return Err(out_of_space(words, used, all));
        }
        self.attempt(|tx| {
            let (at, found) = match tx.find(words)? {
                Some(block) => {
                    tx.unlist(&block)?;
                    let rest = block.words - words;
                    if rest >= BLOCK_WORDS_MIN {
                        // Behind it nothing changes: a free block goes on being there.
                        tx.list(&Block::free(block.at + words, rest))?;
                        (block.at, words)
                    } else {
                        tx.tell_behind(block.end(), false)?;
                        (block.at, block.words)
                    }
                }
                None => {
                    let frontier = tx.frontier()?;
                    let end = frontier.checked_add(words).filter(|end| *end <= tx.layout.heap.end);
                    let end = end.ok_or_else(|| out_of_space(words, used, all))?;
                    tx.store(FRONTIER, end as u64)?;
                    (frontier, words)
                }
            };
            let slack = (found - 1) * 8 - bytes;
            let block =
                Block { at, words: found, allocated: true, behind_free: false, kind: kind as u64, slack };
            tx.put_header(&block)?;
            tx.count(found as u64, 1)?;
            Ok(block)
        })
    }

    fn count(&mut self, words: u64, records: u64) -> Result<()> {
        let (used, count) = (self.load(USED)?, self.load(RECORDS)?);
        self.store(USED, used.wrapping_add(words))?;
        self.store(RECORDS, count.wrapping_add(records))
    }

    /// Gives an allocated block back.
    pub(crate) fn free_block_of(&mut self, block: &Block) -> Result<()> {
        self.attempt(|tx| {
            tx.count((block.words as u64).wrapping_neg(), u64::MAX)?;
            let (mut begin, mut end) = (block.at, block.end());
            // So that the offset is known to be nobody's, also where no other header is written over this one.
            tx.store(block.at, 0)?;
            if end < tx.frontier()? {
                let behind = tx.block(end)?;
                if !behind.allocated {
                    tx.unlist(&behind)?;
                    end = behind.end();
                }
            }
            if block.behind_free {
                let size = index(tx.load(begin - 1)?);
                let before =
                    begin.checked_sub(size).ok_or_else(|| damaged("no free block ends here", begin))?;
                let before = tx.free_block(before)?;
                if before.end() != begin {
                    return Err(damaged("no free block ends here", begin));
                }
                tx.unlist(&before)?;
                begin = before.at;
            }
            if end >= tx.frontier()? {
                return tx.store(FRONTIER, begin as u64);
            }
            tx.list(&Block::free(begin, end - begin))?;
            tx.tell_behind(end, true)
        })
    }

    /// False if that would waste a block of its own, or the block is too small.
    pub(crate) fn resize_in_place(&mut self, block: &Block, bytes: usize) -> Result<bool> {
        let has = (block.words - 1) * 8;
        if bytes > has || block.words - block_words(bytes) >= BLOCK_WORDS_MIN {
            return Ok(false);
        }
        self.put_header(&Block { slack: has - bytes, ..*block })?;
        Ok(true)
    }
}

#[cold]
fn out_of_space(words: usize, used: u64, all: u64) -> StateError {
    StateError::OutOfSpace {
        wanted: (words as u64).saturating_mul(8),
        used: used.saturating_mul(8),
        free: all.saturating_sub(used).saturating_mul(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_in_order_and_fit() {
        for words in BLOCK_WORDS_MIN..5000 {
            assert!(list_of(words) <= list_of(words + 1));
            let list = list_for(words);
            // The smallest of that list.
            let least = (BLOCK_WORDS_MIN..).find(|other| list_of(*other) == list).unwrap();
            assert!(least >= words && list <= list_of(words) + 1, "{words}");
        }
        assert!(list_of(BLOCK_WORDS_MAX) < LIST_COUNT);
    }
}
