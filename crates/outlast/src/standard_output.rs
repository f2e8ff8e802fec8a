//! Whether this program was started without a standard output (`>&-`).
//!
//! Rust opens /dev/null in its place before `main`: what is written there then is lost without an error.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The C library calls it before Rust's part of the start.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: asks for the flags of a descriptor, whether there is one or not.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Whether it was.
pub fn was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
