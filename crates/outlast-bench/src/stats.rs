//! Medians, quantiles and ratios. Means are not used: one preempted measurement would decide them.

use serde::Serialize;
use std::time::Duration;

/// The value below which the share `q` of `values` lies, interpolated; `None` without values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let below = index(position.floor());
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * position.fract())
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a position in a slice, not negative"
)]
fn index(position: f64) -> usize {
    position as usize
}

/// A median with the middle half around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the repeats lie below.
    #[serde(serialize_with = "rounded")]
    pub median: f64,
    /// A quarter lies below.
    #[serde(serialize_with = "rounded")]
    pub p25: f64,
    /// A quarter lies above.
    #[serde(serialize_with = "rounded")]
    pub p75: f64,
    /// How many repeats.
    pub repeats: usize,
}

impl Spread {
    /// Of repeats; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: quantile(values, 0.5)?,
            p25: quantile(values, 0.25)?,
            p75: quantile(values, 0.75)?,
            repeats: values.len(),
        })
    }

    /// How far the middle half is from 1, at its far end: what this machine calls a difference when there is none.
    pub fn noise(&self) -> f64 {
        (self.p25 - 1.0).abs().max((self.p75 - 1.0).abs())
    }
}

/// Five digits: more would pretend.
fn rounded<S: serde::Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let text = format!("{value:.4e}");
    serializer.serialize_f64(text.parse().unwrap_or(*value))
}

/// `ours / theirs` repeat by repeat: both were measured within the same moments.
pub fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).filter(|(_, t)| **t != 0.0).map(|(o, t)| o / t).collect()
}

/// Times of single operations, four bytes each: a run has hundreds of thousands.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    nanoseconds: Vec<u32>,
}

impl Latencies {
    /// With room, so that measuring does not allocate.
    pub fn with_capacity(operations: usize) -> Self {
        Self { nanoseconds: Vec::with_capacity(operations) }
    }

    /// Adds one; what takes longer than 4.29 s counts as 4.29 s.
    pub fn push(&mut self, time: Duration) {
        self.nanoseconds.push(u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Adds those of another.
    pub fn append(&mut self, other: &Latencies) {
        self.nanoseconds.extend_from_slice(&other.nanoseconds);
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.nanoseconds.len()
    }

    /// The time in microseconds that the share `q` of operations does not exceed; 0 without operations.
    pub fn quantile_us(&mut self, q: f64) -> f64 {
        let Some(last) = self.nanoseconds.len().checked_sub(1) else { return 0.0 };
        let position = index((q.clamp(0.0, 1.0) * last as f64).round());
        let (_, value, _) = self.nanoseconds.select_nth_unstable(position);
        f64::from(*value) / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.25), Some(3.0));
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0], 1.0), Some(2.0));
    }

    #[test]
    fn quantiles_ignore_what_is_no_number() {
        assert_eq!(quantile(&[f64::NAN, 1.0, f64::INFINITY], 0.5), Some(1.0));
    }

    #[test]
    fn spread_has_the_middle_half() {
        let spread = Spread::of(&[1.0, 0.9, 1.1, 1.0, 1.0]).unwrap();
        assert_eq!((spread.median, spread.p25, spread.p75, spread.repeats), (1.0, 1.0, 1.0, 5));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn noise_is_the_far_end_of_the_middle_half() {
        let spread = Spread { median: 1.0, p25: 0.96, p75: 1.01, repeats: 9 };
        assert!((spread.noise() - 0.04).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_by_repeat() {
        assert_eq!(ratios(&[2.0, 9.0, 5.0], &[1.0, 3.0, 0.0]), vec![2.0, 3.0]);
    }

    #[test]
    fn latencies_saturate_and_sort() {
        let mut latencies = Latencies::with_capacity(4);
        assert!(latencies.quantile_us(0.5).abs() < f64::EPSILON);
        for us in [30, 10, 20] {
            latencies.push(Duration::from_micros(us));
        }
        assert!((latencies.quantile_us(0.5) - 20.0).abs() < 1e-9);
        assert!((latencies.quantile_us(1.0) - 30.0).abs() < 1e-9);
        latencies.push(Duration::from_secs(60));
        assert!(latencies.quantile_us(1.0) > 4_000_000.0);
    }
}
