//! Memory with a descriptor: that another program can map, too.

use super::file_size::beyond_limit;
use super::shared::AllZeroes;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;

/// Makes memory of this size, zeroed. It is inherited by programs that are executed only if that is asked for.
pub(crate) fn create(name: &std::ffi::CStr, size: usize) -> io::Result<OwnedFd> {
    // SAFETY: reads a string that ends; gives a new descriptor.
    let descriptor =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    let memory = if descriptor < 0 {
        let error = io::Error::last_os_error();
        // Sandboxes may forbid the call.
        let forbidden = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES));
        forbidden.then(file_without_name).flatten().ok_or(error)?
    } else {
        // SAFETY: new, and nobody else's.
        File::from(unsafe { OwnedFd::from_raw_fd(descriptor) })
    };
    beyond_limit(size as u64, || memory.set_len(size as u64))?;
    Ok(memory.into())
}

/// Nobody can make it smaller or larger any more, who has a descriptor of it: whoever has it mapped counts on its size.
pub(crate) fn keep_size(memory: BorrowedFd<'_>) {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: integers. A file elsewhere than in memory has no seals.
    unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) };
}

/// A file that nobody else can open, where files are in memory if possible.
fn file_without_name() -> Option<File> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC);
    ["/dev/shm", "/tmp", "/var/tmp"].into_iter().find_map(|folder| options.open(folder).ok())
}

/// Maps it, for as long as the process lives.
pub(crate) fn map<T: AllZeroes>(memory: BorrowedFd<'_>) -> io::Result<&'static T> {
    let size = File::from(memory.try_clone_to_owned()?).metadata()?.len();
    if size < size_of::<T>() as u64 {
        // Beyond its end every access would be a SIGBUS.
        return Err(io::Error::other(format!("{size} bytes, and {} are needed", size_of::<T>())));
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let (nowhere, size) = (std::ptr::null_mut(), size_of::<T>());
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let at = unsafe { libc::mmap(nowhere, size, protection, libc::MAP_SHARED, memory.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let at = NonNull::new(at.cast::<T>()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
    // SAFETY: as large as a T, aligned to a page, and atomics throughout (by its trait); it is never unmapped.
    Ok(unsafe { at.as_ref() })
}
