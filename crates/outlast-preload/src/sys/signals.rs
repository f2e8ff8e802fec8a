//! Signals that wait.

use std::ffi::c_int;

/// The calling thread's signals wait as long as this lives, but those that a fault of its own sends.
pub struct BlockedSignals {
    /// None: they are not blocked.
    before: Option<u64>,
}

impl BlockedSignals {
    /// From here on.
    pub fn new() -> Self {
        const FAULTS: [c_int; 6] =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        let all = FAULTS.iter().fold(u64::MAX, |all, fault| all & !(1 << (fault - 1)));
        let mut before = 0;
        let is_done = signal_mask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        Self { before: is_done.then_some(before) }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            signal_mask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
    }
}

/// As the kernel has it: the C library leaves out the signal by which it cancels threads.
fn signal_mask(how: c_int, mask: *const u64, before: *mut u64) -> bool {
    // SAFETY: the kernel reads and fills as much as is told, or says that it cannot.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, mask, before, size_of::<u64>()) == 0 }
}
