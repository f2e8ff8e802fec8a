//! Whether the programs of a host have come to rest: each waits for somebody, and has nothing to do until then.
//!
//! A port that is open says nothing of the next one: of two servers in one command line the slower may not have begun.
//! What has something to do is running, or ready to, or waits for a disk; the kernel tells, however busy the machine is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// How often each thread has been given a processor, by their numbers. Two that are equal: nobody has done anything
/// from the end of the first look to the beginning of the second.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rest(BTreeMap<u32, u64>);

impl Rest {
    /// Looks at all programs in the network namespace of this inode, this one not included. None if one of them has
    /// something to do.
    pub(crate) fn look(namespace: u64) -> Option<Self> {
        let own = std::process::id();
        let mut turns = BTreeMap::new();
        for process in numbers("/proc").filter(|process| *process != own) {
            let folder = format!("/proc/{process}");
            // One that has ended meanwhile, or is about to, is in no namespace.
            if fs::metadata(format!("{folder}/ns/net")).map(|file| file.ino()).ok() != Some(namespace) {
                continue;
            }
            for thread in numbers(&format!("{folder}/task")) {
                let Ok(status) = fs::read_to_string(format!("{folder}/task/{thread}/status")) else {
                    continue;
                };
                turns.insert(thread, turns_of_one_at_rest(&status)?);
            }
        }
        Some(Self(turns))
    }
}

/// The names in a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// How often a thread has been given a processor, by its `status` (proc_pid_status(5)); none if it has something to do.
fn turns_of_one_at_rest(status: &str) -> Option<u64> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    // Running or ready to run, waiting for a disk.
    if field("State").is_none_or(|state| state.starts_with(['R', 'D'])) {
        return None;
    }
    let count = |name| field(name)?.parse::<u64>().ok();
    Some(count("voluntary_ctxt_switches")? + count("nonvoluntary_ctxt_switches")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_or_waits_for_a_disk_is_not_at_rest() {
        let status = |state: &str| {
            format!(
                "Name:\tnc\nState:\t{state}\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t2\n"
            )
        };
        for state in ["S (sleeping)", "T (stopped)", "I (idle)", "Z (zombie)"] {
            assert_eq!(turns_of_one_at_rest(&status(state)), Some(9), "{state}");
        }
        for state in ["R (running)", "D (disk sleep)"] {
            assert_eq!(turns_of_one_at_rest(&status(state)), None, "{state}");
        }
        assert_eq!(turns_of_one_at_rest(""), None);
    }
}
