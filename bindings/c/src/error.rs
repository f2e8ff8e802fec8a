//! Errors as C knows them: -1, `errno`, and a text for people.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io;

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { error: None, text: None }) };
}

/// Becomes a text only if somebody asks: most say that there is nothing to read for now.
struct Last {
    error: Option<io::Error>,
    text: Option<CString>,
}

/// The result of a call, as C gets it.
pub(crate) trait ForC {
    /// What a function returns that has failed.
    const FAILED: Self;
}

impl ForC for c_int {
    const FAILED: Self = -1;
}

impl ForC for libc::ssize_t {
    const FAILED: Self = -1;
}

/// An error is left to the thread.
pub(crate) fn give<T: ForC>(result: io::Result<T>) -> T {
    result.unwrap_or_else(|error| {
        let number = number(&error);
        // The thread may end, or the process: destructors and functions of atexit(3) come behind this thread's own values.
        let _ = LAST.try_with(|last| last.borrow_mut().error = Some(error));
        set_errno(number);
        T::FAILED
    })
}

/// Lives until the next error of this thread.
pub(crate) fn text() -> *const c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        if let Some(error) = last.error.take() {
            // On most systems texts have no zeroes within.
            last.text = Some(CString::new(error.to_string()).unwrap_or_default());
        }
        last.text.as_deref().unwrap_or_default().as_ptr()
    });
    text.unwrap_or(c"this thread ends: no text is kept, see errno".as_ptr())
}

pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the address of this thread's own errno.
    unsafe { *libc::__errno_location() = number };
}

/// An error of this library's own, with the number that C gets.
pub(crate) fn own(number: c_int, why: String) -> io::Error {
    io::Error::other(Own { number, why })
}

/// Is carried within [`io::Error`], which has either a number or a text.
#[derive(Debug)]
struct Own {
    number: c_int,
    why: String,
}

impl std::fmt::Display for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Own {}

fn number(error: &io::Error) -> c_int {
    let own = error.get_ref().and_then(|inner| inner.downcast_ref::<Own>());
    match (error.raw_os_error(), own) {
        (Some(number), _) => number,
        (None, Some(own)) => own.number,
        (None, None) => match error.kind() {
            io::ErrorKind::OutOfMemory => libc::ENOMEM,
            io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
            io::ErrorKind::InvalidInput => libc::EINVAL,
            _ => libc::EIO,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn errors_are_told_by_number_and_text() {
        let told = |error: io::Error| {
            assert_eq!(give::<c_int>(Err(error)), -1);
            // SAFETY: a string of this thread, read before the next error.
            let text = unsafe { CStr::from_ptr(text()) }.to_str().unwrap().to_owned();
            (io::Error::last_os_error().raw_os_error().unwrap(), text)
        };
        assert_eq!(told(own(libc::EBUSY, "it is held".into())), (libc::EBUSY, "it is held".into()));
        assert_eq!(told(io::Error::from_raw_os_error(libc::EAGAIN)).0, libc::EAGAIN);
        assert_eq!(told(io::Error::new(io::ErrorKind::OutOfMemory, "full")), (libc::ENOMEM, "full".into()));
        assert_eq!(give(Ok(7 as libc::ssize_t)), 7);
    }
}
