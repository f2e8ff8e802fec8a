//! Whether the machine was ours while we measured.
//!
//! Work of others on any core makes every number worse. Each repeat is judged by the processor time that went to
//! neither us nor our helpers; a disturbed repeat is thrown away and measured again, as long as time allows.

use crate::process;
use std::fs;
use std::time::{Duration, Instant};

/// Most processor time of others within a repeat, as a share of one core, for the repeat to count as quiet.
pub const OTHERS_SHARE_MAX: f64 = 0.10;

/// The start of a stretch of time to be judged.
#[derive(Debug)]
pub struct Reading {
    at: Instant,
    busy: Duration,
    ours: Duration,
}

/// Judges stretches of time.
#[derive(Clone, Debug)]
pub struct Gauge {
    helpers: Vec<u32>,
    /// Whether everything below this process is ours, also what has ended.
    family: bool,
    tick: Duration,
}

impl Gauge {
    /// Work of this process and of `helpers` is ours.
    pub fn new(helpers: Vec<u32>) -> Self {
        // SAFETY: no memory is involved.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let per_second = u32::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100);
        Self { helpers, family: false, tick: Duration::from_secs(1) / per_second }
    }

    /// Work of this process is ours, and of all that it has started and will: they come and go.
    pub fn of_family() -> Self {
        Self { family: true, ..Self::new(Vec::new()) }
    }

    /// From now on.
    pub fn start(&self) -> Reading {
        Reading { at: Instant::now(), busy: self.busy(), ours: self.ours() }
    }

    /// The share of one core that others took since `reading`. Too short a stretch cannot be judged and is quiet.
    pub fn others_share(&self, reading: &Reading) -> f64 {
        let elapsed = reading.at.elapsed();
        if elapsed < 10 * self.tick {
            return 0.0;
        }
        let busy = self.busy().saturating_sub(reading.busy);
        let ours = self.ours().saturating_sub(reading.ours);
        busy.saturating_sub(ours).as_secs_f64() / elapsed.as_secs_f64()
    }

    /// Waits until the machine is quiet; false when `wait_max` was not enough.
    pub fn wait(&self, wait_max: Duration) -> bool {
        let deadline = Instant::now() + wait_max;
        loop {
            let reading = self.start();
            std::thread::sleep(Duration::from_millis(200).min(wait_max.max(Duration::from_millis(1))));
            if self.others_share(&reading) <= OTHERS_SHARE_MAX {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
    }

    fn busy(&self) -> Duration {
        let ticks = busy_ticks(&fs::read_to_string("/proc/stat").unwrap_or_default());
        self.tick * u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    fn ours(&self) -> Duration {
        if self.family {
            return process::cpu_time_of_family(std::process::id());
        }
        let all = self.helpers.iter().copied().chain([std::process::id()]);
        all.map(process::cpu_time).sum()
    }
}

/// Time not idle of all cores together. Work of interrupts is left out: most of it is our own packets.
fn busy_ticks(stat: &str) -> u64 {
    const USER_NICE_SYSTEM_AND_STEAL: [usize; 4] = [0, 1, 2, 7];
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let columns: Vec<u64> = line.split_whitespace().filter_map(|column| column.parse().ok()).collect();
    USER_NICE_SYSTEM_AND_STEAL.iter().filter_map(|column| columns.get(*column)).sum()
}

/// How busy the machine was of late, in its own words.
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_interrupts_are_not_work_of_others() {
        assert_eq!(
            busy_ticks("cpu  1 20 300 4000 50000 600000 7000000 80000000 0 0\ncpu0 9 9 9\n"),
            80_000_321
        );
        assert_eq!(busy_ticks(""), 0);
    }

    #[test]
    fn a_short_stretch_is_quiet() {
        let gauge = Gauge::new(Vec::new());
        assert!(gauge.others_share(&gauge.start()) < f64::EPSILON);
    }
}
