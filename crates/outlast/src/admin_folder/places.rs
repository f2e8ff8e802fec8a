//! Where the folders with admin sockets can be. A login has `XDG_RUNTIME_DIR`, a system service `RUNTIME_DIRECTORY`, a
//! cron job neither: so processes of one user use several folders, and whoever looks for them looks into all.

use super::{check, own_uid};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder that holds the sockets, in a folder that has others as well.
const NAME: &str = "outlast";
/// Folders of one owner that are looked at in one place. Default 4096: in /tmp everybody may make as many as they like, and hide
/// nobody else's with that.
const LOOKED_AT_MAX: usize = 4096;

/// The places for this user's new sockets, the first choice first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// In the order in which they are tried.
    pub folders: Vec<PathBuf>,
    /// A service manager removes them when the service has stopped.
    pub of_service: Vec<PathBuf>,
}

/// What decides about the places.
struct Surroundings {
    uid: u32,
    xdg: Option<PathBuf>,
    service: Vec<PathBuf>,
}

impl Surroundings {
    fn of_this_process() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let service = set("RUNTIME_DIRECTORY").unwrap_or_default();
        let service = service.as_bytes().split(|byte| *byte == b':').filter(|path| path.starts_with(b"/"));
        let uid = own_uid();
        Self {
            uid,
            xdg: set("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|xdg| !is_of_another_login(xdg, uid)),
            service: service.map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path))).collect(),
        }
    }

    fn of_login(&self) -> PathBuf {
        PathBuf::from(format!("/run/user/{}", self.uid))
    }

    /// Somebody has chosen a place of their own: what is elsewhere is not meant.
    fn chosen(&self) -> Option<PathBuf> {
        self.xdg.as_ref().filter(|xdg| **xdg != self.of_login()).map(|xdg| xdg.join(NAME))
    }

    fn places(&self) -> Places {
        if let Some(chosen) = self.chosen() {
            return Places { folders: vec![chosen], of_service: Vec::new() };
        }
        let mut folders = Vec::new();
        if let Some(xdg) = &self.xdg {
            folders.push(xdg.join(NAME));
        }
        let of_service: Vec<PathBuf> = self.service.iter().map(|folder| folder.join(NAME)).collect();
        folders.extend(of_service.iter().cloned());
        if self.xdg.is_none() && self.of_login().is_dir() {
            folders.push(self.of_login().join(NAME));
        }
        if self.uid == 0 {
            folders.push(Path::new("/run").join(NAME));
        }
        folders.push(PathBuf::from(format!("/tmp/outlast-{}", self.uid)));
        Places { folders, of_service }
    }
}

/// Who has become another user (`su`, `sudo -E`) may have the folder of the login still, which nobody has chosen.
fn is_of_another_login(xdg: &Path, uid: u32) -> bool {
    let user = xdg.strip_prefix("/run/user").ok().and_then(Path::to_str);
    user.and_then(|user| user.parse::<u32>().ok()).is_some_and(|user| user != uid)
}

/// The only place, if somebody has chosen one.
pub fn chosen() -> Option<PathBuf> {
    Surroundings::of_this_process().chosen()
}

/// The places for this user's new sockets.
pub fn new() -> Places {
    Surroundings::of_this_process().places()
}

/// A place in /tmp that is made where all others are taken: nobody can know its name before.
pub fn of_last_resort() -> PathBuf {
    let uid = own_uid();
    own().into_iter().find(|folder| is_of_last_resort(folder, uid)).unwrap_or_else(|| {
        // Whatever the name is: a folder that is there already is not used unless it is ours.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        PathBuf::from(format!("/tmp/outlast-{uid}.{:x}-{:x}", now.as_nanos(), std::process::id()))
    })
}

fn is_of_last_resort(folder: &Path, uid: u32) -> bool {
    folder.as_os_str().as_bytes().starts_with(format!("/tmp/outlast-{uid}.").as_bytes())
}

/// Folders with sockets of this user, and of nobody else, wherever they are.
pub fn own() -> Vec<PathBuf> {
    let mut all = candidates();
    all.retain(|folder| check(folder).is_ok());
    all
}

/// Folders with sockets, each of one user who alone can have put them there, and that user: this one's, and for root
/// everybody's.
pub fn everybodys() -> Vec<(PathBuf, u32)> {
    let owner = |folder: &Path| {
        let metadata = std::fs::symlink_metadata(folder).ok()?;
        let alone = metadata.is_dir() && metadata.mode() & 0o077 == 0;
        (alone && (metadata.uid() == own_uid() || own_uid() == 0)).then(|| metadata.uid())
    };
    candidates().into_iter().filter_map(|folder| owner(&folder).map(|uid| (folder, uid))).collect()
}

/// Everything that may be such a folder.
fn candidates() -> Vec<PathBuf> {
    let surroundings = Surroundings::of_this_process();
    if let Some(chosen) = surroundings.chosen() {
        return vec![chosen];
    }
    let mut all = surroundings.places().folders;
    all.push(Path::new("/run").join(NAME));
    // Of logins, and of system services, also of those with a user of their own (systemd.exec(5), DynamicUser).
    for above in ["/run/user", "/run", "/run/private"] {
        all.extend(folders_in(Path::new(above), "").into_iter().map(|folder| folder.join(NAME)));
    }
    let mut temporary = vec![PathBuf::from("/tmp")];
    // Services with a /tmp of their own; closed to all but root.
    temporary.extend(
        folders_in(Path::new("/tmp"), "systemd-private-").into_iter().map(|folder| folder.join("tmp")),
    );
    for folder in temporary {
        all.extend(folders_in(&folder, "outlast-"));
    }
    all.sort();
    all.dedup();
    all
}

/// The folders in a folder whose names begin so.
fn folders_in(above: &Path, beginning: &str) -> Vec<PathBuf> {
    let Ok(files) = std::fs::read_dir(above) else { return Vec::new() };
    let is_meant = |file: &std::fs::DirEntry| {
        file.file_name().as_bytes().starts_with(beginning.as_bytes())
            && file.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let mut of_owner = BTreeMap::new();
    let mut found = Vec::new();
    for folder in files.flatten().filter(is_meant).map(|file| file.path()) {
        let Ok(metadata) = std::fs::symlink_metadata(&folder) else { continue };
        let count = of_owner.entry(metadata.uid()).or_insert(0);
        *count += 1;
        if *count <= LOOKED_AT_MAX {
            found.push(folder);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_another_login_is_nobodys_choice() {
        let of_another = |xdg: &str, uid| is_of_another_login(Path::new(xdg), uid);
        assert!(of_another("/run/user/1000", 0) && of_another("/run/user/1000/", 7));
        assert!(!of_another("/run/user/1000", 1000) && !of_another("/run/user/1000/mine", 0));
        assert!(!of_another("/tmp/x", 0) && !of_another("/run/user", 0));
    }

    fn places(uid: u32, xdg: Option<&str>, service: &[&str]) -> Places {
        let service = service.iter().map(PathBuf::from).collect();
        Surroundings { uid, xdg: xdg.map(PathBuf::from), service }.places()
    }

    #[test]
    fn a_login_a_service_and_a_job_each_have_their_place() {
        let first = |places: Places| places.folders[0].to_str().unwrap().to_owned();
        assert_eq!(first(places(54321, Some("/run/user/54321"), &[])), "/run/user/54321/outlast");
        assert_eq!(first(places(54321, Some("/elsewhere"), &["/run/a"])), "/elsewhere/outlast");
        assert_eq!(first(places(54321, None, &["/run/a", "/run/b"])), "/run/a/outlast");
        assert_eq!(first(places(54321, None, &[])), "/tmp/outlast-54321");
        let service = places(54321, None, &["/run/a"]);
        assert_eq!(service.of_service, [PathBuf::from("/run/a/outlast")]);
        assert_eq!(service.folders.last(), Some(&PathBuf::from("/tmp/outlast-54321")));
    }

    #[test]
    fn a_place_that_was_chosen_is_the_only_one() {
        assert_eq!(places(0, Some("/elsewhere"), &[]).folders, [PathBuf::from("/elsewhere/outlast")]);
    }
}
