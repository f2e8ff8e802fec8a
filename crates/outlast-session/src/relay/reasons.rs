//! What a relay tells its peer, and its own side, about why it has ended a session.
//!
//! The same text is read at both ends. So it names the end it is about, and never says "this end" or "the other end".

use super::Outcome;
use crate::Role;

/// The beginning of every text about a session that was killed on purpose (PROTOCOL 1.7). An exit code depends on it.
const KILLED: &str = "killed by ";

/// What relays of earlier versions say of a program's reset.
const RESET_BY_OTHER_END: &str = "the program at the other end has reset its connection";
const RESET_BY_PROGRAM: &str = "the program at outlast connect reset its connection";
const RESET_BY_SERVICE: &str = "the service behind outlast listen reset its connection";

/// A program left before its destination was connected.
pub const GAVE_UP: &str = "the program at outlast connect gave up";
/// RP 10
pub const NEEDS_TO_ANY: &str =
    "outlast listen takes no destinations, it leads to one service: it needs --to-any";

/// The relay's process was stopped.
pub(super) const fn stopped(role: Role) -> &'static str {
    match role {
        Role::Client => "outlast connect was stopped",
        Role::Server => "outlast listen was stopped",
    }
}

/// An administrator has ended the session.
pub(super) const fn killed(role: Role) -> &'static str {
    match role {
        Role::Client => "killed by an administrator at outlast connect",
        Role::Server => "killed by an administrator at outlast listen",
    }
}

/// Why a relay with this outcome has ended its session.
pub(super) const fn of(outcome: &Outcome, role: Role) -> &'static str {
    match (outcome, role) {
        (Outcome::LocalFailed(_), Role::Client) => RESET_BY_PROGRAM,
        (Outcome::LocalFailed(_), Role::Server) => RESET_BY_SERVICE,
        (Outcome::Killed, _) => killed(role),
        (Outcome::Misdirected(_), _) => NEEDS_TO_ANY,
        _ => stopped(role),
    }
}

/// Whether a peer's text says that the session was killed on purpose.
#[must_use]
pub fn is_kill(reason: &str) -> bool {
    reason.starts_with(KILLED)
}

/// Whether a peer's text says that the program behind it has reset its connection: an ordinary end for many programs.
#[must_use]
pub fn is_program_reset(reason: &str) -> bool {
    [RESET_BY_PROGRAM, RESET_BY_SERVICE, RESET_BY_OTHER_END].contains(&reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, SessionId};

    #[test]
    fn no_text_depends_on_the_end_that_reads_it() {
        for role in [Role::Client, Role::Server] {
            let reset = || Outcome::LocalFailed(std::io::ErrorKind::ConnectionReset.into());
            let stopped = || Outcome::Stopped { delivered: true };
            for outcome in [reset(), stopped(), Outcome::Killed] {
                let text = of(&outcome, role);
                assert!(!text.contains("other end") && !text.contains("this"), "{text}");
                assert_eq!(is_kill(text), matches!(outcome, Outcome::Killed), "{text}");
                assert_eq!(is_program_reset(text), matches!(outcome, Outcome::LocalFailed(_)), "{text}");
            }
        }
    }

    #[test]
    fn a_kill_without_a_relay_is_recognised_too() {
        let Error::Killed { reason, .. } = Error::killed(SessionId::from_bytes([1; 16])) else { panic!() };
        assert!(is_kill(&reason), "{reason}");
    }
}
