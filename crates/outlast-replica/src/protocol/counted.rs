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
        }
    }
}

impl OfCounted {
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
        let waits = self.owed > 0 || self.asked.iter().any(|(byte, _)| *byte == WAIT);
        (!waits).then(|| Resume { is_not_compared: self.is_same, ..Resume::default() })
    }

    pub(super) fn ask(&mut self, bytes: &[u8]) {
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
            if !is_own {
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
            if self.owed > 0 {
                self.owed -= 1;
            } else {
                self.open = self.open.saturating_sub(1);
            }
            if !is_own {
                self.own.clear();
            } else {
                let part = Part { digest: 0, end: 0, name: [0; NAME_BYTES] };
                takes(Piece::Own(&core::mem::take(&mut self.own), part));
            }
        }
    }

    pub(super) fn are_answered(&self) -> bool {
        self.open == 0
    }
}
