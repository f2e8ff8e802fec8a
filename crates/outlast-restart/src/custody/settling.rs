//! When a program serves that has begun to listen: pure.
//!
//! Nothing tells at how many addresses a program is going to listen. Some listen at the first, cannot bind to the second,
//! try that again for seconds, and end. Whoever heard that such a program serves would send it clients.

use crate::board::Sign;
use std::time::{Duration, Instant};

/// Programs that listen at several addresses make no such pause between two.
const MOMENT: Duration = Duration::from_millis(100);
/// Programs that find an address in use try it again sooner (nginx after 0.5 s), or end. So long, too, a socket of the previous
/// start is waited for, at least.
const TRIES: Duration = Duration::from_secs(1);
/// A socket that the previous start has listened with late is waited for longer, but not for longer than this.
const AWAITED_MAX: Duration = Duration::from_secs(30);
/// A program that listens does not serve as long as it accepts none of the clients that wait there: servers that load their
/// applications in between take seconds. After this it counts as serving all the same: nobody else would find out why it does not.
const ACCEPTS: Duration = Duration::from_secs(15);

/// What one start of a program has done so far.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// The previous start served, and this one may have all of its sockets.
    is_again: bool,
    listened_at: Option<Instant>,
    /// It was started with what it listens with: it may be far from serving there.
    inherits: bool,
    /// It could not bind to an address that was in use.
    failed_at: Option<Instant>,
    /// It says that it serves.
    said_at: Option<Instant>,
    /// It deals with clients.
    has_clients: bool,
    /// Clients that were seen in its queues last.
    queued: u32,
    /// Some were seen there since.
    waited_since: Option<Instant>,
    /// And were accepted, or one of them was, at the latest then.
    accepted_at: Option<Instant>,
    has_served: bool,
}

impl Settling {
    /// The program is started again, in the place of this start. `keeps`: as the same one, and listening sockets are held for it.
    pub(super) fn next(&self, keeps: bool) -> Self {
        Self { is_again: keeps && self.has_served, ..Self::default() }
    }

    /// It listens, here too.
    pub(super) fn listens(&mut self, now: Instant) {
        (self.listened_at, self.inherits) = (Some(now), false);
    }

    /// It was started with a socket that listens.
    pub(super) fn inherits(&mut self, now: Instant) {
        (self.listened_at, self.inherits) = (Some(now), true);
    }

    /// An address is in use.
    pub(super) fn cannot_bind(&mut self, now: Instant) {
        self.failed_at = Some(now);
    }

    /// It says that it serves.
    pub(super) fn says_so(&mut self, now: Instant) {
        self.said_at.get_or_insert(now);
    }

    /// It serves a client.
    pub(super) fn serves_client(&mut self, now: Instant) {
        self.has_clients = true;
        self.note_accepted(now);
    }

    /// So many clients wait in the queues where it listens.
    pub(super) fn sees_queued(&mut self, count: u32, now: Instant) {
        if count < self.queued {
            self.note_accepted(now);
        }
        if count > 0 {
            self.waited_since.get_or_insert(now);
        }
        self.queued = count;
    }

    fn note_accepted(&mut self, now: Instant) {
        if self.waited_since.is_some() {
            self.accepted_at.get_or_insert(now);
        }
    }

    /// Whether clients wait, and it is not known to accept any.
    pub(super) fn keeps_waiting(&self) -> bool {
        self.waited_since.is_some() && self.accepted_at.is_none() && !self.has_served
    }

    /// Whether it is not known yet to serve.
    pub(super) fn is_open(&self) -> bool {
        !self.has_served
    }

    /// When it serves, unless it does something more until then. `awaits`: a socket of the previous start is not with it yet,
    /// with which that had listened so long after it was started. None: it does not listen, or is known to serve.
    pub(super) fn serves_at(&self, awaits: Option<Duration>) -> Option<Instant> {
        let listened_at = self.listened_at.filter(|_| !self.has_served)?;
        if self.said_at.is_some() || self.has_clients {
            return Some(listened_at);
        }
        let settled = match awaits {
            None if self.inherits => listened_at + TRIES,
            None if self.is_again => listened_at,
            None => listened_at + MOMENT,
            Some(delay) => listened_at + (2 * delay).clamp(TRIES, AWAITED_MAX),
        };
        let is_tried = self.failed_at.filter(|_| !self.is_again || awaits.is_some());
        let settled = is_tried.map_or(settled, |at| settled.max(at + TRIES));
        let accepts = self.waited_since.filter(|_| self.accepted_at.is_none());
        Some(accepts.map_or(settled, |since| settled.max(since + ACCEPTS)))
    }

    /// It serves, and `has_all` that it had before. Since when, as far as that was seen, and by what.
    pub(super) fn serves(&mut self, has_all: bool) -> Option<(Instant, Sign)> {
        self.has_served = true;
        let listened_at = self.listened_at?;
        match (self.said_at, self.waited_since) {
            (Some(at), _) => Some((at.max(listened_at), Sign::Serves)),
            (None, Some(_)) => self.accepted_at.map(|at| (at, Sign::Serves)),
            (None, None) => (has_all && !self.inherits).then_some((listened_at, Sign::Listens)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_program_serves_a_moment_after_its_last_address() {
        let (mut program, now) = (Settling::default(), Instant::now());
        assert_eq!(program.serves_at(None), None);
        program.listens(now);
        program.listens(now + 40 * MS);
        assert_eq!(program.serves_at(None), Some(now + 40 * MS + MOMENT));
        assert_eq!(program.serves(true), Some((now + 40 * MS, Sign::Listens)));
        program.listens(now + 500 * MS);
        assert_eq!(program.serves_at(None), None, "once");
    }

    #[test]
    fn an_address_in_use_is_given_time() {
        let (mut program, now) = (Settling::default(), Instant::now());
        // The first of them, or a later one, each time that it is tried.
        program.cannot_bind(now);
        program.listens(now);
        assert_eq!(program.serves_at(None), Some(now + TRIES));
        program.cannot_bind(now + 500 * MS);
        assert_eq!(program.serves_at(None), Some(now + 500 * MS + TRIES));
        program.listens(now + 1_450 * MS);
        assert_eq!(program.serves_at(None), Some(now + 1_450 * MS + MOMENT));
    }

    #[test]
    fn who_says_so_or_has_clients_serves_at_once() {
        let (mut program, now) = (Settling::default(), Instant::now());
        program.says_so(now);
        assert_eq!(program.serves_at(None), None, "it does not listen");
        program.cannot_bind(now);
        program.listens(now + 5 * MS);
        assert_eq!(program.serves_at(Some(Duration::ZERO)), Some(now + 5 * MS));
        assert_eq!(program.serves(false), Some((now + 5 * MS, Sign::Serves)));
        let mut program = Settling::default();
        program.listens(now);
        program.says_so(now + 900 * MS);
        assert_eq!(program.serves(true), Some((now + 900 * MS, Sign::Serves)), "as it says");
        let mut program = Settling::default();
        program.listens(now);
        program.serves_client(now + 50 * MS);
        assert_eq!(program.serves_at(Some(Duration::ZERO)), Some(now));
        // Since when it serves all who come elsewhere is not known.
        assert_eq!(program.serves(false), None);
    }

    #[test]
    fn what_is_started_with_its_sockets_has_not_begun_with_them() {
        let (mut first, now) = (Settling::default(), Instant::now());
        first.inherits(now);
        assert_eq!(first.serves_at(None), Some(now + TRIES));
        first.serves(true);
        let mut second = first.next(true);
        second.inherits(now);
        assert_eq!(second.serves_at(None), Some(now + TRIES));
        second.sees_queued(1, now + 20 * MS);
        second.serves_client(now + 40 * MS);
        assert_eq!(second.serves_at(None), Some(now));
        assert_eq!(second.serves(true), Some((now + 40 * MS, Sign::Serves)));
        let mut third = second.next(true);
        third.inherits(now);
        assert_eq!(third.serves(true), None, "since when is not known");
        let mut fourth = third.next(true);
        fourth.inherits(now);
        fourth.listens(now + MS);
        assert_eq!(fourth.serves_at(None), Some(now + MS), "it has come to listen by itself");
    }

    /// As Tomcat does, which listens first, and then loads what it serves.
    #[test]
    fn what_keeps_clients_waiting_does_not_serve() {
        let (mut first, now) = (Settling::default(), Instant::now());
        first.listens(now);
        first.serves(true);
        let mut second = first.next(true);
        second.listens(now);
        second.sees_queued(2, now + MS);
        assert_eq!(second.serves_at(None), Some(now + MS + ACCEPTS));
        second.sees_queued(5, now + 800 * MS);
        assert!(second.keeps_waiting());
        second.sees_queued(4, now + 1_900 * MS);
        assert!(!second.keeps_waiting());
        assert_eq!(second.serves_at(None), Some(now));
        second.sees_queued(9, now + 1_950 * MS);
        second.sees_queued(0, now + 1_990 * MS);
        assert_eq!(second.serves(true), Some((now + 1_900 * MS, Sign::Serves)));
        // One that never accepts: since when it serves is not known.
        let mut third = second.next(true);
        third.listens(now);
        third.sees_queued(1, now);
        assert_eq!(third.serves(true), None);
        // The client is seen elsewhere than in the queue.
        let mut fourth = third.next(true);
        fourth.listens(now);
        fourth.sees_queued(1, now);
        fourth.serves_client(now + 700 * MS);
        assert_eq!(fourth.serves(false), Some((now + 700 * MS, Sign::Serves)));
    }

    #[test]
    fn an_address_that_came_late_before_is_waited_for() {
        let (mut first, now) = (Settling::default(), Instant::now());
        first.listens(now);
        first.serves(true);
        let mut second = first.next(true);
        second.listens(now);
        assert_eq!(second.serves_at(Some(2_700 * MS)), Some(now + 5_400 * MS));
        assert_eq!(second.serves_at(Some(3_600_000 * MS)), Some(now + AWAITED_MAX));
        // The last one.
        second.listens(now + 2_800 * MS);
        assert_eq!(second.serves_at(None), Some(now + 2_800 * MS));
        assert_eq!(second.serves(true), Some((now + 2_800 * MS, Sign::Listens)));
        let mut third = second.next(true);
        third.listens(now);
        assert_eq!(third.serves(false), None, "it is not with it");
    }

    #[test]
    fn what_is_started_again_serves_as_soon_as_it_has_all_that_it_had() {
        let (mut first, now) = (Settling::default(), Instant::now());
        first.listens(now);
        // One that has never served had not all that it wanted.
        let mut second = first.next(true);
        second.listens(now);
        assert_eq!(second.serves_at(None), Some(now + MOMENT));
        second.serves(true);
        let mut third = second.next(true);
        third.listens(now);
        assert_eq!(
            (third.serves_at(Some(Duration::ZERO)), third.serves_at(None)),
            (Some(now + TRIES), Some(now))
        );
        third.serves(true);
        // Another binary may listen elsewhere, too.
        let mut other = third.next(false);
        other.listens(now);
        assert_eq!(other.serves_at(None), Some(now + MOMENT));
    }
}
