//! Room to make another environment in, which is more than small stacks have: that of a signal handler, or of a child that shares
//! its parent's memory. Nothing is allocated: such a child has no way to free it, once it executes.

use libc::c_char;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// At a time so many threads execute programs that would end of this library.
const ROOMS: usize = 16;
/// Longer paths are not looked at.
pub const PATH_BYTES: usize = 1024;
/// Longer values of the loader's variable are passed on as they are.
pub const VALUE_BYTES: usize = 2048;
/// The longest first line of a script: what the kernel reads, too.
pub const LINE_BYTES_MAX: usize = 256;
/// More variables are passed on as they are.
pub const VARIABLES_MAX: usize = 1024;

/// What there is room for.
pub struct Contents {
    /// Of a program that is looked for.
    pub path: [u8; PATH_BYTES],
    /// The variable without this library.
    pub value: [u8; VALUE_BYTES],
    /// How a file begins.
    pub line: [u8; LINE_BYTES_MAX],
    /// An environment.
    pub texts: [*const c_char; VARIABLES_MAX + 1],
}

struct Room {
    /// 0: nobody.
    thread: AtomicUsize,
    pid: AtomicI32,
    contents: UnsafeCell<Contents>,
}

// SAFETY: only who has taken a room touches what is in it.
unsafe impl Sync for Room {}

static ALL: [Room; ROOMS] = [const {
    Room {
        thread: AtomicUsize::new(0),
        pid: AtomicI32::new(0),
        contents: UnsafeCell::new(Contents {
            path: [0; PATH_BYTES],
            value: [0; VALUE_BYTES],
            line: [0; LINE_BYTES_MAX],
            texts: [std::ptr::null(); VARIABLES_MAX + 1],
        }),
    }
}; ROOMS];

/// A room that is the calling thread's as long as this lives.
pub struct Taken(&'static Room);

/// None is free.
pub fn take() -> Option<Taken> {
    let (thread, pid) = (super::thread(), super::pid());
    let room = ALL.iter().find(|room| {
        let has = room.thread.load(Ordering::Relaxed);
        let is_free = has == 0 || is_left(room.pid.load(Ordering::Relaxed), pid, has == thread);
        is_free && room.thread.compare_exchange(has, thread, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })?;
    room.pid.store(pid, Ordering::Relaxed);
    Some(Taken(room))
}

/// Whether whoever took it has executed a program, or is gone: another process than `own`, in which `own` is not.
fn is_left(by: super::Pid, own: super::Pid, by_same_thread: bool) -> bool {
    const KCMP_VM: libc::c_int = 1;
    if by == own || by == 0 {
        return false;
    }
    // This thread has waited for its child of `vfork`.
    if by_same_thread {
        return true;
    }
    // SAFETY: integers.
    let shares = unsafe { libc::syscall(libc::SYS_kcmp, own, by, KCMP_VM, 0, 0) };
    shares > 0 || (shares < 0 && super::errno() == libc::ESRCH)
}

impl Deref for Taken {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        // SAFETY: this thread alone has it.
        unsafe { &*self.0.contents.get() }
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut Contents {
        // SAFETY: as above.
        unsafe { &mut *self.0.contents.get() }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_come_back_also_from_children_that_are_gone() {
        let own = super::super::pid();
        let taken: Vec<Taken> = std::iter::from_fn(take).collect();
        assert!((1..=ROOMS).contains(&taken.len()));
        // As if a child that is gone had taken one: no process has this number.
        taken[0].0.pid.store(i32::MAX, Ordering::Relaxed);
        let again = std::thread::spawn(|| take().is_some()).join().unwrap();
        assert!(again && !is_left(own, own, true) && is_left(i32::MAX, own, false));
        drop(taken);
        assert!(take().is_some());
    }
}
