//! A wire in user space: what goes in at one end comes out at the other as late, as seldom and as
//! disordered as its [`WireSpec`] says. The kernel needs no traffic shaper for it, only TUN.
//!
//! `core` decides and has no clock; `pump` reads, asks the core, and writes.

mod core;
mod pump;
mod random;

use std::time::Duration;

pub use self::core::LaneStats;
pub(crate) use self::pump::Wire;
pub use self::random::Random;

use crate::error::{Error, Result};

/// What a wire does to the packets that pass through it, in each direction independently.
///
/// The default is a perfect wire: no delay, no loss, no limit.
///
/// ```
/// use outlast_lab::WireSpec;
/// let train = WireSpec { loss: 0.02, ..WireSpec::delay_ms(40) }.with_rate(1_250_000);
/// assert_eq!(train.delay.as_millis(), 40);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WireSpec {
    /// How long a packet takes from one end to the other (one way: a round trip takes twice as long).
    pub delay: Duration,
    /// The delay varies evenly by up to this much in both directions. Jitter alone never changes the order.
    pub jitter: Duration,
    /// The fraction of packets that is lost, 0 to 1.
    pub loss: f64,
    /// The fraction of packets that is held back so that later ones overtake them, 0 to 1.
    pub reorder: f64,
    /// How long a packet that is to be overtaken is held back.
    pub reorder_by: Duration,
    /// The fraction of packets that arrives twice, 0 to 1.
    pub duplicate: f64,
    /// How many bytes a second fit through; `None`: as many as this machine can carry.
    pub rate_bytes_per_s: Option<u64>,
    /// How many bytes may wait for their turn on a wire with a rate; what exceeds this is lost.
    pub queue_bytes: u64,
    /// The largest packet.
    pub mtu_bytes: u16,
    /// Where the random decisions start: the same seed and the same packets give the same fate to each.
    pub seed: u64,
}

impl Default for WireSpec {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(2),
            duplicate: 0.0,
            rate_bytes_per_s: None,
            // A third of a megabyte: what a home router holds, 250 ms at 10 Mbit/s.
            queue_bytes: 312_500,
            mtu_bytes: 1500,
            seed: 1,
        }
    }
}

impl WireSpec {
    /// A wire that is perfect but for its one-way delay.
    #[must_use]
    pub fn delay_ms(delay_ms: u64) -> Self {
        Self { delay: Duration::from_millis(delay_ms), ..Self::default() }
    }

    /// The same with a rate.
    #[must_use]
    pub fn with_rate(self, rate_bytes_per_s: u64) -> Self {
        Self { rate_bytes_per_s: Some(rate_bytes_per_s), ..self }
    }

    /// The same with a fraction of packets lost.
    #[must_use]
    pub fn with_loss(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// The same with another seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Refuses what makes no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let fractions = [("loss", self.loss), ("reorder", self.reorder), ("duplicate", self.duplicate)];
        for (name, value) in fractions {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::Invalid(format!("wire {name} is {value}: give a fraction from 0 to 1")));
            }
        }
        // IPv6 needs 1280; a TUN device carries at most 65521.
        if !(1280..=65_521).contains(&self.mtu_bytes) {
            let why = format!("wire mtu is {}: give 1280 to 65521 bytes", self.mtu_bytes);
            return Err(Error::Invalid(why));
        }
        if self.rate_bytes_per_s == Some(0) {
            return Err(Error::Invalid("wire rate is 0: use the fault `drop both` instead".to_owned()));
        }
        Ok(())
    }
}
