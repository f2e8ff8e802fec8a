//! Whether anybody waits for an answer on a connection: pure, from what is read and written on it.
//!
//! But for [HTTP](crate::http) nothing is known of the protocol but that a client asks and a server answers. In doubt a connection is busy, and its
//! client sees it end with the process: never silence, and never the answer to something else.

use crate::http::Verdict;

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Nobody's that is known.
    Untracked = 0,
    /// Accepted; nothing was read.
    Fresh = 1,
    /// Something was read that is not answered, or not in full.
    Busy = 2,
    /// Something was written in full since. More may follow.
    Answered = 3,
    /// The server has looked for the next request, and there is none.
    Idle = 4,
    /// The server speaks unasked, or there is more to it than questions and answers: it ends with the process.
    Never = 5,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written<'a> {
    /// As far as it is at hand.
    pub head: &'a [u8],
    /// All that was to be written.
    pub complete: bool,
    /// The thread has waited for events since the last write.
    pub waited: bool,
}

impl Phase {
    /// From its number.
    pub fn from_number(number: u8) -> Self {
        [Self::Fresh, Self::Busy, Self::Answered, Self::Idle, Self::Never]
            .into_iter()
            .find(|phase| *phase as u8 == number)
            .unwrap_or(Self::Untracked)
    }

    /// With a protocol that is understood.
    pub fn after(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Busy => Self::Busy,
            Verdict::Answered => Self::Idle,
            Verdict::Unclear => Self::Never,
        }
    }

    /// The server looks for input.
    pub fn on_look(self) -> Self {
        if self == Self::Answered { Self::Idle } else { self }
    }

    /// Something was read, which begins with `head`; nothing, at the end of the input.
    pub fn on_read(self, head: &[u8]) -> Self {
        match self {
            Self::Untracked | Self::Never => self,
            _ if head.is_empty() => Self::Never,
            Self::Fresh if has_state_of_its_own(head) => Self::Never,
            _ => Self::Busy,
        }
    }

    /// Something was written, or tried.
    pub fn on_write(self, written: Written<'_>) -> Self {
        match self {
            Self::Untracked | Self::Never => self,
            // A greeting, or news.
            Self::Fresh | Self::Idle => Self::Never,
            // The answer had not been all of it.
            Self::Answered if written.waited => Self::Never,
            _ if written.head.starts_with(b"HTTP/1.1 101") => Self::Never,
            // The client goes on with the same request.
            _ if written.head.starts_with(b"HTTP/1.1 1") || !written.complete => Self::Busy,
            _ => Self::Answered,
        }
    }
}

/// Of which the next generation would know nothing: TLS, HTTP/2.
fn has_state_of_its_own(head: &[u8]) -> bool {
    head.starts_with(&[0x16, 0x03]) || head.starts_with(b"PRI * HTTP/2")
}

/// What is known when the process has died.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// As it was.
    pub phase: Phase,
    /// The thread that wrote last has waited for events since.
    pub waited: bool,
    /// Events come once, so that the server looks for input until there is none.
    pub edge_triggered: bool,
    /// The server waits for room to write.
    pub wants_room: bool,
    /// Exactly what is known was read and written, as the kernel counts it.
    pub counted: bool,
}

impl Left {
    /// Whether the next generation can go on with it.
    pub fn is_idle(self) -> bool {
        let answered = match self.phase {
            Phase::Fresh | Phase::Idle => true,
            Phase::Answered => self.waited && !self.edge_triggered,
            Phase::Untracked | Phase::Busy | Phase::Never => false,
        };
        answered && self.counted && (self.edge_triggered || !self.wants_room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Phase::{Answered, Busy, Fresh, Idle, Never};

    const ALL: Written<'_> = Written { head: b"+OK\r\n", complete: true, waited: false };
    const LEFT: Left =
        Left { phase: Idle, waited: false, edge_triggered: false, wants_room: false, counted: true };

    #[test]
    fn a_question_and_its_answer() {
        assert_eq!(Fresh.on_look(), Fresh);
        assert_eq!(Fresh.on_read(b"GET / HTTP/1.1\r\n"), Busy);
        assert_eq!(Busy.on_look(), Busy);
        assert_eq!(Busy.on_read(b"Host: a\r\n\r\n"), Busy);
        assert_eq!(Busy.on_write(Written { complete: false, ..ALL }), Busy);
        assert_eq!(Busy.on_write(ALL).on_write(ALL), Answered);
        assert_eq!(Answered.on_look(), Idle);
        assert_eq!(Idle.on_read(b"GET"), Busy);
    }

    #[test]
    fn a_server_that_speaks_unasked_is_not_kept() {
        assert_eq!(Fresh.on_write(ALL), Never);
        assert_eq!(Idle.on_write(ALL), Never);
        assert_eq!(Answered.on_write(Written { waited: true, ..ALL }), Never);
        assert_eq!(Never.on_read(b"HELO"), Never);
        assert_eq!(Never.on_write(ALL), Never);
        assert_eq!(Idle.on_read(b""), Never);
    }

    #[test]
    fn nor_is_one_with_a_state_that_only_the_process_has() {
        assert_eq!(Fresh.on_read(&[0x16, 0x03, 0x01, 0x02]), Never);
        assert_eq!(Fresh.on_read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Never);
        let upgrade = Written { head: b"HTTP/1.1 101 Switching Protocols\r\n", ..ALL };
        assert_eq!(Busy.on_write(upgrade), Never);
        let interim = Written { head: b"HTTP/1.1 100 Continue\r\n\r\n", ..ALL };
        assert_eq!(Busy.on_write(interim), Busy);
    }

    #[test]
    fn what_is_left_is_idle_only_if_everything_says_so() {
        assert!(LEFT.is_idle());
        assert!(Left { phase: Fresh, ..LEFT }.is_idle());
        assert!(Left { phase: Answered, waited: true, ..LEFT }.is_idle());
        assert!(!Left { phase: Answered, ..LEFT }.is_idle());
        assert!(!Left { phase: Answered, waited: true, edge_triggered: true, ..LEFT }.is_idle());
        assert!(!Left { counted: false, ..LEFT }.is_idle());
        assert!(!Left { wants_room: true, ..LEFT }.is_idle());
        assert!(Left { wants_room: true, edge_triggered: true, ..LEFT }.is_idle());
        for phase in [Phase::Untracked, Busy, Never] {
            assert!(!Left { phase, waited: true, ..LEFT }.is_idle());
        }
        for number in 0..=255 {
            let phase = Phase::from_number(number);
            assert!(phase as u8 == number || phase == Phase::Untracked);
        }
    }
}
