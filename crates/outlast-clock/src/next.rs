//! The C library's own functions, behind those of this library.

use libc::c_void;
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Of functions that glibc has in two versions these are those of today: on x86-64, and on others.
const VERSIONS: [&CStr; 2] = [c"GLIBC_2.3.2", c"GLIBC_2.17"];

/// One.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Not looked for yet.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// It, if it was found.
    pub fn known(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.found.load(Ordering::Acquire))
    }

    /// It. It is looked for before the program begins, as the linker may be locked later. The linker may ask for memory, and who gives that for
    /// the time: what is called for that must not look for anything ([`known`](Self::known)).
    pub fn get(&self) -> Option<NonNull<c_void>> {
        if let Some(found) = self.known() {
            return Some(found);
        }
        let name = self.name.as_ptr();
        let versions = VERSIONS.iter().map(|version| {
            // SAFETY: two names that end with a zero.
            unsafe { libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr()) }
        });
        // SAFETY: a name that ends with a zero.
        let any = std::iter::once_with(|| unsafe { libc::dlsym(libc::RTLD_NEXT, name) });
        let found = versions.chain(any).find_map(NonNull::new)?;
        self.found.store(found.as_ptr(), Ordering::Release);
        Some(found)
    }
}
