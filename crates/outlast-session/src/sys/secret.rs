//! Memory for keys: it is not in core dumps (madvise(2), `MADV_DONTDUMP`), and wiped when it is given back.

use parking_lot::Mutex;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use zeroize::Zeroize;

/// Bytes of a slot. Default 32: the key of a session.
const SLOT_BYTES: usize = 32;
/// Bytes that are mapped at a time for slots. Default 64 KiB: for 2,048 sessions.
const CHUNK_BYTES: usize = 64 << 10;

/// Slots that nobody uses. Chunks are kept for later sessions, as their slots are scattered among those in use.
static FREE: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

struct Slot(NonNull<u8>);

// SAFETY: a slot is memory that nobody else knows of, of no thread in particular.
unsafe impl Send for Slot {}

/// Secret bytes. Clones share them.
#[derive(Clone)]
pub(crate) struct Secret(Arc<Memory>);

enum Memory {
    Slot(Slot),
    Mapping(NonNull<u8>, usize),
    /// The kernel gives no mapping: better a key in a core dump than a session that cannot be opened.
    Heap(Box<[u8]>),
}

// SAFETY: after it was filled, before anybody else had it, the memory is only read until it is dropped.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

impl Secret {
    /// Room for so many bytes, filled in place: a copy elsewhere would be in core dumps.
    pub(crate) fn fill(bytes: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut memory = Memory::of(bytes);
        fill(memory.bytes_mut());
        Self(Arc::new(memory))
    }
}

impl Deref for Secret {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &*self.0 {
            // SAFETY: a slot has so many bytes, written when they were mapped, and is this value's until it is dropped.
            Memory::Slot(slot) => unsafe { std::slice::from_raw_parts(slot.0.as_ptr(), SLOT_BYTES) },
            // SAFETY: the mapping has at least so many bytes, zero from the start, and lives as long as this value.
            Memory::Mapping(start, bytes) => unsafe { std::slice::from_raw_parts(start.as_ptr(), *bytes) },
            Memory::Heap(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Memory {
    fn of(bytes: usize) -> Self {
        let found = if bytes == SLOT_BYTES {
            slot().map(Memory::Slot)
        } else {
            map(bytes).map(|start| Memory::Mapping(start, bytes))
        };
        found.unwrap_or_else(|| Memory::Heap(vec![0; bytes].into_boxed_slice()))
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            // SAFETY: as in `deref`; `self` is borrowed mutably, and nobody else has this slot.
            Memory::Slot(slot) => unsafe { std::slice::from_raw_parts_mut(slot.0.as_ptr(), SLOT_BYTES) },
            // SAFETY: the same with the mapping.
            Memory::Mapping(start, bytes) => unsafe {
                std::slice::from_raw_parts_mut(start.as_ptr(), *bytes)
            },
            Memory::Heap(bytes) => bytes,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        match self {
            Memory::Slot(slot) => FREE.lock().push(Slot(slot.0)),
            // SAFETY: the mapping is this value's, which goes.
            Memory::Mapping(start, bytes) => unsafe {
                libc::munmap(start.as_ptr().cast(), *bytes);
            },
            Memory::Heap(_) => {}
        }
    }
}

fn slot() -> Option<Slot> {
    let mut free = FREE.lock();
    if free.is_empty() {
        let start = map(CHUNK_BYTES)?;
        // SAFETY: every offset is within the mapping of that many bytes.
        free.extend((0..CHUNK_BYTES / SLOT_BYTES).map(|n| Slot(unsafe { start.add(n * SLOT_BYTES) })));
    }
    free.pop()
}

/// Zeroed pages that are left out of core dumps.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new private mapping, at an address of the kernel's choice, touches nothing that is there.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: of exactly the pages that were just mapped. It changes what is dumped, not what is in them.
    if unsafe { libc::madvise(start, bytes, libc::MADV_DONTDUMP) } != 0 {
        tracing::debug!("keys will be in core dumps: {}", std::io::Error::last_os_error());
    }
    NonNull::new(start.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that holds this address.
    fn flags_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().unwrap_or_default();
            if let Some((from, to)) = range.split_once('-')
                && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.to_owned();
            }
        }
        panic!("{address:x} is in no mapping");
    }

    #[test]
    fn secrets_are_not_dumped_and_are_wiped() {
        for bytes in [16, 32, 1024, 5000] {
            let secret = Secret::fill(bytes, |out| out.fill(7));
            assert_eq!(*secret, vec![7; bytes]);
            let address = secret.as_ptr() as usize;
            assert!(flags_of(address).contains(" dd"), "{bytes}: {}", flags_of(address));
            let clone = secret.clone();
            drop(secret);
            assert_eq!(*clone, vec![7; bytes], "the clone has it still");
        }
        let byte = |n: usize| n.to_le_bytes()[0];
        let all: Vec<Secret> = (0..5000).map(|n| Secret::fill(32, |out| out.fill(byte(n)))).collect();
        assert!(all.iter().enumerate().all(|(n, secret)| **secret == [byte(n); 32]));
        drop(all);
        assert!(FREE.lock().iter().take(100).all(|slot| {
            // SAFETY: a free slot is mapped, and nobody writes to it while the list is locked.
            let bytes = unsafe { std::slice::from_raw_parts(slot.0.as_ptr(), SLOT_BYTES) };
            bytes == [0; SLOT_BYTES]
        }));
    }
}
