//! A server with the library that an earlier supervisor of this key has left: it survives crashes by itself, and has its address. It
//! is waited for, and ended as if it were this supervisor's own; then the program is started.

use super::{Event, Outcome, Settings, left, traces};
use crate::STOP_SIGNALS;
use crate::death::Death;
use crate::sys::descriptors;
use crate::sys::process::Known;
use crate::sys::signals::{self, Waited};
use std::time::{Duration, Instant};

/// Between two looks at whether it has ended, which nobody tells this process: it is another one's child.
const LOOK: Duration = Duration::from_millis(100);
/// Its next generation may be on its way.
const SETTLES: Duration = Duration::from_millis(200);

/// Waits for its end. The outcome, if this process was told to end meanwhile.
pub(super) fn wait(settings: &Settings, tell: &mut impl FnMut(Event)) -> Option<Outcome> {
    let key = settings.key.as_deref().filter(|_| settings.is_exclusive)?;
    let mut serving = traces::serving_of(key);
    let first = serving.first()?.pid.cast_unsigned();
    tell(Event::Awaits { pid: first, count: serving.len() });
    let mut alive_at = Instant::now();
    loop {
        if let Waited::Arrived(arrived) = signals::wait_for(Some(LOOK))
            && (STOP_SIGNALS.contains(&arrived.number) || arrived.number == settings.stop_signal)
        {
            let number = settings.stop_signal;
            tell(Event::Stopping { number, for_good: true });
            left::end(&serving, number, left::time_to_end(settings.stop_timeout, true));
            return Some(Outcome::Stopped(Death::Signal(arrived.number)));
        }
        if let Some(interval) = settings.alive_interval.filter(|_| Instant::now() >= alive_at) {
            alive_at += interval;
            tell(Event::Alive);
        }
        let lives = |known: &Known| !descriptors::wait_readable(&known.process, Duration::ZERO);
        if !serving.iter().any(lives) {
            std::thread::sleep(SETTLES);
        } else if serving.iter().all(lives) {
            continue;
        }
        // Others have come in the place of those that have ended.
        serving = traces::serving_of(key);
        if serving.is_empty() {
            return None;
        }
    }
}
