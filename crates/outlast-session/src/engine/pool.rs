//! The process's pool of ring buffers.

use super::helper::Helper;
use super::memory::trim;
use outlast_stream::{BufferPool, BufferSource, Heap};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Enough for the rings of a handful of busy sessions; idle memory beyond it goes back to the system.
const POOLED_BYTES_MAX: usize = 16 << 20;

static POOL: Mutex<BufferPool> = Mutex::new(BufferPool::new(POOLED_BYTES_MAX));
/// In buffers that were taken and not given back.
static TAKEN_BYTES: AtomicU64 = AtomicU64::new(0);

/// What the pool has handed out.
pub(super) fn pool_bytes() -> u64 {
    TAKEN_BYTES.load(Ordering::Relaxed)
}

fn note_taken(bytes: usize) {
    let before = TAKEN_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    trim::note_taken(before + bytes as u64);
}

/// A handle to the pool; costs nothing to have one in every ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedPool;

impl SharedPool {
    /// A buffer from elsewhere, which is given back as those that were taken here.
    pub(crate) fn take_in(buffer: Vec<u8>) -> Box<[u8]> {
        let buffer = buffer.into_boxed_slice();
        note_taken(buffer.len());
        buffer
    }
}

impl BufferSource for SharedPool {
    fn take(&mut self, bytes: usize) -> Box<[u8]> {
        // The allocator is asked without the lock: a thread that loses its processor there would hold up all others.
        let kept = POOL.lock().take_kept(bytes);
        let buffer = kept.unwrap_or_else(|| Heap.take(bytes));
        note_taken(buffer.len());
        buffer
    }

    fn give(&mut self, buffer: Box<[u8]>) {
        let bytes = buffer.len() as u64;
        let left = POOL.lock().keep(buffer);
        drop(left);
        let before = TAKEN_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        if trim::note_given(before.saturating_sub(bytes)) {
            Helper::get().return_memory();
        }
    }
}
