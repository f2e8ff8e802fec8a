//! What a program that is about to be started keeps of this process.

use super::process;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the program inherit this descriptor under its number. It has to be open whenever the command is started.
pub(crate) fn pass_on(descriptor: BorrowedFd<'_>, command: &mut Command) {
    let number = descriptor.as_raw_fd();
    // SAFETY: between fork and exec only a system call is made, with a copied number.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(number, libc::F_SETFD, 0) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
}

/// Has the program inherit this descriptor, which other programs do not.
pub fn inherit(descriptor: RawFd, command: &mut Command) {
    // SAFETY: between fork and exec there is one system call, with a copied number.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(descriptor, libc::F_SETFD, 0) < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(())
            }
        });
    }
}

/// Has the program get this signal when the calling thread dies, and never begin where that is too late. Those that it starts
/// get nothing, and one with rights that its caller does not have neither (prctl(2)).
pub fn end_with_us(signal: i32, command: &mut Command) {
    let us = process::pid();
    // SAFETY: between fork and exec only system calls are made, with copied numbers.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) < 0 {
                return Err(io::Error::last_os_error());
            }
            if process::parent() == us { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        });
    }
}
