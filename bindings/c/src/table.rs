//! The connections that are held, by the numbers of their descriptors, as C has nothing else. Each has a lock of its own.

use crate::error::own;
use outlast_restart::Connection;
use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers from here on are not held. What is not used of the table takes no memory.
const DESCRIPTORS: usize = 1 << 16;

/// Boxed, so that an empty place is all zeroes: such a table is not in the library's file.
type Place = Mutex<Option<Box<Connection>>>;

static TABLE: [Place; DESCRIPTORS] = [const { Mutex::new(None) }; DESCRIPTORS];

thread_local! {
    /// This thread is within a change of the state: it has the lock of a connection, and the state's.
    static CHANGES: Cell<bool> = const { Cell::new(false) };
}

/// Calls what makes a change of the state.
pub(crate) fn changing<T>(change: impl FnOnce() -> T) -> T {
    CHANGES.set(true);
    let result = change();
    CHANGES.set(false);
    result
}

/// An error within a change: who waited for another lock there could wait for ever.
pub(crate) fn refuse_in_change() -> io::Result<()> {
    if CHANGES.get() {
        return Err(own(libc::EINVAL, "within a change no connection can be used".to_owned()));
    }
    Ok(())
}

/// The place of a descriptor, as long as this is kept. None: a number that is never held.
///
/// # Errors
/// This thread is within a change.
pub(crate) fn place(fd: RawFd) -> io::Result<Option<MutexGuard<'static, Option<Box<Connection>>>>> {
    refuse_in_change()?;
    let place = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd));
    Ok(place.map(|place| place.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// With the connection that has this number, if it is held.
///
/// # Errors
/// This thread is within a change.
pub(crate) fn with<T>(fd: RawFd, act: impl FnOnce(&mut Connection) -> T) -> io::Result<Option<T>> {
    Ok(place(fd)?.as_deref_mut().and_then(Option::as_deref_mut).map(act))
}

/// Likewise; an error if it is not held.
pub(crate) fn held<T>(fd: RawFd, act: impl FnOnce(&mut Connection) -> io::Result<T>) -> io::Result<T> {
    with(fd, act)?.unwrap_or_else(|| Err(own(libc::EBADF, format!("descriptor {fd} is not held"))))
}
