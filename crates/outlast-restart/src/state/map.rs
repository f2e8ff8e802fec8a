//! An ordered map from bytes to bytes, in the heap of a region: a skip list (Pugh, 1990).
//!
//! Each entry is a record with the links and the key, and one for the value. A change touches the links before one entry,
//! about one and a third on average, so its transaction is small however large the map is.

use super::error::{Result, StateError, damaged};
use super::fields::fields;
use super::heap::Kind;
use super::record::Record;
use super::transaction::{Transaction, View};
use super::words::index;
use bytemuck::{Pod, Zeroable};
use std::ops::ControlFlow;

/// Where a map is. All zeroes stand for none, so it can be part of a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Map(Record);

/// Every fourth entry is on the second level, every fourth of those on the third: enough for 4^16.
pub(crate) const LEVELS: usize = 16;

/// Words of a map's record: how many entries, a random number, the first entry on each level.
const LENGTH: usize = 0;
const RANDOM: usize = 1;
const FIRST: usize = 2;

/// Words of an entry: its value's record, its shape, the next entry on each of its levels; then the key.
const VALUE: usize = 0;
const SHAPE: usize = 1;
const LINKS: usize = 2;

fields! { Shape { key_bytes: 0..32, levels: 32..40 } }

/// A number for each record: if all entries and values of all maps have the sum of what there is of both, each is in one map,
/// once.
pub(crate) fn mark(record: Record) -> u64 {
    let mixed = record.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// An entry.
#[derive(Clone, Copy)]
struct Node<'a> {
    record: Record,
    key: &'a [u8],
    levels: usize,
}

impl Node<'_> {
    fn link(&self, level: usize) -> usize {
        self.record.word() + LINKS + level
    }
}

/// Where a key is, or would be.
struct Place<'a> {
    /// The words whose links lead there, on each level.
    links: [usize; LEVELS],
    /// The first entry that is not before it.
    next: Option<Node<'a>>,
}

impl View<'_> {
    fn node(&self, record: Record) -> Result<Node<'_>> {
        let block = self.record(record, Kind::Node)?;
        let wrong = || damaged("an entry of a map has an impossible shape", block.at);
        let shape = Shape(self.load(record.word() + SHAPE)?);
        let (key_bytes, levels) = (index(shape.key_bytes()), index(shape.levels()));
        let head = (LINKS + levels) * 8;
        if !(1..=LEVELS).contains(&levels) || head + key_bytes > block.length() {
            return Err(wrong());
        }
        let key = self.words.bytes(record.word() + LINKS + levels, key_bytes)?;
        Ok(Node { record, key, levels })
    }

    fn value(&self, node: &Node<'_>) -> Result<&[u8]> {
        self.bytes_of(Record(self.load(node.record.word() + VALUE)?), Kind::Value)
    }

    /// The entry that a link leads to.
    fn linked(&self, link: usize) -> Result<Option<Node<'_>>> {
        match Record(self.load(link)?) {
            Record::NONE => Ok(None),
            record => self.node(record).map(Some),
        }
    }
}

impl Map {
    /// A new one, to be kept in a root or a record.
    ///
    /// # Errors
    /// As [`Transaction::allocate`].
    pub fn create(tx: &mut Transaction<'_>) -> Result<Self> {
        // Nobody is to choose keys that are all on the first level.
        Self::seeded(tx, super::region::random())
    }

    pub(crate) fn seeded(tx: &mut Transaction<'_>, seed: u64) -> Result<Self> {
        tx.attempt(|tx| {
            let record = tx.allocate_kind(Kind::Map, (FIRST + LEVELS) * 8)?;
            tx.store(record.word() + RANDOM, seed)?;
            Ok(Self(record))
        })
    }

    /// Whether it stands for none.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0.is_none()
    }

    /// How many entries it has.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing).
    pub fn len(self, view: &View<'_>) -> Result<u64> {
        view.load(self.head(view)? + LENGTH)
    }

    /// Whether it has none.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing).
    pub fn is_empty(self, view: &View<'_>) -> Result<bool> {
        Ok(self.len(view)? == 0)
    }

    fn head(self, view: &View<'_>) -> Result<usize> {
        view.record(self.0, Kind::Map).map(|block| block.at + 1)
    }

    fn find<'v>(self, view: &'v View<'_>, key: &[u8]) -> Result<Place<'v>> {
        let first = self.head(view)? + FIRST;
        let mut place = Place { links: [0; LEVELS], next: None };
        // The first entry stands for them all: its links begin at level 0, too.
        let mut before = first;
        // More than there can be: they go in a circle.
        let mut steps_left = view.words.len();
        for level in (0..LEVELS).rev() {
            loop {
                let next = view.linked(before + level)?;
                match next {
                    Some(node) if node.key < key => before = node.link(0),
                    // All that follow on this level have it.
                    next => {
                        place.next = next;
                        break;
                    }
                }
                steps_left -= 1;
                if steps_left == 0 || next.is_some_and(|node| node.levels <= level) {
                    return Err(damaged("the entries of a map are in disorder", before));
                }
            }
            place.links[level] = before + level;
        }
        Ok(place)
    }

    fn entry<'v>(self, view: &'v View<'_>, key: &[u8]) -> Result<Option<(Place<'v>, Node<'v>)>> {
        let place = self.find(view, key)?;
        Ok(place.next.filter(|node| node.key == key).map(|node| (place, node)))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing): there is no such map.
    pub fn get<'v>(self, view: &'v View<'_>, key: &[u8]) -> Result<Option<&'v [u8]>> {
        let Some((_, node)) = self.entry(view, key)? else { return Ok(None) };
        view.value(&node).map(Some)
    }

    /// Gives a key a value. Whether it is new: otherwise it had another value.
    ///
    /// # Errors
    /// [`OutOfSpace`](StateError::OutOfSpace), [`TransactionTooLarge`](StateError::TransactionTooLarge); nothing of it
    /// has happened then.
    pub fn insert(self, tx: &mut Transaction<'_>, key: &[u8], value: &[u8]) -> Result<bool> {
        let place = self.find(tx, key)?;
        let (links, old) = (place.links, place.next.filter(|node| node.key == key).map(|node| node.record));
        tx.attempt(|tx| {
            let Some(node) = old else {
                self.link(tx, links, key, value)?;
                return Ok(true);
            };
            let slot = node.word() + VALUE;
            let record = Record(tx.load(slot)?);
            if tx.bytes_of(record, Kind::Value)?.len() == value.len() {
                tx.store_bytes(record.word(), 0, value)?;
            } else {
                let new = tx.put_kind(Kind::Value, value)?;
                tx.store(slot, new.0)?;
                tx.free_kind(record, Kind::Value)?;
            }
            Ok(false)
        })
    }

    fn link(self, tx: &mut Transaction<'_>, links: [usize; LEVELS], key: &[u8], value: &[u8]) -> Result<()> {
        let key_bytes = u32::try_from(key.len()).map_err(|_| StateError::OutOfBounds {
            offset: 0,
            end: key.len(),
            length: u32::MAX as usize,
        })?;
        let head = self.head(tx)?;
        // Marsaglia's, 2003. Any but 0.
        let mut random = tx.load(head + RANDOM)? | 1 << 63;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        tx.store(head + RANDOM, random)?;
        let levels = (1 + random.trailing_zeros() as usize / 2).min(LEVELS);
        let value = tx.put_kind(Kind::Value, value)?;
        let node = tx.take_block(Kind::Node, (LINKS + levels) * 8 + key.len())?;
        let (record, at) = (Record::of(&node), node.at + 1);
        tx.store(at + VALUE, value.0)?;
        tx.store(at + SHAPE, Shape::new(key_bytes.into(), levels as u64).0)?;
        tx.store_bytes(at + LINKS + levels, 0, key)?;
        for (level, link) in links.iter().enumerate().take(levels) {
            let next = tx.load(*link)?;
            tx.store(at + LINKS + level, next)?;
            tx.store(*link, record.0)?;
        }
        let length = tx.load(head + LENGTH)?;
        tx.store(head + LENGTH, length.wrapping_add(1))
    }

    /// Takes a key out. Whether it was there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn remove(self, tx: &mut Transaction<'_>, key: &[u8]) -> Result<bool> {
        let Some((place, node)) = self.entry(tx, key)? else { return Ok(false) };
        let (links, record, levels) = (place.links, node.record, node.levels);
        tx.attempt(|tx| {
            for (level, link) in links.iter().enumerate().take(levels) {
                if tx.load(*link)? != record.0 {
                    return Err(damaged("the entries of a map are in disorder", *link));
                }
                let next = tx.load(record.word() + LINKS + level)?;
                tx.store(*link, next)?;
            }
            let value = Record(tx.load(record.word() + VALUE)?);
            tx.free_kind(value, Kind::Value)?;
            tx.free_kind(record, Kind::Node)?;
            let head = self.head(tx)?;
            let length = tx.load(head + LENGTH)?;
            tx.store(head + LENGTH, length.wrapping_sub(1))?;
            Ok(true)
        })
    }

    /// Visits all entries from `first` on, in the order of their keys, until `visit` breaks off. An empty `first` is
    /// before every key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn visit(
        self,
        view: &View<'_>,
        first: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut next = self.find(view, first)?.next;
        let mut steps_left = view.words.len();
        while let Some(node) = next {
            let value = view.value(&node)?;
            steps_left -= 1;
            if steps_left == 0 || visit(node.key, value).is_break() {
                return Ok(());
            }
            next = view.linked(node.link(0))?;
        }
        Ok(())
    }

    /// All entries, copied, in the order of their keys.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn entries(self, view: &View<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut entries = Vec::new();
        self.visit(view, &[], |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    /// Whether all links lead where they should: each level is in order and within the one below. The sum of
    /// the [marks](mark) of the records that it consists of.
    pub(crate) fn check(view: &View<'_>, record: Record) -> Result<u64> {
        let head = Self(record).head(view)?;
        let wrong = || damaged("the entries of a map are in disorder", head);
        let (mut count, mut owned) = (0, 0u64);
        // On the way along the lowest level, what the others lead to is met in order.
        let mut links = [0; LEVELS];
        for (level, link) in links.iter_mut().enumerate() {
            *link = head + FIRST + level;
        }
        let mut before: Option<Node<'_>> = None;
        while let Some(node) = view.linked(links[0])? {
            if before.is_some_and(|before| before.key >= node.key) {
                return Err(wrong());
            }
            for (level, link) in links.iter_mut().enumerate().take(node.levels) {
                if view.load(*link)? != node.record.0 {
                    return Err(wrong());
                }
                *link = node.link(level);
            }
            view.value(&node)?;
            let value = view.load(node.record.word() + VALUE)?;
            owned = owned.wrapping_add(mark(node.record)).wrapping_add(mark(Record(value)));
            count += 1;
            before = Some(node);
        }
        for link in links {
            if view.load(link)? != 0 {
                return Err(wrong());
            }
        }
        if count != Self(record).len(view)? {
            return Err(damaged("a map has another number of entries than it says", head));
        }
        Ok(owned)
    }
}
