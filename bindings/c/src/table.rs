//! The connections that are held, by the numbers of their descriptors, as C has nothing else. Each has a lock of its own.

use crate::error::own;
use outlast_restart::Connection;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers from here on are not held. What is not used of the table takes no memory.
const DESCRIPTORS: usize = 1 << 16;

/// Boxed, so that an empty place is all zeroes: such a table is not in the library's file.
type Place = Mutex<Option<Box<Connection>>>;

static TABLE: [Place; DESCRIPTORS] = [const { Mutex::new(None) }; DESCRIPTORS];

/// The place of a descriptor, as long as this is kept. None: a number that is never held.
pub(crate) fn place(fd: RawFd) -> Option<MutexGuard<'static, Option<Box<Connection>>>> {
    let place = TABLE.get(usize::try_from(fd).ok()?)?;
    Some(place.lock().unwrap_or_else(PoisonError::into_inner))
}

/// With the connection that has this number, if it is held.
pub(crate) fn with<T>(fd: RawFd, act: impl FnOnce(&mut Connection) -> T) -> Option<T> {
    place(fd)?.as_deref_mut().map(act)
}

/// Likewise; an error if it is not held.
pub(crate) fn held<T>(fd: RawFd, act: impl FnOnce(&mut Connection) -> io::Result<T>) -> io::Result<T> {
    with(fd, act).unwrap_or_else(|| Err(own(libc::EBADF, format!("descriptor {fd} is not held"))))
}
