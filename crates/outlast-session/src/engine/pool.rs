//! The process's pool of ring buffers.

use outlast_stream::{BufferPool, BufferSource};
use parking_lot::Mutex;

/// Enough for the rings of a handful of busy sessions; idle memory beyond it goes back to the system.
const POOLED_BYTES_MAX: usize = 16 << 20;

static POOL: Mutex<BufferPool> = Mutex::new(BufferPool::new(POOLED_BYTES_MAX));

/// A handle to the pool; costs nothing to have one in every ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedPool;

impl BufferSource for SharedPool {
    fn take(&mut self, bytes: usize) -> Box<[u8]> {
        POOL.lock().take(bytes)
    }

    fn give(&mut self, buffer: Box<[u8]>) {
        POOL.lock().give(buffer);
    }
}
