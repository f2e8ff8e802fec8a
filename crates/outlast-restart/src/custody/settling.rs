//! When a program serves that has begun to listen: pure.
//!
//! Nothing tells at how many addresses a program is going to listen. Some listen at the first, cannot bind to the second,
//! try that again for seconds, and end. Whoever heard that such a program serves would send it clients.

use std::time::{Duration, Instant};

/// Programs that listen at several addresses make no such pause between two.
const MOMENT: Duration = Duration::from_millis(100);
/// Programs that find an address in use try it again sooner (nginx after 0.5 s), or end. So long, too, a socket of the previous
/// start is waited for.
const TRIES: Duration = Duration::from_secs(1);

/// What one start of a program has done so far.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// The previous start served, and this one may have all of its sockets.
    is_again: bool,
    listened_at: Option<Instant>,
    /// It could not bind to an address that was in use.
    failed_at: Option<Instant>,
    /// It says that it serves, or deals with clients.
    is_certain: bool,
    has_served: bool,
}

impl Settling {
    /// The program is started again, in the place of this start. `keeps`: as the same one, and listening sockets are held for it.
    pub(super) fn next(&self, keeps: bool) -> Self {
        Self { is_again: keeps && self.has_served, ..Self::default() }
    }

    /// It listens, here too.
    pub(super) fn listens(&mut self, now: Instant) {
        self.listened_at = Some(now);
    }

    /// An address is in use.
    pub(super) fn cannot_bind(&mut self, now: Instant) {
        self.failed_at = Some(now);
    }

    /// It says so, or clients are served.
    pub(super) fn is_certain(&mut self) {
        self.is_certain = true;
    }

    /// When it serves, unless it does something more until then. `awaits`: a socket of the previous start is not with it yet.
    /// None: it does not listen, or is known to serve.
    pub(super) fn serves_at(&self, awaits: bool) -> Option<Instant> {
        let listened_at = self.listened_at.filter(|_| !self.has_served)?;
        if self.is_certain || (self.is_again && !awaits) {
            return Some(listened_at);
        }
        let listened = listened_at + if awaits { TRIES } else { MOMENT };
        Some(self.failed_at.map_or(listened, |at| listened.max(at + TRIES)))
    }

    /// It serves. Since when it has listened at its last address.
    pub(super) fn serves(&mut self) -> Option<Instant> {
        self.has_served = true;
        self.listened_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_program_serves_a_moment_after_its_last_address() {
        let (mut program, now) = (Settling::default(), Instant::now());
        assert_eq!(program.serves_at(false), None);
        program.listens(now);
        program.listens(now + 40 * MS);
        assert_eq!(program.serves_at(false), Some(now + 40 * MS + MOMENT));
        assert_eq!(program.serves(), Some(now + 40 * MS));
        program.listens(now + 500 * MS);
        assert_eq!(program.serves_at(false), None, "once");
    }

    #[test]
    fn an_address_in_use_is_given_time() {
        let (mut program, now) = (Settling::default(), Instant::now());
        // The first of them, or a later one, each time that it is tried.
        program.cannot_bind(now);
        program.listens(now);
        assert_eq!(program.serves_at(false), Some(now + TRIES));
        program.cannot_bind(now + 500 * MS);
        assert_eq!(program.serves_at(false), Some(now + 500 * MS + TRIES));
        program.listens(now + 1_450 * MS);
        assert_eq!(program.serves_at(false), Some(now + 1_450 * MS + MOMENT));
    }

    #[test]
    fn who_says_so_or_has_clients_serves_at_once() {
        let (mut program, now) = (Settling::default(), Instant::now());
        program.is_certain();
        assert_eq!(program.serves_at(false), None, "it does not listen");
        program.cannot_bind(now);
        program.listens(now);
        assert_eq!(program.serves_at(true), Some(now));
    }

    #[test]
    fn what_is_started_again_serves_as_soon_as_it_has_all_that_it_had() {
        let (mut first, now) = (Settling::default(), Instant::now());
        first.listens(now);
        // One that has never served had not all that it wanted.
        let mut second = first.next(true);
        second.listens(now);
        assert_eq!(second.serves_at(false), Some(now + MOMENT));
        second.serves();
        let mut third = second.next(true);
        third.listens(now);
        assert_eq!((third.serves_at(true), third.serves_at(false)), (Some(now + TRIES), Some(now)));
        third.serves();
        // Another binary may listen elsewhere, too.
        let mut other = third.next(false);
        other.listens(now);
        assert_eq!(other.serves_at(false), Some(now + MOMENT));
    }
}
