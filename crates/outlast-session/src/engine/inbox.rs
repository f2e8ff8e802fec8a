//! Bytes received and not yet read: what came with a handshake message, what a frame parser has not looked at.

use super::pool::SharedPool;
use outlast_stream::BufferSource;

/// Read from the network in one go in framed mode.
pub(crate) const INBOX_READ_BYTES: usize = 64 << 10;

/// A queue of received bytes that takes no memory while empty: its buffer comes from the process's pool.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl From<Vec<u8>> for Inbox {
    fn from(bytes: Vec<u8>) -> Self {
        let buffer = SharedPool::take_in(bytes);
        Self { start: 0, end: buffer.len(), buffer }
    }
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// The memory that it takes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// What is there.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// The first `count` bytes are done with.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.is_empty() {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Moves as much as possible into `buffer`.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let count = self.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), self.as_slice().get(..count)) {
            to.copy_from_slice(from);
        }
        self.consume(count);
        count
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(room) = self.room(bytes.len()).get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            self.end += bytes.len();
        }
    }

    /// Lets `fill` write up to `bytes_max` behind what is there; it returns how many it wrote.
    pub(crate) fn fill<E>(
        &mut self,
        bytes_max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let room = self.room(bytes_max);
        let most = room.len().min(bytes_max);
        let result = fill(room.get_mut(..most).unwrap_or_default());
        self.end += result.as_ref().map_or(0, |count| (*count).min(most));
        result
    }

    /// Space for at least `bytes` behind what is there.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.buffer.len() - self.end < bytes {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            if self.buffer.len() - self.end < bytes {
                let mut larger = SharedPool.take(self.end + bytes);
                if let (Some(to), Some(from)) = (larger.get_mut(..self.end), self.buffer.get(..self.end)) {
                    to.copy_from_slice(from);
                }
                self.replace(larger);
            }
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    fn replace(&mut self, buffer: Box<[u8]>) {
        let old = std::mem::replace(&mut self.buffer, buffer);
        if !old.is_empty() {
            SharedPool.give(old);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// Gives the memory back if nothing is waiting.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() && !self.buffer.is_empty() {
            self.replace(Box::default());
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.replace(Box::default());
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_whatever_the_pieces() {
        let mut inbox = Inbox::default();
        let (mut next_in, mut next_out) = (0u32, 0u32);
        for round in 0..2000usize {
            let bytes: Vec<u8> = (0..round % 37)
                .map(|_| {
                    next_in += 1;
                    next_in as u8
                })
                .collect();
            if round % 2 == 0 {
                inbox.extend(&bytes);
            } else {
                let count = inbox.fill(100, |room| {
                    room[..bytes.len()].copy_from_slice(&bytes);
                    Ok::<_, ()>(bytes.len())
                });
                assert_eq!(count, Ok(bytes.len()));
            }
            let mut out = vec![0; round % 41];
            let count = inbox.read(&mut out);
            for byte in &out[..count] {
                next_out += 1;
                assert_eq!(*byte, next_out as u8);
            }
            inbox.shrink();
        }
        assert_eq!(inbox.len() as u32, next_in - next_out);
    }
}
