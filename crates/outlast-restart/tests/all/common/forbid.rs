//! Sandboxes that forbid one system call (seccomp(2)).
#![allow(dead_code, reason = "each test uses a part of it")]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// A call, or those with these bits in one of their arguments, and none others of the mask.
#[derive(Clone, Copy)]
pub struct Call {
    pub name: &'static str,
    pub number: libc::c_long,
    /// From 0.
    pub argument: u32,
    pub mask: u32,
    pub value: u32,
    /// What is said where there is no outliving without it.
    pub says: Option<&'static str>,
}

/// None is missed without it.
pub const fn without(name: &'static str, number: libc::c_long) -> Call {
    Call { name, number, argument: 0, mask: 0, value: 0, says: None }
}

/// There is no outliving without it, which is said.
pub const fn cannot(name: &'static str, number: libc::c_long, says: &'static str) -> Call {
    Call { name, number, argument: 0, mask: 0, value: 0, says: Some(says) }
}

/// Has the call fail in this process and all below it.
pub fn forbid_here(call: Call, error: i32) -> std::io::Result<()> {
    let Call { number, argument, mask, value, .. } = call;
    let (load, and, equal, give) = (0x20, 0x54, 0x15, 0x06);
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let number = u32::try_from(number).map_err(std::io::Error::other)?;
    // The number is at 0, the arguments are from 16 on, 8 bytes each, of which the lower half is told (little end first).
    let mut filter = [
        step(load, 0, 0, 0),
        step(equal, 0, 4, number),
        step(load, 0, 0, 16 + 8 * argument),
        step(and, 0, 0, mask),
        step(equal, 0, 1, value),
        step(give, 0, 0, libc::SECCOMP_RET_ERRNO | error.cast_unsigned()),
        step(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 7, filter: filter.as_mut_ptr() };
    // SAFETY: a system call with integers, and one with a program that is copied.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) < 0
    };
    if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the call fail in the program that is executed, and all below it.
pub fn forbid(command: &mut Command, call: Call, error: i32) {
    // SAFETY: between fork and exec only system calls are made, with copies of plain values.
    unsafe { command.pre_exec(move || forbid_here(call, error)) };
}
