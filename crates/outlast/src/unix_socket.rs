//! Sockets in the file system.

use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// A lock of a folder is held for a few system calls. Default 1 s: a program that holds it for longer is none of ours.
const LOCKED_WITHIN: Duration = Duration::from_secs(1);
/// Between two attempts to lock.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Listens at `path`. A socket there that nobody listens on was left behind by a process that was killed, and is
/// replaced; anything else that is there stays.
///
/// # Errors
/// `AddrInUse` when the path is taken.
pub fn bind_replacing(path: &Path) -> io::Result<UnixListener> {
    // A socket has its name a moment before it listens: nobody may take it for an abandoned one then.
    let locked = lock(path);
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // Without the lock it is not known to be abandoned.
            if locked.is_err() || !remove_locked(path)? {
                return Err(error);
            }
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// A file's device and number, which no other file has while a socket listens at it.
pub type FileId = (u64, u64);

/// Of the file at this path, if there is one: another process may have put its own there since.
pub fn file_at(path: &Path) -> Option<FileId> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Removes a socket that nobody listens on. Whether it did.
///
/// Two processes may find the same socket abandoned at once. The second one would remove what the first one has put in its place,
/// so each looks and removes within one lock, which ends with its process.
///
/// # Errors
/// The lock cannot be had, or the file cannot be removed.
pub fn remove_abandoned(path: &Path) -> io::Result<bool> {
    // Mostly there is nothing to remove, and no reason to lock.
    if !is_abandoned(path) {
        return Ok(false);
    }
    let _lock = lock(path)?;
    remove_locked(path)
}

fn remove_locked(path: &Path) -> io::Result<bool> {
    if !is_abandoned(path) {
        return Ok(false);
    }
    std::fs::remove_file(path).map(|()| true)
}

/// Locks the folder that a socket is in. None where folders cannot be locked, or not be read: there is no better way there.
///
/// # Errors
/// Another program keeps it locked.
fn lock(socket: &Path) -> io::Result<Option<File>> {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Ok(folder) = File::open(folder.unwrap_or(Path::new("."))) else { return Ok(None) };
    let deadline = Instant::now() + LOCKED_WITHIN;
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(folder)),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() >= deadline => {
                return Err(rustix::io::Errno::ADDRINUSE.into());
            }
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => std::thread::sleep(LOOK_AGAIN),
            Err(_) => return Ok(None),
        }
    }
}

/// Whether it is a socket that nobody listens on. Not followed if it is a link: that would be somebody's.
pub fn is_abandoned(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    // A listener whose queue is full is there, and is not waited for.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let refuses = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok(connect(&socket, &SocketAddrUnix::new(path)?) == Err(rustix::io::Errno::CONNREFUSED))
    };
    is_socket && rustix::io::Result::is_ok_and(refuses(), |refuses| refuses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn only_a_socket_that_nobody_listens_on_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = bind_replacing(&path).unwrap();
        assert_eq!(bind_replacing(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(!remove_abandoned(&path).unwrap());
        drop(first);
        drop(bind_replacing(&path).unwrap());
        assert!(remove_abandoned(&path).unwrap() && !path.exists());
        drop(bind_replacing(&path).unwrap());

        let file = folder.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for taken in [&file, &link] {
            assert_eq!(bind_replacing(taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            assert!(!remove_abandoned(taken).unwrap());
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(link.is_symlink());
    }

    /// Some clear up, some replace what was left behind: whoever listens keeps its name until it has gone.
    #[test]
    fn a_socket_that_somebody_listens_on_is_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        remove_abandoned(&path).ok();
                    }
                });
            }
            let binders = [(); 2].map(|()| {
                scope.spawn(|| {
                    let (mut bound, mut lost) = (0, 0);
                    for _ in 0..2_000 {
                        let Ok(listener) = bind_replacing(&path) else { continue };
                        bound += 1;
                        std::thread::yield_now();
                        lost += usize::from(!path.exists() || is_abandoned(&path));
                        // Its file stays behind, as when its process is killed.
                        drop(listener);
                    }
                    (bound, lost)
                })
            });
            let counts = binders.map(|binder| binder.join().unwrap());
            over.store(true, Ordering::Relaxed);
            assert!(counts.iter().any(|(bound, _)| *bound > 0), "nobody ever listened");
            assert!(counts.iter().all(|(_, lost)| *lost == 0), "(listened, lost their names): {counts:?}");
        });
    }
}
