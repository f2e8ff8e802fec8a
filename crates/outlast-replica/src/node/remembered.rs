//! What is left of an earlier run of a node: whether it was in the group. Its server may have data then that others have not, or lack
//! some, so no group begins with it as if nothing had been.

use super::meeting::Data;
use crate::history::Recovered;
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
    /// What was before is not to count.
    is_forgotten: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Membership {
    group: String,
    node: String,
    epoch: u64,
    /// Its server has the data of that view. Not where it was to get a copy of others, and has got a part.
    #[serde(default = "has_data")]
    has_data: bool,
    /// It was the primary of that view: its server has worked off all that clients were answered.
    #[serde(default)]
    was_primary: bool,
    /// Through what the data have come.
    #[serde(default)]
    recovered: Vec<Recovered>,
}

/// Of what view a node is a member.
#[derive(Debug)]
pub(super) struct MemberOf {
    pub(super) epoch: u64,
    /// It is the primary.
    pub(super) was_primary: bool,
    /// Through what the group has come.
    pub(super) recovered: Vec<Recovered>,
}

/// Files of earlier versions do not say so.
fn has_data() -> bool {
    true
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
        Ok(Self { path: path.map(Path::to_owned), written, is_own: false, is_forgotten: false })
    }

    /// What the server has, as far as an earlier run has noted it.
    pub(super) fn data(&self) -> Data {
        match self.written.as_ref().filter(|_| !self.is_forgotten) {
            None => Data::of_new_group(),
            Some(written) => Data {
                last_epoch: Some(written.epoch),
                was_primary: written.was_primary,
                is_whole: written.has_data,
                recovered: written.recovered.clone(),
                ..Data::of_new_group()
            },
        }
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
    pub(super) fn note(
        &mut self,
        group: &str,
        node: &str,
        MemberOf { epoch, was_primary, recovered }: MemberOf,
    ) -> io::Result<()> {
        if self
            .written
            .as_ref()
            .is_some_and(|written| written.group == group && written.epoch > epoch && self.is_own)
        {
            return Ok(());
        }
        let (group, node) = (group.to_owned(), node.to_owned());
        self.write(Membership { group, node, epoch, has_data: true, was_primary, recovered })?;
        (self.is_own, self.is_forgotten) = (true, false);
        Ok(())
    }

    /// Notes that the data of its server are about to be replaced. On disk when this returns.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn note_copy(&mut self) -> io::Result<()> {
        match self.written.clone() {
            Some(written) => self.write(Membership { has_data: false, ..written }),
            None => Ok(()),
        }
    }

    /// All servers have the same data, whatever was before. What is on disk stays until there is something else to note.
    pub(super) fn forget(&mut self) {
        self.is_forgotten = true;
    }

    fn write(&mut self, membership: Membership) -> io::Result<()> {
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
    use crate::view::GROUP_EPOCHS;

    fn member_of(epoch: u64, was_primary: bool) -> MemberOf {
        MemberOf { epoch, was_primary, recovered: vec![Recovered { epoch: GROUP_EPOCHS, data_epoch: 3 }] }
    }

    #[test]
    fn a_membership_is_remembered_and_other_files_are_refused() {
        let folder = std::env::temp_dir().join(format!("outlast-remembered-{}", std::process::id()));
        let path = folder.join("deep").join("db-a.json");
        let mut remembered = Remembered::read(Some(&path)).unwrap();
        assert_eq!(remembered.data().last_epoch, None);
        remembered.check().unwrap();
        remembered.note("db", "a", member_of(1, false)).unwrap();
        remembered.note("db", "a", member_of(3, true)).unwrap();
        assert_eq!(Remembered::read(Some(&path)).unwrap().data().last_epoch, Some(3));
        let again = Remembered::read(Some(&path)).unwrap();
        assert!(again.data().is_whole && again.data().was_primary);
        remembered.note_copy().unwrap();
        let again = Remembered::read(Some(&path)).unwrap();
        assert_eq!((again.data().last_epoch, again.data().is_whole), (Some(3), false));
        remembered.note("db", "a", member_of(4, false)).unwrap();
        remembered.note("db", "a", member_of(GROUP_EPOCHS, false)).unwrap();
        let again = Remembered::read(Some(&path)).unwrap();
        assert_eq!((again.data().is_whole, again.data().recovered), (true, member_of(1, true).recovered));
        // What is forgotten is there still for what a later run has to know.
        let mut forgets = Remembered::read(Some(&path)).unwrap();
        forgets.forget();
        assert_eq!(forgets.data(), Data::of_new_group());
        forgets.note_copy().unwrap();
        assert!(!Remembered::read(Some(&path)).unwrap().data().is_whole);
        fs::write(&path, r#"{"group":"db","node":"a","epoch":3}"#).unwrap();
        assert!(Remembered::read(Some(&path)).unwrap().data().is_whole);
        fs::write(&path, "{").unwrap();
        Remembered::read(Some(&path)).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
        let mut nowhere = Remembered::read(None).unwrap();
        nowhere.note("db", "a", member_of(1, false)).unwrap();
    }
}
