//! One fault that comes at a time, or again and again.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::inject::Target;
use crate::plan::Stop;

/// When a fault comes, how often, and for how long. Written `FAULT [at TIME] [every TIME] [for TIME]`:
/// without `at` it first comes after `every`, or after a second; without `for` it lasts a second.
///
/// ```
/// use outlast_lab::Schedule;
/// let schedule: Schedule = "drop both every 5s for 2s".parse()?;
/// assert_eq!(schedule.to_string(), "drop both at 5s every 5s for 2s");
/// # Ok::<(), outlast_lab::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// What breaks.
    pub fault: Fault,
    /// How long after the start it breaks for the first time.
    pub at: Duration,
    /// How long from one time to the next; `None`: it breaks once.
    pub every: Option<Duration>,
    /// For how long it is broken.
    pub lasts: Duration,
}

const DEFAULT_AT: Duration = Duration::from_secs(1);
const DEFAULT_LASTS: Duration = Duration::from_secs(1);

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::Syntax { text: text.to_owned(), why };
        let words: Vec<_> = text.split_whitespace().collect();
        let is_keyword = |word: &&str| matches!(*word, "at" | "every" | "for");
        let split = words.iter().position(is_keyword).unwrap_or(words.len());
        let (fault, times) = words.split_at(split);
        let fault = fault.join(" ").parse()?;
        let (mut at, mut every, mut lasts) = (None, None, None);
        for pair in times.chunks(2) {
            let [keyword, value] = *pair else {
                return Err(wrong(format!("`{}` needs a time, as in `{} 2s`", pair[0], pair[0])));
            };
            let slot = match keyword {
                "at" => &mut at,
                "every" => &mut every,
                "for" => &mut lasts,
                other => return Err(wrong(format!("`{other}` is none of `at`, `every`, `for`"))),
            };
            let time = humantime::parse_duration(value);
            *slot =
                Some(time.map_err(|_| wrong(format!("`{value}` is not a time: write 500ms, 2s or 1m30s")))?);
        }
        let schedule = Self {
            fault,
            at: at.or(every).unwrap_or(DEFAULT_AT),
            every,
            lasts: lasts.unwrap_or(DEFAULT_LASTS),
        };
        let busy = if schedule.fault.is_instant() { Duration::ZERO } else { schedule.lasts };
        match every {
            Some(every) if every <= busy => Err(wrong(format!(
                "it would break again before it has healed: `every` must be longer than `for` ({})",
                humantime::format_duration(busy)
            ))),
            _ => Ok(schedule),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.fault, humantime::format_duration(self.at))?;
        if let Some(every) = self.every {
            write!(f, " every {}", humantime::format_duration(every))?;
        }
        if self.fault.is_instant() {
            return Ok(());
        }
        write!(f, " for {}", humantime::format_duration(self.lasts))
    }
}

/// What a schedule has just done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The fault is in effect.
    Broken,
    /// It no longer is.
    Healed,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broken => "broken",
            Self::Healed => "healed",
        })
    }
}

impl Schedule {
    /// Carries the schedule out on `target` until it is over or `stop` is pulled, telling `observe` what it has done.
    /// The fault is healed when it returns.
    ///
    /// # Errors
    /// When the fault cannot be injected or healed.
    pub fn run(&self, target: &Target, stop: &Stop, mut observe: impl FnMut(Phase)) -> Result<()> {
        let mut next = Instant::now() + self.at;
        loop {
            if stop.wait(next.saturating_duration_since(Instant::now())) {
                return Ok(());
            }
            let injected = self.fault.inject(target)?;
            observe(Phase::Broken);
            if !self.fault.is_instant() {
                stop.wait(self.lasts);
                injected.heal()?;
                observe(Phase::Healed);
            }
            match self.every {
                Some(every) => next += every,
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_with_their_defaults() {
        let read = |text: &str| text.parse::<Schedule>().unwrap().to_string();
        assert_eq!(read("drop both"), "drop both at 1s for 1s");
        assert_eq!(read("reset client every 3s"), "reset client at 3s every 3s");
        assert_eq!(read("port closed 80 for 200ms at 10s"), "port closed 80 at 10s for 200ms");
        assert_eq!(read(&read("link down at 1m every 2m for 3s")), "link down client at 1m every 2m for 3s");
    }

    #[test]
    fn mistakes_are_explained() {
        let why = |text: &str| text.parse::<Schedule>().unwrap_err().to_string();
        assert!(why("drop both every").contains("`every` needs a time"));
        assert!(why("drop both for two").contains("`two` is not a time"));
        assert!(why("drop both for 2s with care").contains("`with` is none of"));
        assert!(why("drop both every 2s for 2s").contains("before it has healed"));
        assert!(why("explode every 2s").contains("outlast lab faults"));
    }
}
