//! Regions in tests, and processes that die with them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tests of one process run at the same time: each region has a place of its own.
#[derive(Clone, Copy)]
pub struct Area(usize);

static AREAS: AtomicUsize = AtomicUsize::new(1);

impl Area {
    pub fn new() -> Self {
        Self(AREAS.fetch_add(1, Ordering::Relaxed))
    }

    pub fn address(self) -> usize {
        outlast_restart::state::DEFAULT_ADDRESS + (self.0 << 32)
    }
}

/// Removed with all that is in it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("outlast-{}-{}", std::process::id(), Area::new().0));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `work` in a child, which ends then.
pub fn child(work: impl FnOnce()) -> i32 {
    // SAFETY: the tests' threads hold no lock that `work` needs but the allocator's, which the C library takes care of.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: does not return.
        unsafe { libc::_exit(if done.is_ok() { 0 } else { 101 }) };
    }
    pid
}

/// Waits for a child, and tells its status.
pub fn ends(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: fills a local; the child is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

pub fn kill(pid: i32) {
    // SAFETY: takes integers; the child is ours and was not waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

/// Not even a zombie.
pub fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}
