//! Where accept(2) fails for a while only, whoever wants to connect waits, and the server goes on: its end would not make
//! room, as the next generation has the same descriptors.

use crate::zygote::say;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two tries where there is no room.
pub(crate) const NO_ROOM_PAUSE: Duration = Duration::from_millis(10);

/// Why it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// A connection that is gone, or whose network is: the next one may be well.
    Gone,
    /// No descriptor or no memory is free.
    NoRoom,
}

/// None: it will fail again (accept(2), "Error handling").
pub(crate) fn passing(error: &io::Error) -> Option<Passing> {
    match error.raw_os_error()? {
        libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => Some(Passing::NoRoom),
        libc::ECONNABORTED
        | libc::EPROTO
        | libc::ENOPROTOOPT
        | libc::ENETDOWN
        | libc::ENETUNREACH
        | libc::ENONET
        | libc::EHOSTDOWN
        | libc::EHOSTUNREACH => Some(Passing::Gone),
        _ => None,
    }
}

/// Once in each generation.
pub(crate) fn tell_no_room(error: &io::Error) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        say(&format!(
            "no connection can be accepted for now: {error}. new connections queue until descriptors are free; `ulimit -n` limits \
             descriptors"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        let told = |number| passing(&io::Error::from_raw_os_error(number));
        assert_eq!([libc::EMFILE, libc::ENOMEM].map(told), [Some(Passing::NoRoom); 2]);
        assert_eq!([libc::ECONNABORTED, libc::ENETDOWN].map(told), [Some(Passing::Gone); 2]);
        assert_eq!([libc::EAGAIN, libc::EINVAL, libc::EBADF, libc::EOPNOTSUPP].map(told), [None; 4]);
        assert_eq!(passing(&io::Error::other("of a library")), None);
    }
}
