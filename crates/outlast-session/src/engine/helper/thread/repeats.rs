//! What is told again and again, until the peer confirms it (mode `udp`), or looked at.

use super::super::Repeated;
use crate::engine::udp::REPEAT;
use std::time::Instant;

/// Of sessions that are over and told so, for at most so many at a time: strangers may leave any number of them unconfirmed. A
/// peer that does not hear of it asks by a link.
const ENDS_MAX: usize = 4096;

/// One, and when it is next.
struct Repeat {
    what: Repeated,
    repeats: u32,
    next: Instant,
}

/// All of them, the oldest first.
#[derive(Default)]
pub(super) struct Repeats(Vec<Repeat>);

impl Repeats {
    pub(super) fn add(&mut self, new: impl Iterator<Item = Repeated>) {
        let next = Instant::now() + REPEAT;
        let before = self.0.len();
        self.0.extend(new.map(|what| Repeat { what, repeats: 0, next }));
        if self.0.len() == before || self.0.len() <= ENDS_MAX {
            return;
        }
        let is_end = |repeat: &Repeat| matches!(repeat.what, Repeated::End { .. });
        let mut excess = self.0.iter().filter(|repeat| is_end(repeat)).count().saturating_sub(ENDS_MAX);
        self.0.retain(|repeat| {
            let goes = excess > 0 && is_end(repeat);
            excess -= usize::from(goes);
            !goes
        });
    }

    /// When there is something to be done.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|repeat| repeat.next).min()
    }

    /// Does what it is time for.
    pub(super) fn work(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let now = Instant::now();
        self.0.retain_mut(|repeat| {
            if repeat.next > now {
                return true;
            }
            repeat.repeats += 1;
            let pause = repeat.what.again(repeat.repeats);
            repeat.next = now + pause.unwrap_or_default();
            pause.is_some()
        });
        self.0.shrink_to(64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::{Engine, Role, new_session_id};
    use std::sync::{Arc, Weak};

    #[test]
    fn ends_that_nobody_confirms_are_forgotten_the_oldest_first() {
        let config = Arc::new(Config::default());
        let engine = || Engine::new(new_session_id(), Role::Server, config.clone());
        let (first, last) = (engine(), engine());
        let mut repeats = Repeats::default();
        let end = |engine: &Arc<Engine>| Repeated::End { engine: engine.clone(), epoch: 1 };
        repeats.add([Repeated::Patience { engine: Weak::new() }, end(&first)].into_iter());
        for _ in 0..3 {
            repeats.add((0..ENDS_MAX / 2).map(|_| end(&last)));
        }
        assert_eq!(repeats.0.len(), 1 + ENDS_MAX);
        assert!(matches!(repeats.0[0].what, Repeated::Patience { .. }));
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
