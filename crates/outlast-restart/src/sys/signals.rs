//! Signals: held back, waited for, and the actions of a process.

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

/// Sleeps for `time`, or until one of `numbers` arrives, all of which are held back.
pub(crate) fn wait_for_any(numbers: &[i32], time: Duration) -> Option<i32> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set; sigaddset changes it, if the number is one.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &number in numbers {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        set.assume_init()
    };
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: reads a complete set and a local; nothing is to be told about the signal.
    let number = unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const limit) };
    (number > 0).then_some(number)
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
