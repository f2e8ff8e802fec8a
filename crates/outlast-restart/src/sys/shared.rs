//! Memory that every generation shares.

use std::io;
use std::ptr::NonNull;

/// One value of plain atomics in memory that stays the same memory across `clone`.
///
/// It is never unmapped: whoever holds a reference to it may be in any process.
pub(crate) fn share<T: AllZeroes>() -> io::Result<&'static T> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE);
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
