//! When silence on a framed link means that nobody is there.
//!
//! TCP's own keepalive ends at whatever terminates TCP on the way: behind it the path may be gone, and this end's kernel
//! sees nothing of it. So the ends of a framed link listen to each other. The caller looks at regular intervals,
//! [`LOOKS_PER_TIMEOUT`] of them in the time after which a peer counts as lost, and says whether anything has come since
//! the last look. Looks are counted, not time: an end that was stopped itself, and looks late, does not blame its peer.

/// Looks within the time that a peer may be silent.
pub const LOOKS_PER_TIMEOUT: u32 = 4;
/// After so many silent looks the peer is asked; it has the other half of the time to answer.
const ASK_AFTER: u32 = LOOKS_PER_TIMEOUT / 2;

/// What to do about the silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceAdvice {
    /// Nothing.
    Wait,
    /// Send a Ping.
    Ask,
    /// The link is lost.
    GiveUp,
}

/// For how long a link has been silent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    looks: u32,
}

impl Silence {
    /// One look: has anything come since the last one?
    pub fn look(&mut self, heard: bool) -> SilenceAdvice {
        self.looks = if heard { 0 } else { self.looks.saturating_add(1) };
        match self.looks {
            ASK_AFTER => SilenceAdvice::Ask,
            LOOKS_PER_TIMEOUT.. => SilenceAdvice::GiveUp,
            _ => SilenceAdvice::Wait,
        }
    }
}

impl Silence {
    /// Whether the peer was asked, and there was a look since at which it had not answered.
    pub fn is_unanswered(&self) -> bool {
        self.looks > ASK_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::SilenceAdvice::{Ask, GiveUp, Wait};
    use super::*;

    fn advice(heard: &str) -> Vec<SilenceAdvice> {
        let mut silence = Silence::default();
        heard.chars().map(|look| silence.look(look == '+')).collect()
    }

    #[test]
    fn a_silent_peer_is_asked_and_then_given_up() {
        // PROTOCOL 4.7
        assert_eq!(advice("----"), [Wait, Ask, Wait, GiveUp]);
        assert_eq!(advice("------")[4..], [GiveUp, GiveUp]);
    }

    #[test]
    fn whatever_is_heard_counts_as_an_answer() {
        assert_eq!(advice("--+--+"), [Wait, Ask, Wait, Wait, Ask, Wait]);
        assert_eq!(advice("---+---"), [Wait, Ask, Wait, Wait, Wait, Ask, Wait]);
    }
}
