//! The folder with the sockets of this user's instances and keepers. It comes with the first and goes with the last.

use crate::exit::Failure;
use crate::unix_socket::bind_replacing;
use anyhow::Result;
use outlast_session::relay::dial::plain;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Times that others may remove the folder while we are about to use it.
const ATTEMPTS_MAX: usize = 100;

/// Where it is: in `XDG_RUNTIME_DIR`, else in /tmp.
pub fn path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(runtime) => PathBuf::from(runtime).join("outlast"),
        None => PathBuf::from(format!("/tmp/outlast-{}", own_uid())),
    }
}

/// Binds a socket in the folder, which is made if missing.
pub fn bind(folder: &Path, name: impl AsRef<Path>) -> Result<(PathBuf, UnixListener)> {
    let path = folder.join(name.as_ref());
    let mut attempts = 0;
    loop {
        attempts += 1;
        match make(folder).and_then(|()| bind_private(&path)) {
            Ok(listener) => return Ok((path, listener)),
            // Whoever was the last to leave has just taken the folder along.
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS_MAX => {}
            Err(error) => return Err(unusable(folder, &error)),
        }
    }
}

/// The folder, made if missing.
pub fn made() -> Result<PathBuf> {
    let folder = path();
    make(&folder).map_err(|error| unusable(&folder, &error))?;
    Ok(folder)
}

/// The folder, if it is there and ours alone.
pub fn found() -> Option<PathBuf> {
    Some(path()).filter(|folder| check(folder).is_ok())
}

fn unusable(folder: &Path, error: &io::Error) -> anyhow::Error {
    let why = plain(error);
    Failure::system(format!(
        "cannot use {} for the admin socket: {why} (the variable XDG_RUNTIME_DIR decides where that is, or --admin-socket)",
        folder.display()
    ))
}

/// Binds a socket that only this user can connect to. One that nobody listens on is replaced.
pub fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let listener = bind_replacing(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes a socket, and the folder with the last.
pub fn remove(socket: &Path) {
    std::fs::remove_file(socket).ok();
    if let Some(folder) = socket.parent() {
        // Fails, as it should, while others are there.
        std::fs::remove_dir(folder).ok();
    }
}

/// The sockets in the folder, if there is one.
///
/// # Errors
/// It cannot be read, or is not ours alone.
pub fn sockets() -> Result<Vec<PathBuf>> {
    let folder = path();
    let files = match check(&folder).and_then(|()| std::fs::read_dir(&folder)) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let why = plain(&error);
            return Err(Failure::system(format!(
                "cannot look for instances in {}: {why} (XDG_RUNTIME_DIR decides where that is)",
                folder.display()
            )));
        }
    };
    let mut paths: Vec<PathBuf> = files
        .flatten()
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    paths.sort();
    Ok(paths)
}

fn make(folder: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        // One above it that is missing will not come back.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Some file systems say so of all that is not theirs.
            let above = folder.parent().is_some_and(Path::is_dir);
            let why = if above { "no folder can be made there" } else { "there is no folder to make it in" };
            Err(io::Error::other(why))
        }
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check(folder),
    }
}

/// In /tmp somebody else may have been first; a link may lead anywhere.
fn check(folder: &Path) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(folder)?;
    if !metadata.is_dir() && !metadata.is_symlink() {
        return Err(io::Error::other("it is no folder"));
    }
    // A link leads to where its owner likes.
    if metadata.is_symlink() || metadata.uid() != own_uid() {
        return Err(io::Error::other("it belongs to somebody else"));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(io::Error::other("others have access to it: chmod 700 it"));
    }
    Ok(())
}

/// The user whom the folder belongs to.
pub fn own_uid() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_that_come_and_go_do_not_take_the_folder_from_each_other() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("outlast");
        std::thread::scope(|scope| {
            for number in 0..4 {
                let folder = &folder;
                scope.spawn(move || {
                    for _ in 0..500 {
                        let (socket, _listener) = bind(folder, format!("{number}.sock")).unwrap();
                        assert!(socket.exists());
                        remove(&socket);
                    }
                });
            }
        });
        assert!(!folder.exists());
    }

    #[test]
    fn a_folder_that_others_can_look_into_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let open = parent.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(parent.path(), &link).unwrap();
        for (folder, why) in [
            (open, "chmod 700 it"),
            (link, "belongs to somebody else"),
            (parent.path().join("no/such/folder"), "no folder to make it in"),
        ] {
            let error = bind(&folder, "1.sock").unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
