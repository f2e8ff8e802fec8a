//! What happens to sessions, in words: on the terminal, and in the log.

use crate::exit::clean;
use crate::logging::NOTICE;
use outlast_session::{Event, EventKind, Events, SessionId};
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Tells about sessions. When many lose their link together, that is one line, not many.
#[derive(Clone, Debug)]
pub struct Narrator {
    watched: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    lost: HashMap<SessionId, ()>,
    together: usize,
    resent_bytes: u64,
    pause_longest: Duration,
    connected: bool,
}

impl Narrator {
    /// Speaks to the terminal only if somebody watches.
    pub fn new(watched: bool) -> Self {
        Self { watched, state: Arc::default() }
    }

    /// Whether somebody watches the terminal.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// One line of its own.
    pub fn say(&self, text: &str) {
        if self.watched {
            // As one piece: other processes write to the same terminal. If that is gone nobody can be told.
            let line = format!("{} {}\n", clock(), clean(text));
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    /// A line about the process itself: on a terminal as all others there, elsewhere in the log, which has it by default.
    pub fn announce(&self, text: &str) {
        if self.watched {
            self.say(text);
        } else {
            tracing::info!(target: NOTICE, "{}", clean(text));
        }
    }

    /// The same for what somebody may have to see to.
    pub fn warn(&self, text: &str) {
        if self.watched {
            self.say(text);
        } else {
            tracing::warn!("{}", clean(text));
        }
    }

    /// Tells about the events of one source until there are no more. The first connection is announced with
    /// `greeting`, as in "connected to".
    ///
    /// When nobody would hear of them the events are not asked for: a subscription costs every session memory.
    pub fn follow(&self, events: impl FnOnce() -> Events, greeting: &'static str) {
        if !self.watched && !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let mut events = events();
        let narrator = self.clone();
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                narrator.tell(&event, greeting);
            }
        });
    }

    fn tell(&self, event: &Event, greeting: &str) {
        log(event);
        let line = self.state.lock().unwrap_or_else(PoisonError::into_inner).line(event, greeting);
        if let Some(line) = line {
            self.say(&line);
        }
    }
}

impl State {
    fn line(&mut self, event: &Event, greeting: &str) -> Option<String> {
        match &event.kind {
            EventKind::Connected { mode, peer, .. } => {
                let first = !std::mem::replace(&mut self.connected, true);
                first.then(|| format!("{greeting} {peer} ({mode} acknowledgements)"))
            }
            EventKind::Lost { cause } => {
                self.lost.insert(event.session, ());
                self.together += 1;
                (self.together == 1).then(|| format!("link lost: {cause}; retrying"))
            }
            EventKind::Retry { attempt, error, next, .. } => {
                // Doubling distances: the first attempts tell most.
                let tell = attempt.is_power_of_two() && *attempt >= 4 && self.lost.len() <= 1;
                tell.then(|| {
                    format!("still no link after {attempt} attempts: {error}; next in {}", seconds(*next))
                })
            }
            EventKind::Resumed { pause, resent_bytes, .. } => {
                self.lost.remove(&event.session)?;
                self.resent_bytes += resent_bytes;
                self.pause_longest = self.pause_longest.max(*pause);
                self.settled("resumed")
            }
            EventKind::Closed => {
                self.lost.remove(&event.session)?;
                self.settled("closed")
            }
            // The relay tells why, with what it means for the program.
            EventKind::Failed(_) => {
                self.lost.remove(&event.session)?;
                self.settled("ended")
            }
            _ => None,
        }
    }

    /// The line when the last session that had lost its link has none to wait for.
    fn settled(&mut self, what: &str) -> Option<String> {
        if !self.lost.is_empty() {
            return None;
        }
        let State { together, resent_bytes, pause_longest, .. } =
            std::mem::replace(self, State { connected: true, ..State::default() });
        let who = if together > 1 { format!("{together} sessions {what}") } else { what.to_owned() };
        if pause_longest.is_zero() {
            return Some(who);
        }
        Some(format!("{who} after {}, {} bytes sent again", seconds(pause_longest), grouped(resent_bytes)))
    }
}

fn log(event: &Event) {
    let session = event.session;
    match &event.kind {
        EventKind::Connected { epoch, mode, peer } => {
            tracing::info!(%session, epoch, %mode, %peer, "connected")
        }
        EventKind::Lost { cause } => tracing::info!(%session, cause = clean(cause), "link lost"),
        EventKind::Retry { attempt, error, next } => {
            tracing::debug!(%session, attempt, error = clean(error), ?next, "no link")
        }
        EventKind::Resumed { epoch, mode, pause, resent_bytes, peer } => {
            tracing::info!(%session, epoch, %mode, ?pause, resent_bytes, %peer, "resumed");
        }
        EventKind::Passivated => tracing::info!(%session, "passivated"),
        EventKind::Closed => tracing::debug!(%session, "closed"),
        EventKind::Failed(error) => tracing::info!(%session, %error, "failed"),
        _ => {}
    }
}

/// A duration as people say it.
pub fn seconds(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{:.1} s", duration.as_secs_f64()),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis / 1_000 % 60),
        _ => format!("{} h {} min", millis / 3_600_000, millis / 60_000 % 60),
    }
}

/// A number with commas: 34,816.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The local time of day.
fn clock() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = libc::time_t::try_from(now.as_secs()).unwrap_or(0);
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call; a zeroed tm is a valid one, so it may be read in any case.
    let parts = unsafe {
        libc::localtime_r(&raw const seconds, parts.as_mut_ptr());
        parts.assume_init()
    };
    format!("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(session: &str, kind: EventKind) -> Event {
        Event { session: session.repeat(32).parse().unwrap(), kind }
    }

    fn lost(session: &str) -> Event {
        event(session, EventKind::Lost { cause: "reset by peer".into() })
    }

    fn resumed(session: &str, millis: u64, resent_bytes: u64) -> Event {
        let peer = "127.0.0.1:1".parse().unwrap();
        let (mode, pause) = (outlast_session::LinkMode::Kernel, Duration::from_millis(millis));
        event(session, EventKind::Resumed { epoch: 2, mode, pause, resent_bytes, peer })
    }

    #[test]
    fn one_session_is_told_about_in_full() {
        let mut state = State::default();
        assert_eq!(state.line(&lost("1"), "").unwrap(), "link lost: reset by peer; retrying");
        assert_eq!(
            state.line(&resumed("1", 1_230, 34_816), "").unwrap(),
            "resumed after 1.2 s, 34,816 bytes sent again"
        );
    }

    #[test]
    fn sessions_that_lose_their_link_together_are_told_about_together() {
        let mut state = State::default();
        let lines: Vec<_> = [
            lost("1"),
            lost("2"),
            lost("3"),
            resumed("2", 100, 5),
            resumed("1", 200, 6),
            resumed("3", 50, 7),
        ]
        .iter()
        .filter_map(|event| state.line(event, ""))
        .collect();
        assert_eq!(
            lines,
            ["link lost: reset by peer; retrying", "3 sessions resumed after 200 ms, 18 bytes sent again"]
        );
    }

    #[test]
    fn numbers_and_times_read_well() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(seconds(Duration::from_millis(5)), "5 ms");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 5 s");
        assert_eq!(seconds(Duration::from_secs(7_260)), "2 h 1 min");
        assert!(clock().len() == 8);
    }
}
