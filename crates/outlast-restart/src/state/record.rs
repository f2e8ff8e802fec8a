//! Bytes of any length, found by an offset that is the same in every generation.

use super::cell::{Cell, part};
use super::error::{Result, StateError};
use super::heap::{Block, Kind};
use super::transaction::{Transaction, View};
use super::words::index;
use bytemuck::{Pod, Zeroable};

/// Where a record is. All zeroes stand for none, so it can be part of a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Record(pub(crate) u64);

impl Record {
    /// No record.
    pub const NONE: Self = Self(0);

    /// Whether it stands for none.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// From the beginning of the region, in bytes: for programs in other languages.
    #[must_use]
    pub fn offset_bytes(self) -> u64 {
        self.0
    }

    /// The opposite. Whether there is a record is looked up when it is used.
    #[must_use]
    pub fn from_offset_bytes(offset: u64) -> Self {
        Self(offset)
    }

    pub(crate) fn of(block: &Block) -> Self {
        Self((block.at as u64 + 1) * 8)
    }

    /// The first word of its content.
    pub(crate) fn word(self) -> usize {
        index(self.0 / 8)
    }
}

impl View<'_> {
    /// Where a record of this kind is.
    pub(crate) fn record(&self, record: Record, kind: Kind) -> Result<Block> {
        let missing = |what| StateError::Missing { what, offset: record.0 };
        let what = match kind {
            Kind::Bytes => "record",
            Kind::Map => "map",
            Kind::Node => "entry of a map",
            Kind::Pool => "pool",
            Kind::Value => "value of a map",
        };
        if record.0 < 8 || !record.0.is_multiple_of(8) {
            return Err(missing(what));
        }
        let block = self.block(record.word() - 1).map_err(|_| missing(what))?;
        if !block.allocated || block.kind != kind as u64 {
            return Err(missing(what));
        }
        Ok(block)
    }

    /// What is in it.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing).
    pub fn bytes(&self, record: Record) -> Result<&[u8]> {
        self.bytes_of(record, Kind::Bytes)
    }

    pub(crate) fn bytes_of(&self, record: Record, kind: Kind) -> Result<&[u8]> {
        let block = self.record(record, kind)?;
        self.words.bytes(block.at + 1, block.length())
    }

    /// A value at the beginning of it.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing); [`OutOfBounds`](StateError::OutOfBounds): it is too short.
    pub fn cell<T: Pod>(&self, record: Record) -> Result<Cell<T>> {
        let block = self.record(record, Kind::Bytes)?;
        part((block.at + 1) * 8, block.length(), 0, size_of::<T>()).map(Cell::new)
    }
}

impl Transaction<'_> {
    /// A new record of zeroes.
    ///
    /// # Errors
    /// [`OutOfSpace`](StateError::OutOfSpace), [`TransactionTooLarge`](StateError::TransactionTooLarge).
    pub fn allocate(&mut self, length: usize) -> Result<Record> {
        self.allocate_kind(Kind::Bytes, length)
    }

    pub(crate) fn allocate_kind(&mut self, kind: Kind, length: usize) -> Result<Record> {
        self.attempt(|tx| {
            let block = tx.take_block(kind, length)?;
            tx.clear(block.at + 1, length.div_ceil(8))?;
            Ok(Record::of(&block))
        })
    }

    /// A new record with this content.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn put(&mut self, content: &[u8]) -> Result<Record> {
        self.put_kind(Kind::Bytes, content)
    }

    pub(crate) fn put_kind(&mut self, kind: Kind, content: &[u8]) -> Result<Record> {
        self.attempt(|tx| {
            let block = tx.take_block(kind, content.len())?;
            tx.store_bytes(block.at + 1, 0, content)?;
            Ok(Record::of(&block))
        })
    }

    /// Changes a part of it. All of the part or nothing.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing), [`OutOfBounds`](StateError::OutOfBounds),
    /// [`TransactionTooLarge`](StateError::TransactionTooLarge).
    pub fn write(&mut self, record: Record, offset: usize, content: &[u8]) -> Result<()> {
        let block = self.record(record, Kind::Bytes)?;
        part(0, block.length(), offset, content.len())?;
        self.store_bytes(block.at + 1, offset, content)
    }

    /// Gives the record, which may be another one now, a new length. What is new of it is zeroes.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing), and as [`allocate`](Self::allocate).
    pub fn resize(&mut self, record: Record, length: usize) -> Result<Record> {
        let block = self.record(record, Kind::Bytes)?;
        let old = block.length();
        self.attempt(|tx| {
            let resized = if tx.resize_in_place(&block, length)? {
                record
            } else {
                let kept = tx.words.bytes(block.at + 1, old.min(length))?;
                let resized = tx.take_block(Kind::Bytes, length)?;
                tx.store_bytes(resized.at + 1, 0, kept)?;
                tx.free_block_of(&tx.block(block.at)?)?;
                Record::of(&resized)
            };
            let zeroes = [0; 64];
            let mut offset = old;
            while offset < length {
                let part = (length - offset).min(zeroes.len());
                tx.store_bytes(resized.word(), offset, &zeroes[..part])?;
                offset += part;
            }
            Ok(resized)
        })
    }

    /// Gives it back.
    ///
    /// # Errors
    /// [`Missing`](StateError::Missing), which a second time is likely, and
    /// [`TransactionTooLarge`](StateError::TransactionTooLarge).
    pub fn free(&mut self, record: Record) -> Result<()> {
        self.free_kind(record, Kind::Bytes)
    }

    pub(crate) fn free_kind(&mut self, record: Record, kind: Kind) -> Result<()> {
        let block = self.record(record, kind)?;
        self.free_block_of(&block)
    }
}
