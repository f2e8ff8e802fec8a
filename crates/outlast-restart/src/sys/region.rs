//! A mapping of shared memory at an address of one's own choice, as words.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Words that are changed by other processes, too.
#[derive(Debug)]
pub(crate) struct Mapping {
    memory: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: atomics, which belong to no thread; unmapped only when nobody has a reference any more.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` is a multiple of 8, and not more than the file has. Without a file the memory is shared with children only.
    ///
    /// # Errors
    /// EEXIST: something else is there. What else `mmap` says.
    pub(crate) fn new(file: Option<BorrowedFd<'_>>, address: usize, bytes: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = if file.is_some() { 0 } else { libc::MAP_ANONYMOUS };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | kind;
        let file = file.map_or(-1, |file| file.as_raw_fd());
        let wanted = std::ptr::without_provenance_mut(address);
        // SAFETY: NOREPLACE: a new mapping that touches no memory in use.
        let memory = unsafe { libc::mmap(wanted, bytes, protection, flags, file, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if memory != wanted {
            // SAFETY: nobody else knows it. Kernels before 4.17 take the address for a wish.
            unsafe { libc::munmap(memory, bytes) };
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let memory = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(Self { memory, bytes })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: as many as were mapped, aligned to a page, until self is dropped.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes / size_of::<u64>()) }
    }

    /// Gives whole pages back: they are zeroes from now on.
    pub(crate) fn discard(&self, begin_bytes: usize, length_bytes: usize) -> io::Result<()> {
        if begin_bytes.checked_add(length_bytes).is_none_or(|end| end > self.bytes) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let begin = self.memory.as_ptr().cast::<u8>().wrapping_add(begin_bytes).cast();
        // SAFETY: a part of the mapping, whose words may change at any time anyway.
        let done = unsafe { libc::madvise(begin, length_bytes, libc::MADV_REMOVE) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: all references to it had the lifetime of self.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

/// The bytes of words, as far as there are so many, while nobody changes them: the caller has the region's lock.
pub(crate) fn bytes(words: &[AtomicU64], length: usize) -> &[u8] {
    let length = length.min(size_of_val(words));
    // SAFETY: an AtomicU64 has the layout of eight bytes; see above for who changes it.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), length) }
}

/// The lower half of a word, for the kernel to look at: a futex has 32 bits.
pub(crate) fn lower_half(word: &AtomicU64) -> &AtomicU32 {
    let half = word.as_ptr().cast::<AtomicU32>();
    let half = if cfg!(target_endian = "big") { half.wrapping_add(1) } else { half };
    // SAFETY: within the word, aligned, and as long valid.
    unsafe { &*half }
}

/// Memory with a descriptor and no file, whose size will not change once it is [sealed](seal).
pub(crate) fn memory_file(name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // SAFETY: the name ends with a zero, and is copied.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Who has a mapping cannot be made to touch what is no longer there.
pub(crate) fn seal(file: BorrowedFd<'_>) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: takes integers.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until nobody else has locked the file. Released when its last descriptor is closed, too.
pub(crate) fn lock_file(file: BorrowedFd<'_>) -> io::Result<()> {
    flock(file, libc::LOCK_EX)
}

pub(crate) fn unlock_file(file: BorrowedFd<'_>) -> io::Result<()> {
    flock(file, libc::LOCK_UN)
}

fn flock(file: BorrowedFd<'_>, operation: i32) -> io::Result<()> {
    // SAFETY: takes integers.
    let done = unsafe { libc::flock(file.as_raw_fd(), operation) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
