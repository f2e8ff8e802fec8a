//! What is left of an earlier run of a node: whether it was in the group. Its server may have data then that others have not, or lack
//! some, so no group begins with it as if nothing had been.

use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file, and what is in it.
#[derive(Debug)]
pub(super) struct Remembered {
    path: Option<PathBuf>,
    written: Option<Membership>,
    /// That is of this run.
    is_own: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Membership {
    group: String,
    node: String,
    epoch: u64,
}

impl Remembered {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is not one of these.
    pub(super) fn read(path: Option<&Path>) -> io::Result<Self> {
        let written = match path.map(fs::read) {
            None => None,
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Some(bytes) => Some(serde_json::from_slice(&bytes?)?),
        };
        Ok(Self { path: path.map(Path::to_owned), written, is_own: false })
    }

    /// The last view of which an earlier run was a member, if it was in a group.
    pub(super) fn last_epoch(&self) -> Option<u64> {
        self.written.as_ref().map(|written| written.epoch)
    }

    /// Looks whether it can be written, while nobody depends on it.
    ///
    /// # Errors
    /// It cannot.
    pub(super) fn check(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        fs::create_dir_all(folder_of(path))?;
        let probe = path.with_extension("probe");
        File::create(&probe)?;
        fs::remove_file(&probe)
    }

    /// Notes that this node is a member of the view of this epoch. On disk when this returns.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn note(&mut self, group: &str, node: &str, epoch: u64) -> io::Result<()> {
        if self
            .written
            .as_ref()
            .is_some_and(|written| written.group == group && written.epoch > epoch && self.is_own)
        {
            return Ok(());
        }
        let membership = Membership { group: group.to_owned(), node: node.to_owned(), epoch };
        if let Some(path) = &self.path
            && self.written.as_ref() != Some(&membership)
        {
            let folder = folder_of(path);
            fs::create_dir_all(folder)?;
            let new = path.with_extension("new");
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(&membership)?)?;
            file.sync_all()?;
            fs::rename(&new, path)?;
            File::open(folder)?.sync_all()?;
        }
        self.written = Some(membership);
        self.is_own = true;
        Ok(())
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
    use super::*;

    #[test]
    fn a_membership_is_remembered_and_other_files_are_refused() {
        let folder = std::env::temp_dir().join(format!("outlast-remembered-{}", std::process::id()));
        let path = folder.join("deep").join("db-a.json");
        let mut remembered = Remembered::read(Some(&path)).unwrap();
        assert_eq!(remembered.last_epoch(), None);
        remembered.check().unwrap();
        remembered.note("db", "a", 1).unwrap();
        remembered.note("db", "a", 3).unwrap();
        assert_eq!(Remembered::read(Some(&path)).unwrap().last_epoch(), Some(3));
        fs::write(&path, "{").unwrap();
        Remembered::read(Some(&path)).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
        let mut nowhere = Remembered::read(None).unwrap();
        nowhere.note("db", "a", 1).unwrap();
    }
}
