//! What is executed, and with which environment. In a child made by `vfork` nothing may be allocated or locked: all is on
//! the caller's stack.

use crate::program::ReadAt;
use libc::c_char;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A list of texts, which ends with null.
pub type Texts = *const *const c_char;

/// More variables are passed on as they are.
const VARIABLES_MAX: usize = 1024;

/// The file that this library was loaded from, as the loader was told.
static OWN: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Asks the loader. Before the program begins: the loader locks.
pub extern "C" fn find_own() {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address in this library, and room for what is told. The name stays as long as the library is loaded.
    unsafe {
        if libc::dladdr((find_own as *const ()).cast::<c_void>(), found.as_mut_ptr()) != 0 {
            OWN.store(found.assume_init().dli_fname.cast_mut(), Ordering::Relaxed);
        }
    }
}

/// See [`find_own`].
pub fn own() -> Option<&'static CStr> {
    text(OWN.load(Ordering::Relaxed))
}

fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: null, or a text that ends, which its owner leaves as it is during the call that this is about.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// A path that the program gives to the C library.
pub fn path<'a>(path: *const c_char) -> Option<&'a CStr> {
    text(path)
}

/// This process's own environment.
pub fn environment() -> Texts {
    unsafe extern "C" {
        static environ: Texts;
    }
    // SAFETY: the C library's own variable, as its functions read it.
    unsafe { environ }
}

/// One of its variables.
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: reads a text that ends.
    text(unsafe { libc::getenv(name.as_ptr()) })
}

/// The place of a variable in an environment, and its text. `name` ends with an equals sign.
pub fn find<'a>(all: Texts, name: &[u8]) -> Option<(usize, &'a CStr)> {
    if all.is_null() {
        return None;
    }
    for place in 0.. {
        // SAFETY: the list ends with null, which is not gone beyond.
        let one = text(unsafe { *all.add(place) })?;
        if one.to_bytes().starts_with(name) {
            return Some((place, one));
        }
    }
    None
}

/// An environment that is the same but for one place, as long as `call` takes. With None it has one less. Where it has too
/// many variables it stays as it is.
#[inline(never)]
pub fn with_other<T>(all: Texts, place: usize, by: Option<&CStr>, call: impl FnOnce(Texts) -> T) -> T {
    let mut copy = [std::ptr::null(); VARIABLES_MAX + 1];
    let mut length = 0;
    for number in 0.. {
        // SAFETY: as in `find`.
        let mut one = unsafe { *all.add(number) };
        if one.is_null() {
            break;
        }
        if number == place {
            match by {
                Some(by) => one = by.as_ptr(),
                None => continue,
            }
        }
        match copy.get_mut(length).filter(|_| length < VARIABLES_MAX) {
            Some(place) => *place = one,
            None => return call(all),
        }
        length += 1;
    }
    call(copy.as_ptr())
}

/// A file that can be executed, opened to be looked at.
pub struct File(OwnedFd);

impl File {
    /// None: it is none, or may not be read.
    pub fn open(path: &CStr) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: reads a text that ends; a number that comes is new, and nobody else's.
        unsafe {
            if libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::X_OK) < 0 {
                return None;
            }
            let number = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
            let number = RawFd::try_from(number).ok().filter(|number| *number >= 0)?;
            Some(Self(OwnedFd::from_raw_fd(number)))
        }
    }
}

impl ReadAt for File {
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> usize {
        let Ok(at) = libc::off_t::try_from(at) else { return 0 };
        // SAFETY: fills memory of the length that is told.
        let read = unsafe {
            libc::syscall(libc::SYS_pread64, self.0.as_raw_fd(), bytes.as_mut_ptr(), bytes.len(), at)
        };
        usize::try_from(read).unwrap_or(0)
    }
}
