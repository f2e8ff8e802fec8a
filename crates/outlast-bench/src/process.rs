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

/// The processor time of the living threads of a process, to the nanosecond. Threads that have ended do not count.
pub fn cpu_time(pid: u32) -> Duration {
    let of_task = |task: String| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{task}/schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(tasks(pid).map(of_task).sum())
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
    }
}
