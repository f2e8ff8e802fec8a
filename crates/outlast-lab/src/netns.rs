//! Network namespaces: made, named, entered and removed.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::sys;

/// Where named namespaces are kept, by convention shared with the `ip netns` command.
pub(crate) const NAMES_DIR: &str = "/run/netns";

/// A named network namespace; the name is removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Netns {
    name: String,
    fd: OwnedFd,
}

impl Netns {
    /// Creates a namespace and names it.
    pub(crate) fn create(name: &str) -> Result<Self> {
        prepare_names_dir().context(|| format!("cannot prepare {NAMES_DIR}"))?;
        let path = path_of(name);
        File::create_new(&path).context(|| format!("cannot create {}", path.display()))?;
        // A fresh thread: it takes the new namespace with it when it ends, and this thread stays where it is.
        let made = std::thread::scope(|scope| scope.spawn(|| make_here(&path)).join());
        match made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes namespaces panicked"))) {
            Ok(fd) => Ok(Self { name: name.to_owned(), fd }),
            Err(e) => {
                let _ = std::fs::remove_file(&path);
                Err(e).context(|| format!("cannot create network namespace {name}"))
            }
        }
    }

    /// The name under which `ip netns exec` finds it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Moves this thread into the namespace until the guard is dropped.
    pub(crate) fn enter(&self) -> io::Result<NetnsGuard> {
        let home = OwnedFd::from(File::open("/proc/thread-self/ns/net")?);
        sys::enter_network_namespace(self.fd.as_fd())?;
        Ok(NetnsGuard { home, not_send: PhantomData })
    }

    /// Moves this thread into the namespace for good.
    pub(crate) fn enter_for_good(&self) -> io::Result<()> {
        sys::enter_network_namespace(self.fd.as_fd())
    }

    /// By which processes that are in it are known (`/proc/PID/ns/net`).
    pub(crate) fn inode(&self) -> io::Result<u64> {
        Ok(std::os::unix::fs::MetadataExt::ino(&File::from(self.duplicate()?).metadata()?))
    }

    /// Another descriptor for the namespace.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Takes the name away. The kernel removes the namespace once nothing uses it.
    pub(crate) fn unname(&self) {
        unname(&self.name);
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.unname();
    }
}

/// Brings the thread back to the namespace it came from when dropped. It cannot leave its thread.
#[derive(Debug)]
#[must_use = "the thread leaves the host when the guard is dropped"]
pub struct NetnsGuard {
    home: OwnedFd,
    not_send: PhantomData<*const ()>,
}

impl Drop for NetnsGuard {
    fn drop(&mut self) {
        if let Err(error) = sys::enter_network_namespace(self.home.as_fd()) {
            tracing::error!(%error, "this thread cannot leave the host it entered; end it");
        }
    }
}

/// Takes the name of a namespace away; nothing happens when it has none.
pub(crate) fn unname(name: &str) {
    let path = path_of(name);
    let Ok(c_path) = c_path(&path) else { return };
    let _ = sys::unmount(&c_path);
    let _ = std::fs::remove_file(&path);
}

/// The file that names a namespace.
pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(NAMES_DIR).join(name)
}

/// A path as system calls want it.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(io::Error::other)
}

fn make_here(path: &Path) -> io::Result<OwnedFd> {
    sys::new_network_namespace()?;
    sys::mount_bind(c"/proc/thread-self/ns/net", &c_path(path)?)?;
    Ok(OwnedFd::from(File::open("/proc/thread-self/ns/net")?))
}

/// Makes the directory of names a mount whose changes every mount namespace sees, as `ip netns` does: without
/// that a namespace stays mounted in places where nobody can remove it.
fn prepare_names_dir() -> io::Result<()> {
    std::fs::create_dir_all(NAMES_DIR)?;
    let dir = c_path(Path::new(NAMES_DIR))?;
    match sys::mount_shared(&dir) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            sys::mount_bind_recursive(&dir, &dir)?;
            sys::mount_shared(&dir)
        }
        other => other,
    }
}
