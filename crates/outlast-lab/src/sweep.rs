//! Removing what the labs of dead processes left behind, and the programs that still run in a namespace.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::error::{Context, Result};
use crate::{lab, netns, sys};

const PREFIX: &str = "outlast-";

/// The inode of the machine's first PID namespace, in which all processes are seen (PROC_PID_INIT_INO of the kernel).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The process that a namespace belongs to: its number, and when it started, as numbers are used again; and the PID namespace
/// (pid_namespaces(7)) in which it has that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    started_ticks: u64,
    pid_namespace: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.{}.{:x}", self.pid, self.started_ticks, self.pid_namespace)
    }
}

impl Owner {
    pub(crate) fn this_process() -> io::Result<Self> {
        let pid = std::process::id();
        let started_ticks = started_ticks(pid).ok_or_else(|| io::Error::other("unexpected content"))?;
        Ok(Self { pid, started_ticks, pid_namespace: pid_namespace("self")? })
    }

    /// Whom the namespace `name` belongs to; `None` when it was not made by a lab.
    fn of(name: &str) -> Option<Self> {
        let (owner, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let mut parts = owner.split('.');
        let (pid, started_ticks, pid_namespace) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            pid: pid.parse().ok()?,
            started_ticks: started_ticks.parse().ok()?,
            pid_namespace: u64::from_str_radix(pid_namespace, 16).ok()?,
        })
    }

    /// Whether it has ended, seen from the PID namespace `own`. What cannot be seen from there is taken for alive.
    fn is_dead(self, own: u64) -> bool {
        if self.pid_namespace == own {
            return started_ticks(self.pid) != Some(self.started_ticks);
        }
        own == FIRST_PID_NAMESPACE && !has_processes(self.pid_namespace)
    }
}

/// The PID namespace of a process, named as in /proc.
fn pid_namespace(process: &str) -> io::Result<u64> {
    Ok(std::fs::metadata(format!("/proc/{process}/ns/pid"))?.ino())
}

fn has_processes(namespace: u64) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let names = processes.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut numbers = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.any(|number| pid_namespace(&number).is_ok_and(|of_process| of_process == namespace))
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
    let own = pid_namespace("self").context(|| "cannot look at /proc/self/ns/pid".to_owned())?;
    let dead: HashSet<_> =
        names.filter(|name| Owner::of(name).is_some_and(|owner| owner.is_dead(own))).collect();
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
        let owner = Owner { pid: 12, started_ticks: 345, pid_namespace: 0xf00d };
        assert_eq!(Owner::of(&format!("{owner}-0-test-client")), Some(owner));
        for name in [
            "client",
            "outlast-",
            "outlast-12-0-test",
            "outlast-12.3-0-test",
            "outlast-x.1.2-0",
            "other-1.3.5-0-test",
        ] {
            assert_eq!(Owner::of(name), None, "{name}");
        }
    }

    #[test]
    fn this_process_lives_and_an_impostor_with_its_number_does_not() {
        let owner = Owner::this_process().unwrap();
        let own = owner.pid_namespace;
        assert!(!owner.is_dead(own));
        assert!(Owner { started_ticks: owner.started_ticks + 1, ..owner }.is_dead(own));
    }

    #[test]
    fn a_process_that_cannot_be_seen_is_not_taken_for_dead() {
        let elsewhere = Owner { pid: 1, started_ticks: 1, pid_namespace: 0xf00d };
        assert!(!elsewhere.is_dead(0xbad));
        // All processes are seen in the first namespace: nobody is left in that other one.
        assert!(elsewhere.is_dead(FIRST_PID_NAMESPACE));
    }
}
