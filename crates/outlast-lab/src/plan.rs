//! Schedules of faults: drawn at random from a seed, and carried out.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::inject::Target;
use crate::wire::Random;

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// How long all is well before.
    pub after: Duration,
    /// What breaks.
    pub fault: Fault,
    /// For how long.
    pub lasts: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {}: {}", humantime::format_duration(self.after), self.fault)?;
        if self.fault.is_instant() {
            return Ok(());
        }
        write!(f, " for {}", humantime::format_duration(self.lasts))
    }
}

/// What a random plan is drawn from.
#[derive(Debug, Clone)]
pub struct Menu {
    /// The faults; name one twice to make it twice as likely.
    pub faults: Vec<Fault>,
    /// How long all is well between faults.
    pub after: RangeInclusive<Duration>,
    /// How long a fault lasts.
    pub lasts: RangeInclusive<Duration>,
}

/// A schedule of faults. The same seed and menu give the same plan; it prints with its seed, a step a line.
///
/// ```
/// use std::time::Duration;
/// use outlast_lab::{FaultPlan, Menu};
/// let menu = Menu {
///     faults: vec!["drop both".parse()?, "reset both".parse()?],
///     after: Duration::from_millis(10)..=Duration::from_millis(50),
///     lasts: Duration::from_millis(1)..=Duration::from_millis(20),
/// };
/// let plan = FaultPlan::random(7, 100, &menu)?;
/// assert_eq!(plan, FaultPlan::random(7, 100, &menu)?);
/// println!("{plan}");
/// # Ok::<(), outlast_lab::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultPlan {
    seed: Option<u64>,
    steps: Vec<Step>,
}

impl FaultPlan {
    /// A plan of exactly these steps.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        Self { seed: None, steps }
    }

    /// A plan of `count` steps drawn from `menu`. Times are whole microseconds.
    ///
    /// # Errors
    /// When the menu has no faults.
    pub fn random(seed: u64, count: usize, menu: &Menu) -> Result<Self> {
        let mut random = Random::new(seed);
        let steps = (0..count).map(|_| {
            let index = random.below(menu.faults.len() as u64);
            let fault = usize::try_from(index).ok().and_then(|index| menu.faults.get(index));
            let fault =
                *fault.ok_or_else(|| Error::Invalid("a plan needs faults to choose from".to_owned()))?;
            let (after, lasts) = (between(&mut random, &menu.after), between(&mut random, &menu.lasts));
            Ok(Step { after, fault, lasts })
        });
        Ok(Self { seed: Some(seed), steps: steps.collect::<Result<_>>()? })
    }

    /// Its steps.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// How long it takes, but for the time that breaking and healing themselves take.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.steps.iter().map(|s| if s.fault.is_instant() { s.after } else { s.after + s.lasts }).sum()
    }

    /// Carries the plan out on `target`, step by step, telling `observe` what happens. Ends early when `stop` is
    /// pulled; everything is healed when it returns.
    ///
    /// # Errors
    /// What the first fault says that cannot be injected or healed.
    pub fn run(&self, target: &Target, stop: &Stop, mut observe: impl FnMut(Event<'_>)) -> Result<()> {
        for (number, step) in self.steps.iter().enumerate() {
            if stop.wait(step.after) {
                return Ok(());
            }
            let injected = step.fault.inject(target)?;
            observe(Event::Broken { number, step });
            if !step.fault.is_instant() {
                stop.wait(step.lasts);
                injected.heal()?;
                observe(Event::Healed { number, step });
            }
        }
        Ok(())
    }
}

fn between(random: &mut Random, range: &RangeInclusive<Duration>) -> Duration {
    let micros = |d: &Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    let (least, most) = (micros(range.start()), micros(range.end()));
    let width = most.saturating_sub(least).saturating_add(1);
    Duration::from_micros(least.saturating_add(random.below(width)))
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seed {
            Some(seed) => write!(f, "plan of {} steps, seed {seed}", self.steps.len())?,
            None => write!(f, "plan of {} steps", self.steps.len())?,
        }
        self.steps.iter().enumerate().try_for_each(|(number, step)| write!(f, "\nstep {number}: {step}"))
    }
}

/// What happens while a plan is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A fault has been injected.
    Broken {
        /// The number of the step, from 0.
        number: usize,
        /// The step.
        step: &'a Step,
    },
    /// A fault has been healed.
    Healed {
        /// The number of the step, from 0.
        number: usize,
        /// The step.
        step: &'a Step,
    },
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken { number, step } => write!(f, "step {number} broken: {}", step.fault),
            Self::Healed { number, step } => write!(f, "step {number} healed: {}", step.fault),
        }
    }
}

/// A cord that ends a waiting plan early.
#[derive(Debug, Default)]
pub struct Stop {
    pulled: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// A cord that nobody has pulled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Pulls it.
    pub fn pull(&self) {
        *self.pulled.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for `wait` at most; true when the cord has been pulled.
    pub fn wait(&self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let mut pulled = self.pulled.lock().unwrap_or_else(PoisonError::into_inner);
        while !*pulled {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            pulled = self.changed.wait_timeout(pulled, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn menu() -> Menu {
        let ms = Duration::from_millis;
        Menu {
            faults: ["drop both", "reset both", "link down"].map(|f| f.parse().unwrap()).to_vec(),
            after: ms(1)..=ms(9),
            lasts: ms(2)..=ms(4),
        }
    }

    #[test]
    fn the_seed_decides_and_the_menu_bounds() {
        let plan = FaultPlan::random(1, 300, &menu()).unwrap();
        assert_ne!(plan, FaultPlan::random(2, 300, &menu()).unwrap());
        for step in plan.steps() {
            assert!(menu().after.contains(&step.after) && menu().lasts.contains(&step.lasts), "{step}");
        }
        for fault in menu().faults {
            let count = plan.steps().iter().filter(|s| s.fault == fault).count();
            assert!((60..150).contains(&count), "{fault}: {count} of 300");
        }
    }

    #[test]
    fn a_plan_prints_its_seed_and_numbers_its_steps() {
        let text = FaultPlan::random(7, 2, &menu()).unwrap().to_string();
        assert!(text.starts_with("plan of 2 steps, seed 7\nstep 0: after "), "{text}");
        assert!(text.contains("\nstep 1: after "), "{text}");
    }

    #[test]
    fn an_empty_menu_is_refused() {
        assert!(FaultPlan::random(1, 1, &Menu { faults: Vec::new(), ..menu() }).is_err());
    }

    #[test]
    fn a_pulled_cord_ends_the_waiting() {
        let stop = Stop::new();
        assert!(!stop.wait(Duration::ZERO));
        stop.pull();
        assert!(stop.wait(Duration::from_secs(3600)));
    }
}
