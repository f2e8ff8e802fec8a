//! The file of a UNIX socket: clients reach the socket by it alone, and programs remove it, or give it another name.
//!
//! A removed file can be put back as long as it has a second name. That is in a folder of ours where there is one in the same file system and
//! mount; a program that removes its own folder when it ends finds it empty then. Otherwise it is beside the file.

use crate::sys::process::{self, Pid};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Of `struct sockaddr_un`, with the zero behind it.
const PATH_BYTES_MAX: usize = 108;

/// The file, and a second name of it, by which it can be put back.
#[derive(Debug)]
pub(in crate::custody) struct SocketFile {
    /// As the program sees it: a path may be relative, or within a root or a mount namespace of the program's own.
    folder: OwnedFd,
    name: OsString,
    id: Id,
    /// If it is for the program, or for us.
    owner: Option<u32>,
    link: Option<Link>,
}

/// The second name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Link {
    /// Which one of [`FOLDERS`] it is in. None: it is in the file's.
    place: Option<usize>,
    name: OsString,
}

/// Folders of this process for second names.
static FOLDERS: OnceLock<Vec<OwnedFd>> = OnceLock::new();

fn folders() -> &'static [OwnedFd] {
    FOLDERS.get().map(Vec::as_slice).unwrap_or_default()
}

/// These folders, which nobody else writes to, are for second names of files. Once in a process.
pub(in crate::custody) fn use_folders(paths: &[PathBuf]) {
    let _ = FOLDERS.set(paths.iter().filter_map(|path| open(path)).collect());
}

/// Removes second names of this file, and of earlier ones of its name and owner, that killed supervisors have left beside it. A
/// supervisor in another PID namespace may lose one so: it cannot put that file back.
fn remove_left(folder: BorrowedFd<'_>, name: &OsStr, owner: u32) {
    let begin = begin_of_links(name);
    let is_left = |name: &OsString| {
        let end =
            name.as_bytes().strip_prefix(begin.as_bytes()).and_then(|end| std::str::from_utf8(end).ok());
        let pid = end.and_then(|end| end.split_once('-')?.0.parse::<Pid>().ok());
        pid.is_some_and(is_gone) && look(folder, name).is_some_and(|file| file.st_uid == owner)
    };
    for left in names(folder).into_iter().filter(is_left) {
        let _ = fs::unlinkat(folder, &left, AtFlags::empty());
    }
}

/// Whether there is no such process, also where other users' are hidden.
fn is_gone(pid: Pid) -> bool {
    let pid = rustix::process::Pid::from_raw(pid);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

fn names(folder: BorrowedFd<'_>) -> Vec<OsString> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = fs::openat(folder, ".", flags, Mode::empty());
    let entries = opened.ok().and_then(|opened| fs::Dir::read_from(&opened).ok());
    let names = entries.into_iter().flatten().flatten();
    names.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec())).collect()
}

/// One file, whatever its names.
type Id = (u64, u64);

fn id(file: &Stat) -> Id {
    (file.st_dev, file.st_ino)
}

fn look(folder: BorrowedFd<'_>, name: &OsStr) -> Option<Stat> {
    let file = fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (FileType::from_raw_mode(file.st_mode) == FileType::Socket).then_some(file)
}

fn is_free(folder: BorrowedFd<'_>, name: &OsStr) -> bool {
    fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).err() == Some(rustix::io::Errno::NOENT)
}

fn open(path: &Path) -> Option<OwnedFd> {
    fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The folder of a socket that a process has, where the process has not said which it is. It may have changed its root, or
/// its working directory, since.
pub(in crate::custody) fn folder_of(path: &[u8], pid: Pid) -> Option<OwnedFd> {
    let path = Path::new(OsStr::from_bytes(path));
    let (parent, name) = (path.parent()?, path.file_name()?);
    let below = |root: &str| open(&Path::new(root).join(parent.strip_prefix("/").unwrap_or(parent)));
    let seen = if path.is_absolute() {
        [below(&format!("/proc/{pid}/root")), open(parent)]
    } else {
        [below(&format!("/proc/{pid}/cwd")), None]
    };
    seen.into_iter().flatten().find(|folder| look(folder.as_fd(), name).is_some())
}

fn begin_of_links(name: &OsStr) -> OsString {
    let mut begin = OsString::from(".");
    begin.push(name);
    begin.push(".outlast-");
    begin
}

impl SocketFile {
    /// That of the listening socket with this inode, which is bound to this path. None: it is not there. It gets a second name
    /// if that `may_link` for its owner.
    pub(super) fn find(
        folder: OwnedFd,
        path: &[u8],
        inode: u64,
        may_link: impl Fn(u32) -> bool,
    ) -> Option<Self> {
        let name = Path::new(OsStr::from_bytes(path)).file_name()?.to_owned();
        let mut link = begin_of_links(&name);
        link.push(format!("{}-{inode}", process::pid()));
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let places: Vec<Option<usize>> = (0..folders().len()).map(Some).chain([None]).collect();
        let links = places.into_iter().map(|place| Link { place, name: link.clone() });
        let Ok(file) = fs::openat(&folder, &name, flags, Mode::empty()) else {
            // It may have one already.
            let found =
                links.into_iter().find_map(|link| Some((look(link.folder(&folder), &link.name)?, link)));
            let (file, link) = found.filter(|(file, _)| may_link(file.st_uid))?;
            return Some(Self { folder, name, id: id(&file), owner: Some(file.st_uid), link: Some(link) });
        };
        let found = fs::fstat(&file).ok()?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            return None;
        }
        if !may_link(found.st_uid) {
            return Some(Self { folder, name, id: id(&found), owner: None, link: None });
        }
        remove_left(folder.as_fd(), &name, found.st_uid);
        // Of this very file: another one may have its name by now.
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_linked = |link: &Link| {
            let place = link.folder(&folder);
            let _ = fs::unlinkat(place, &link.name, AtFlags::empty());
            fs::linkat(fs::CWD, &opened, place, &link.name, AtFlags::SYMLINK_FOLLOW).is_ok()
        };
        let link = links.into_iter().find(is_linked);
        Some(Self { folder, name, id: id(&found), owner: Some(found.st_uid), link })
    }

    /// Whether it is in this folder, by whatever path.
    pub(super) fn is_in(&self, folder: BorrowedFd<'_>) -> bool {
        match (fs::fstat(&self.folder), fs::fstat(folder)) {
            (Ok(own), Ok(other)) => id(&own) == id(&other),
            _ => false,
        }
    }

    /// Whether clients reach the socket by its path.
    pub(super) fn is_there(&self) -> bool {
        look(self.folder.as_fd(), &self.name).is_some_and(|file| id(&file) == self.id)
    }

    /// Whether clients reach the socket by its path, to which it is put back if the program has removed it. A file that the
    /// program has given another name stays there: to have it at both would be in the way of a program that renames it.
    pub(super) fn put_back(&self) -> bool {
        if self.is_there() {
            return true;
        }
        let Some((link, file)) = self.linked() else { return false };
        is_free(self.folder.as_fd(), &self.name)
            && !self.has_other_names(&file)
            && fs::linkat(link.folder(&self.folder), &link.name, &self.folder, &self.name, AtFlags::empty())
                .is_ok()
    }

    /// Removes it from where the program has bound to, if it is there, and its owner could do that as well: the program says which folder
    /// that is.
    pub(super) fn remove(&self) {
        let may_its_owner = fs::fstat(&self.folder).is_ok_and(|folder| {
            let is_everybodys = folder.st_mode & libc::S_IWOTH != 0;
            self.owner.is_some_and(|owner| owner == 0 || owner == folder.st_uid || is_everybodys)
        });
        if may_its_owner && self.is_there() {
            let _ = fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }

    /// Where this process connects to reach the socket: as `struct sockaddr` has it.
    pub(super) fn reached_at(&self) -> Option<Vec<u8>> {
        let linked = self.linked().map(|(link, _)| (link.folder(&self.folder), link.name.as_os_str()));
        let (folder, name) =
            linked.or_else(|| self.is_there().then_some((self.folder.as_fd(), self.name.as_os_str())))?;
        let mut path = format!("/proc/self/fd/{}/", folder.as_raw_fd()).into_bytes();
        path.extend(name.as_bytes());
        if path.len() >= PATH_BYTES_MAX {
            return None;
        }
        let family = u16::try_from(libc::AF_UNIX).ok()?;
        Some([&family.to_ne_bytes()[..], &path, &[0]].concat())
    }

    /// Another one has the same second name, and removes it.
    pub(super) fn leave_link_to(&mut self, other: &Self) {
        if self.id == other.id && self.link == other.link {
            self.link = None;
        }
    }

    fn linked(&self) -> Option<(&Link, Stat)> {
        let link = self.link.as_ref()?;
        let file = look(link.folder(&self.folder), &link.name)?;
        (id(&file) == self.id).then_some((link, file))
    }

    /// Whether it has names that are not second ones made here, or by a supervisor that was killed.
    fn has_other_names(&self, file: &Stat) -> bool {
        #[allow(clippy::useless_conversion, reason = "of 32 bits on some processors")]
        let names = u64::from(file.st_nlink);
        names > 1 && names > self.links()
    }

    fn links(&self) -> u64 {
        let begin = begin_of_links(&self.name);
        let places = folders().iter().map(AsFd::as_fd).chain([self.folder.as_fd()]);
        let all = places.flat_map(|place| names(place).into_iter().map(move |name| (place, name)));
        let is_one = |(place, name): &(BorrowedFd<'_>, OsString)| {
            name.as_bytes().starts_with(begin.as_bytes())
                && look(*place, name).is_some_and(|file| id(&file) == self.id)
        };
        all.filter(is_one).map(|_| 1).sum::<u64>().max(1)
    }
}

impl Link {
    /// The folder that it is in; `own` is the file's.
    fn folder<'a>(&self, own: &'a OwnedFd) -> BorrowedFd<'a> {
        self.place.and_then(|place| folders().get(place)).unwrap_or(own).as_fd()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            let _ = fs::unlinkat(link.folder(&self.folder), &link.name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn folder(name: &str) -> (std::path::PathBuf, OwnedFd) {
        let path = std::env::temp_dir().join(format!("outlast-file-{name}-{}", process::pid()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let opened = open(&path).unwrap();
        (path, opened)
    }

    #[test]
    fn a_file_that_was_removed_is_put_back_and_one_with_another_name_is_not() {
        let (path, opened) = folder("back");
        let at = path.join("s");
        let _listener = UnixListener::bind(&at).unwrap();
        // One that a supervisor has left that was killed does not count.
        std::fs::hard_link(&at, path.join(".s.outlast-1-1")).unwrap();
        let file = SocketFile::find(opened, b"s", 7, |_| true).unwrap();
        assert!(file.is_there() && file.put_back());
        std::fs::remove_file(&at).unwrap();
        assert!(!file.is_there() && file.put_back() && file.is_there());
        file.remove();
        assert!(!file.is_there() && file.put_back());
        SocketFile { folder: open(&path).unwrap(), name: "s".into(), id: file.id, owner: None, link: None }
            .remove();
        assert!(file.is_there(), "it may be somebody else's");
        UnixStream::connect(&at).unwrap();
        std::fs::rename(&at, path.join("other")).unwrap();
        assert!(!file.put_back() && !at.exists());
        assert!(file.reached_at().is_some());
        std::fs::remove_file(path.join("other")).unwrap();
        let other = UnixListener::bind(&at).unwrap();
        assert!(!file.put_back());
        drop((file, other));
        let left: Vec<_> =
            std::fs::read_dir(&path).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn second_names_that_killed_supervisors_have_left_beside_the_file_are_removed_and_no_others() {
        let (path, opened) = folder("left");
        let _listener = UnixListener::bind(path.join("s")).unwrap();
        let at = |name: &str| path.join(name);
        // No process has such a number.
        let (gone, others) =
            (".s.outlast-4194305-7", [".t.outlast-4194305-8", ".s.outlast-1-9", ".s.outlast-x"]);
        for name in others.into_iter().chain([gone]) {
            std::fs::hard_link(at("s"), at(name)).unwrap();
        }
        let uid = fs::stat(at("s")).unwrap().st_uid;
        remove_left(opened.as_fd(), OsStr::new("s"), uid + 1);
        assert!(at(gone).exists(), "it is somebody else's");
        remove_left(opened.as_fd(), OsStr::new("s"), uid);
        assert!(!at(gone).exists() && others.iter().all(|name| at(name).exists()) && at("s").exists());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_folder_is_the_same_by_every_path_and_another_is_not() {
        let ((path, opened), (other_path, other)) = (folder("same"), folder("another"));
        let _listener = UnixListener::bind(path.join("s")).unwrap();
        let absolute = path.join("s");
        let found = folder_of(absolute.as_os_str().as_bytes(), process::pid()).unwrap();
        let file = SocketFile::find(opened, b"s", 8, |_| true).unwrap();
        assert!(file.is_in(found.as_fd()) && !file.is_in(other.as_fd()));
        assert!(SocketFile::find(other, b"s", 8, |_| true).is_none());
        drop(file);
        std::fs::remove_dir_all(path).unwrap();
        std::fs::remove_dir_all(other_path).unwrap();
    }
}
