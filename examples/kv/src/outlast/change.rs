//! What a step can do with values and counters, in the transaction that it is.

use super::Store;
use crate::service::{Failure, Next};
use outlast_restart::state::{Record, StateError, Transaction, View, bytemuck};
use std::ops::ControlFlow;

/// Where a value is: a record with a [`ValueHead`].
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(transparent)]
pub struct Value(Record);

impl Value {
    pub const NONE: Self = Self(Record::NONE);
}

/// A value is a chain of pieces: records with the next one in front.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(C)]
struct ValueHead {
    /// The key that has it, the upload that makes it, the downloads that read it.
    holders: u64,
    length_bytes: u64,
    first: Record,
    last: Record,
}

/// What can be done in a step.
pub struct Change<'a, 'b> {
    pub(super) tx: &'a mut Transaction<'b>,
    pub(super) store: &'a Store,
    /// What the connection was about.
    pub(super) before: &'a Next,
}

fn head(view: &View<'_>, value: Value) -> Result<ValueHead, StateError> {
    view.get(view.cell(value.0)?)
}

pub(super) fn first_piece(view: &View<'_>, value: Value) -> Result<Record, StateError> {
    Ok(head(view, value)?.first)
}

/// A piece: the next one, and what is in it.
pub(super) fn parted(piece: &[u8]) -> (Record, &[u8]) {
    let (next, content) = piece.split_at(piece.len().min(size_of::<Record>()));
    (bytemuck::try_pod_read_unaligned(next).unwrap_or(Record::NONE), content)
}

impl Change<'_, '_> {
    /// A value without content, which the caller holds.
    pub fn new_value(&mut self) -> Result<Value, Failure> {
        let head = ValueHead { holders: 1, length_bytes: 0, first: Record::NONE, last: Record::NONE };
        Ok(Value(self.tx.put(bytemuck::bytes_of(&head))?))
    }

    /// More of a value.
    pub fn append(&mut self, value: &mut Value, content: &[u8]) -> Result<(), Failure> {
        if !content.is_empty() {
            let piece = self.tx.put(&[bytemuck::bytes_of(&Record::NONE), content].concat())?;
            self.link(*value, piece, piece, content.len() as u64)?;
        }
        Ok(())
    }

    /// Pieces to the end of a value.
    fn link(&mut self, value: Value, first: Record, last: Record, bytes: u64) -> Result<(), StateError> {
        let cell = self.tx.cell(value.0)?;
        let mut head: ValueHead = self.tx.get(cell)?;
        if head.first.is_none() {
            head.first = first;
        } else {
            self.tx.write(head.last, 0, bytemuck::bytes_of(&first))?;
        }
        head.last = last;
        head.length_bytes += bytes;
        self.tx.set(cell, head)
    }

    pub fn length_bytes(&self, value: &Value) -> Result<u64, Failure> {
        Ok(head(self.tx, *value)?.length_bytes)
    }

    /// All of it.
    pub fn content(&self, value: &Value) -> Result<Vec<u8>, Failure> {
        let mut next = head(self.tx, *value)?.first;
        let mut content = Vec::new();
        while !next.is_none() {
            let (link, part) = parted(self.tx.bytes(next)?);
            content.extend_from_slice(part);
            next = link;
        }
        Ok(content)
    }

    /// One more has the value.
    pub fn hold(&mut self, value: &Value) -> Result<(), Failure> {
        let cell = self.tx.cell(value.0)?;
        let mut head: ValueHead = self.tx.get(cell)?;
        head.holders += 1;
        Ok(self.tx.set(cell, head)?)
    }

    /// One less: it goes with the last one.
    pub fn release(&mut self, value: Value) -> Result<(), Failure> {
        let cell = self.tx.cell(value.0)?;
        let mut head: ValueHead = self.tx.get(cell)?;
        head.holders -= 1;
        if head.holders > 0 {
            return Ok(self.tx.set(cell, head)?);
        }
        let mut next = head.first;
        while !next.is_none() {
            let (link, _) = parted(self.tx.bytes(next)?);
            self.tx.free(next)?;
            next = link;
        }
        Ok(self.tx.free(value.0)?)
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure> {
        let found = self.store.values.get(self.tx, key)?;
        Ok(found.and_then(|value| bytemuck::try_pod_read_unaligned(value).ok()))
    }

    /// Gives a key a value that the caller holds, or puts its content behind what the key has. How long it is then.
    pub fn store(&mut self, key: &[u8], value: Value, appends: bool) -> Result<u64, Failure> {
        let length_bytes = head(self.tx, value)?.length_bytes;
        let Some(old) = self.get(key)? else {
            self.store.values.insert(self.tx, key, bytemuck::bytes_of(&value))?;
            return Ok(length_bytes);
        };
        if !appends {
            self.store.values.insert(self.tx, key, bytemuck::bytes_of(&value))?;
            self.release(old)?;
            return Ok(length_bytes);
        }
        // Downloads of it know how long it was.
        let ValueHead { first, last, .. } = head(self.tx, value)?;
        if !first.is_none() {
            self.link(old, first, last, length_bytes)?;
        }
        self.tx.free(value.0)?;
        self.length_bytes(&old)
    }

    /// Whether there was one.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let Some(value) = self.get(key)? else { return Ok(false) };
        self.store.values.remove(self.tx, key)?;
        self.release(value)?;
        Ok(true)
    }

    /// Visits the keys that begin with `prefix` and come after `after`, until there are enough.
    pub fn keys(
        &self,
        prefix: &[u8],
        after: &[u8],
        mut visit: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Failure> {
        Ok(self.store.values.visit(self.tx, prefix.max(after), |key, _| {
            let goes_on = key.starts_with(prefix) && (key == after || visit(key));
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?)
    }

    /// Counts on, by so many. Up to where.
    pub fn count(&mut self, name: &[u8], by: u64) -> Result<u64, Failure> {
        let before = self.store.counters.get(self.tx, name)?;
        let count = by + before.and_then(|count| count.try_into().ok()).map_or(0, u64::from_ne_bytes);
        if by > 0 {
            self.store.counters.insert(self.tx, name, &count.to_ne_bytes())?;
        }
        Ok(count)
    }

    /// What the connection uploads is not wanted any more.
    pub fn give_up(&mut self) -> Result<(), Failure> {
        match self.before {
            Next::Upload(upload) => self.release(upload.value),
            _ => Ok(()),
        }
    }
}
