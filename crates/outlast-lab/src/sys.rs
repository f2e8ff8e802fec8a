//! Every unsafe line of the lab: thin, checked wrappers over system calls.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Moves the calling thread into the network namespace `namespace`.
pub(crate) fn enter_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: setns reads a descriptor that the borrow keeps open; it affects the calling thread only.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Gives the calling thread a new, empty network namespace.
pub(crate) fn new_network_namespace() -> io::Result<()> {
    // SAFETY: unshare takes flags only; CLONE_NEWNET concerns the calling thread alone.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

fn mount(source: &CStr, target: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    let (kind, data) = (c"none", std::ptr::null());
    // SAFETY: the three strings are NUL-terminated and outlive the call; data may be null.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data) }).map(drop)
}

/// Binds the file or directory `source` over `target`.
pub(crate) fn mount_bind(source: &CStr, target: &CStr) -> io::Result<()> {
    mount(source, target, libc::MS_BIND)
}

/// Binds the directory `source` over `target` with everything mounted below it.
pub(crate) fn mount_bind_recursive(source: &CStr, target: &CStr) -> io::Result<()> {
    mount(source, target, libc::MS_BIND | libc::MS_REC)
}

/// Lets mounts below `target` be seen in every mount namespace.
pub(crate) fn mount_shared(target: &CStr) -> io::Result<()> {
    mount(c"none", target, libc::MS_SHARED | libc::MS_REC)
}

/// Takes the mount at `target` away, at once, even when in use.
pub(crate) fn unmount(target: &CStr) -> io::Result<()> {
    // SAFETY: the string is NUL-terminated and outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }).map(drop)
}

fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: every caller passes a descriptor that a system call has just returned and nobody else holds.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Opens a TUN device called `name` in the calling thread's network namespace: packets without a header, no waiting.
pub(crate) fn open_tun(name: &str) -> io::Result<File> {
    let path = c"/dev/net/tun";
    // SAFETY: the path is NUL-terminated; open takes no other pointer.
    let fd = check(unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) })?;
    let tun = own(fd);
    // SAFETY: all-zero bytes are a valid ifreq (integers and character arrays).
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = libc::c_char::from_ne_bytes([byte]);
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).unwrap_or(libc::c_short::MAX);
    // SAFETY: TUNSETIFF reads and writes one ifreq, which outlives the call.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(File::from(tun))
}

/// A descriptor that wakes a poller when written to.
pub(crate) fn eventfd() -> io::Result<File> {
    // SAFETY: eventfd takes integers only.
    Ok(File::from(own(check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?)))
}

/// Waits until one of `fds` can be read, or `wait` has passed. Says which are ready (readable or broken).
pub(crate) fn poll_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    wait: Duration,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let wait = libc::timespec {
        tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(wait.subsec_nanos()),
    };
    let count = libc::nfds_t::try_from(N).unwrap_or(0);
    // SAFETY: the array holds exactly `count` entries and outlives the call, as does the time-out; no signal mask.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), count, &raw const wait, std::ptr::null()) };
    match check(ready) {
        Ok(_) => Ok(polled.map(|p| p.revents != 0)),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
        Err(e) => Err(e),
    }
}

/// Lets the calling thread's timers fire to the microsecond instead of the usual 50.
pub(crate) fn exact_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes an integer and concerns the calling thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}

/// Sends `signal` to the process `pid`, or to the process group when `pid` is negative.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // 0 is the caller's own group, -1 everybody, and 1 the machine's first process.
    if (-1..2).contains(&pid) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: kill takes integers only.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// How the child `pid` ended, leaving it as a zombie so that its number cannot be taken by another process.
/// `None` when it still runs and `block` is false.
pub(crate) fn wait_without_reaping(pid: u32, block: bool) -> io::Result<Option<ExitStatus>> {
    let flags = libc::WEXITED | libc::WNOWAIT | if block { 0 } else { libc::WNOHANG };
    // SAFETY: all-zero bytes are a valid siginfo_t, and mean "nothing happened" when WNOHANG leaves it untouched.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: waitid writes one siginfo_t, which outlives the call.
        match check(unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, flags) }) {
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    // SAFETY: waitid succeeded, so the SIGCHLD members are the valid ones.
    let (child, status) = unsafe { (info.si_pid(), info.si_status()) };
    if child == 0 {
        return Ok(None);
    }
    let raw = match info.si_code {
        libc::CLD_EXITED => (status & 0xff) << 8,
        libc::CLD_DUMPED => status | 0x80,
        _ => status,
    };
    Ok(Some(ExitStatus::from_raw(raw)))
}

/// What a child does between fork and exec to become a program of a host.
pub(crate) struct ChildSetup {
    /// The host's network namespace.
    pub(crate) namespace: OwnedFd,
    /// The file that becomes `/etc/hosts`.
    pub(crate) hosts_file: std::ffi::CString,
}

/// Makes `command` start in a host: its network namespace, its `/etc/hosts`, no blocked signals, and killed
/// when the thread that started it ends.
pub(crate) fn prepare_child(command: &mut Command, setup: ChildSetup) {
    let parent = std::process::id();
    let setup = move || {
        // SAFETY: prctl with PR_SET_PDEATHSIG and getppid take and return integers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) })?;
        // SAFETY: getppid takes nothing and cannot fail.
        if u32::try_from(unsafe { libc::getppid() }) != Ok(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH)); // the parent is gone already
        }
        unblock_signals()?;
        // SAFETY: setns reads a descriptor that the closure owns.
        check(unsafe { libc::setns(setup.namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
        // SAFETY: unshare takes flags only; the child has one thread.
        check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        mount(c"none", c"/", libc::MS_SLAVE | libc::MS_REC)?;
        mount_bind(&setup.hosts_file, c"/etc/hosts")
    };
    // SAFETY: the closure makes system calls only: it allocates nothing, takes no lock and cannot unwind.
    unsafe { command.pre_exec(setup) };
}

fn unblock_signals() -> io::Result<()> {
    let set = signal_set(&[]);
    // SAFETY: the set is initialised and outlives the call; the old set is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid sigset_t, which sigemptyset then initialises.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigemptyset(&raw mut set) };
    for &signal in signals {
        // SAFETY: the set is initialised and outlives the call; a wrong number is refused, not undefined.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// A file that becomes readable when one of `signals` arrives; they no longer end the process.
/// Call before other threads start: they inherit the mask.
#[cfg(feature = "cli")]
pub(crate) fn signal_file(signals: &[i32]) -> io::Result<File> {
    let set = signal_set(signals);
    // SAFETY: the set is initialised and outlives the call; the old set is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => {}
        errno => return Err(io::Error::from_raw_os_error(errno)),
    }
    // SAFETY: the set is initialised and outlives the call; -1 asks for a new descriptor.
    let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
    Ok(File::from(own(fd)))
}

/// A descriptor for the process `pid` that becomes readable when it ends.
#[cfg(feature = "cli")]
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes integers and returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    Ok(own(check(RawFd::try_from(fd).unwrap_or(-1))?))
}
