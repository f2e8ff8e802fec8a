//! Bytes received and not yet read: what came with a handshake message, what a frame parser has not looked at.

/// Read from the network in one go in framed mode.
pub(crate) const INBOX_READ_BYTES: usize = 64 << 10;

/// A queue of received bytes that takes no memory while empty.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// What is there.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.taken..).unwrap_or_default()
    }

    /// The first `count` bytes are done with.
    pub(crate) fn consume(&mut self, count: usize) {
        self.taken = (self.taken + count).min(self.bytes.len());
        if self.is_empty() {
            self.taken = 0;
            self.bytes.clear();
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
        self.compact();
        self.bytes.extend_from_slice(bytes);
    }

    /// Lets `fill` write up to `bytes_max` behind what is there; it returns how many it wrote.
    pub(crate) fn fill<E>(
        &mut self,
        bytes_max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.compact();
        let before = self.bytes.len();
        self.bytes.resize(before + bytes_max, 0);
        let result = fill(self.bytes.get_mut(before..).unwrap_or_default());
        let count = result.as_ref().map_or(0, |count| (*count).min(bytes_max));
        self.bytes.truncate(before + count);
        result
    }

    fn compact(&mut self) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
    }

    /// Gives the memory back if nothing is waiting.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() && self.bytes.capacity() > 0 {
            *self = Self::default();
        }
    }
}
