//! Memory whose name shows others which supervisor a process is of: the table, and the supervisor's board. Anybody can call
//! memory so, and pass it to any process that takes it: a name counts only if root has made the memory, or this user.

use crate::sys::process::Pid;
use rustix::process::geteuid;
use std::os::unix::fs::MetadataExt;

/// Begins the name of the table's memory, as others see it in /proc/PID/maps: behind it are the supervisor's process and
/// the name of what it runs.
pub(super) const MARK: &str = "outlast-custody:";
/// Of the latter.
const MARK_BYTES_MAX: usize = 200;
/// Begins the path of memory in /proc. Files can be called so elsewhere than in the root folder, and are not meant.
const MEMORY: &str = "/memfd:";

pub(super) fn mark(supervisor: u32, name: &str) -> String {
    name_of_memory(MARK, supervisor, name)
}

/// What memory is called that shows others, in /proc, which supervisor a process is of, and what that runs.
pub(crate) fn name_of_memory(begin: &str, supervisor: u32, name: &str) -> String {
    let safe = |c: char| if c.is_control() || c == '\\' { '?' } else { c };
    let mut mark = format!("{begin}{supervisor}:");
    name.chars()
        .map(safe)
        .take_while(|c| {
            let fits = mark.len() + c.len_utf8() <= MARK_BYTES_MAX;
            mark.push(if fits { *c } else { ' ' });
            fits
        })
        .for_each(drop);
    mark.trim_end().to_owned()
}

/// Whether memory of this owner is a supervisor's that this one may go on for.
pub(crate) fn is_ours(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}

/// The supervisor that memory is of, by its path in /proc, if it is one of that name. Who has made it is to be asked as well.
pub(crate) fn supervisor_in(path: &str, begin: &str, name: &str) -> Option<Pid> {
    let found = path.strip_prefix(MEMORY)?.strip_prefix(begin)?;
    let supervisor = found.split_once(':')?.0.parse().ok()?;
    let found = found.strip_suffix(" (deleted)").unwrap_or(found);
    let is_it = name_of_memory(begin, supervisor, name).strip_prefix(begin) == Some(found);
    is_it.then(|| Pid::try_from(supervisor).ok())?
}

/// Memory with names that a process has mapped.
pub(crate) struct Marks {
    pid: Pid,
    maps: String,
}

impl Marks {
    pub(crate) fn of(pid: Pid) -> Self {
        Self { pid, maps: std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default() }
    }

    /// The supervisors of that name whose memory it has, and whether that is theirs. None: this process may not ask who has
    /// made it, which takes CAP_CHECKPOINT_RESTORE.
    pub(crate) fn supervisors(&self, begin: &str, name: &str) -> impl Iterator<Item = (Pid, Option<bool>)> {
        self.maps.lines().filter_map(parse).filter_map(move |(range, path)| {
            Some((supervisor_in(path, begin, name)?, owner(self.pid, range).map(is_ours)))
        })
    }
}

/// Of a line of /proc/PID/maps: the addresses, and the path.
fn parse(line: &str) -> Option<(&str, &str)> {
    /// Access, offset, device and inode.
    const BETWEEN: usize = 4;
    let (range, mut rest) = line.split_once(' ')?;
    for _ in 0..BETWEEN {
        rest = rest.trim_start_matches(' ').split_once(' ')?.1;
    }
    Some((range, rest.trim_start_matches(' ')))
}

/// Who has made what a process has mapped there, whatever the process is by now.
fn owner(pid: Pid, range: &str) -> Option<u32> {
    let (from, to) = range.split_once('-')?;
    // With as many digits as it takes.
    let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16));
    let file = std::fs::metadata(format!("/proc/{pid}/map_files/{:x}-{:x}", from.ok()?, to.ok()?)).ok()?;
    Some(file.uid())
}

/// The supervisor of that name that a process has its table of. Where this process may not ask who has made the memory,
/// `is_told` says whether something else of the process names this supervisor: it sees its own user's processes alone there,
/// and one of them may have mapped what a stranger has passed to it.
pub(crate) fn supervisor_of(pid: Pid, name: &str, is_told: impl Fn(Pid) -> bool) -> Option<Pid> {
    let marks = Marks::of(pid);
    let mut all = marks.supervisors(MARK, name);
    all.find_map(|(supervisor, is_its)| is_its.unwrap_or_else(|| is_told(supervisor)).then_some(supervisor))
}

/// Whose the table is that a process has: who has made it. None: it has none, or this process may not ask.
pub(super) fn owner_of_table(pid: Pid) -> Option<u32> {
    let maps = Marks::of(pid).maps;
    let is_table = |path: &str| path.strip_prefix(MEMORY).is_some_and(|name| name.starts_with(MARK));
    let (range, _) = maps.lines().filter_map(parse).find(|(_, path)| is_table(path))?;
    owner(pid, range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_is_a_supervisors_whatever_files_are_called() {
        let memory = format!("/memfd:{}", mark(7, "a b"));
        for path in [memory.clone(), format!("{memory} (deleted)")] {
            assert_eq!(supervisor_in(&path, MARK, "a b"), Some(7), "{path}");
        }
        assert_eq!(supervisor_in(&memory, MARK, "a"), None);
        assert_eq!(supervisor_in(&memory, "outlast-board:", "a b"), None);
        for path in [
            format!("/tmp{memory}"),
            format!("/tmp/x {memory}"),
            mark(7, "a b"),
            format!("/{}", mark(7, "a b")),
        ] {
            assert_eq!(supervisor_in(&path, MARK, "a b"), None, "{path}");
        }
    }

    #[test]
    fn lines_of_maps_are_split_where_the_path_begins_and_nowhere_else() {
        let line =
            "7f0a1000-7f0a2000 rw-s 00000000 00:01 1234                       /tmp/a /memfd:b (deleted)";
        assert_eq!(parse(line), Some(("7f0a1000-7f0a2000", "/tmp/a /memfd:b (deleted)")));
        assert_eq!(parse("7f0a1000-7f0a2000 rw-p 00000000 00:00 0 "), Some(("7f0a1000-7f0a2000", "")));
        assert_eq!(parse("7f0a1000-7f0a2000 rw-p"), None);
    }

    #[test]
    fn memory_that_root_or_this_user_has_made_is_ours() {
        let own = geteuid().as_raw();
        assert!(is_ours(0) && is_ours(own) && !is_ours(own + 1));
    }
}
