//! Making, awaiting and looking at processes.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU32;

/// A process of the kernel.
pub(crate) type Pid = libc::pid_t;

/// The calling process.
pub(crate) fn pid() -> Pid {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getpid() }
}

/// The calling thread.
pub(crate) fn thread_id() -> Pid {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() }
}

/// The parent, or who has adopted the calling process when that ended.
pub(crate) fn parent() -> Pid {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getppid() }
}

/// Which side of a [`split`] this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Parent(Pid),
    Child,
}

/// Splits the process in two that share the table of descriptors, and nothing else: what either opens or closes, the
/// other has opened or closed.
///
/// `thread_word` is where the C library keeps the calling thread's id, if that is known: the child's is put there.
///
/// The process has one thread, as the caller has seen. It is not looked up here: that would take a descriptor, and the
/// table belongs to the generation that serves.
///
/// # Errors
/// The system has no more processes for us.
pub(crate) fn split(thread_word: Option<&AtomicU32>) -> io::Result<Side> {
    let mut flags = libc::CLONE_FILES | libc::SIGCHLD;
    let word = match thread_word {
        Some(word) => {
            flags |= libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
            word.as_ptr()
        }
        None => std::ptr::null_mut(),
    };
    let nowhere = std::ptr::null_mut::<u32>();
    // SAFETY: without CLONE_VM the child has memory and stack of its own, as after fork(2). This process has one thread, so
    // that no lock is held by a thread that the child does not have. The word belongs to the C library's thread block,
    // which the child has a copy of, for as long as its thread lives.
    #[cfg(target_arch = "x86_64")]
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, nowhere, word, 0) };
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above, in the order of arguments of other architectures.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, nowhere, 0, word) };
    match Pid::try_from(pid) {
        Ok(0) => Ok(Side::Child),
        Ok(pid) if pid > 0 => Ok(Side::Parent(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) pid: Pid,
    /// As `waitpid` has it.
    pub(crate) status: i32,
}

/// A child that has ended, if there is one: it is not waited for.
pub(crate) fn reap() -> Option<Ended> {
    let mut status = 0;
    // SAFETY: `status` is a local integer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some(Ended { pid, status })
}

/// Sends a signal.
pub(crate) fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes integers. Only ever called for our own children that were not reaped.
    if unsafe { libc::kill(pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ends the process at once, without any of its handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// How many threads a process has.
pub(crate) fn thread_count(pid: Pid) -> io::Result<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    field(&stat, 17).ok_or_else(|| io::Error::other("unexpected content of /proc/PID/stat"))
}

/// Whether no thread of a process can run a program's instruction any more: all are on their way out, or gone. Its first
/// thread is.
pub(crate) fn is_dead(pid: Pid) -> bool {
    let tasks = format!("/proc/{pid}/task");
    // Two links and one for each thread: a tenth of the time of looking at them.
    if std::fs::metadata(&tasks).is_ok_and(|tasks| tasks.nlink() == 3) {
        return true;
    }
    let Ok(tasks) = std::fs::read_dir(tasks) else { return true };
    tasks.flatten().all(|task| {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { return true };
        // PF_EXITING of include/linux/sched.h.
        field::<u32>(&stat, 6).is_none_or(|flags| flags & 4 != 0)
    })
}

/// The field of /proc/PID/stat so many behind the name, which may itself contain anything (proc_pid_stat(5)).
fn field<T: std::str::FromStr>(stat: &str, behind_name: usize) -> Option<T> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(behind_name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_behind_the_name_are_found_whatever_the_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 64 6 7 8 9 10 11 12 13 20 0 3 0";
        assert_eq!((field(stat, 0), field::<u32>(stat, 6)), (Some('S'), Some(64)));
        assert_eq!(field::<u32>(stat, 17), Some(3));
    }

    #[test]
    fn this_process_is_alive_and_counts_its_threads() {
        let before = thread_count(pid()).unwrap();
        std::thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || wait.recv());
            assert!(thread_count(pid()).unwrap() > before.min(2) - 1);
            assert!(!is_dead(pid()));
            drop(done);
        });
        assert!(is_dead(Pid::MAX));
    }
}
