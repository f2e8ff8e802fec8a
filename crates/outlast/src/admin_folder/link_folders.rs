//! Folders of one process in the places for this user's sockets: for second names of files.
//!
//! Each is locked by its process (flock(2)), which tells across containers whether that is still there.

use super::{make, names, places, remove_folder};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// How they begin. One that is not locked yet has another name.
const BEGIN: &str = "files-";
const NEW: &str = "new-files-";
const ATTEMPTS_MAX: u32 = 10;

/// Removed with this.
#[derive(Debug, Default)]
pub struct LinkFolders {
    paths: Vec<PathBuf>,
    _locks: Vec<File>,
}

impl LinkFolders {
    /// One in each place where there can be one. Those that killed processes have left are removed.
    pub fn new() -> Self {
        Self::in_places(&places::new().folders)
    }

    fn in_places(places: &[PathBuf]) -> Self {
        let (paths, _locks) = places.iter().filter_map(|place| Self::in_place(place).ok()).unzip();
        Self { paths, _locks }
    }

    fn in_place(place: &Path) -> io::Result<(PathBuf, File)> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            // Nobody else can put anything there.
            let made = make(place).and_then(|()| {
                remove_left(place);
                new_in(place)
            });
            match made {
                // Another process has just removed the place, or the folder, which was not locked yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS_MAX => {}
                other => return other,
            }
        }
    }

    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

impl Drop for LinkFolders {
    fn drop(&mut self) {
        for folder in &self.paths {
            std::fs::remove_dir(folder).ok();
            remove_folder(folder);
        }
    }
}

fn new_in(place: &Path) -> io::Result<(PathBuf, File)> {
    let name = names::of_this_process();
    let name = name.strip_suffix(".sock").unwrap_or(&name);
    let (new, path) = (place.join(format!("{NEW}{name}")), place.join(format!("{BEGIN}{name}")));
    std::fs::DirBuilder::new().mode(0o700).create(&new)?;
    let locked = File::open(&new).and_then(|folder| {
        flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&new, &path)?;
        Ok(folder)
    });
    locked.map(|lock| (path, lock)).inspect_err(|_| drop(std::fs::remove_dir(&new)))
}

/// Removes folders whose processes are gone. The place is this user's alone.
fn remove_left(place: &Path) {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let is_one =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(BEGIN));
        let is_folder = || std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if !is_one || !is_folder() {
            continue;
        }
        let Ok(folder) = File::open(&path) else { continue };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            for file in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                std::fs::remove_file(file.path()).ok();
            }
            std::fs::remove_dir(&path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_removed_with_their_process_and_those_of_killed_ones_by_the_next() {
        let place = tempfile::tempdir().unwrap();
        let places = [place.path().join("outlast"), place.path().join("missing/outlast")];
        let count = || std::fs::read_dir(&places[0]).map_or(0, Iterator::count);
        let own = LinkFolders::in_places(&places);
        assert_eq!((own.paths().len(), count()), (1, 1));
        std::fs::write(own.paths()[0].join("file"), "").unwrap();
        // Another one leaves what is in use.
        remove_left(&places[0]);
        assert!(own.paths()[0].join("file").exists());
        // As if it was killed.
        let path = own.paths()[0].clone();
        drop(own);
        assert!(path.join("file").exists(), "it is not empty");
        drop(LinkFolders::in_places(&places));
        assert!(!path.exists() && !places[0].exists());
        // A place that is not this user's alone is not looked into.
        std::fs::create_dir_all(path.join("others")).unwrap();
        std::fs::write(path.join("file"), "").unwrap();
        std::fs::set_permissions(&places[0], std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(LinkFolders::in_places(&places).paths().is_empty());
        assert!(path.join("file").exists());
    }
}
