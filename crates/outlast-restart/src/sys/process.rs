//! Making, awaiting and looking at processes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

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

/// The calling process gets no signal any more when its parent dies.
pub(crate) fn outlive_parent() -> io::Result<()> {
    // SAFETY: takes integers, and changes an attribute of this process.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
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

/// Splits the process in two that share nothing: each has a table of descriptors of its own from here on.
///
/// # Errors
/// The system has no more processes for us.
pub(crate) fn fork() -> io::Result<Side> {
    // SAFETY: this process has one thread, as the caller has seen, so that no lock is held by one that the child has not.
    match unsafe { libc::fork() } {
        0 => Ok(Side::Child),
        pid if pid > 0 => Ok(Side::Parent(pid)),
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

/// A child that has ended and is not [buried](bury), if there is one: it is not waited for.
pub(crate) fn ended() -> Option<Ended> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: fills `info`, which is zeroes if there is none.
    let info = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) < 0 {
            return match io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOSYS | libc::EPERM | libc::EACCES) => ended_and_buried(),
                _ => None,
            };
        }
        info.assume_init()
    };
    // SAFETY: what there is of a child that has ended, or zeroes.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let dumped = if info.si_code == libc::CLD_DUMPED { 0x80 } else { 0 };
    let status = if info.si_code == libc::CLD_EXITED { (status & 0xff) << 8 } else { status | dumped };
    (pid > 0).then_some(Ended { pid, status })
}

/// As [`ended`], where a sandbox forbids to ask without burying.
fn ended_and_buried() -> Option<Ended> {
    let mut status = 0;
    // SAFETY: fills a local integer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some(Ended { pid, status })
}

/// Releases what is left of a child, if it has ended. That may take the kernel long: whatever is known of it in /proc goes.
/// Gives its status, as `waitpid` has it.
pub(crate) fn bury(pid: Pid) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is a local integer.
    (unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid).then_some(status)
}

/// [Buries](bury) a child that has ended, if there is one.
pub(crate) fn reap() -> Option<Ended> {
    let ended = ended()?;
    bury(ended.pid);
    Some(ended)
}

/// Waits for the end of a child, and buries it. Gives its status, as `waitpid` has it.
pub(crate) fn await_end(pid: Pid) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is a local integer.
    (unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid).then_some(status)
}

/// Sends a signal to one process. Numbers may come from memory that others write: what stands for a group (0, below 0), for
/// everybody (-1) or for the machine's first process is refused. That one is only signalled by itself, or told to look
/// around (SIGCHLD): in a container it may be a supervisor.
pub(crate) fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    let first = pid == 1 && (signal == libc::SIGCHLD || self::pid() == 1);
    if pid < 2 && !first {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: kill takes integers.
    if unsafe { libc::kill(pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A process that is known, and stays so: its number may be somebody else's when it has ended, this is not.
pub(crate) fn open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: integers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(descriptor) {
        // SAFETY: new, and nobody else's.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A process that was [opened](open), and the number that it has as long as it lives.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) pid: Pid,
    pub(crate) process: Arc<OwnedFd>,
}

impl Known {
    /// What is to be found out of a process by its number is to be asked after this: then it is the one that was opened, or
    /// that has ended, and nothing is done to whoever has its number next.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        Ok(Self { pid, process: Arc::new(open(pid)?) })
    }
}

/// The namespace of this kind (`pid`, `net`) that a process is in, or `self`: namespaces(7). None where that cannot be seen.
pub(crate) fn namespace(process: impl std::fmt::Display, kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/{kind}")).ok()
}

/// The number of the PID namespace that this process is in. Empty where that cannot be seen.
pub(crate) fn world() -> String {
    let namespace = namespace("self", "pid").unwrap_or_default();
    namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

/// Sends a signal to a process that was [opened](open).
pub(crate) fn signal(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let nothing = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: integers, and no details of the signal.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, nothing, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ends the process at once, without any of its handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Whether a file can be executed by this process.
pub(crate) fn can_execute(path: &std::path::Path) -> io::Result<()> {
    let path = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))?;
    // SAFETY: reads a string that ends.
    if unsafe { libc::access(path.as_ptr(), libc::X_OK) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Becomes another program. Returns why it cannot.
pub(crate) fn execute(
    path: &std::ffi::CStr,
    arguments: &[std::ffi::CString],
    environment: &[std::ffi::CString],
) -> io::Error {
    let list = |strings: &[std::ffi::CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (list(arguments), list(environment));
    // SAFETY: lists of strings that end, which end with a null, and live.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Takes a variable out of the environment. To be called while there is one thread.
pub(crate) fn remove_variable(name: &str) {
    // SAFETY: nobody else looks at the environment meanwhile, as there is nobody else.
    unsafe { std::env::remove_var(name) };
}

/// Whether another process uses the same table of descriptors (kcmp(2)). Where that cannot be asked: not, after a moment.
pub(crate) fn shares_table_with(pid: Pid) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: numbers.
    match unsafe { libc::syscall(libc::SYS_kcmp, pid, self::pid(), KCMP_FILES, 0, 0) } {
        0 => true,
        -1 => {
            std::thread::sleep(std::time::Duration::from_millis(50));
            false
        }
        _ => false,
    }
}

/// Whether the calling process has one thread, which is the caller. To be called from a signal handler, too.
pub(crate) fn is_alone() -> bool {
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a constant path, fills `status`.
    let result = unsafe { libc::stat(c"/proc/self/task".as_ptr(), status.as_mut_ptr()) };
    // Two links and one for each thread.
    // SAFETY: integers, zeroed before and filled by the kernel.
    result == 0 && unsafe { status.assume_init() }.st_nlink == 3
}

/// Whether this process has never started a thread, as the GNU C library knows (`__libc_single_threaded`): that takes no
/// system call. False where it cannot tell.
pub(crate) fn is_alone_for_sure() -> bool {
    let alone = ALONE.load(Ordering::Relaxed);
    // SAFETY: a byte of the C library, which stays.
    !alone.is_null() && unsafe { alone.read_volatile() } != 0
}

/// Where the C library says so.
static ALONE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// For [`is_alone_for_sure`], which a signal handler calls.
pub(crate) fn look_for_alone() {
    // SAFETY: a name that ends; gives an address, or null.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    ALONE.store(place.cast(), Ordering::Relaxed);
}

/// How many threads a process has.
pub(crate) fn thread_count(pid: Pid) -> io::Result<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    field(&stat, 17).ok_or_else(|| io::Error::other("unexpected content of /proc/PID/stat"))
}

/// Whether no thread of a process can run a program's instruction any more: all are on their way out, or gone. Its first
/// thread is.
pub(crate) fn is_dead(pid: Pid) -> bool {
    all_threads(pid, is_exiting)
}

/// The same, or will be as soon as the kernel has done what it does for them: one may wait there for a disk.
pub(crate) fn is_killed(pid: Pid) -> bool {
    // Pending for this thread, as for each of a process that ends. (Of real-time signals nothing is told here.)
    let is_killed =
        |stat: &str| field::<u64>(stat, 28).is_some_and(|pending| pending & (1 << (libc::SIGKILL - 1)) != 0);
    all_threads(pid, |stat| is_exiting(stat) || is_killed(stat))
}

/// Whether this is so of each thread's `stat`, but for the first one if there is no other.
fn all_threads(pid: Pid, is_so: impl Fn(&str) -> bool) -> bool {
    let tasks = format!("/proc/{pid}/task");
    match std::fs::metadata(&tasks) {
        // Two links and one for each thread: a tenth of the time of looking at them.
        Ok(tasks) if tasks.nlink() == 3 => return true,
        Err(error) if is_gone(&error) => return true,
        _ => {}
    }
    // Without a descriptor to look with it is not known: until one thread is left, which is seen above.
    let tasks = match std::fs::read_dir(tasks) {
        Ok(tasks) => tasks,
        Err(error) => return is_gone(&error),
    };
    let mut stats = tasks.map(|task| std::fs::read_to_string(task?.path().join("stat")));
    stats.all(|stat| match stat {
        Ok(stat) => is_so(&stat),
        Err(error) => is_gone(&error),
    })
}

/// Whether a thread is on its way out, as its `stat` tells.
fn is_exiting(stat: &str) -> bool {
    // Of include/linux/sched.h.
    const PF_EXITING: u32 = 4;
    field::<u32>(stat, 6).is_none_or(|flags| flags & PF_EXITING != 0)
}

/// How many threads of a process are not on their way out.
pub(crate) fn living_thread_count(pid: Pid) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats.filter(|stat| !is_exiting(stat)).count()
}

/// Whether that is why something of a process cannot be read.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Whether a process has no memory any more: it is gone, or nothing but buried. Its first thread may be dead for long.
pub(crate) fn has_ended(pid: Pid) -> bool {
    let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if is_gone(&error) => return true,
        // Without a descriptor to look with: one thread, which has no program any more.
        Err(_) => {
            let tasks = std::fs::metadata(format!("/proc/{pid}/task"));
            let alone = tasks.map_or(true, |tasks| tasks.nlink() == 3);
            return alone && std::fs::read_link(format!("/proc/{pid}/exe")).is_err();
        }
    };
    field(&stat, 0) == Some('Z') && field::<u32>(&stat, 17).is_none_or(|threads| threads <= 1)
}

/// The field of /proc/PID/stat so many behind the name, which may itself contain anything (proc_pid_stat(5)).
pub(crate) fn field<T: std::str::FromStr>(stat: &str, behind_name: usize) -> Option<T> {
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

    /// With no signal at all, so that a fault harms nobody.
    #[test]
    fn no_number_reaches_a_group_everybody_or_the_first_process() {
        for pid in [0, -1, 1, -pid(), Pid::MIN] {
            assert_eq!(kill(pid, 0).unwrap_err().raw_os_error(), Some(libc::ESRCH), "{pid}");
        }
        kill(pid(), 0).unwrap();
        assert!(open(0).is_err() && open(-1).is_err());
        signal(std::os::fd::AsFd::as_fd(&open(pid()).unwrap()), 0).unwrap();
    }

    #[test]
    fn this_process_is_alive_and_counts_its_threads() {
        let before = thread_count(pid()).unwrap();
        std::thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || wait.recv());
            assert!(thread_count(pid()).unwrap() > before.min(2) - 1);
            assert!(!is_dead(pid()));
            assert!(living_thread_count(pid()) >= 2);
            drop(done);
        });
        assert!(is_dead(Pid::MAX));
    }
}
