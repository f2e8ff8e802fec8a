//! The bytes of a stream that may have to be sent again.

use alloc::boxed::Box;

use crate::pool::{BUFFER_BYTES_MIN, BufferSource, Heap};

/// The latest bytes of a stream, from [`start_offset`](Self::start_offset) up to
/// [`end_offset`](Self::end_offset), found by their absolute position.
///
/// # Driving it
///
/// The writer appends at the end: [`push`](Self::push) copies what fits, [`push_overwriting`](Self::push_overwriting)
/// copies everything and forgets the oldest, [`reserve`](Self::reserve) and [`commit`](Self::commit) let the
/// application write in place. Whoever learns that the peer has bytes calls [`trim_to`](Self::trim_to). After
/// a broken link [`slices`](Self::slices) gives back what has to be sent again.
///
/// # Memory
///
/// Nothing is allocated before the first byte. The ring doubles as it fills, up to `capacity_bytes_max`,
/// starts over at the low end of its buffer whenever it runs empty (a short exchange touches the same few
/// cache lines again and again), and hands the buffer back on [`shrink`](Self::shrink).
///
/// Retained bytes are moved only when the buffer grows. Contiguous space asked for with `reserve` may leave a
/// gap before the end of the buffer; a ring that does so may use a buffer of up to twice its capacity, so
/// that it always holds as many bytes as it promised.
#[derive(Debug)]
pub struct RetainRing<S: BufferSource = Heap> {
    source: S,
    buffer: Box<[u8]>,
    /// The part of the buffer in use: `[0, limit)`. Grows by doubling.
    limit: usize,
    /// Where the oldest byte lies.
    head: usize,
    /// Where the next byte goes.
    write: usize,
    /// Where the older bytes end, once the newer ones go on at index 0; 0 while all are in one piece.
    ///
    /// In one piece: `head..write`. In two: `head..upper_end`, never empty, then `0..write`.
    upper_end: usize,
    retained_bytes: usize,
    start_offset: u64,
    capacity_bytes_max: usize,
    reserved_at: usize,
    reserved_bytes: usize,
    /// The capacity that the ring has again when its buffer is back; 0 while that is here.
    lent_capacity_bytes: usize,
}

/// A ring's buffer on its way: the space reserved in it can be filled while the ring is used elsewhere.
///
/// Made by [`RetainRing::lend`]; give it [back](RetainRing::give_back) to that ring.
#[derive(Debug)]
pub struct Lent {
    buffer: Box<[u8]>,
    at: usize,
    bytes: usize,
}

impl Lent {
    /// The space last reserved.
    pub fn reserved(&self) -> &[u8] {
        &self.buffer[self.at..self.at + self.bytes]
    }

    /// As [`reserved`](Self::reserved), to be filled.
    pub fn reserved_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.at..self.at + self.bytes]
    }
}

impl RetainRing<Heap> {
    /// An empty ring at position `offset` that takes its memory from the allocator.
    pub fn new(offset: u64, capacity_bytes_max: usize) -> Self {
        Self::with_source(offset, capacity_bytes_max, Heap)
    }
}

impl<S: BufferSource> RetainRing<S> {
    /// An empty ring at position `offset` that takes its memory from `source`.
    pub fn with_source(offset: u64, capacity_bytes_max: usize, source: S) -> Self {
        Self {
            source,
            buffer: Box::default(),
            limit: 0,
            head: 0,
            write: 0,
            upper_end: 0,
            retained_bytes: 0,
            start_offset: offset,
            capacity_bytes_max,
            reserved_at: 0,
            reserved_bytes: 0,
            lent_capacity_bytes: 0,
        }
    }

    /// Position of the oldest byte held; equal to the end when the ring is empty.
    #[inline]
    pub const fn start_offset(&self) -> u64 {
        self.start_offset
    }

    /// Position just after the newest byte held.
    #[inline]
    pub const fn end_offset(&self) -> u64 {
        self.start_offset + self.retained_bytes as u64
    }

    /// Bytes held.
    #[inline]
    pub const fn retained_bytes(&self) -> usize {
        self.retained_bytes
    }

    /// True when no byte is held.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.retained_bytes == 0
    }

    /// Bytes that [`push`](Self::push) would take now.
    #[inline]
    pub const fn free_bytes(&self) -> usize {
        self.capacity_bytes_max.saturating_sub(self.retained_bytes)
    }

    /// The most bytes ever held at a time.
    pub const fn capacity_bytes_max(&self) -> usize {
        if self.is_lent() { self.lent_capacity_bytes } else { self.capacity_bytes_max }
    }

    /// Changes the capacity from now on; while the buffer is elsewhere, from when it is back on. Bytes already held stay,
    /// even above a lower capacity.
    pub const fn set_capacity_bytes_max(&mut self, capacity_bytes_max: usize) {
        if self.is_lent() {
            self.lent_capacity_bytes = if capacity_bytes_max == 0 { 1 } else { capacity_bytes_max };
        } else {
            self.capacity_bytes_max = capacity_bytes_max;
        }
    }

    /// Size of the buffer at the moment; 0 before the first byte and after a [`shrink`](Self::shrink) while empty.
    pub const fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Appends the first bytes of `bytes` that fit and returns how many these were.
    ///
    /// Less than all of them means full: wait until a [`trim_to`](Self::trim_to) makes room.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        if bytes.len() <= self.room_here() {
            self.put(bytes);
            bytes.len()
        } else {
            self.push_slow(bytes)
        }
    }

    /// Appends all of `bytes` and forgets the oldest bytes beyond the capacity.
    ///
    /// For modes in which the retained bytes are bounded by what the two kernels can hold, so that the
    /// bytes that fall out are known to have arrived (Ivaki, Araujo, Barros 2014, "implicit acknowledgement").
    /// Of a slice larger than the capacity only the last bytes are copied.
    #[inline]
    pub fn push_overwriting(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.room_here() {
            self.put(bytes);
        } else {
            self.push_overwriting_slow(bytes);
        }
    }

    /// Forgets the oldest bytes until `bytes` more fit, or the ring is empty.
    pub fn make_room(&mut self, bytes: usize) {
        if self.is_lent() {
            return;
        }
        let excess = self.retained_bytes.saturating_add(bytes).saturating_sub(self.capacity_bytes_max);
        self.forget(excess.min(self.retained_bytes));
    }

    /// Forgets everything before `offset`. A position outside the retained range forgets nothing or everything.
    #[inline]
    pub fn trim_to(&mut self, offset: u64) {
        let bytes = offset.saturating_sub(self.start_offset);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.retained_bytes);
        self.forget(bytes);
    }

    /// Moves an empty ring on to `offset`: for bytes that were sent and need no retention.
    ///
    /// Returns false, and changes nothing, when bytes are held or `offset` lies behind.
    pub fn advance_empty_to(&mut self, offset: u64) -> bool {
        let possible = self.is_empty() && offset >= self.start_offset;
        if possible {
            self.start_offset = offset;
        }
        possible
    }

    /// The bytes in `from_offset..to_offset`, in order, in at most two pieces.
    ///
    /// Both pieces are empty when any of the bytes asked for is not held: check the positions a peer names
    /// against [`start_offset`](Self::start_offset) and [`end_offset`](Self::end_offset) first.
    pub fn slices(&self, from_offset: u64, to_offset: u64) -> (&[u8], &[u8]) {
        let held = from_offset >= self.start_offset && to_offset <= self.end_offset() && !self.is_lent();
        let from = usize::try_from(from_offset.wrapping_sub(self.start_offset));
        let to = usize::try_from(to_offset.wrapping_sub(self.start_offset));
        let (true, true, Ok(from), Ok(to)) = (held, from_offset <= to_offset, from, to) else {
            return (&[], &[]);
        };
        let upper = if self.upper_end == 0 { self.retained_bytes } else { self.upper_end - self.head };
        let older = &self.buffer[self.head + from.min(upper)..self.head + to.min(upper)];
        let newer = &self.buffer[from.saturating_sub(upper)..to.saturating_sub(upper)];
        (older, newer)
    }

    /// Contiguous space of at least `bytes_min` and at most `bytes_max` bytes for the application to fill;
    /// [`commit`](Self::commit) then makes them part of the stream.
    ///
    /// Empty when fewer than `bytes_min` (or no) bytes are free: trim first, or ask for less. The space holds
    /// whatever the buffer held before. A later `reserve` or `push` takes an uncommitted reservation back;
    /// a `trim_to` does not.
    pub fn reserve(&mut self, bytes_min: usize, bytes_max: usize) -> &mut [u8] {
        if self.is_lent() {
            return &mut [];
        }
        self.reserved_bytes = 0;
        self.rewind_if_empty();
        let bytes_min = bytes_min.max(1);
        let free = self.free_bytes();
        if free < bytes_min {
            return &mut [];
        }
        let wanted = bytes_max.clamp(bytes_min, free);
        if self.limit < self.capacity_bytes_max && self.space() < wanted {
            self.grow(wanted);
        }
        let mut at = self.write;
        let mut bytes = self.contiguous();
        if bytes < bytes_min {
            if self.upper_end == 0 && self.head >= bytes_min {
                (at, bytes) = (0, self.head);
            } else {
                self.grow(bytes_min);
                (at, bytes) = (self.write, self.contiguous());
            }
        }
        self.reserved_at = at;
        self.reserved_bytes = bytes.min(wanted);
        &mut self.buffer[at..at + self.reserved_bytes]
    }

    /// The space last reserved and not committed yet.
    pub fn reserved(&self) -> &[u8] {
        self.buffer.get(self.reserved_at..self.reserved_at + self.reserved_bytes).unwrap_or_default()
    }

    /// As [`reserved`](Self::reserved), to be filled.
    pub fn reserved_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.reserved_at..self.reserved_at + self.reserved_bytes).unwrap_or_default()
    }

    /// Appends the first `bytes` of the space last reserved, at most all of it; returns how many these were.
    pub fn commit(&mut self, bytes: usize) -> usize {
        if self.is_lent() {
            return 0;
        }
        let bytes = bytes.min(self.reserved_bytes);
        self.reserved_bytes = 0;
        if bytes == 0 {
            self.rewind_if_empty();
            return 0;
        }
        if self.retained_bytes == 0 {
            self.head = self.reserved_at;
        } else if self.reserved_at != self.write {
            self.upper_end = self.write;
        }
        self.write = self.reserved_at + bytes;
        self.retained_bytes += bytes;
        bytes
    }

    /// Hands the buffer out, with the space last reserved. No byte is moved.
    ///
    /// Until it is [back](Self::give_back) the ring is full and shows no bytes, but its positions count and can be
    /// trimmed. `None` if nothing is reserved.
    pub fn lend(&mut self) -> Option<Lent> {
        if self.reserved_bytes == 0 || self.is_lent() {
            return None;
        }
        self.lent_capacity_bytes = core::mem::replace(&mut self.capacity_bytes_max, 0);
        let buffer = core::mem::take(&mut self.buffer);
        Some(Lent { buffer, at: self.reserved_at, bytes: self.reserved_bytes })
    }

    /// Whether the buffer is elsewhere.
    #[inline]
    pub const fn is_lent(&self) -> bool {
        self.lent_capacity_bytes > 0
    }

    /// Takes the buffer back that was lent; what was reserved in it can be committed.
    pub fn give_back(&mut self, lent: Lent) {
        debug_assert!(self.is_lent(), "a buffer that is not this ring's");
        self.capacity_bytes_max = core::mem::take(&mut self.lent_capacity_bytes);
        self.buffer = lent.buffer;
    }

    /// Gives memory back that is not needed: all of it when the ring is empty, else down to the next size.
    ///
    /// For idle moments: a ring that is still busy will only grow again.
    pub fn shrink(&mut self) {
        if self.is_lent() {
            return;
        }
        self.reserved_bytes = 0;
        if self.is_empty() {
            self.rewind_if_empty();
            self.limit = 0;
            self.release(Box::default());
        } else {
            let bytes = self.retained_bytes.max(BUFFER_BYTES_MIN).next_power_of_two();
            if bytes < self.buffer.len() {
                self.relocate(bytes);
            }
        }
    }

    /// Contiguous bytes between the write index and whatever comes next.
    #[inline]
    fn contiguous(&self) -> usize {
        let end = if self.upper_end == 0 { self.limit } else { self.head };
        end - self.write
    }

    /// What a push can take in one piece without any further thought.
    #[inline]
    fn room_here(&self) -> usize {
        self.contiguous().min(self.free_bytes())
    }

    /// Bytes that can be written before the buffer has to grow, in one piece or two.
    fn space(&self) -> usize {
        if self.upper_end == 0 { self.contiguous() + self.head } else { self.contiguous() }
    }

    /// Appends bytes that fit between the write index and whatever comes next.
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.reserved_bytes = 0;
        let end = self.write + bytes.len();
        if let [byte] = bytes {
            self.buffer[self.write] = *byte;
        } else {
            self.buffer[self.write..end].copy_from_slice(bytes);
        }
        self.write = end;
        self.retained_bytes += bytes.len();
    }

    #[inline(never)]
    fn push_slow(&mut self, bytes: &[u8]) -> usize {
        if self.is_lent() {
            return 0;
        }
        self.reserved_bytes = 0;
        self.rewind_if_empty();
        let taken = bytes.len().min(self.free_bytes());
        if self.space() < taken {
            self.grow(taken);
        }
        let (here, rest) = bytes[..taken].split_at(taken.min(self.contiguous()));
        self.put(here);
        if !rest.is_empty() {
            self.upper_end = self.write;
            self.write = 0;
            self.put(rest);
        }
        taken
    }

    #[inline(never)]
    fn push_overwriting_slow(&mut self, bytes: &[u8]) {
        debug_assert!(!self.is_lent(), "nothing can be pushed while the buffer is elsewhere");
        let unkept = bytes.len().saturating_sub(self.capacity_bytes_max);
        self.make_room(bytes.len());
        if unkept > 0 {
            self.forget(self.retained_bytes);
            self.start_offset += unkept as u64;
        }
        let taken = self.push(&bytes[unkept..]);
        debug_assert_eq!(taken, bytes.len() - unkept);
    }

    /// Drops the oldest `bytes`, of which there are at least that many.
    #[inline]
    fn forget(&mut self, bytes: usize) {
        self.start_offset += bytes as u64;
        self.retained_bytes -= bytes;
        self.head += bytes;
        if self.retained_bytes == 0 {
            self.upper_end = 0;
            self.head = self.write;
            if self.reserved_bytes == 0 {
                self.rewind_if_empty();
            }
        } else if self.upper_end != 0 && self.head >= self.upper_end {
            self.head -= self.upper_end;
            self.upper_end = 0;
        }
    }

    /// An empty ring starts over at the low end of its buffer, where the cache is warm.
    #[inline]
    fn rewind_if_empty(&mut self) {
        if self.retained_bytes == 0 {
            self.head = 0;
            self.write = 0;
        }
    }

    /// Makes contiguous space for `bytes` more, where the capacity has room for them.
    ///
    /// Doubles up to the capacity, and once more when gaps left by `reserve` have eaten into it: with twice
    /// the capacity there is always a piece large enough without moving anything.
    fn grow(&mut self, bytes: usize) {
        let needed = self.retained_bytes + bytes;
        let capacity = self.capacity_bytes_max;
        let limit_max = if self.limit < capacity { capacity } else { capacity.saturating_mul(2) };
        let doubled = self.limit.saturating_mul(2).max(BUFFER_BYTES_MIN).min(limit_max);
        self.relocate(doubled.max(self.limit).max(needed));
    }

    /// Moves the retained bytes to the low end of a buffer in which `limit` bytes can be used.
    fn relocate(&mut self, limit: usize) {
        if self.upper_end == 0 && limit <= self.buffer.len() && limit >= self.limit {
            self.buffer.copy_within(self.head..self.write, 0);
        } else {
            let mut buffer = self.source.take(limit);
            let (older, newer) = self.slices(self.start_offset, self.end_offset());
            buffer[..older.len()].copy_from_slice(older);
            buffer[older.len()..older.len() + newer.len()].copy_from_slice(newer);
            self.release(buffer);
        }
        self.head = 0;
        self.write = self.retained_bytes;
        self.upper_end = 0;
        self.limit = limit;
    }

    /// Puts `buffer` in the place of the present one, which goes back to the source.
    fn release(&mut self, buffer: Box<[u8]>) {
        let old = core::mem::replace(&mut self.buffer, buffer);
        if !old.is_empty() {
            self.source.give(old);
        }
    }
}

impl<S: BufferSource> Drop for RetainRing<S> {
    fn drop(&mut self) {
        self.release(Box::default());
    }
}
