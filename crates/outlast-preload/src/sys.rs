//! The system calls that the rest needs. None of them changes `errno` behind the program's back: see [`Errno`].

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A process of the kernel.
pub type Pid = libc::pid_t;

/// Puts `errno` back when it is dropped.
pub struct Errno(c_int);

impl Errno {
    /// As it is now.
    pub fn keep() -> Self {
        // SAFETY: the calling thread's own integer.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

/// What the program is told.
pub fn set_errno(value: c_int) {
    // SAFETY: the calling thread's own integer.
    unsafe { *libc::__errno_location() = value };
}

/// The C library's function that a hook stands before. Found once.
pub struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    /// By its name.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, at: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Where it is. None: this C library has no such function.
    pub fn get(&self) -> Option<NonNull<c_void>> {
        if let Some(known) = NonNull::new(self.at.load(Ordering::Relaxed)) {
            return Some(known);
        }
        // SAFETY: reads a string that ends.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Ordering::Relaxed);
        NonNull::new(found)
    }
}

/// Memory of zeroes that is shared with the processes that are made from now on. It is never unmapped, and takes room
/// only where it is used.
pub fn share(size: usize) -> io::Result<NonNull<c_void>> {
    let (protection, nowhere) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let memory = unsafe { libc::mmap(nowhere, size, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(memory).ok_or_else(|| io::Error::other("a mapping at address 0"))
}

/// The calling process.
pub fn pid() -> Pid {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getpid() }
}

/// The parent of the calling process.
pub fn parent() -> Pid {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getppid() }
}

/// Whether there is a process of this number, whoever's it is.
pub fn exists(pid: Pid) -> bool {
    // SAFETY: integers; no signal is sent.
    let found = unsafe { libc::syscall(libc::SYS_kill, pid, 0) } == 0;
    found || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Nanoseconds of the monotonic clock.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// What a descriptor shares with its duplicates alone. None if it is not open.
pub fn inode(descriptor: RawFd) -> Option<u64> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fills `status`.
    if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } < 0 {
        return None;
    }
    // SAFETY: integers, zeroed before and filled by the kernel.
    Some(unsafe { status.assume_init() }.st_ino)
}

/// How many bytes were read from and written to a TCP socket, by the kernel's counters.
pub fn positions(descriptor: RawFd) -> Option<(u64, u64)> {
    if option(descriptor, libc::SO_PROTOCOL) != Some(libc::IPPROTO_TCP) {
        return None;
    }
    // SAFETY: open, as was just seen, and borrowed for this call.
    outlast_restart::parts::positions(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok()
}

/// An option of a socket. None if it is no socket.
pub fn option(descriptor: RawFd, name: c_int) -> Option<c_int> {
    let mut value = 0;
    let mut length = libc::socklen_t::try_from(size_of::<c_int>()).ok()?;
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    (result == 0).then_some(value)
}

/// Whether it is a stream socket that listens.
pub fn is_listener(descriptor: RawFd) -> bool {
    option(descriptor, libc::SO_ACCEPTCONN) == Some(1)
}

/// Closes it. `abort`: the peer is told that what it waits for does not come, also where it has got a part of it.
pub fn close(descriptor: RawFd, abort: bool) {
    if abort {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let length = libc::socklen_t::try_from(size_of::<libc::linger>()).unwrap_or(0);
        // SAFETY: reads a local of the length that is told.
        unsafe {
            libc::setsockopt(
                descriptor,
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                length,
            )
        };
    }
    // SAFETY: a number; called for descriptors of dead processes, or of a number that this crate has made.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

/// Another number for it, not less than `least`; the old one is closed. It is not inherited by programs.
pub fn move_to(descriptor: RawFd, least: RawFd) -> Option<RawFd> {
    // SAFETY: numbers alone.
    let moved = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, least) };
    if moved < 0 {
        return None;
    }
    close(descriptor, false);
    Some(moved)
}

/// Makes `to` another number of `from`.
pub fn duplicate_onto(from: RawFd, to: RawFd, flags: c_int) -> bool {
    // SAFETY: numbers alone.
    unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) >= 0 }
}

/// Whether programs inherit it.
pub fn set_inherited(descriptor: RawFd, inherited: bool) {
    // SAFETY: numbers alone.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, if inherited { 0 } else { libc::FD_CLOEXEC }) };
}

/// Whether programs inherit it: `FD_CLOEXEC`, or nothing.
pub fn inheritance_flags(descriptor: RawFd) -> c_int {
    // SAFETY: a number alone.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) }
}

/// Whether calls on it return instead of waiting.
pub fn status_flags(descriptor: RawFd) -> c_int {
    // SAFETY: a number alone.
    unsafe { libc::fcntl(descriptor, libc::F_GETFL) }
}

/// As [`status_flags`] tells them.
pub fn set_status_flags(descriptor: RawFd, flags: c_int) {
    // SAFETY: numbers alone.
    unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags) };
}

/// How many descriptors this process may have, and how many it can allow itself.
pub fn descriptors_limits() -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

/// Allows this process, and those made from now on, so many descriptors.
pub fn limit_descriptors(count: u64) -> bool {
    let limit = libc::rlimit { rlim_cur: count, rlim_max: descriptors_limits().1 };
    // SAFETY: reads a local.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 }
}

/// Whether there is anything to read or accept, now.
pub fn is_readable(descriptor: RawFd) -> bool {
    let mut asked = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one local entry, and a local.
    let found = unsafe { libc::syscall(libc::SYS_ppoll, &raw mut asked, 1, &raw const now, 0, 0) };
    found > 0
}

/// `epoll` is no longer to report it.
pub fn leave_epoll(epoll: RawFd, descriptor: RawFd) -> bool {
    let nothing = std::ptr::null_mut::<c_void>();
    // SAFETY: numbers; nothing is read for this operation.
    unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, descriptor, nothing) == 0 }
}

/// Says one line to people, on the standard error output.
pub fn say(what: &str) {
    let line = format!("outlast: {what}\n");
    // SAFETY: reads the bytes of a string. Nothing follows from a failure.
    unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len()) };
}

/// A child that has ended, and how; none is waited for.
pub fn reap() -> Option<(Pid, c_int)> {
    let mut status = 0;
    // SAFETY: fills a local integer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Ends the process at once, without any of its handlers.
pub fn exit_now(code: c_int) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Closes all descriptors from a number on.
pub fn close_from(first: RawFd) {
    // SAFETY: numbers alone; called where nothing in this process stands for them.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } == 0;
    if !done {
        // A kernel before 5.9, or a sandbox, does not have it.
        let open = outlast_restart::parts::descriptors().unwrap_or_default();
        open.into_iter().filter(|&number| number >= first).for_each(|number| close(number, false));
    }
}

/// What this thread is called.
pub fn name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: fills 16 bytes at the most.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// What a process is called.
pub fn name_of(pid: Pid) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// What this thread is to be called, up to a zero.
pub fn set_name(name: &[u8; 16]) {
    // SAFETY: reads up to 16 bytes, of which the last is a zero as it came from the kernel.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// As [`set_name`].
pub fn set_name_to(name: &CStr) {
    // SAFETY: reads a string that ends.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// A descriptor that stands for a file, and cannot be read.
pub fn open_path(path: &CStr) -> Option<RawFd> {
    // SAFETY: reads a string that ends.
    let number = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    (number >= 0).then_some(number)
}

/// Whether the program at `path` may be executed.
pub fn can_execute(path: &CStr) -> io::Result<()> {
    // SAFETY: reads a string that ends.
    if unsafe { libc::access(path.as_ptr(), libc::X_OK) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Executes the program at `path`, or that of an open file. Returns only if that fails. Both lists end with a null.
pub fn execute(
    file: Option<RawFd>,
    path: &CStr,
    arguments: &[*const std::ffi::c_char],
    variables: &[*const std::ffi::c_char],
) {
    let flags = if file.is_some() { libc::AT_EMPTY_PATH } else { 0 };
    let (arguments, variables) = (arguments.as_ptr(), variables.as_ptr());
    let folder = file.unwrap_or(libc::AT_FDCWD);
    // SAFETY: a string and two lists of strings that all end, which the caller holds.
    unsafe { libc::syscall(libc::SYS_execveat, folder, path.as_ptr(), arguments, variables, flags) };
}

/// The epoll instances of this process.
pub fn epoll_instances() -> Vec<RawFd> {
    let is_instance = |number: &RawFd| {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
        link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventpoll]")
    };
    let all = outlast_restart::parts::descriptors().unwrap_or_default();
    all.into_iter().filter(is_instance).collect()
}

/// `epoll` is to report it again.
pub fn enter_epoll(epoll: RawFd, descriptor: RawFd, events: u32, data: u64) {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: numbers, and a local that is read.
    unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, descriptor, &raw mut event) };
}

/// The number stands for a socket without any use.
pub fn replace_by_nothing(descriptor: RawFd) {
    // SAFETY: numbers alone.
    let nothing =
        unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if let Ok(nothing) = RawFd::try_from(nothing)
        && nothing >= 0
        && nothing != descriptor
    {
        duplicate_onto(nothing, descriptor, libc::O_CLOEXEC);
        close(nothing, false);
    }
}

/// Another number for it, as low as possible; the old one is closed.
pub fn lowest(descriptor: RawFd, closes: bool) -> Option<RawFd> {
    let command = if closes { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: numbers alone.
    let number = unsafe { libc::fcntl(descriptor, command, 0) };
    if number < 0 {
        set_inherited(descriptor, !closes);
        return None;
    }
    close(descriptor, false);
    Some(number)
}

/// Who is connected, as `accept` tells it.
pub fn peer(descriptor: RawFd, address: *mut libc::sockaddr, length: *mut libc::socklen_t) {
    // SAFETY: as much room as the program has given to `accept`.
    unsafe { libc::getpeername(descriptor, address, length) };
}

/// Lets a short time pass.
pub fn pause() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    // SAFETY: reads a local.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

/// Has `before` called whenever the program forks, and `in_child` in every child that comes of it.
pub fn on_fork(before: extern "C" fn(), in_child: extern "C" fn()) -> io::Result<()> {
    // SAFETY: functions without arguments that stay as long as the program.
    let failed = unsafe { libc::pthread_atfork(Some(before), None, Some(in_child)) };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}
