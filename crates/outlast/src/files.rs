//! Files that somebody named: what is wrong with one, and who is to blame.

use crate::exit::Failure;
use outlast_session::relay::dial::plain;
use std::io;
use std::path::Path;

/// Largest file that is read: a bundle of all authorities of the world is a quarter of it.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file cannot be read. That nothing of this name can be read as a file is the mistake of whoever gave the name; all else
/// is the system's doing.
pub fn unreadable(what: &str, path: &Path, error: &io::Error) -> anyhow::Error {
    use io::ErrorKind::{InvalidData, InvalidFilename, IsADirectory, NotADirectory, NotFound};
    match error.kind() {
        NotFound | NotADirectory | IsADirectory | InvalidFilename | InvalidData => {
            unusable(what, path, &plain(error))
        }
        _ => Failure::system(format!("cannot read {what} file {}: {}", path.display(), plain(error))),
    }
}

/// A file is there and is not what it should be.
pub fn unusable(what: &str, path: &Path, why: &str) -> anyhow::Error {
    Failure::usage(format!("unusable {what} file {}: {why}", path.display()))
}
