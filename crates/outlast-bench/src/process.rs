//! What a process uses, read from `/proc`.

use anyhow::{Context, Result};
use std::fs;
use std::time::Duration;

/// What a process uses at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Resident memory.
    pub rss_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// How often its threads went to sleep of their own accord, so far.
    pub voluntary_switches: u64,
}

/// What the process `pid` uses now.
pub fn usage(pid: u32) -> Result<Usage> {
    let rollup = read(pid, "smaps_rollup")?;
    let mut usage = Usage { rss_bytes: field(&rollup, "Rss:").unwrap_or(0) * 1024, ..Usage::default() };
    for task in tasks(pid) {
        usage.threads += 1;
        let status = fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).unwrap_or_default();
        usage.voluntary_switches += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(usage)
}

/// The processor time of a process with all its threads, to the nanosecond; nothing when there is no such process.
pub fn cpu_time(pid: u32) -> Duration {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return Duration::ZERO };
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both results are ours; a number that is no process is an error, not undefined.
    let read = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut time) == 0
    };
    match (read, u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (true, Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
        _ => Duration::ZERO,
    }
}

/// The process `pid`, its children, and theirs.
pub fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        next += 1;
        for task in tasks(parent) {
            let children =
                fs::read_to_string(format!("/proc/{parent}/task/{task}/children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    all
}

/// The processor time of the process `pid` and of all below it, also of those that have ended and are waited for.
pub fn cpu_time_of_family(pid: u32) -> Duration {
    // SAFETY: no memory is involved.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let tick = Duration::from_secs(1) / u32::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100);
    let of_dead = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        tick * u32::try_from(waited_for_ticks(&stat)).unwrap_or(0)
    };
    family(pid).iter().map(|pid| cpu_time(*pid) + of_dead(pid)).sum()
}

/// Of children that are waited for, from `/proc/PID/stat`.
fn waited_for_ticks(stat: &str) -> u64 {
    /// Behind the name of the program, which may have spaces in it.
    const USER_AND_SYSTEM: std::ops::Range<usize> = 13..15;
    let columns = stat.rsplit_once(") ").map_or("", |(_, columns)| columns).split_whitespace();
    let parsed: Vec<u64> = columns.map(|column| column.parse().unwrap_or(0)).collect();
    parsed.get(USER_AND_SYSTEM).unwrap_or_default().iter().sum()
}

/// The processor time that this process and `other` take together from now on.
pub struct Meter {
    other: u32,
    before: Duration,
}

impl Meter {
    /// From now on.
    pub fn start(other: u32) -> Self {
        Self { other, before: Self::now(other) }
    }

    /// Until now.
    pub fn read(&self) -> Duration {
        Self::now(self.other).saturating_sub(self.before)
    }

    fn now(other: u32) -> Duration {
        cpu_time(std::process::id()) + cpu_time(other)
    }
}

fn tasks(pid: u32) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

/// The number after a name at the start of a line.
pub fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_at_the_start_of_lines() {
        let text = "nonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t42\nRss:      1024 kB\n";
        assert_eq!(field(text, "voluntary_ctxt_switches:"), Some(42));
        assert_eq!(field(text, "Rss:"), Some(1024));
        assert_eq!(field(text, "Pss:"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.rss_bytes > 0 && usage.threads > 0);
        assert!(cpu_time(std::process::id()) > Duration::ZERO);
    }

    #[test]
    fn children_that_have_ended_count() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4 1 2 3 4 11 22 300 4000 20 0 1 0";
        assert_eq!(waited_for_ticks(stat), 4300);
        assert_eq!(waited_for_ticks(""), 0);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(family(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        // In this order: time passes.
        let own = cpu_time(std::process::id());
        assert!(cpu_time_of_family(std::process::id()) >= own);
    }

    #[test]
    fn a_process_that_is_not_there_uses_nothing() {
        assert_eq!(cpu_time(u32::MAX), Duration::ZERO);
        const ABOVE_ANY: u32 = 4_194_304 + 1;
        assert_eq!(cpu_time(ABOVE_ANY), Duration::ZERO);
        assert!(usage(ABOVE_ANY).is_err());
    }
}
