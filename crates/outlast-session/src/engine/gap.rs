//! Instants between two holds of a lock, at which others may be faster. Tests let them, here, so that a race is a schedule;
//! outside of tests there is nothing to be found.

use super::Engine;

/// Which instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// A link was taken away; nobody was told yet.
    LostUntold,
    /// A session was found quiet and is about to be made passive.
    FoundQuiet,
    /// A reader has read the end of the stream, and has not yet sent the peer a datagram that says so.
    EndUntold,
    /// A thread is about to be started. A test can have that fail.
    StartsThread,
    /// An attempt at a link begins. A test can have it fail.
    Attempts,
    /// A client's patience is over; its session has not ended yet.
    PatienceOver,
    /// A server has found the position of a resume in order, and has not yet taken the present link away.
    ResumeChecked,
    /// A client gives its session up; the server has not ended it yet.
    GivesUp,
}

/// This end of a session has come to a gap. True if a test wants what follows to fail.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn reached(_gap: Gap, _engine: &Engine) -> bool {
    false
}

#[cfg(test)]
pub(crate) use testing::{next_time, reached};

#[cfg(test)]
mod testing {
    use super::{Engine, Gap};
    use crate::engine::Role;
    use crate::proto::SessionId;
    use parking_lot::Mutex;

    type Deed = Box<dyn FnOnce() -> bool + Send>;

    static PLANNED: Mutex<Vec<(Gap, SessionId, Role, Deed)>> = Mutex::new(Vec::new());

    /// What happens the next time that `engine` comes to `gap`. Plans for the same gap happen one after the other.
    pub(crate) fn next_time(gap: Gap, engine: &Engine, deed: impl FnOnce() -> bool + Send + 'static) {
        PLANNED.lock().push((gap, engine.id, engine.role, Box::new(deed)));
    }

    pub(crate) fn reached(gap: Gap, engine: &Engine) -> bool {
        let deed = {
            let mut planned = PLANNED.lock();
            let here = (gap, engine.id, engine.role);
            let found = planned.iter().position(|(at, id, role, _)| (*at, *id, *role) == here);
            found.map(|index| planned.remove(index).3)
        };
        deed.is_some_and(|deed| deed())
    }
}
