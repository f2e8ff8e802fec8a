//! In the supervisor's shell: the terminal that the program was started from, and its end.
//!
//! When a terminal is closed, its programs get SIGHUP: from the kernel, or from their shell, and most end. A program must not
//! be started again then, by a supervisor that has outlived the terminal. One that goes on without a terminal is looked after
//! as before; with `nohup` neither is told.

use crate::supervisor::machine::Input;
use crate::sys::signals::{self, Arrived};
use crate::sys::{family, process};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

/// What the supervisor was started from.
#[derive(Debug)]
pub(super) struct Terminal {
    was_there: bool,
}

impl Terminal {
    /// To be asked at the beginning.
    pub(super) fn of_this_process() -> Self {
        Self { was_there: is_there() && !signals::is_ignored(libc::SIGHUP) }
    }

    /// What follows from this signal.
    pub(super) fn hears(&self, arrived: &Arrived) -> Vec<Input> {
        let Arrived { number, mut by_process, sender } = *arrived;
        let mut inputs = Vec::new();
        if number == libc::SIGHUP && self.was_there {
            // The kernel's; or a shell's that passes it on.
            let for_sure = !by_process || !is_there();
            let leader = family::session(0);
            // A shell that ends may tell its jobs before the terminal is gone.
            if for_sure || leader == Some(sender) {
                inputs.push(Input::HungUp { for_sure });
            }
            // The kernel tells the first process of a terminal alone, and that is this one.
            by_process |= leader == Some(process::pid());
        }
        inputs.push(Input::Signal { number, by_process });
        inputs
    }
}

/// Whether this process has a terminal.
fn is_there() -> bool {
    OpenOptions::new().read(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK).open("/dev/tty").is_ok()
}
