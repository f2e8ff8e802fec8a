//! The folder with the sockets of this user's instances and keepers. It comes with the first and goes with the last.
//! Where it can be is in `places.rs`.

mod link_folders;
pub mod names;
pub mod places;

pub use link_folders::LinkFolders;

use crate::exit::Failure;
use crate::unix_socket::{bind_replacing, remove_abandoned};
use anyhow::Result;
use outlast_session::relay::dial::plain;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Times that others may remove the folder while we are about to use it.
const ATTEMPTS_MAX: usize = 100;

/// Binds a socket in the first place for this user's sockets that can be used. Where that is not the usual one, it is
/// said: `outlast status` finds it, people may not.
pub fn bind_new(name: impl AsRef<Path>) -> Result<(PathBuf, UnixListener)> {
    let places = places::new();
    bind_in(&places.folders, name.as_ref())
}

/// Binds a socket that outlives the service it is made by: where a service manager clears up after a service, and, as it may
/// not do so before the next start, there as well.
pub fn bind_to_stay(name: impl AsRef<Path>) -> Result<Vec<(PathBuf, UnixListener)>> {
    let places::Places { mut folders, of_service } = places::new();
    folders.retain(|folder| !of_service.contains(folder));
    let lasting = bind_in(&folders, name.as_ref());
    let mut all: Vec<_> = of_service.iter().filter_map(|folder| bind(folder, name.as_ref()).ok()).collect();
    match lasting {
        Ok(bound) => all.insert(0, bound),
        Err(error) if all.is_empty() => return Err(error),
        Err(_) => {}
    }
    Ok(all)
}

/// Binds the socket at which this process is asked. Its name is no other process's, also where several containers share the folder.
pub fn bind_instance() -> Result<(PathBuf, UnixListener)> {
    let (path, listener) = bind_new(names::of_this_process())?;
    clear_predecessors(&path);
    Ok((path, listener))
}

/// The same, for a process that outlives the service it is started by.
pub fn bind_instance_to_stay() -> Result<Vec<(PathBuf, UnixListener)>> {
    let bound = bind_to_stay(names::of_this_process())?;
    bound.iter().for_each(|(path, _)| clear_predecessors(path));
    Ok(bound)
}

/// Processes of this one's number that were killed have left their sockets: in a container that is started again and again each
/// one has the same number.
fn clear_predecessors(own: &Path) {
    let Some(files) = own.parent().and_then(|folder| std::fs::read_dir(folder).ok()) else { return };
    for path in files.flatten().map(|file| file.path()) {
        if path != own && names::number_in(&path) == names::number_in(own) {
            remove_abandoned(&path).ok();
        }
    }
}

/// In the first of these folders that can be used; in one with a new name, where somebody else was first everywhere.
fn bind_in(folders: &[PathBuf], name: &Path) -> Result<(PathBuf, UnixListener)> {
    let mut failed: Option<(&Path, io::Error)> = None;
    for folder in folders {
        match bind_or_fail(folder, name) {
            Ok(bound) => {
                say_where(failed.as_ref(), folder);
                return Ok(bound);
            }
            Err(error) => {
                failed.get_or_insert((folder, error));
            }
        }
    }
    if places::chosen().is_none() {
        let folder = places::of_last_resort();
        if let Ok(bound) = bind_or_fail(&folder, name) {
            say_where(failed.as_ref(), &folder);
            return Ok(bound);
        }
    }
    match failed {
        Some((folder, error)) => Err(unusable(folder, &error)),
        None => Err(Failure::system("there is no folder for the admin socket")),
    }
}

/// Says it once: a process that makes several sockets makes them in the same place.
fn say_where(failed: Option<&(&Path, io::Error)>, folder: &Path) {
    static SAID: Once = Once::new();
    if let Some((first, error)) = failed {
        let (first, folder) = (first.display(), folder.display());
        SAID.call_once(|| {
            tracing::warn!(
                "cannot use {first} for the admin socket: {}; it is in {folder} instead",
                plain(error)
            );
        });
    }
}

/// Binds a socket in the folder, which is made if missing.
pub fn bind(folder: &Path, name: impl AsRef<Path>) -> Result<(PathBuf, UnixListener)> {
    bind_or_fail(folder, name.as_ref()).map_err(|error| unusable(folder, &error))
}

fn bind_or_fail(folder: &Path, name: &Path) -> io::Result<(PathBuf, UnixListener)> {
    let path = folder.join(name);
    let mut attempts = 0;
    loop {
        attempts += 1;
        match make(folder).and_then(|()| bind_private(&path)) {
            Ok(listener) => return Ok((path, listener)),
            // Whoever was the last to leave has just taken the folder along.
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS_MAX => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether there is a place for a socket. What was made to find out is left for whoever comes.
pub fn check_new() -> Result<()> {
    let (socket, _listener) = bind_new(names::to_check())?;
    remove(&socket);
    Ok(())
}

fn unusable(folder: &Path, error: &io::Error) -> anyhow::Error {
    let why = plain(error);
    Failure::system(format!(
        "cannot use {} for the admin socket: {why} (the variable XDG_RUNTIME_DIR decides where that is, or --admin-socket)",
        folder.display()
    ))
}

/// Binds a socket that only this user can connect to. One that nobody listens on is replaced.
///
/// It gets its name when it listens: before that whoever looks for instances would take it for one that was left behind.
pub fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let beside = path.with_file_name(names::beside());
    let (listener, bound) = match UnixListener::bind(&beside) {
        Ok(listener) => (listener, beside.as_path()),
        // The name in its place may be a shorter one.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => (bind_replacing(path)?, path),
        Err(error) => return Err(error),
    };
    std::fs::set_permissions(bound, std::fs::Permissions::from_mode(0o600))?;
    if bound != path {
        let placed = put_in_place(bound, path);
        std::fs::remove_file(bound).ok();
        placed?;
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn put_in_place(socket: &Path, path: &Path) -> io::Result<()> {
    match std::fs::hard_link(socket, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !remove_abandoned(path)? {
                return Err(rustix::io::Errno::ADDRINUSE.into());
            }
            std::fs::hard_link(socket, path).map_err(|error| match error.kind() {
                // Another process was faster.
                io::ErrorKind::AlreadyExists => rustix::io::Errno::ADDRINUSE.into(),
                _ => error,
            })
        }
        other => other,
    }
}

/// Removes a socket of this process, and the folder with the last.
pub fn remove(socket: &Path) {
    std::fs::remove_file(socket).ok();
    remove_folder(socket);
}

/// Removes a socket that a killed process has left, and the folder with the last.
pub fn remove_left(socket: &Path) {
    if remove_abandoned(socket).is_ok_and(|removed| removed) {
        remove_folder(socket);
    }
}

fn remove_folder(socket: &Path) {
    if let Some(folder) = socket.parent() {
        // Fails, as it should, while others are there.
        std::fs::remove_dir(folder).ok();
    }
}

/// A socket that an instance or a keeper may listen at, and the user whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    pub path: PathBuf,
    pub uid: u32,
}

/// The sockets in all folders: of this user; and where root asks for them, of everybody.
///
/// # Errors
/// The one folder that was chosen cannot be read, or is not ours alone.
pub fn sockets(of_everybody: bool) -> Result<Vec<Socket>> {
    if let Some(folder) = places::chosen() {
        match check(&folder).and_then(|()| std::fs::read_dir(&folder).map(drop)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let why = plain(&error);
                return Err(Failure::system(format!(
                    "cannot look for instances in {}: {why} (XDG_RUNTIME_DIR decides where that is)",
                    folder.display()
                )));
            }
            _ => {}
        }
    }
    let folders = if of_everybody {
        places::everybodys()
    } else {
        places::own().into_iter().map(|folder| (folder, own_uid())).collect()
    };
    let mut sockets = Vec::new();
    for (folder, uid) in folders {
        let Ok(files) = std::fs::read_dir(&folder) else { continue };
        // No links: they lead where their owner likes.
        let is_socket = |file: &std::fs::DirEntry| {
            file.path().extension().is_some_and(|extension| extension == "sock")
                && file.file_type().is_ok_and(|kind| kind.is_socket())
        };
        let paths = files.flatten().filter(is_socket).map(|file| Socket { path: file.path(), uid });
        sockets.extend(paths);
    }
    sockets.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(sockets)
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
