//! Signals, as the [keeper](crate::keeper) gets and passes them on.

use crate::sys::Pid;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// By which a server is told to end.
pub const STOP: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT];

/// Those that a process holds back.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

/// One that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Which.
    pub number: c_int,
    /// Not by the kernel, which sends those of a terminal to all processes in its foreground.
    pub by_process: bool,
    /// Who sent it.
    pub pid: Pid,
    /// What was sent along by [`tell`].
    pub value: usize,
}

fn all() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: initialises the whole set and cannot fail.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Holds all signals back that can be.
pub fn hold_all() -> io::Result<Mask> {
    let (set, mut before) = (all(), MaybeUninit::uninit());
    // SAFETY: reads a complete set and fills the other one.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, before.as_mut_ptr()) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    // SAFETY: filled by the call that has not failed.
    Ok(Mask(unsafe { before.assume_init() }))
}

impl Mask {
    /// Holds these back, and no others.
    pub fn restore(self) -> io::Result<()> {
        // SAFETY: reads a complete set.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
    }
}

/// What this process had set for the ends of its children.
#[derive(Clone, Copy)]
pub struct Children(libc::sighandler_t);

impl Children {
    /// From here on they are told, and wait to be buried: whoever has started this process may have ignored them.
    pub fn watch() -> Self {
        // SAFETY: no handler.
        Self(unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) })
    }

    /// As before.
    pub fn restore(self) {
        // SAFETY: what was set before; before the program begins there are no handlers.
        unsafe { libc::signal(libc::SIGCHLD, self.0) };
    }
}

/// Sleeps until one arrives, all of which are held back, or for `time`.
pub fn wait(time: Option<Duration>) -> Option<Arrived> {
    let set = all();
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let limit = time.map(|time| libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: reads a complete set and a local, or nothing; fills `info`.
    let number = unsafe { libc::sigtimedwait(&raw const set, info.as_mut_ptr(), limit) };
    if number <= 0 {
        return None;
    }
    // SAFETY: zeroes are a siginfo_t, and the call has filled it.
    let info = unsafe { info.assume_init() };
    // SAFETY: the fields are there for signals that were sent; for others they are numbers that nobody asks for.
    let (pid, value) = unsafe { (info.si_pid(), info.si_value().sival_ptr as usize) };
    Some(Arrived { number, by_process: info.si_code <= 0, pid, value })
}

/// Sends one.
pub fn send(pid: Pid, signal: c_int) -> io::Result<()> {
    // SAFETY: integers; called for a child that was not buried.
    if unsafe { libc::kill(pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Says something to the keeper of this process.
pub fn tell(pid: Pid, value: usize) {
    let value = libc::sigval { sival_ptr: value as *mut c_void };
    // SAFETY: integers. If there is no such process any more, there is nobody to tell.
    unsafe { libc::sigqueue(pid, outlast_restart::supervisor::upgrade_signal(), value) };
}

/// This process is killed when `parent` ends. False if it has ended already.
pub fn die_with_parent(parent: Pid) -> bool {
    // SAFETY: integers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    crate::sys::parent() == parent
}

/// Ends this process by a signal, without a core dump. Returns if that does not end it.
pub fn die_by(signal: c_int) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads locals and numbers; the set is filled before it is used.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}
