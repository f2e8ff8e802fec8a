//! A session's life as a table: every state, everything that can happen in it, and what follows.
//!
//! The table is the rule; `PROTOCOL.md`, section 8 shows it, and a test compares the two. A pair without an entry
//! is a mistake of the caller's and says so; none is silently ignored.

/// Which end of the session. Only the client makes links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeRole {
    /// Opened the session, reconnects.
    Client,
    /// Accepted it, waits for the client.
    Server,
}

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No link was welcomed yet.
    Opening,
    /// A link carries the stream.
    Connected,
    /// The link is gone; no attempt was begun since.
    Lost,
    /// A new link is being made or examined.
    Resuming,
    /// The link was given up on purpose, until there is something to say.
    Passive,
    /// Over, in order: everything that the applications wrote was delivered.
    Closed,
    /// Over, with an error.
    Failed,
}

/// What can happen to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The first link was welcomed, whichever opening it took.
    Welcomed,
    /// The link broke, or was silent for too long.
    LinkLost,
    /// Client: an attempt at a link begins. Server: a newcomer has proved itself.
    Attempt,
    /// The attempt came to nothing, but another one may not.
    AttemptFailed,
    /// The new link is welcomed and carries the stream on.
    Resumed,
    /// The link was given up because nothing happened on it.
    Passivated,
    /// There is something to say again.
    Woken,
    /// Both streams are delivered up to their ends.
    Finished,
    /// Client: its patience is over. Server: the time to keep the session is.
    GaveUp,
    /// The peer refused for good, reset the session, or broke the rules.
    Refused,
    /// The application has let go of it, and nothing of what it wrote is missing.
    Abandoned,
    /// The application or an administrator ended it before its time.
    Killed,
}

/// What the shell has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// Tell those who wait that the stream flows.
    Announce,
    /// Give the old link up, the new one has taken over; then as [`Announce`](Self::Announce).
    Switch,
    /// Begin an attempt at once.
    Reconnect,
    /// Begin the next attempt after the back-off.
    RetryLater,
    /// Keep the session, and the time: it is given up if nobody comes.
    Keep,
    /// Close the link, keep the session.
    DropLink,
    /// Free everything.
    Release,
    /// Tell those who wait that the session failed and why; then as [`Release`](Self::Release).
    Report,
}

/// What follows, if it can happen at all.
type Cell = Option<(State, Effect)>;

const STATES: [State; 7] = [
    State::Opening,
    State::Connected,
    State::Lost,
    State::Resuming,
    State::Passive,
    State::Closed,
    State::Failed,
];

const HAPPENINGS: [Happening; 12] = [
    Happening::Welcomed,
    Happening::LinkLost,
    Happening::Attempt,
    Happening::AttemptFailed,
    Happening::Resumed,
    Happening::Passivated,
    Happening::Woken,
    Happening::Finished,
    Happening::GaveUp,
    Happening::Refused,
    Happening::Abandoned,
    Happening::Killed,
];

const NEVER: Cell = None;

const fn to(state: State, effect: Effect) -> Cell {
    Some((state, effect))
}

use Effect::{Announce, DropLink, Keep, Nothing, Reconnect, Release, Report, RetryLater, Switch};
use State::{Closed, Connected, Failed, Lost, Opening, Passive, Resuming};

/// Rows are states, columns what happens, both in the order of their declaration.
type Table = [[Cell; HAPPENINGS.len()]; STATES.len()];

/// Once over, what was under way may still end; everything else would be a surprise.
const fn over(state: State) -> [Cell; HAPPENINGS.len()] {
    let same = to(state, Nothing);
    [NEVER, same, NEVER, same, NEVER, NEVER, NEVER, NEVER, same, same, same, same]
}

#[rustfmt::skip]
const CLIENT: Table = [
    // Opening
    [
        to(Connected, Announce), to(Opening, RetryLater), to(Opening, Nothing), to(Opening, RetryLater), NEVER,
        NEVER, NEVER, NEVER, to(Failed, Report), to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    // Connected: a better link may be tried for while the old one still works.
    [
        NEVER, to(Lost, Reconnect), to(Connected, Nothing), to(Connected, Nothing), to(Connected, Switch),
        to(Passive, DropLink), NEVER, to(Closed, Release), NEVER, to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    // Lost: an attempt begun before the loss may still end, well or badly.
    [
        NEVER, NEVER, to(Resuming, Nothing), to(Lost, RetryLater), to(Connected, Announce),
        NEVER, NEVER, to(Closed, Release), to(Failed, Report), to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    // Resuming
    [
        NEVER, NEVER, to(Resuming, Nothing), to(Lost, RetryLater), to(Connected, Announce),
        NEVER, NEVER, to(Closed, Release), to(Failed, Report), to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    // Passive: as in Lost, an attempt may outlast the link that it was to replace; what that has left may be the end.
    [
        NEVER, NEVER, to(Resuming, Nothing), to(Passive, Nothing), to(Connected, Announce),
        NEVER, to(Lost, Reconnect), to(Closed, Release), NEVER, to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    over(Closed),
    over(Failed),
];

#[rustfmt::skip]
const SERVER: Table = [
    // Opening: the Hello is here, the Welcome is not sent.
    [
        to(Connected, Announce), to(Lost, Keep), to(Opening, Nothing), to(Opening, Nothing), NEVER,
        NEVER, NEVER, NEVER, to(Failed, Report), to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    // Connected: the newcomer replaces the old link as soon as it is welcomed, dead or not.
    [
        NEVER, to(Lost, Keep), to(Connected, Nothing), to(Connected, Nothing), to(Connected, Switch),
        to(Passive, Keep), NEVER, to(Closed, Release), NEVER, to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    // Lost: an attempt begun before the loss may still end, well or badly.
    [
        NEVER, NEVER, to(Resuming, Nothing), to(Lost, Keep), to(Connected, Announce),
        NEVER, NEVER, to(Closed, Release), to(Failed, Report), to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    // Resuming
    [
        NEVER, NEVER, to(Resuming, Nothing), to(Lost, Keep), to(Connected, Announce),
        NEVER, NEVER, to(Closed, Release), to(Failed, Report), to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    // Passive: a server has nobody to wake; it waits with what it has to say.
    [
        NEVER, NEVER, to(Resuming, Nothing), to(Passive, Keep), to(Connected, Announce),
        NEVER, to(Passive, Nothing), to(Closed, Release), to(Failed, Report), to(Failed, Report), to(Closed, Release),
        to(Failed, Report),
    ],
    over(Closed),
    over(Failed),
];

/// Something happened that cannot happen in this state: a mistake in the shell, not of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{happening:?} cannot happen to a {role:?} session that is {state:?}")]
pub struct Illegal {
    /// Which end.
    pub role: LifeRole,
    /// Where it was and stays.
    pub state: State,
    /// What was said to have happened.
    pub happening: Happening,
}

/// What follows from `happening` in `state`.
///
/// # Errors
/// [`Illegal`] for pairs that have no entry in the table.
pub const fn next_state(
    role: LifeRole,
    state: State,
    happening: Happening,
) -> Result<(State, Effect), Illegal> {
    let table = match role {
        LifeRole::Client => &CLIENT,
        LifeRole::Server => &SERVER,
    };
    // Both enums are numbered in the order of the table, which a test checks.
    match table[state as usize][happening as usize] {
        Some(next) => Ok(next),
        None => Err(Illegal { role, state, happening }),
    }
}

/// One session's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    role: LifeRole,
    state: State,
}

impl Life {
    /// A session about to be opened.
    pub const fn new(role: LifeRole) -> Self {
        Self { role, state: State::Opening }
    }

    /// Where it is.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Takes note of what happened and returns what has to be done.
    ///
    /// # Errors
    /// [`Illegal`], and the state stays as it was.
    pub fn on(&mut self, happening: Happening) -> Result<Effect, Illegal> {
        let (state, effect) = next_state(self.role, self.state, happening)?;
        self.state = state;
        Ok(effect)
    }

    /// Whether the session is over, in order or not.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Closed | State::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt;

    /// The table as it stands in `PROTOCOL.md`.
    fn table_as_markdown(role: LifeRole) -> alloc::string::String {
        let mut text = alloc::string::String::new();
        // Writing to a string cannot fail.
        let _ = write_table(&mut text, role);
        text
    }

    fn write_table(out: &mut impl fmt::Write, role: LifeRole) -> fmt::Result {
        write!(out, "| |")?;
        STATES.iter().try_for_each(|state| write!(out, " {state:?} |"))?;
        write!(out, "\n|---|")?;
        STATES.iter().try_for_each(|_| write!(out, "---|"))?;
        for happening in HAPPENINGS {
            write!(out, "\n| {happening:?} |")?;
            for state in STATES {
                match next_state(role, state, happening) {
                    Ok((next, effect)) => write!(out, " {next:?}, {effect:?} |")?,
                    Err(_) => write!(out, " - |")?,
                }
            }
        }
        writeln!(out)
    }

    const ROLES: [LifeRole; 2] = [LifeRole::Client, LifeRole::Server];

    #[test]
    fn the_tables_are_in_the_order_of_the_enums() {
        for (index, state) in STATES.into_iter().enumerate() {
            assert_eq!(state as usize, index);
        }
        for (index, happening) in HAPPENINGS.into_iter().enumerate() {
            assert_eq!(happening as usize, index);
        }
    }

    #[test]
    fn every_pair_is_decided_and_none_leaves_an_end() {
        for role in ROLES {
            for state in STATES {
                for happening in HAPPENINGS {
                    let mut life = Life { role, state };
                    let was_over = life.is_over();
                    match life.on(happening) {
                        Ok(effect) if was_over => assert_eq!((life.state, effect), (state, Effect::Nothing)),
                        Ok(effect) => {
                            let ends = matches!(effect, Effect::Release | Effect::Report);
                            assert_eq!(ends, life.is_over(), "{role:?} {state:?} {happening:?}");
                        }
                        Err(illegal) => assert_eq!(illegal, Illegal { role, state, happening }),
                    }
                }
            }
        }
    }

    #[test]
    fn an_application_can_always_let_go_and_every_state_can_be_reached() {
        for role in ROLES {
            let mut reached = alloc::vec![State::Opening];
            let mut next = 0;
            while let Some(&state) = reached.get(next) {
                next += 1;
                assert!(next_state(role, state, Happening::Abandoned).is_ok());
                for happening in HAPPENINGS {
                    if let Ok((state, _)) = next_state(role, state, happening)
                        && !reached.contains(&state)
                    {
                        reached.push(state);
                    }
                }
            }
            assert_eq!(reached.len(), STATES.len());
        }
    }

    /// Links break, and are given up, while others are being made: every order of the two is a lawful one.
    #[test]
    fn an_attempt_may_end_whatever_became_of_the_link_meanwhile() {
        use Happening::{Attempt, AttemptFailed, Refused, Resumed};
        const ATTEMPTS_MAX: u8 = 2;
        for role in ROLES {
            let mut reached = alloc::vec![(State::Opening, 0u8)];
            let mut next = 0;
            while let Some(&(state, attempts)) = reached.get(next) {
                next += 1;
                for happening in HAPPENINGS {
                    let ends_attempt = matches!(happening, AttemptFailed | Resumed | Refused);
                    let attempts_after = match happening {
                        Attempt => attempts.checked_add(1),
                        _ if ends_attempt => attempts.checked_sub(1),
                        _ => Some(attempts),
                    };
                    let Some(attempts_after) = attempts_after.filter(|attempts| *attempts <= ATTEMPTS_MAX)
                    else {
                        continue;
                    };
                    // Before the first Welcome nothing resumes, and a link that comes too late is not taken.
                    let takes_link = !matches!(state, State::Opening | State::Closed | State::Failed);
                    match next_state(role, state, happening) {
                        Ok((state, _)) if reached.contains(&(state, attempts_after)) => {}
                        Ok((state, _)) => reached.push((state, attempts_after)),
                        Err(illegal) => {
                            let excused = !ends_attempt || (happening == Resumed && !takes_link);
                            assert!(excused, "{illegal}, with {attempts} attempts under way");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn only_clients_make_links() {
        for state in STATES {
            for happening in HAPPENINGS {
                let effect = next_state(LifeRole::Server, state, happening).map(|(_, effect)| effect);
                assert!(!matches!(effect, Ok(Effect::Reconnect | Effect::RetryLater)));
            }
        }
    }

    #[test]
    fn the_protocol_document_shows_these_tables() {
        let document = include_str!("../../../../PROTOCOL.md");
        for role in ROLES {
            let table = table_as_markdown(role);
            assert!(document.contains(&table), "PROTOCOL.md lacks this table of the {role:?}:\n{table}");
        }
    }
}
