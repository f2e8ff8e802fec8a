//! The limit of how large files may become (RLIMIT_FSIZE), which the kernel applies to shared memory, too. A user who sets it
//! means the files on a disk.

use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// The limit is the whole process's: one thread at a time raises it.
static TURN: Mutex<()> = Mutex::new(());

/// Does `work`, which makes a file in memory up to this large, or writes to it. The limit is raised meanwhile as far as this
/// process may raise it: to the hard limit, or beyond with CAP_SYS_RESOURCE. Where that is not enough, `work` hears so of the
/// kernel (EFBIG), and no signal ends the process.
///
/// # Errors
/// Those of `work`.
pub fn beyond_limit<T>(size_bytes: u64, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(limit) = limit().filter(|limit| limit.rlim_cur < size_bytes) else { return work() };
    let both = libc::rlimit { rlim_cur: size_bytes, rlim_max: limit.rlim_max.max(size_bytes) };
    let soft = libc::rlimit { rlim_cur: limit.rlim_max.min(size_bytes), ..limit };
    let is_raised = set(&both) || set(&soft);
    let signal = Blocked::new();
    let result = work();
    drop(signal);
    if is_raised {
        set(&limit);
    }
    result
}

fn limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    (result == 0).then_some(limit)
}

fn set(limit: &libc::rlimit) -> bool {
    // SAFETY: reads a local.
    unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, std::ptr::from_ref(limit)) == 0 }
}

/// As long as it is there, the signal by which the kernel says that a file would become too large does not end this process.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn new() -> Self {
        let set = too_large();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: reads a complete set and fills a local; zeroes are a set without signals.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let (set, now) = (too_large(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: reads complete sets and a local. A signal that has come is taken before it could be heard.
        unsafe {
            libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

/// SIGXFSZ alone.
fn too_large() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: fills a local, which is complete then.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}
