//! Typed values at fixed places.

use super::error::{Result, StateError};
use super::transaction::{Transaction, View};
use bytemuck::Pod;
use std::marker::PhantomData;

/// Where a value is: in the root, or in a record. Means the same in every generation. One in
/// a record means nothing any more when the record is freed or resized, which is not found out.
pub struct Cell<T> {
    /// From the beginning of the region.
    offset_bytes: usize,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Cell<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Cell<T> {}

impl<T> std::fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cell").field("offset_bytes", &self.offset_bytes).finish()
    }
}

impl<T: Pod> Cell<T> {
    pub(crate) fn new(offset_bytes: usize) -> Self {
        Self { offset_bytes, value: PhantomData }
    }

    /// From the beginning of the region, in bytes.
    #[must_use]
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// A part of it. Use [`field!`](crate::state_field), which tells the offset.
    ///
    /// # Errors
    /// [`OutOfBounds`](StateError::OutOfBounds): the part is not within it.
    #[doc(hidden)]
    pub fn field<U: Pod>(&self, offset: usize, _witness: fn(&T) -> &U) -> Result<Cell<U>> {
        part(self.offset_bytes, size_of::<T>(), offset, size_of::<U>()).map(Cell::new)
    }
}

impl<T: Pod, const N: usize> Cell<[T; N]> {
    /// One of an array.
    ///
    /// # Errors
    /// [`OutOfBounds`](StateError::OutOfBounds): there are not so many.
    pub fn at(&self, index: usize) -> Result<Cell<T>> {
        let offset = index.saturating_mul(size_of::<T>());
        part(self.offset_bytes, size_of::<T>() * N, offset, size_of::<T>()).map(Cell::new)
    }
}

/// Where a part is that begins `offset` behind a whole.
pub(crate) fn part(whole: usize, length: usize, offset: usize, bytes: usize) -> Result<usize> {
    let end = offset.saturating_add(bytes);
    if end > length {
        return Err(StateError::OutOfBounds { offset, end, length });
    }
    Ok(whole + offset)
}

/// A field of a value: `field!(root, Counters, served)` is the [`Cell`](crate::state::Cell) of `Counters::served` in the
/// cell `root`.
#[macro_export]
macro_rules! state_field {
    ($cell:expr, $type:ty, $field:ident) => {
        $cell.field(std::mem::offset_of!($type, $field), |value: &$type| &value.$field)
    };
}

impl View<'_> {
    /// The value.
    ///
    /// # Errors
    /// The cell is another region's.
    #[inline]
    pub fn get<T: Pod>(&self, cell: Cell<T>) -> Result<T> {
        let (at, skip) = (cell.offset_bytes / 8, cell.offset_bytes % 8);
        let mut value = T::zeroed();
        let bytes = self.words.bytes(at, skip + size_of::<T>())?;
        if let Some(bytes) = bytes.get(skip..) {
            bytemuck::bytes_of_mut(&mut value).copy_from_slice(bytes);
        }
        Ok(value)
    }
}

impl Transaction<'_> {
    /// Changes the value.
    ///
    /// # Errors
    /// [`TransactionTooLarge`](StateError::TransactionTooLarge); the cell is another region's.
    #[inline]
    pub fn set<T: Pod>(&mut self, cell: Cell<T>, value: T) -> Result<()> {
        let (at, skip) = (cell.offset_bytes / 8, cell.offset_bytes % 8);
        match bytemuck::bytes_of(&value).try_into() {
            Ok(word) if skip == 0 => self.store(at, u64::from_ne_bytes(word)),
            _ => self.store_bytes(at, skip, bytemuck::bytes_of(&value)),
        }
    }
}
