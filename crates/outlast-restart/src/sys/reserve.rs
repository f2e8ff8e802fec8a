//! A descriptor that a thread keeps back: it can still look at processes when it has no other left.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;

thread_local! {
    static RESERVE: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// Keeps one back for the calling thread, if there is one.
pub(crate) fn keep() {
    RESERVE.with_borrow_mut(|reserve| {
        if reserve.is_none() {
            *reserve = File::open("/dev/null").ok();
        }
    });
}

/// Whether that is for want of descriptors.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Does what takes one descriptor, and leaves none: with the one that is kept back, where there is no other.
pub(crate) fn with<T>(what: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match what() {
        Err(error) if is_out_of_descriptors(&error) => {
            RESERVE.with_borrow_mut(|reserve| drop(reserve.take()));
            let done = what();
            keep();
            done
        }
        done => done,
    }
}

/// The text of a file.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    with(|| std::fs::read_to_string(&path))
}

/// The names in a folder.
pub(crate) fn names(path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
    with(|| Ok(std::fs::read_dir(&path)?.flatten().map(|entry| entry.file_name()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_descriptors_can_look_as_often_as_it_likes() {
        keep();
        let mut all = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            all.push(file);
        }
        assert!(std::fs::read_to_string("/proc/self/stat").is_err());
        for _ in 0..3 {
            assert!(read("/proc/self/stat").is_ok());
            assert!(names("/proc/self/fd").unwrap().len() >= all.len());
        }
        // Where there is no such thing, that is told.
        assert_eq!(read("/proc/self/none").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
