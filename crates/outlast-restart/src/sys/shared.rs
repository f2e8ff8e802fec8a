//! Memory that every generation shares.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// One value of plain atomics in memory that stays the same memory across `clone`.
///
/// It is never unmapped: whoever holds a reference to it may be in any process.
pub(crate) fn share<T: AllZeroes>() -> io::Result<&'static T> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // Most of what is mapped is never touched.
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<T>(), protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Gigabytes of nothing would make dumping a core take seconds. A failure leaves it as it is.
    // SAFETY: the new mapping.
    unsafe { libc::madvise(memory, size_of::<T>(), libc::MADV_DONTDUMP) };
    let memory =
        NonNull::new(memory.cast::<T>()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
    // SAFETY: the mapping is as large as a T, aligned to a page, full of zeroes, which is a T (by its trait), and stays.
    Ok(unsafe { memory.as_ref() })
}

/// Whether children that are made from now on have it, too.
pub(crate) fn set_inherited<T: AllZeroes>(value: &'static T, inherited: bool) -> io::Result<()> {
    let advice = if inherited { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
    let memory = std::ptr::from_ref(value).cast_mut().cast();
    // SAFETY: a mapping of its own, as all these values have, which stays as it is in this process.
    let done = unsafe { libc::madvise(memory, size_of::<T>(), advice) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a pointer points to that was made of a `&'static T`, or nothing if it is null.
pub(crate) fn known<T: Sync>(pointer: &std::sync::atomic::AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: see above; this is the only reader of such pointers, and they are set from such references only.
    unsafe { pointer.load(std::sync::atomic::Ordering::SeqCst).as_ref() }
}

/// Values that can be shared.
///
/// # Safety
/// All bits zero are a value, and it can be changed by another process at any time: it consists of atomics.
pub(crate) unsafe trait AllZeroes: Sync + 'static {}

/// What a value consists of, that nobody changes meanwhile.
pub(crate) fn to_bytes<T: AllZeroes, const N: usize>(value: &T) -> [u8; N] {
    let mut bytes = [0; N];
    let length = N.min(size_of::<T>());
    // SAFETY: as long as both are; the value was all zeroes once, so that each of its bytes has a value.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), bytes.as_mut_ptr(), length)
    };
    bytes
}

/// As [`to_bytes`] has given it.
pub(crate) fn set_bytes<T: AllZeroes, const N: usize>(value: &T, bytes: &[u8; N]) {
    let length = N.min(size_of::<T>());
    // SAFETY: as long as both are; atomics may be changed through a shared reference, and have a value for all bits.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            std::ptr::from_ref(value).cast::<u8>().cast_mut(),
            length,
        );
    }
}

/// Bytes of shared memory that nobody changes meanwhile.
///
/// # Safety
/// As long as the result is used, nobody changes these bytes, in this process or another one: one generation serves at a
/// time, and of that the caller is, or has borrowed, the one value that stands for the connection they belong to.
pub(crate) unsafe fn bytes(memory: &[AtomicU8], begin: usize, length: usize) -> &[u8] {
    let part = memory.get(begin..begin + length).unwrap_or_default();
    // SAFETY: an AtomicU8 has the layout of a u8; that nobody changes them, the caller says.
    unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), part.len()) }
}

/// As [`bytes`], to be filled by the kernel.
///
/// # Safety
/// As long as the result is used, nobody else reads or changes these bytes: the caller serves the connection that they
/// belong to, alone, and has no other reference to them.
#[allow(clippy::mut_from_ref, reason = "shared memory is changed through shared references")]
pub(crate) unsafe fn bytes_mut(memory: &[AtomicU8], begin: usize, length: usize) -> &mut [u8] {
    let part = memory.get(begin..begin + length).unwrap_or_default();
    // SAFETY: atomics may be changed through a shared reference; that nobody else looks at these bytes, the caller says.
    unsafe { std::slice::from_raw_parts_mut(part.as_ptr().cast::<u8>().cast_mut(), part.len()) }
}

/// Writes to shared memory, whoever looks at it. What does not fit is left out.
pub(crate) fn write(memory: &[AtomicU8], content: &[u8]) {
    for (to, from) in memory.iter().zip(content) {
        to.store(*from, Ordering::Relaxed);
    }
}

/// Copies the first bytes from shared memory to shared memory.
pub(crate) fn copy(from: &[AtomicU8], to: &[AtomicU8], length: usize) {
    for (to, from) in to.iter().zip(from).take(length) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Gives the memory below back to the system: zeroes again. Whole pages only.
pub(crate) fn forget(memory: &[AtomicU8]) {
    // SAFETY: a part of a shared mapping of atomics, for which zeroes are a value. A failure leaves it as it is.
    unsafe { libc::madvise(memory.as_ptr().cast_mut().cast(), memory.len(), libc::MADV_REMOVE) };
}
