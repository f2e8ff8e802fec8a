//! Signals: held back, waited for, and the actions of a process.

use std::io;
use std::mem::MaybeUninit;

/// The signals that a thread holds back.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// One that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) number: i32,
    /// Sent by a process. The kernel sends those of a terminal to all processes in its foreground.
    pub(crate) by_process: bool,
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

impl Mask {
    /// Holds these back, and no others.
    pub(crate) fn restore(&self) -> io::Result<()> {
        // SAFETY: reads a complete set.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
    }
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
    Ok(Arrived { number, by_process: info.si_code <= 0 })
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
