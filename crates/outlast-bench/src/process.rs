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
fn field(text: &str, name: &str) -> Option<u64> {
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
    fn a_process_that_is_not_there_uses_nothing() {
        assert_eq!(cpu_time(u32::MAX), Duration::ZERO);
        const ABOVE_ANY: u32 = 4_194_304 + 1;
        assert_eq!(cpu_time(ABOVE_ANY), Duration::ZERO);
        assert!(usage(ABOVE_ANY).is_err());
    }
}
