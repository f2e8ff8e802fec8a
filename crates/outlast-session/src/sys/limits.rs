//! How much there is for this process: memory, descriptors.

use std::fs::File;
use std::path::{Path, PathBuf};

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

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

/// Has the allocator return to the system what it keeps and nobody uses. It holds up whoever asks it for memory meanwhile: some
/// ten milliseconds for each 100 MB.
pub(crate) fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The least limit of memory from this process's control group up (cgroups(7)), of version 2 or 1.
fn group_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let read = |file: &Path| std::fs::read_to_string(file).ok()?.trim().parse().ok();
    groups
        .lines()
        .filter_map(memory_group)
        .filter_map(|(folder, file)| least_limit(&folder, file, read))
        .min()
}

/// Of a line of `/proc/self/cgroup`: the folder of the control group, if it is one of memory, and the file that has its limit.
fn memory_group(line: &str) -> Option<(PathBuf, &'static str)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?.trim_start_matches('/'));
    if number == "0" && controllers.is_empty() {
        return Some((Path::new(GROUPS).join(path), "memory.max"));
    }
    let is_memory = controllers.split(',').any(|controller| controller == "memory");
    is_memory.then(|| (Path::new(GROUPS).join("memory").join(path), "memory.limit_in_bytes"))
}

/// In a container the folder itself may be that of the host, and the limit in one above it.
fn least_limit(folder: &Path, file: &str, read: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(GROUPS));
    folders.filter_map(|folder| read(&folder.join(file))).min()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions_of_control_groups_are_found() {
        for (line, folder, file) in [
            ("0::/", "/sys/fs/cgroup/", "memory.max"),
            ("0::/a/b", "/sys/fs/cgroup/a/b", "memory.max"),
            ("9:memory:/docker/c", "/sys/fs/cgroup/memory/docker/c", "memory.limit_in_bytes"),
            ("4:cpu,memory:/c", "/sys/fs/cgroup/memory/c", "memory.limit_in_bytes"),
        ] {
            assert_eq!(memory_group(line), Some((PathBuf::from(folder), file)), "{line}");
        }
        for line in ["3:cpu,cpuacct:/c", "1:name=systemd:/", "", "0"] {
            assert_eq!(memory_group(line), None, "{line}");
        }
        let read = |file: &Path| match file.to_str()? {
            "/sys/fs/cgroup/memory/memory.limit_in_bytes" => Some(400),
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes" => Some(500),
            _ => None,
        };
        let found = least_limit(Path::new("/sys/fs/cgroup/memory/a/b"), "memory.limit_in_bytes", read);
        assert_eq!(found, Some(400));
    }
}
