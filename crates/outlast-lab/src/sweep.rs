//! Removing what the labs of dead processes left behind, and the programs that still run in a namespace.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::error::{Context, Result};
use crate::{lab, netns, sys};

const PREFIX: &str = "outlast-";

/// The process that a namespace belongs to: its number, and when it started, as numbers are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    started_ticks: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.{}", self.pid, self.started_ticks)
    }
}

impl Owner {
    pub(crate) fn this_process() -> io::Result<Self> {
        let pid = std::process::id();
        let started_ticks = started_ticks(pid).ok_or_else(|| io::Error::other("unexpected content"))?;
        Ok(Self { pid, started_ticks })
    }

    /// Whom the namespace `name` belongs to; `None` when it was not made by a lab.
    fn of(name: &str) -> Option<Self> {
        let (owner, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let (pid, started_ticks) = owner.split_once('.')?;
        Some(Self { pid: pid.parse().ok()?, started_ticks: started_ticks.parse().ok()? })
    }

    fn is_alive(self) -> bool {
        started_ticks(self.pid) == Some(self.started_ticks)
    }
}

/// When the process started, in clock ticks since the machine did; `None` when there is no such process,
/// or only its corpse.
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

pub(crate) fn sweep() -> Result<Vec<String>> {
    let names = match std::fs::read_dir(netns::NAMES_DIR) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.context(|| format!("cannot read {}", netns::NAMES_DIR))?,
    };
    let names = names.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let dead: HashSet<_> =
        names.filter(|name| Owner::of(name).is_some_and(|owner| !owner.is_alive())).collect();
    if dead.is_empty() {
        return Ok(Vec::new());
    }
    end_programs_in(&dead);
    let mut removed: Vec<_> = dead.into_iter().collect();
    removed.sort();
    for name in &removed {
        netns::unname(name);
        let _ = std::fs::remove_file(lab::hosts_file_of(name));
    }
    Ok(removed)
}

/// Kills every program that runs in one of the namespaces, this process excepted, and waits until they are gone.
pub(crate) fn end_programs_in(namespaces: &HashSet<String>) {
    let inodes: HashSet<_> = namespaces
        .iter()
        .filter_map(|name| Some(std::fs::metadata(netns::path_of(name)).ok()?.ino()))
        .collect();
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let programs = programs_in(&inodes);
        if programs.is_empty() || Instant::now() > deadline {
            return;
        }
        for pid in programs {
            tracing::debug!(pid, "ending a program that was left in the lab");
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn programs_in(inodes: &HashSet<u64>) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).ok();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| Some(*pid) != own)
        .filter(|pid| {
            let namespace = std::fs::metadata(format!("/proc/{pid}/ns/net"));
            namespace.is_ok_and(|namespace| inodes.contains(&namespace.ino()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_labs_have_owners() {
        let owner = Owner { pid: 12, started_ticks: 345 };
        assert_eq!(Owner::of(&format!("{owner}-0-test-client")), Some(owner));
        for name in ["client", "outlast-", "outlast-12-0-test", "outlast-x.1-0", "other-12.345-0-test"] {
            assert_eq!(Owner::of(name), None, "{name}");
        }
    }

    #[test]
    fn this_process_lives_and_an_impostor_with_its_number_does_not() {
        let owner = Owner::this_process().unwrap();
        assert!(owner.is_alive());
        assert!(!Owner { started_ticks: owner.started_ticks + 1, ..owner }.is_alive());
    }
}
