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
/// Between two looks at which processes those are: generations come and go, and each look goes through all that run here.
const SEARCH: Duration = Duration::from_secs(1);
/// How often what has come meanwhile is ended, too.
const ENDS: u32 = 5;

/// Waits for its end. The outcome, if this process was told to end meanwhile.
pub(super) fn wait(settings: &Settings, tell: &mut impl FnMut(Event)) -> Option<Outcome> {
    let key = settings.key.as_deref().filter(|_| settings.is_exclusive)?;
    let mut serving = traces::serving_of(key);
    let mut told = None;
    let (mut alive_at, mut searched_at) = (Instant::now(), Instant::now());
    loop {
        let first = serving.first()?.pid.cast_unsigned();
        if told.replace(first) != Some(first) {
            tell(Event::Awaits { pid: first, count: serving.len() });
        }
        if let Waited::Arrived(arrived) = signals::wait_for(Some(LOOK))
            && (STOP_SIGNALS.contains(&arrived.number) || arrived.number == settings.stop_signal)
        {
            tell(Event::Stopping { number: settings.stop_signal, for_good: true });
            end(settings, key);
            return Some(Outcome::Stopped(Death::Signal(arrived.number)));
        }
        let now = Instant::now();
        if let Some(interval) = settings.alive_interval.filter(|_| now >= alive_at) {
            alive_at += interval;
            tell(Event::Alive);
        }
        let lives = |known: &Known| !descriptors::wait_readable(&known.process, Duration::ZERO);
        if !serving.iter().any(lives) {
            std::thread::sleep(SETTLES);
        } else if serving.iter().all(lives) && now.duration_since(searched_at) < SEARCH {
            continue;
        }
        // Others may have come, also in the place of those that have ended.
        (serving, searched_at) = (traces::serving_of(key), now);
    }
}

/// Has all of them end.
fn end(settings: &Settings, key: &str) {
    let time = left::time_to_end(settings.stop_timeout, true);
    for _ in 0..ENDS {
        let serving = traces::serving_of(key);
        if serving.is_empty() {
            return;
        }
        left::end(&serving, settings.stop_signal, time);
    }
}
