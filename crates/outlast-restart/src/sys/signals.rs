//! Signals: held back, waited for, and the actions of a process.

use super::process::Pid;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// The signals that a thread holds back.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// One that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) number: i32,
    /// Sent by another process. The kernel sends those of a terminal to all processes in its foreground; and this process
    /// has itself to thank for those like SIGPIPE.
    pub(crate) by_process: bool,
    /// Which one, if so.
    pub(crate) sender: Pid,
}

/// By which a process is told that its parent has ended: the last but two of the real-time signals.
pub(crate) fn for_end_of_parent() -> i32 {
    libc::SIGRTMAX() - 2
}

fn all() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the whole set and cannot fail.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Holds all signals back that can be. Gives what was held back before.
pub(crate) fn hold_all() -> io::Result<Mask> {
    let set = all();
    let mut before = MaybeUninit::uninit();
    // SAFETY: reads a complete set and fills the other one.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, before.as_mut_ptr()) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    // SAFETY: filled by the call that has not failed.
    Ok(Mask(unsafe { before.assume_init() }))
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl Mask {
    /// Has the program hold these back, and no others, when it begins.
    pub(crate) fn give_to(self, command: &mut Command) {
        // SAFETY: between fork and exec only a system call is made, with a copy of a plain value.
        unsafe { command.pre_exec(move || self.restore()) };
    }

    /// Holds these back, and no others.
    pub(crate) fn restore(&self) -> io::Result<()> {
        // SAFETY: reads a complete set.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
    }
}

fn arrived(number: i32, info: &libc::siginfo_t) -> Arrived {
    // SAFETY: what there is of a signal without a sender is zero or a number all the same.
    let sender = unsafe { info.si_pid() };
    Arrived { number, by_process: info.si_code <= 0 && sender != super::process::pid(), sender }
}

/// Sleeps until a signal arrives, all of which are held back.
pub(crate) fn wait() -> io::Result<Arrived> {
    let set = all();
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: reads a complete set, fills `info`.
    let number = unsafe { libc::sigwaitinfo(&raw const set, info.as_mut_ptr()) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroes are a siginfo_t, and the call has filled it.
    let info = unsafe { info.assume_init() };
    Ok(arrived(number, &info))
}

/// Whether it can be waited for signals at all: sandboxes may forbid the call. One that has arrived stays.
pub(crate) fn can_wait() -> io::Result<()> {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    let now = limit(Duration::ZERO);
    // SAFETY: empties a set and reads it, and a local; nothing is filled.
    let number = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigtimedwait(none.as_ptr(), std::ptr::null_mut(), &raw const now)
    };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES) if number < 0 => Err(error),
        _ => Ok(()),
    }
}

/// Whether this signal has arrived, and is held back.
pub(crate) fn is_pending(number: i32) -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: fills the whole set, which is only read if that has not failed.
    unsafe { libc::sigpending(set.as_mut_ptr()) == 0 && libc::sigismember(set.as_ptr(), number) == 1 }
}

/// Whether this process ignores the signal, as `nohup` has it.
pub(crate) fn is_ignored(number: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sets nothing, and fills `action`, of which zeroes are one.
    let action = unsafe {
        libc::sigaction(number, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// What [`wait_for`] has waited for.
pub(crate) enum Waited {
    Arrived(Arrived),
    /// The time is over, or the wait was interrupted.
    Nothing,
}

/// As [`wait`], for `time` at the most.
pub(crate) fn wait_for(time: Option<Duration>) -> Waited {
    let Some(time) = time else { return wait().map_or(Waited::Nothing, Waited::Arrived) };
    let set = all();
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let limit = limit(time);
    // SAFETY: reads a complete set and a local, fills `info`.
    let number = unsafe { libc::sigtimedwait(&raw const set, info.as_mut_ptr(), &raw const limit) };
    if number < 0 {
        return Waited::Nothing;
    }
    // SAFETY: zeroes are a siginfo_t, and the call has filled it.
    let info = unsafe { info.assume_init() };
    Waited::Arrived(arrived(number, &info))
}

fn limit(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Has `handler` called when the process ends by `exit`, or by returning from `main`.
pub(crate) fn at_exit(handler: extern "C" fn()) -> io::Result<()> {
    // SAFETY: a function without arguments that lives as long as the program.
    if unsafe { libc::atexit(handler) } == 0 {
        Ok(())
    } else {
        Err(io::Error::other("no room for an exit handler"))
    }
}
