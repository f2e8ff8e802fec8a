//! Whether the kernel kills for want of memory.

use super::shared::AllZeroes;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;

/// Memory that is had to be given back, where the limit of a group is reached: so there is some for whoever looks after a
/// death for want of it. Even reading a file in /proc takes some. All generations share it: it costs nothing to keep.
#[repr(C, align(4096))]
pub(crate) struct Reserve([AtomicU8; 16 << 10]);

// SAFETY: atomics alone, for which zeroes are a value.
unsafe impl AllZeroes for Reserve {}

impl Reserve {
    /// Has it: as long as nobody gives it back.
    pub(crate) fn fill(&self) {
        super::pages::populate(self.0.as_ptr().addr(), size_of::<Self>());
    }

    pub(crate) fn give_back(&self) {
        super::shared::forget(&self.0);
    }
}

/// Where it counts how often it has.
#[derive(Clone, Debug)]
pub(crate) struct Kills(PathBuf);

impl Kills {
    /// In this process's group (cgroups(7), version 2 or 1) or, where that is not to be read, on this machine, which takes
    /// longer.
    pub(crate) fn of_this_process() -> Self {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let places = groups.lines().filter_map(place);
        let known = places.map(Self).find(|kills| kills.count().is_some());
        known.unwrap_or_else(|| Self("/proc/vmstat".into()))
    }

    /// None where it cannot be read at the moment.
    pub(crate) fn count(&self) -> Option<u64> {
        value(&std::fs::read_to_string(&self.0).ok()?, "oom_kill")
    }
}

/// From a line of /proc/self/cgroup: number, controllers and name of a group, or of the only one in version 2. Names are
/// those below the usual place, unless this process has a view of its own of the groups.
fn place(line: &str) -> Option<PathBuf> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, name) = (parts.next()?, parts.next()?, parts.next()?.trim_start_matches('/'));
    let root = Path::new("/sys/fs/cgroup");
    match controllers {
        "" => Some(root.join(name).join("memory.events")),
        "memory" => Some(root.join("memory").join(name).join("memory.oom_control")),
        _ => None,
    }
}

fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_the_one_with_this_name() {
        assert_eq!(value("oom 7\noom_kill 3\noom_kill_group 5\n", "oom_kill"), Some(3));
        assert_eq!(value("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "oom_kill"), Some(2));
        assert_eq!(value("low 0\n", "oom_kill"), None);
        assert!(Kills::of_this_process().count().is_some());
    }

    #[test]
    fn groups_are_looked_for_where_they_usually_are() {
        let both = [
            ("0::/a/b", "/sys/fs/cgroup/a/b/memory.events"),
            ("4:memory:/", "/sys/fs/cgroup/memory/memory.oom_control"),
        ];
        for (line, path) in both {
            assert_eq!(place(line), Some(path.into()));
        }
        assert_eq!((place("3:cpu:/x"), place("nonsense")), (None, None));
    }
}
