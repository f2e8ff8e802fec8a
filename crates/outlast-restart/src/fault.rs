//! A thread that faults hands over before it dies: the next generation runs while this one still has its memory taken
//! apart, or dumped. Otherwise it would wait for the dump, and share a processor with the taking apart.
//!
//! Only for signals that nobody else has a handler for. Whoever dies otherwise (SIGKILL, for one) hands over by his
//! [baton](crate::sys::robust::Baton) alone.

use crate::control::Control;
use crate::sys::fault::{self, Fault};
use crate::sys::process;
use crate::{sys, threads};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// What a program crashes by, of itself.
pub(crate) const FAULTS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];
/// For the next generation to run. Beyond that this one dies as it would have.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(100);
/// For the other threads to stand still. They do in microseconds, unless they are within a long system call.
const PARKED_WITHIN: Duration = Duration::from_millis(50);

/// For the handler, which has no arguments of its own.
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(std::ptr::null_mut());
static KEEP: OnceLock<&'static Control> = OnceLock::new();

/// From here on a fault of this process hands over.
pub(crate) fn watch(control: &'static Control) -> io::Result<()> {
    let _ = KEEP.set(control);
    CONTROL.store(std::ptr::from_ref(control).cast_mut(), Ordering::SeqCst);
    fault::catch(&FAULTS, hand_over)
}

/// In the signal handler of the thread that has faulted: no locks, no allocation. True: this process has to die, since
/// another one serves.
fn hand_over(fault: &Fault) -> bool {
    let Some(control) = sys::shared::known(&CONTROL) else { return false };
    let pid = process::pid();
    if control.serving_pid.load(Ordering::SeqCst).cast_signed() != pid {
        // A child of who serves: it has the handler, and nothing to hand over.
        return false;
    }
    let tid = process::thread_id();
    let first =
        control.faulting_thread.compare_exchange(0, tid.cast_unsigned(), Ordering::SeqCst, Ordering::SeqCst);
    match first {
        Ok(_) => {}
        // Another handler aborts, after this one.
        Err(thread) if thread == tid.cast_unsigned() => return true,
        // Another thread was faster: it is about to end all of us.
        Err(_) => fault::park(),
    }
    control.fault_ns.store(sys::clock::monotonic_ns(), Ordering::SeqCst);
    let own = fault.by_itself(pid);
    let blamed = threads::current().filter(|_| own);
    control
        .blamed
        .store(blamed.map_or(0, |descriptor| descriptor.cast_unsigned().wrapping_add(1)), Ordering::SeqCst);
    if !fault::park_others(PARKED_WITHIN) {
        // They might go on reading what the next generation should: that waits until they are dead.
        return true;
    }
    let number = control.generation.load(Ordering::SeqCst);
    control.quiet_generation.store(number, Ordering::SeqCst);
    control.baton.let_go(pid);
    if sys::futex::wait_until(&control.acknowledged_generation, number, ACKNOWLEDGED_WITHIN) {
        // Dumping this process may take long, and somebody should stand by meanwhile.
        let _ = process::kill(process::parent(), libc::SIGCHLD);
    }
    true
}
