//! Series: variants measured in turns, repeat by repeat, with raw TCP twice in each.
//!
//! Within a repeat every variant runs once (or in short blocks in turns), in an order that rotates and turns round.
//! What is claimed is the median of the ratios within the repeats, with the middle half around it: what drifts
//! from one repeat to the next cancels out. The second raw lane has no reason to differ from the first, so its
//! ratio (A/A) is what the machine calls a difference when there is none; a claim below that is none.

use crate::options::Options;
use crate::quiet::{Gauge, OTHERS_SHARE_MAX};
use crate::report::Report;
use crate::stats::{Spread, ratios};
use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Repeats of a full run. Odd, so that the median is one of them.
const REPEATS: usize = 11;
/// Fewest repeats of a quick run.
const QUICK_REPEATS_MIN: usize = 5;
/// Most repeats of a quick run.
const QUICK_REPEATS_MAX: usize = 21;
/// Time for the series of a quick run; setting up and writing out come on top.
const QUICK_TIME: Duration = Duration::from_secs(29);
/// Longest wait for a quiet machine before a series.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(20);
/// The same for a quick run.
const QUICK_QUIET_WAIT_MAX: Duration = Duration::from_millis(500);

/// Which way a metric is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Times, memory.
    Lower,
    /// Rates.
    Higher,
}

/// One number that is taken of every variant in every repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its name in tables and files.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which way is good.
    pub better: Better,
}

/// Median time of an operation.
pub const P50: Metric = Metric { name: "p50", unit: "us", better: Better::Lower };
/// The time that one operation in a hundred exceeds.
pub const P99: Metric = Metric { name: "p99", unit: "us", better: Better::Lower };
/// Operations per second.
pub const RATE: Metric = Metric { name: "rate", unit: "1/s", better: Better::Higher };
/// Operations per second if each took the median time: as steady as the median.
pub const MEDIAN_RATE: Metric = Metric { name: "rate at p50", unit: "1/s", better: Better::Higher };
/// Bytes per second of processor time of both ends: what a busy machine changes least.
pub const PER_CPU: Metric = Metric { name: "per cpu second", unit: "MB", better: Better::Higher };
/// Processor time of both ends for an operation.
pub const CPU_EACH: Metric = Metric { name: "cpu each", unit: "us", better: Better::Lower };
/// Bytes per second.
pub const THROUGHPUT: Metric = Metric { name: "throughput", unit: "MB/s", better: Better::Higher };

/// One variant of a series.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its name in tables and files.
    pub name: String,
    /// The lane that it is compared with.
    pub against: Option<usize>,
    /// Whether it is that lane once more.
    pub again: bool,
}

impl Lane {
    /// What others are compared with.
    pub fn raw(name: impl Into<String>) -> Self {
        Self { name: name.into(), against: None, again: false }
    }

    /// The lane `of`, once more.
    pub fn again(name: impl Into<String>, of: usize) -> Self {
        Self { name: name.into(), against: Some(of), again: true }
    }

    /// What is compared with the lane `with`.
    pub fn against(name: impl Into<String>, with: usize) -> Self {
        Self { name: name.into(), against: Some(with), again: false }
    }
}

/// What a series found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its name: the size of a write, a number of clients, an interface.
    pub group: String,
    /// Its variants.
    pub lanes: Vec<Lane>,
    /// Its metrics.
    pub metrics: Vec<Metric>,
    /// By lane, by metric, by repeat.
    values: Vec<Vec<Vec<f64>>>,
    /// How many repeats were not quiet and had to be kept.
    pub disturbed: usize,
}

impl Outcome {
    /// The repeats of a metric of a lane.
    pub fn values(&self, lane: usize, metric: usize) -> &[f64] {
        &self.values[lane][metric]
    }

    /// The spread of the repeats.
    pub fn spread(&self, lane: usize, metric: usize) -> Option<Spread> {
        Spread::of(self.values(lane, metric))
    }

    /// The spread of the ratios to the lane that it is compared with.
    pub fn ratio(&self, lane: usize, metric: usize) -> Option<Spread> {
        let against = self.lanes[lane].against?;
        self.ratio_to(against, lane, metric)
    }

    /// The spread of the ratios to any other lane.
    pub fn ratio_to(&self, other: usize, lane: usize, metric: usize) -> Option<Spread> {
        Spread::of(&ratios(self.values(lane, metric), self.values(other, metric)))
    }

    /// The spread of the ratios to the lane that it is compared with and the second run of that: to their mean, repeat
    /// by repeat. Half of what one of the two would have been lucky or unlucky by.
    pub fn ratio_to_both(&self, lane: usize, metric: usize) -> Option<Spread> {
        let base = self.lanes[lane].against?;
        let again = self.second_run(base)?;
        let pairs = self.values(base, metric).iter().zip(self.values(again, metric));
        let means: Vec<f64> = pairs.map(|(first, second)| f64::midpoint(*first, *second)).collect();
        Spread::of(&ratios(self.values(lane, metric), &means))
    }

    fn second_run(&self, base: usize) -> Option<usize> {
        self.lanes.iter().position(|other| other.again && other.against == Some(base))
    }

    /// The A/A ratio that belongs to a lane: of the second run of what it is compared with.
    pub fn noise(&self, lane: usize, metric: usize) -> Option<Spread> {
        let base = self.lanes[lane].against.unwrap_or(lane);
        self.ratio(self.second_run(base)?, metric)
    }

    /// The lane with this name.
    pub fn lane(&self, name: &str) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.name == name)
    }
}

/// An experiment under way.
pub struct Bench<'a> {
    /// How to run.
    pub options: &'a Options,
    /// What has been found.
    pub report: Report,
    gauge: Gauge,
    series_left: usize,
    time_left: Duration,
    repeats: Option<usize>,
    bar: ProgressBar,
}

impl<'a> Bench<'a> {
    /// An experiment of `series` series. Work of the processes `helpers` counts as its own.
    pub fn new(options: &'a Options, report: Report, series: usize, helpers: &[u32]) -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{spinner} {prefix} [{bar:30}] {pos}/{len} {msg} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(report.experiment().to_owned());
        let gauge = Gauge::new(helpers.to_vec());
        Self { options, report, gauge, series_left: series, time_left: QUICK_TIME, repeats: None, bar }
    }

    /// Takes time that is spent outside of series off the budget of a quick run.
    pub fn spend(&mut self, time: Duration) {
        self.time_left = self.time_left.saturating_sub(time);
    }

    /// This many repeats from now on, whatever was asked for: for what hardly varies and takes long.
    pub fn set_repeats(&mut self, repeats: Option<usize>) {
        self.repeats = repeats;
    }

    /// Other helpers from now on.
    pub fn set_helpers(&mut self, helpers: &[u32]) {
        self.gauge = Gauge::new(helpers.to_vec());
    }

    /// Everything below this process is a helper from now on, whatever comes and goes.
    pub fn count_family(&mut self) {
        self.gauge = Gauge::of_family();
    }

    /// Repeats `repeat` as often as is planned and finds what came out. `repeat` runs every lane once, in the
    /// order that it is given, and returns the metrics of each lane in the order of the lanes.
    pub fn series(
        &mut self,
        group: &str,
        lanes: Vec<Lane>,
        metrics: &[Metric],
        mut repeat: impl FnMut(&[usize]) -> Result<Vec<Vec<f64>>>,
    ) -> Result<Outcome> {
        let started = Instant::now();
        if !self.options.smoke
            && !self.gauge.wait(self.options.pick(Duration::ZERO, QUICK_QUIET_WAIT_MAX, QUIET_WAIT_MAX))
        {
            self.report
                .warn(format!("{group}: other work is going on; numbers are worse than they should be"));
        }
        let mut plan = Plan::new(self.options, self.time_left / u32::try_from(self.series_left.max(1))?);
        if let Some(repeats) = self.repeats {
            (plan.min, plan.max) = (repeats, repeats);
        }
        self.bar.reset();
        self.bar.set_message(group.to_owned());
        let mut values = vec![vec![Vec::new(); metrics.len()]; lanes.len()];
        while let Some(number) = plan.next() {
            self.bar.set_length(plan.expected() as u64);
            self.bar.set_position(number as u64);
            let reading = self.gauge.start();
            let found = repeat(&order(number, lanes.len()))?;
            if !plan.keep(self.gauge.others_share(&reading)) {
                continue;
            }
            ensure!(found.len() == lanes.len(), "{group}: {} of {} lanes", found.len(), lanes.len());
            for (lane, figures) in found.into_iter().enumerate() {
                ensure!(
                    figures.len() == metrics.len(),
                    "{group}: {} of {} metrics",
                    figures.len(),
                    metrics.len()
                );
                for (metric, figure) in figures.into_iter().enumerate() {
                    values[lane][metric].push(figure);
                }
            }
        }
        self.bar.set_length(0);
        self.spend(started.elapsed());
        self.series_left = self.series_left.saturating_sub(1);
        let outcome = Outcome {
            group: group.to_owned(),
            lanes,
            metrics: metrics.to_vec(),
            values,
            disturbed: plan.disturbed,
        };
        self.report.add(&outcome);
        Ok(outcome)
    }

    /// The end: writes files, prints claims.
    pub fn finish(self) -> Result<serde_json::Value> {
        self.bar.finish_and_clear();
        self.report.finish(&self.options.out)
    }
}

/// Which lane goes when: every lane is first, last and in the middle equally often, after changing neighbours.
fn order(repeat: usize, lanes: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lanes).collect();
    order.rotate_left(repeat % lanes.max(1));
    if (repeat / lanes.max(1)) % 2 == 1 {
        order.reverse();
    }
    order
}

/// How many repeats, and what becomes of disturbed ones.
struct Plan {
    started: Instant,
    share: Duration,
    min: usize,
    max: usize,
    done: usize,
    redo_left: usize,
    disturbed: usize,
    longest: Duration,
    last_start: Instant,
}

impl Plan {
    fn new(options: &Options, share: Duration) -> Self {
        let (min, max) = match (options.repeats, options.smoke, options.quick) {
            (Some(repeats), ..) => (repeats as usize, repeats as usize),
            (None, true, _) => (2, 2),
            (None, false, true) => (QUICK_REPEATS_MIN, QUICK_REPEATS_MAX),
            (None, false, false) => (REPEATS, REPEATS),
        };
        let now = Instant::now();
        let redo_left = if options.smoke { 0 } else { max };
        let longest = Duration::ZERO;
        let share = if options.quick { share } else { Duration::MAX };
        Self { started: now, share, min, max, done: 0, redo_left, disturbed: 0, longest, last_start: now }
    }

    fn fits(&self) -> bool {
        self.started.elapsed().saturating_add(self.longest) <= self.share
    }

    /// The number of the next repeat, if there is one.
    fn next(&mut self) -> Option<usize> {
        self.last_start = Instant::now();
        (self.done < self.min || (self.done < self.max && self.fits())).then_some(self.done)
    }

    /// Whether what was just measured counts.
    fn keep(&mut self, others_share: f64) -> bool {
        self.longest = self.longest.max(self.last_start.elapsed());
        if others_share > OTHERS_SHARE_MAX {
            if self.redo_left > 0 && self.fits() {
                self.redo_left -= 1;
                return false;
            }
            self.disturbed += 1;
        }
        self.done += 1;
        true
    }

    fn expected(&self) -> usize {
        self.max.max(self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_takes_every_place() {
        let lanes = 4;
        for lane in 0..lanes {
            for place in 0..lanes {
                assert!((0..lanes).any(|repeat| order(repeat, lanes)[place] == lane));
            }
        }
        assert_eq!(order(4, 4), [3, 2, 1, 0]);
    }

    fn outcome(values: Vec<Vec<Vec<f64>>>) -> Outcome {
        let lanes = vec![Lane::raw("raw"), Lane::again("raw again", 0), Lane::against("session", 0)];
        Outcome { group: "1".to_owned(), lanes, metrics: vec![P50], values, disturbed: 0 }
    }

    #[test]
    fn ratios_are_within_repeats_so_drift_cancels() {
        let found =
            outcome(vec![vec![vec![1.0, 2.0, 4.0]], vec![vec![1.0, 2.0, 4.0]], vec![vec![1.1, 2.2, 4.4]]]);
        let ratio = found.ratio(2, 0).unwrap();
        assert!((ratio.median - 1.1).abs() < 1e-9 && (ratio.p75 - 1.1).abs() < 1e-9);
        assert!((found.noise(2, 0).unwrap().median - 1.0).abs() < 1e-9);
        assert!((found.noise(0, 0).unwrap().median - 1.0).abs() < 1e-9);
        assert_eq!(found.ratio(0, 0), None);
        assert_eq!(found.lane("session"), Some(2));
    }

    #[test]
    fn a_ratio_to_both_runs_is_to_their_mean_in_each_repeat() {
        let found =
            outcome(vec![vec![vec![1.0, 2.0, 4.0]], vec![vec![3.0, 6.0, 12.0]], vec![vec![1.0, 2.0, 4.0]]]);
        let ratio = found.ratio_to_both(2, 0).unwrap();
        assert!((ratio.median - 0.5).abs() < 1e-9 && (ratio.p25 - 0.5).abs() < 1e-9);
        assert_eq!(found.ratio_to_both(0, 0), None);
    }

    #[test]
    fn disturbed_repeats_are_measured_again_but_not_for_ever() {
        let options = crate::options::Options::for_tests();
        let mut plan = Plan::new(&options, Duration::MAX);
        assert_eq!(plan.next(), Some(0));
        assert!(plan.keep(0.0));
        let redone = (0..100).take_while(|_| plan.next().is_some() && !plan.keep(0.9)).count();
        assert_eq!(redone, plan.max);
        assert_eq!(plan.disturbed, 1);
    }
}
