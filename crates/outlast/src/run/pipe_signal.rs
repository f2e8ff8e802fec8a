//! What SIGPIPE did when this process began.
//!
//! Rust's runtime ignores it before `main`, and `Command` gives programs the default action. A program below `outlast run` has
//! what it would have without: service managers have their services ignore it.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn note() {
    // SAFETY: asks, and fills a local value, for which zeroes are one.
    let handler = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut action);
        action.sa_sigaction
    };
    WAS_IGNORED.store(handler == libc::SIG_IGN, Ordering::Relaxed);
}

// SAFETY: what is in this section is called once, before `main` and the runtime; it makes a system call and writes a number.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

/// Has a program ignore SIGPIPE if this process did when it began.
pub fn keep(command: &mut Command) {
    if !WAS_IGNORED.load(Ordering::Relaxed) {
        return;
    }
    let ignore = || {
        // SAFETY: a system call with two numbers.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: between fork and exec it makes a system call, and allocates nothing.
    unsafe { command.pre_exec(ignore) };
}
