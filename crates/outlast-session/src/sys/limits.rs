//! How much there is for this process: memory, descriptors.

use std::fs::File;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process may use: those of the machine, or of its control group if that has fewer. None: that cannot be
/// read now, for want of a descriptor.
pub(crate) fn memory_bytes() -> Option<u64> {
    // SAFETY: asks for numbers, touches nothing.
    let (pages, page_bytes) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let machine = u64::try_from(pages).ok()?.checked_mul(u64::try_from(page_bytes).ok()?)?;
    let probe = File::open("/proc/self/cgroup").map_err(|error| error.raw_os_error());
    if matches!(probe, Err(Some(libc::EMFILE | libc::ENFILE))) {
        return None;
    }
    Some(group_bytes().map_or(machine, |group| group.min(machine)))
}

/// The least `memory.max` from this process's control group up (cgroups(7), version 2).
fn group_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let folder: PathBuf = root.join(own);
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(root));
    folders
        .filter_map(|folder| std::fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse().ok())
        .min()
}

/// How many descriptors this process may have open (`ulimit -n`).
pub(crate) fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable and of the right type.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Whether this says that there is no descriptor, of this process or of the machine.
pub(crate) fn is_short(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// How many it has open; none before Linux 6.2, which does not tell.
pub(crate) fn descriptors_open() -> Option<u64> {
    std::fs::metadata("/proc/self/fd").ok().map(|folder| folder.len()).filter(|count| *count > 0)
}

/// A descriptor that is there to be closed when no other can be had.
#[derive(Debug)]
pub(crate) struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    pub(crate) fn take() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Does something that needs a descriptor for a moment. None if there is no spare.
    pub(crate) fn lend<T>(&mut self, work: impl FnOnce() -> T) -> Option<T> {
        let spare = self.0.take();
        let done = spare.is_some().then(|| {
            drop(spare);
            work()
        });
        *self = Self::take();
        done
    }
}
