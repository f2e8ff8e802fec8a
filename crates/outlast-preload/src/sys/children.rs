//! What children have of their parent: with memory of their own, or with its (`vfork`).

use std::sync::atomic::AtomicI32;

/// Has `in_parent` called behind every fork, and `in_child` in every child that comes of one.
pub fn on_fork(in_parent: extern "C" fn(), in_child: extern "C" fn()) {
    // SAFETY: functions without arguments that stay as long as the program. A failure leaves it as it is.
    unsafe { libc::pthread_atfork(None, Some(in_parent), Some(in_child)) };
}

/// A number that is 0 in every child with memory of its own; a child of `vfork` has its parent's. Alone on its page.
#[repr(align(4096))]
pub struct Wiped {
    /// It.
    pub number: AtomicI32,
}

impl Wiped {
    /// As it begins.
    pub const fn new() -> Self {
        Self { number: AtomicI32::new(0) }
    }

    /// Where the kernel cannot do so, or has larger pages, a child has its parent's number.
    pub fn wipe_in_children(&'static self) {
        let place = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the pages of a static whose only content may be 0 at any time.
        unsafe { libc::madvise(place, size_of::<Self>(), libc::MADV_WIPEONFORK) };
    }
}
