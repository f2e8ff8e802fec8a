//! What a program holds: descriptors, threads, memory. After its sessions it is what it was before them.

use std::time::{Duration, Instant};

/// For threads of an outage and for descriptors of the last links to go. Shorter than the test's, which hears what is left.
const PATIENCE: Duration = Duration::from_secs(40);
/// The pool of rings keeps 16 MiB, an allocator's caches some more, whatever the number of breakages.
const GROWTH_BYTES_MAX: u64 = 48 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    descriptors: usize,
    threads: usize,
    memory_bytes: u64,
}

impl Holdings {
    pub fn now() -> Self {
        let count = |path: &str| std::fs::read_dir(path).unwrap().count();
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            memory_bytes: memory_bytes(),
        }
    }

    /// What it holds when that has not changed for a while. On a busy machine the helper thread is late with what it opens
    /// for good.
    pub fn settled() -> Self {
        let mut last = Self::now();
        let mut since = Instant::now();
        while since.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(10));
            let now = Self::now();
            if (now.descriptors, now.threads) != (last.descriptors, last.threads) {
                since = Instant::now();
            }
            last = now;
        }
        last
    }

    /// Panics if the program holds more than before, and goes on doing so.
    pub fn assert_nothing_is_left(before: Self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        let after = loop {
            let now = Self::now();
            if now.descriptors <= before.descriptors && now.threads <= before.threads {
                break now;
            }
            assert!(
                Instant::now() < deadline,
                "{what} leaks: {before:?} became {now:?}\n{}\n{}",
                descriptors(),
                threads()
            );
            std::thread::sleep(Duration::from_millis(20));
        };
        let growth_bytes = after.memory_bytes.saturating_sub(before.memory_bytes);
        assert!(growth_bytes <= GROWTH_BYTES_MAX, "{what} leaks memory: {before:?} became {after:?}");
        println!(
            "HELD {what} descriptors={} threads={} grown_kb={}",
            after.descriptors,
            after.threads,
            growth_bytes >> 10
        );
    }
}

fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kb: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kb << 10
}

fn descriptors() -> String {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    names.map(|name| name.display().to_string()).collect::<Vec<_>>().join(" ")
}

fn threads() -> String {
    let entries = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect::<Vec<_>>().join(" ")
}
