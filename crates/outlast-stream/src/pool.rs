//! Where the rings get their memory: power-of-two buffers, kept for reuse up to a total.
//!
//! A fresh mapping costs more than half of a whole short TCP connection (about 17 us on the machine the
//! design was measured on), so a process that opens many sessions hands its buffers round instead.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The smallest buffer a source hands out: what a session with short messages takes.
pub const BUFFER_BYTES_MIN: usize = 512;
/// The largest buffer a [`BufferPool`] keeps; larger ones go back to the allocator.
pub const BUFFER_BYTES_MAX: usize = 4 << 20;

/// One free list per power of two from [`BUFFER_BYTES_MIN`] to [`BUFFER_BYTES_MAX`].
const CLASSES: usize = (BUFFER_BYTES_MAX / BUFFER_BYTES_MIN).ilog2() as usize + 1;

/// Where a [`RetainRing`](crate::RetainRing) takes its buffer from and gives it back to.
///
/// A threaded shell implements it on a handle to one pool behind a lock; the lock is held only while a
/// buffer changes hands, never while bytes are copied.
pub trait BufferSource {
    /// A buffer of at least `bytes` bytes. Its content is arbitrary: zeroes or what it held before.
    fn take(&mut self, bytes: usize) -> Box<[u8]>;

    /// The buffer is no longer needed.
    fn give(&mut self, buffer: Box<[u8]>);
}

impl<S: BufferSource + ?Sized> BufferSource for &mut S {
    fn take(&mut self, bytes: usize) -> Box<[u8]> {
        (**self).take(bytes)
    }

    fn give(&mut self, buffer: Box<[u8]>) {
        (**self).give(buffer);
    }
}

/// The allocator itself: nothing is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap;

impl BufferSource for Heap {
    fn take(&mut self, bytes: usize) -> Box<[u8]> {
        zeroed(class_bytes(bytes))
    }

    fn give(&mut self, buffer: Box<[u8]>) {
        drop(buffer);
    }
}

/// Free buffers kept for reuse, at most `kept_bytes_max` of them in total.
///
/// The last buffer given of a size is the first taken: it is the one still in the cache. Buffers are not
/// wiped in between, so a pool must not be shared across a boundary of trust.
#[derive(Debug)]
pub struct BufferPool {
    free: [Vec<Box<[u8]>>; CLASSES],
    kept_bytes: usize,
    kept_bytes_max: usize,
}

impl BufferPool {
    /// An empty pool that will keep up to `kept_bytes_max` bytes of free buffers.
    pub const fn new(kept_bytes_max: usize) -> Self {
        Self { free: [const { Vec::new() }; CLASSES], kept_bytes: 0, kept_bytes_max }
    }

    /// Bytes of free buffers kept at the moment.
    pub const fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// A free buffer of at least `bytes` bytes, if one of that size was kept.
    pub fn take_kept(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        let buffer = self.free.get_mut(class_of(class_bytes(bytes))?)?.pop()?;
        self.kept_bytes -= buffer.len();
        Some(buffer)
    }

    /// Keeps a buffer for reuse. Gives it back if that would be too much: to be dropped where no lock is held, as the
    /// allocator may take its time for that.
    pub fn keep(&mut self, buffer: Box<[u8]>) -> Option<Box<[u8]>> {
        let fits = buffer.len() <= self.kept_bytes_max.saturating_sub(self.kept_bytes);
        let list = class_of(buffer.len()).and_then(|class| self.free.get_mut(class));
        let Some(list) = list.filter(|_| fits) else { return Some(buffer) };
        self.kept_bytes += buffer.len();
        list.push(buffer);
        None
    }

    /// Returns every free buffer to the allocator.
    pub fn clear(&mut self) {
        for list in &mut self.free {
            list.clear();
            list.shrink_to_fit();
        }
        self.kept_bytes = 0;
    }
}

impl BufferSource for BufferPool {
    fn take(&mut self, bytes: usize) -> Box<[u8]> {
        self.take_kept(bytes).unwrap_or_else(|| Heap.take(bytes))
    }

    fn give(&mut self, buffer: Box<[u8]>) {
        drop(self.keep(buffer));
    }
}

/// The size of the buffer that serves a request for `bytes`.
fn class_bytes(bytes: usize) -> usize {
    bytes.max(BUFFER_BYTES_MIN).checked_next_power_of_two().unwrap_or(bytes)
}

/// The free list for buffers of exactly `bytes`, if there is one.
fn class_of(bytes: usize) -> Option<usize> {
    let pooled = bytes.is_power_of_two() && (BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&bytes);
    pooled.then(|| (bytes / BUFFER_BYTES_MIN).ilog2() as usize)
}

/// Zeroed by the system, hence mapped page by page when first touched.
fn zeroed(bytes: usize) -> Box<[u8]> {
    vec![0; bytes].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rounded_up_to_powers_of_two() {
        let mut pool = BufferPool::new(1 << 20);
        assert_eq!(pool.take(0).len(), BUFFER_BYTES_MIN);
        assert_eq!(pool.take(4097).len(), 8192);
        assert_eq!(pool.take(BUFFER_BYTES_MAX).len(), BUFFER_BYTES_MAX);
        assert_eq!(pool.take(BUFFER_BYTES_MAX + 1).len(), 2 * BUFFER_BYTES_MAX);
        assert_eq!(Heap.take(5000).len(), 8192);
    }

    #[test]
    fn the_last_buffer_given_is_the_first_taken_and_is_not_wiped() {
        let mut pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(4096);
        buffer[17] = 42;
        pool.give(buffer);
        assert_eq!(pool.kept_bytes(), 4096);
        assert_eq!(pool.take(4000)[17], 42);
        assert_eq!(pool.kept_bytes(), 0);
    }

    #[test]
    fn the_total_is_bounded_and_odd_sizes_are_not_kept() {
        let mut pool = BufferPool::new(10_000);
        for _ in 0..5 {
            pool.give(zeroed(4096));
        }
        assert_eq!(pool.kept_bytes(), 8192);
        pool.clear();
        assert_eq!(pool.kept_bytes(), 0);
        pool.give(zeroed(5000));
        pool.give(zeroed(0));
        pool.give(zeroed(BUFFER_BYTES_MIN / 2));
        assert_eq!(pool.kept_bytes(), 0);
        let mut large = BufferPool::new(usize::MAX);
        large.give(zeroed(2 * BUFFER_BYTES_MAX));
        assert_eq!(large.kept_bytes(), 0);
    }
}
