//! Processes of an earlier supervisor that is gone, whatever they have become: found by what they have inherited from it. As
//! long as it lived it would have ended them; the next one of its name does.
//!
//! A process has the supervisor's [board](crate::board::Board) open, and its name among its environment. Some close all
//! descriptors, some write over their environment: one of both is enough. It is a board only if this user has made it, or
//! root. A server that uses the library has the board mapped, too: it looks after itself, and is left alone.

use super::left;
use crate::custody;
use crate::sys::descriptors::{HIGH, LOW_MAX};
use crate::sys::family;
use crate::sys::process::{self, Known, Pid};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

/// The variable with the [key](super::Settings::key) of the supervisor.
pub(super) const KEY_ENVIRONMENT: &str = "OUTLAST_SERVICE";
/// Begins the name of a board's memory.
const BOARD: &str = "outlast-board:";
/// A supervisor has few descriptors when it makes its board: it is one of the first, or of so many with [high](HIGH) numbers.
const NUMBERS: i32 = 256;

/// As what a supervisor of this key is known to the next one. The number that it has means something in its own PID
/// namespace only: in another one, such as a container's, it looks gone while it lives.
pub(super) fn known_as(key: &str) -> String {
    format!("{} {key}", process::world())
}

/// What the memory of this process's board is called.
pub(super) fn name_of_board(key: &str) -> std::ffi::CString {
    std::ffi::CString::new(custody::name_of_memory(BOARD, std::process::id(), key)).unwrap_or_default()
}

/// All that supervisors of this key have left which are gone, but for what outlives its program on purpose.
pub(super) fn left_of(key: &str) -> Vec<Known> {
    let mut found = found(key);
    found.retain(|supervisor, all| !all.iter().any(|known| uses_library(known.pid, *supervisor, key)));
    let mut all: Vec<Known> = found.into_values().flatten().collect();
    all.retain(|known| left::outlives(known.pid) != Some(true));
    all
}

/// Of those the processes that use the library: servers, and what makes their next generations.
pub(super) fn serving_of(key: &str) -> Vec<Known> {
    let all = found(key).into_iter();
    let serving = all.flat_map(|(supervisor, all)| {
        all.into_iter().filter(move |known| uses_library(known.pid, supervisor, key))
    });
    serving.collect()
}

/// By the supervisor.
fn found(key: &str) -> BTreeMap<Pid, Vec<Known>> {
    let mut found = BTreeMap::<Pid, Vec<Known>>::new();
    for pid in family::all().into_iter().filter(|pid| *pid != process::pid()) {
        let Ok(known) = Known::open(pid) else { continue };
        if let Some(supervisor) = by_environment(pid, key).or_else(|| by_board(pid, key))
            && family::parent_of_living(supervisor).is_none()
            && family::parent_of_living(pid).is_some()
        {
            found.entry(supervisor).or_default().push(known);
        }
    }
    found
}

fn by_environment(pid: Pid, key: &str) -> Option<Pid> {
    let its_key = left::variable(pid, KEY_ENVIRONMENT)?;
    (its_key == key.as_bytes()).then(|| left::told(pid)).flatten().map(|(supervisor, _)| supervisor)
}

fn by_board(pid: Pid, key: &str) -> Option<Pid> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let is_one = |entry: &std::fs::DirEntry| {
        entry.file_name().to_str().and_then(|name| name.parse().ok()).is_some_and(|number: i32| {
            (0..=LOW_MAX).contains(&number) || (HIGH..HIGH + NUMBERS).contains(&number)
        })
    };
    entries.filter(is_one).find_map(|entry| {
        let path = std::fs::read_link(entry.path()).ok()?;
        let supervisor = custody::supervisor_in(path.to_str()?, BOARD, key)?;
        // A stranger may have passed it to a process that takes descriptors.
        let owner = std::fs::metadata(entry.path()).ok()?.uid();
        custody::is_ours(owner).then_some(supervisor)
    })
}

/// Whether a process names this supervisor by something else than what it has mapped.
pub(super) fn tells(pid: Pid, supervisor: Pid, key: &str) -> bool {
    by_environment(pid, key) == Some(supervisor) || by_board(pid, key) == Some(supervisor)
}

/// Whether it looks after itself: it has this supervisor's board mapped. Another supervisor has its own.
fn uses_library(pid: Pid, supervisor: Pid, key: &str) -> bool {
    let marks = custody::Marks::of(pid);
    let is_its = |is_its: Option<bool>| is_its.unwrap_or_else(|| tells(pid, supervisor, key));
    marks.supervisors(BOARD, key).any(|(its, is_theirs)| its == supervisor && is_its(is_theirs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// A process that has lost its supervisor, which was this one of `key`; the supervisor that is named is gone.
    fn orphan(key: &str, environment: &[(&str, &str)]) -> std::process::Child {
        let mut gone = Command::new("true").spawn().unwrap();
        let supervisor = format!("{} service", gone.id());
        gone.wait().unwrap();
        let mut command = Command::new("sleep");
        command.arg("600").env(KEY_ENVIRONMENT, key).env(left::ENVIRONMENT, supervisor).stdin(Stdio::null());
        command.envs(environment.iter().copied()).spawn().unwrap()
    }

    #[test]
    fn who_has_lost_a_supervisor_of_this_key_is_found_and_nobody_else() {
        let key = format!("traces of {}", process::pid());
        let mut all = [
            orphan(&key, &[]),
            orphan("another key", &[]),
            orphan(&key, &[(left::OUTLIVES_ENVIRONMENT, "1")]),
            orphan(&key, &[(left::ENVIRONMENT, &left::value("one that lives"))]),
        ];
        let pid = |at: usize| Pid::try_from(all[at].id()).unwrap();
        // Its environment can be read a moment after it was started.
        for child in &all {
            let path = format!("/proc/{}/environ", child.id());
            while std::fs::read(&path).unwrap().is_empty() {
                std::thread::yield_now();
            }
        }
        let found: Vec<Pid> = left_of(&key).iter().map(|known| known.pid).collect();
        let expected = pid(0);
        for child in &mut all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, [expected]);
    }
}
