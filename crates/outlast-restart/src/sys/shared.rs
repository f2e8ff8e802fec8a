//! Memory that every generation shares.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

/// One value of plain atomics in memory that stays the same memory across `clone`.
///
/// It is never unmapped: whoever holds a reference to it may be in any process.
pub(crate) fn share<T: AllZeroes>() -> io::Result<&'static T> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<T>(), protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let memory =
        NonNull::new(memory.cast::<T>()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
    // SAFETY: the mapping is as large as a T, aligned to a page, full of zeroes, which is a T (by its trait), and stays.
    Ok(unsafe { memory.as_ref() })
}

/// Values that can be shared.
///
/// # Safety
/// All bits zero are a value, and it can be changed by another process at any time: it consists of atomics.
pub(crate) unsafe trait AllZeroes: Sync + 'static {}

/// Bytes of shared memory that nobody changes meanwhile.
///
/// One generation serves at a time, and of that the one value that stands for the connection these bytes belong to.
pub(crate) fn bytes(memory: &[AtomicU8], begin: usize, length: usize) -> &[u8] {
    let part = memory.get(begin..begin + length).unwrap_or_default();
    // SAFETY: an AtomicU8 has the layout of a u8; see above for who changes it.
    unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), part.len()) }
}

/// As [`bytes`], to be filled by the kernel.
#[allow(clippy::mut_from_ref, reason = "shared memory is changed through shared references")]
pub(crate) fn bytes_mut(memory: &[AtomicU8], begin: usize, length: usize) -> &mut [u8] {
    let part = memory.get(begin..begin + length).unwrap_or_default();
    // SAFETY: atomics may be changed through a shared reference; that nobody else looks at these bytes is as above.
    unsafe { std::slice::from_raw_parts_mut(part.as_ptr().cast::<u8>().cast_mut(), part.len()) }
}
