//! Who the calling thread is, without a system call, and whether a thread is alive.

use super::process::field;
use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread, now and after its number was given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    /// Never 0, below 2^30.
    pub(crate) id: u32,
    /// When it was started, in ticks of the system (the lower bits); 0: not known, as there is no /proc.
    pub(crate) start: u32,
}

#[derive(Clone, Copy)]
struct Known {
    epoch: u64,
    thread: Thread,
}

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known { epoch: 0, thread: Thread { id: 0, start: 0 } }) };
}

/// A word that is 0 in each new process, however that was made. None: the kernel cannot do that.
static EPOCH: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// The calling thread.
#[inline]
pub(crate) fn this_thread() -> Thread {
    let known = KNOWN.get();
    match EPOCH.get() {
        Some(Some(epoch)) if known.epoch != 0 && epoch.load(Ordering::Relaxed) == known.epoch => known.thread,
        _ => look_up(),
    }
}

#[cold]
fn look_up() -> Thread {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let thread = Thread { id: super::process::thread_id().cast_unsigned(), start: start(&stat).unwrap_or(0) };
    if let Some(word) = EPOCH.get_or_init(|| word_wiped_on_fork().ok()) {
        // Any value that the parent has not had: time goes on.
        let _ = word.compare_exchange(0, now_ns() | 1, Ordering::Relaxed, Ordering::Relaxed);
        KNOWN.set(Known { epoch: word.load(Ordering::Relaxed), thread });
    }
    thread
}

/// Of /proc/PID/stat, behind the name.
const STATE: usize = 0;
const FLAGS: usize = 6;
const START: usize = 19;
/// Of include/linux/sched.h: `PF_EXITING`; `PF_POSTCOREDUMP` and `PF_DUMPCORE`, who waits for the dump of its process or
/// writes it, which takes seconds, and ends after that.
const ON_ITS_WAY_OUT: u32 = 0x4 | 0x8 | 0x200;

/// Whether a thread may run another instruction of its program. Zombies do not.
pub(crate) fn is_alive(thread: Thread) -> bool {
    // SAFETY: takes integers. Unlike `kill` it knows threads, and unlike /proc it hides nobody.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.id) };
    if policy < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
        return false;
    }
    let stat = match std::fs::read_to_string(format!("/proc/{}/stat", thread.id)) {
        Ok(stat) => stat,
        // Hidden, or there is no /proc; but if the call is forbidden, it is what is left to believe.
        Err(error) => return policy >= 0 || error.kind() != io::ErrorKind::NotFound,
    };
    let is_on_its_way_out = field::<char>(&stat, STATE).is_some_and(|state| matches!(state, 'Z' | 'X'))
        || field::<u32>(&stat, FLAGS).is_some_and(|flags| flags & ON_ITS_WAY_OUT != 0);
    let is_another = thread.start != 0 && start(&stat).is_some_and(|start| start != thread.start);
    !is_on_its_way_out && !is_another
}

fn start(stat: &str) -> Option<u32> {
    u32::try_from(field::<u64>(stat, START)? & u64::from(u32::MAX)).ok()
}

fn word_wiped_on_fork() -> io::Result<&'static AtomicU64> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let bytes = size_of::<AtomicU64>();
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is ours.
    if unsafe { libc::madvise(memory, bytes, libc::MADV_WIPEONFORK) } < 0 {
        let error = io::Error::last_os_error();
        // SAFETY: nobody else knows it.
        unsafe { libc::munmap(memory, bytes) };
        return Err(error);
    }
    let memory = NonNull::new(memory).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
    // SAFETY: aligned to a page, zeroes, never unmapped.
    Ok(unsafe { memory.cast::<AtomicU64>().as_ref() })
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_know_themselves_and_their_dead() {
        let mine = this_thread();
        assert_eq!(mine, this_thread());
        assert_eq!(mine.id, super::super::process::thread_id().cast_unsigned());
        assert!(is_alive(mine));
        // Its number with another beginning is somebody else.
        assert!(!is_alive(Thread { start: mine.start + 1, ..mine }));
        let other = std::thread::spawn(this_thread).join().unwrap();
        assert_ne!(mine.id, other.id);
        // It has told its result before it is gone.
        while is_alive(other) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_child_knows_that_it_is_not_its_parent() {
        let mine = this_thread();
        // SAFETY: the child only compares numbers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let differs = this_thread().id != mine.id
                && this_thread().id == super::super::process::thread_id().cast_unsigned();
            super::super::process::exit_now(i32::from(!differs));
        }
        let mut status = 0;
        // SAFETY: fills a local; the child is ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
