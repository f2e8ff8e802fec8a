//! A fixed number of places for values of one type, allocated and freed within transactions.

use super::cell::Cell;
use super::error::{Result, StateError, damaged};
use super::heap::Kind;
use super::record::Record;
use super::transaction::{Transaction, View};
use super::words::index;
use bytemuck::{Pod, Zeroable};
use std::marker::PhantomData;

/// Where a pool is. All zeroes stand for none.
pub struct Pool<T> {
    record: Record,
    value: PhantomData<fn() -> T>,
}

/// One place of a pool, until it is freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct Slot(u64);

impl Slot {
    /// Counts from 0.
    #[must_use]
    pub fn index(self) -> u64 {
        self.0
    }

    /// The opposite. Whether it is in use is looked up when it is used.
    #[must_use]
    pub fn from_index(index: u64) -> Self {
        Self(index)
    }
}

impl<T> Clone for Pool<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pool<T> {}

impl<T> std::fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool").field(&self.record).finish()
    }
}

/// Words of a pool's record. Behind them the slots: a word of their own each, and the value.
const VALUE_BYTES: usize = 0;
const CAPACITY: usize = 1;
const USED: usize = 2;
/// How many were ever used: those behind have never been.
const BEGUN: usize = 3;
/// The first free one below that, plus 1.
const FREE: usize = 4;
const SLOTS: usize = 5;

/// In the word of a slot that is used. Of one that is free there is the next one, plus 1, or 0.
const IN_USE: u64 = u64::MAX;

/// What a pool says of itself, found to be possible.
struct Shape {
    head: usize,
    value_bytes: usize,
    capacity: u64,
    used: u64,
    begun: u64,
}

fn slot_words(value_bytes: usize) -> usize {
    1 + value_bytes.div_ceil(8)
}

fn shape(view: &View<'_>, record: Record) -> Result<Shape> {
    let block = view.record(record, Kind::Pool)?;
    let head = block.at + 1;
    let shape = Shape {
        head,
        value_bytes: index(view.load(head + VALUE_BYTES)?),
        capacity: view.load(head + CAPACITY)?,
        used: view.load(head + USED)?,
        begun: view.load(head + BEGUN)?,
    };
    let words = slot_words(shape.value_bytes).checked_mul(index(shape.capacity));
    let fits = words.and_then(|words| words.checked_add(SLOTS)).is_some_and(|words| words < block.words);
    if fits && shape.used <= shape.begun && shape.begun <= shape.capacity {
        Ok(shape)
    } else {
        Err(damaged("a pool has an impossible shape", head))
    }
}

impl Shape {
    /// The word of a slot. There is one, as it is below the capacity.
    fn slot(&self, number: u64) -> usize {
        self.head + SLOTS + index(number) * slot_words(self.value_bytes)
    }
}

/// That what is free is in the list of it.
pub(crate) fn check(view: &View<'_>, record: Record) -> Result<()> {
    let shape = shape(view, record)?;
    let wrong = || damaged("the free slots of a pool are in disorder", shape.head);
    let (mut free, mut next) = (0, view.load(shape.head + FREE)?);
    while next != 0 {
        if next > shape.begun || free == shape.begun {
            return Err(wrong());
        }
        next = view.load(shape.slot(next - 1))?;
        free += 1;
    }
    let mut used = 0;
    for number in 0..shape.begun {
        used += u64::from(view.load(shape.slot(number))? == IN_USE);
    }
    if used == shape.used && used + free == shape.begun { Ok(()) } else { Err(wrong()) }
}

impl<T: Pod> Pool<T> {
    /// A new one of so many places, to be kept in a root or a record.
    ///
    /// # Errors
    /// As [`Transaction::allocate`].
    pub fn create(tx: &mut Transaction<'_>, capacity: u64) -> Result<Self> {
        let words = slot_words(size_of::<T>()).saturating_mul(index(capacity)).saturating_add(SLOTS);
        tx.attempt(|tx| {
            // What was never used is never looked at.
            let block = tx.take_block(Kind::Pool, words.saturating_mul(8))?;
            let head = block.at + 1;
            for (word, value) in [(VALUE_BYTES, size_of::<T>() as u64), (CAPACITY, capacity)] {
                tx.store(head + word, value)?;
            }
            for word in [USED, BEGUN, FREE] {
                tx.store(head + word, 0)?;
            }
            Ok(Self { record: Record::of(&block), value: PhantomData })
        })
    }

    /// Where it is, to be stored.
    #[must_use]
    pub fn record(self) -> Record {
        self.record
    }

    /// The one that is there.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing): nothing is there, or a pool for values of another size.
    pub fn at(view: &View<'_>, record: Record) -> Result<Self> {
        if shape(view, record)?.value_bytes == size_of::<T>() {
            Ok(Self { record, value: PhantomData })
        } else {
            Err(StateError::Missing { what: "pool of this type", offset: record.0 })
        }
    }

    /// How many are in use.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing).
    pub fn used(self, view: &View<'_>) -> Result<u64> {
        Ok(shape(view, self.record)?.used)
    }

    /// A place for a value. None: all are in use.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing), [`TransactionTooLarge`](StateError::TransactionTooLarge).
    pub fn allocate(self, tx: &mut Transaction<'_>, value: T) -> Result<Option<Slot>> {
        let shape = shape(tx, self.record)?;
        let free = tx.load(shape.head + FREE)?;
        if free == 0 && shape.begun == shape.capacity {
            return Ok(None);
        }
        tx.attempt(|tx| {
            let slot = if free == 0 {
                tx.store(shape.head + BEGUN, shape.begun + 1)?;
                Slot(shape.begun)
            } else {
                if free > shape.begun {
                    return Err(damaged("the free slots of a pool are in disorder", shape.head));
                }
                let next = tx.load(shape.slot(free - 1))?;
                tx.store(shape.head + FREE, next)?;
                Slot(free - 1)
            };
            tx.store(shape.head + USED, shape.used + 1)?;
            tx.store(shape.slot(slot.0), IN_USE)?;
            tx.set(Cell::new((shape.slot(slot.0) + 1) * 8), value)?;
            Ok(Some(slot))
        })
    }

    /// The value in a place.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing): the place is not in use.
    pub fn cell(self, view: &View<'_>, slot: Slot) -> Result<Cell<T>> {
        let shape = shape(view, self.record)?;
        if slot.0 >= shape.begun || view.load(shape.slot(slot.0))? != IN_USE {
            return Err(StateError::Missing { what: "slot in use", offset: self.record.0 });
        }
        Ok(Cell::new((shape.slot(slot.0) + 1) * 8))
    }

    /// Gives a place back.
    ///
    /// # Errors
    /// As [`cell`](Self::cell) and [`allocate`](Self::allocate).
    pub fn free(self, tx: &mut Transaction<'_>, slot: Slot) -> Result<()> {
        self.cell(tx, slot)?;
        let shape = shape(tx, self.record)?;
        tx.attempt(|tx| {
            let next = tx.load(shape.head + FREE)?;
            tx.store(shape.slot(slot.0), next)?;
            tx.store(shape.head + FREE, slot.0 + 1)?;
            tx.store(shape.head + USED, shape.used.wrapping_sub(1))
        })
    }

    /// All places that are in use.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing).
    pub fn slots(self, view: &View<'_>) -> Result<Vec<Slot>> {
        let shape = shape(view, self.record)?;
        let mut slots = Vec::new();
        for number in 0..shape.begun {
            if view.load(shape.slot(number))? == IN_USE {
                slots.push(Slot(number));
            }
        }
        Ok(slots)
    }
}
