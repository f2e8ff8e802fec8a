//! What is executed, and with which environment. In a child made by `vfork` nothing may be allocated or locked, and the stack
//! may be small: see `room`. What the program gives may not be there: see `given`.

use super::given::Given;
use super::room::VARIABLES_MAX;
use crate::program::ReadAt;
use libc::c_char;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A list of texts, which ends with null.
pub type Texts = *const *const c_char;

/// The file that this library was loaded from, as the loader was told.
static OWN: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Asks the loader. Before the program begins: the loader locks.
pub fn find_own() {
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

/// The longest variable that the kernel takes.
const VARIABLE_BYTES_MAX: usize = 128 << 10;
/// The same of paths.
const PATH_BYTES_MAX: usize = 4096;

/// A path that the program gives to the C library.
pub fn path<'a>(path: *const c_char) -> Option<&'a CStr> {
    let _errno = super::Errno::keep();
    Given::new().text(path, PATH_BYTES_MAX)
}

/// The place of a variable in an environment, and its text. `name` ends with an equals sign.
pub fn find<'a>(all: Texts, name: &[u8]) -> Option<(usize, &'a CStr)> {
    let (list, texts) = (Given::new(), Given::new());
    for place in 0.. {
        let one = list.pointer(all, place).filter(|one| !one.is_null())?;
        // The first byte tells most of them.
        if texts.has(one.cast(), 1) && begins(one) == name.first().copied() {
            let text = texts.text(one, VARIABLE_BYTES_MAX)?;
            if text.to_bytes().starts_with(name) {
                return Some((place, text));
            }
        }
    }
    None
}

fn begins(text: *const c_char) -> Option<u8> {
    // SAFETY: its first byte can be read.
    Some(unsafe { text.cast::<u8>().read() })
}

/// An environment that is the same but for one place. With None it has one less. None: it has too many variables.
pub fn with_other(
    all: Texts,
    place: usize,
    by: Option<&CStr>,
    room: &mut [*const c_char; VARIABLES_MAX + 1],
) -> Option<Texts> {
    let (list, mut length) = (Given::new(), 0);
    for number in 0.. {
        let one = match list.pointer(all, number)? {
            one if one.is_null() => break,
            _ if number == place => match by {
                Some(by) => by.as_ptr(),
                None => continue,
            },
            one => one,
        };
        *room.get_mut(length).filter(|_| length < VARIABLES_MAX)? = one;
        length += 1;
    }
    *room.get_mut(length)? = std::ptr::null();
    Some(room.as_ptr())
}

/// Whether it can be executed: no folder, which may have a program's name.
pub fn is_program(path: &CStr) -> bool {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: reads a text that ends, and fills a local.
    unsafe {
        libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::X_OK) == 0
            && libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), found.as_mut_ptr(), 0) == 0
            && found.assume_init().st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// A file that can be executed, opened to be looked at.
pub struct File(OwnedFd);

impl File {
    /// None: it is none, or may not be read.
    pub fn open(path: &CStr) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        if !is_program(path) {
            return None;
        }
        // SAFETY: reads a text that ends; a number that comes is new, and nobody else's.
        unsafe {
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
