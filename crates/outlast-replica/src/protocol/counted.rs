//! The protocol of the simulation.

use super::Resume;
use crate::connection::Piece;
use crate::connection::comparison::{NAME_BYTES, Part};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What is said with one byte, has three bytes of an answer.
const ANSWER_BYTES: usize = 3;
/// No answer comes to this, nor to these and what is behind them.
pub const SILENT: u8 = 198;
pub const ABORT: u8 = 254;
/// Each server answers this in its own way: this byte, the server's own one, as many more of them as that says, and what follows from both.
pub const OWN: u8 = 195;
/// This is answered when some time has passed.
pub const WAIT: u8 = 192;
/// The third byte of an answer has these bits turned: the server has ended what it was asked, by itself, and has done nothing.
pub const ENDED: u8 = 0xff;
/// Nothing on the connection is answered so any more.
pub const SAME: u8 = 194;

/// How long the answer of the server with this byte is.
pub const fn own_bytes(own: u8) -> usize {
    3 + own as usize % 3
}

/// What is open on one connection.
#[derive(Debug)]
pub(crate) struct OfCounted {
    open: u64,
    /// So many answers to what was passed may come.
    owed: u64,
    /// The server has not greeted.
    greets: bool,
    ends: bool,
    /// It has been asked for what ends own answers.
    is_same: bool,
    asked: VecDeque<(u8, bool)>,
    /// So much of the answer to the first of them has come.
    at: usize,
    own: Vec<u8>,
    /// One request waits at a server at a time.
    takes_turns: bool,
    /// The server is to end what waits; whether it gets that again.
    interrupted: Option<bool>,
    is_kept: bool,
    /// What the server gets, if that is not what the client says now.
    given: Vec<u8>,
    /// What comes behind a request that may wait.
    rest: Vec<u8>,
    /// What was answered last.
    last: u8,
}

impl Default for OfCounted {
    fn default() -> Self {
        Self {
            open: 1,
            owed: 0,
            greets: true,
            ends: false,
            is_same: false,
            asked: VecDeque::new(),
            at: 0,
            own: Vec::new(),
            takes_turns: false,
            interrupted: None,
            is_kept: false,
            given: Vec::new(),
            rest: Vec::new(),
            last: 0,
        }
    }
}

impl OfCounted {
    pub(super) fn new(takes_turns: bool) -> Self {
        Self { takes_turns, ..Self::default() }
    }

    /// Which one it is does not matter, but without one a server is not asked to end anything: it ends a wait, and nothing else.
    pub(super) fn server_number(&self) -> Option<u32> {
        let is_wait = self.asked.len() == 1 && self.asked.front().is_some_and(|(byte, _)| *byte == WAIT);
        (self.takes_turns && is_wait && self.open + self.owed == 1).then_some(1)
    }

    pub(super) fn interrupt(&mut self, keeps: bool) {
        self.interrupted = Some(keeps);
    }

    /// One byte of four leaves a transaction open.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.takes_turns && self.last % 4 == 1
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub(super) fn forget_kept(&mut self) {
        self.is_kept = false;
    }

    /// What the server gets again.
    pub(super) fn give_again(&mut self) {
        if core::mem::take(&mut self.is_kept) {
            self.ask(&[WAIT]);
            self.given.push(WAIT);
        }
    }

    /// In place of what the client says now.
    pub(super) fn instead(&mut self) -> Option<Vec<u8>> {
        let given = core::mem::take(&mut self.given);
        (!given.is_empty()).then_some(given)
    }

    pub(super) fn rest(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.rest)
    }

    pub(super) fn pass(&mut self) {
        (self.open, self.owed) = (0, self.asked.len() as u64);
    }

    pub(super) fn is_greeted(&self) -> bool {
        !self.greets
    }

    pub(super) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// It was greeted before.
    pub(super) fn resume(&mut self, resume: &Resume) {
        (self.open, self.greets, self.is_same) = (0, false, resume.is_not_compared);
    }

    pub(super) fn resumes(&self) -> Option<Resume> {
        let waits = self.owed > 0 || self.is_kept || self.asked.iter().any(|(byte, _)| *byte == WAIT);
        (!waits).then(|| Resume { is_not_compared: self.is_same, ..Resume::default() })
    }

    pub(super) fn ask(&mut self, bytes: &[u8]) {
        let wait = bytes.iter().position(|byte| *byte == WAIT).filter(|_| self.takes_turns);
        let (bytes, rest) = wait.and_then(|at| bytes.split_at_checked(at + 1)).unwrap_or((bytes, &[]));
        if !rest.is_empty() {
            (self.given, self.rest) = (bytes.to_vec(), rest.to_vec());
        }
        self.open += bytes.len() as u64;
        for byte in bytes {
            self.ends |= *byte >= ABORT;
            self.is_same |= *byte == SAME;
            if !self.ends && *byte != SILENT {
                self.asked.push_back((*byte, *byte == OWN && !self.is_same));
            }
        }
    }

    pub(super) fn answer(&mut self, bytes: &[u8], mut takes: impl FnMut(Piece<'_>)) {
        for byte in bytes {
            let (asked, is_own) = match self.asked.front() {
                Some(asked) if !self.greets => *asked,
                _ => {
                    self.open -= u64::from(core::mem::take(&mut self.greets) && self.open > 0);
                    takes(Piece::Bytes(&[*byte]));
                    continue;
                }
            };
            self.own.push(*byte);
            let may_be_ended = self.takes_turns && asked == WAIT;
            if !is_own && !may_be_ended {
                takes(Piece::Bytes(&[*byte]));
            }
            self.at += 1;
            let length = match self.own.get(1) {
                Some(own) if asked == OWN => own_bytes(*own),
                _ => ANSWER_BYTES,
            };
            if self.at < length {
                continue;
            }
            self.at = 0;
            self.asked.pop_front();
            self.last = asked;
            if self.owed > 0 {
                self.owed -= 1;
            } else {
                self.open = self.open.saturating_sub(1);
            }
            let whole = core::mem::take(&mut self.own);
            let is_ended = matches!(*whole, [first, second, third] if third == first ^ second ^ ENDED);
            if may_be_ended && is_ended {
                self.is_kept = self.interrupted.take() == Some(true);
            } else if is_own {
                let part = Part { digest: 0, end: 0, name: [0; NAME_BYTES] };
                takes(Piece::Own(&whole, part));
            } else if may_be_ended {
                takes(Piece::Bytes(&whole));
            }
        }
    }

    pub(super) fn are_answered(&self) -> bool {
        self.open == 0
    }
}
