//! What a node's server has said on one connection, so that it can be compared with what the primary's server has said there.
//!
//! Answers are compared in parts. Of a protocol whose replies are known a part is a reply, in a form in which the replies of two servers that
//! hold the same data are equal; of any other it is a byte. The primary gives digests a place in the order ([`Said`]); each node compares its own.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::Hasher as _;
use twox_hash::XxHash64;

/// Of the name of a command.
pub(crate) const NAME_BYTES: usize = 16;
/// Replies whose digests are kept, while nothing is known of those of the primary: they are those of a client that the primary has heard
/// nothing of for long.
const PARTS_MAX: usize = 1 << 16;
/// Of answers that differ, so much is shown.
const SHOWN_BYTES_MAX: u64 = 4 << 10;

/// What the primary's server has said on a connection. Positions count parts since the connection began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Said {
    /// Answers on this connection are not compared, from here on.
    #[default]
    Unknown,
    /// So far, and what of that no entry had before is not compared: another node's server has said it.
    Skipped {
        /// All before this position.
        parts: u64,
    },
    /// So far.
    Digest {
        /// All before this position.
        parts: u64,
        /// Of what no entry had before.
        digest: u64,
    },
}

/// A reply of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Of its form that has to be equal.
    pub(crate) digest: u64,
    /// So much clients get with it.
    pub(crate) end: u64,
    /// The command that it answers, filled up with zeros.
    pub(crate) name: [u8; NAME_BYTES],
}

/// A digest that is to be compared; none: what it would be of is passed over.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// Of the entry that brought it.
    index: u64,
    from: u64,
    to: u64,
    digest: Option<u64>,
    /// This node's server has said what it is of, and others are to compare it.
    is_own: bool,
}

/// What became of a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// This node's server has said the same.
    Equal { index: u64 },
    /// It has said something else.
    Differs {
        /// Of the entry that brought the digest.
        index: u64,
        /// Of what this node's server has said.
        digest: u64,
        /// Where that begins.
        offset: u64,
        /// That, or the beginning of it.
        bytes: Vec<u8>,
        /// The command, where it is of one reply.
        command: [u8; NAME_BYTES],
    },
    /// This node does not have what it is of.
    Skipped { index: u64 },
}

/// Of one connection, at one node.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Parts are replies.
    counts_replies: bool,
    /// Nothing is compared any more.
    is_over: bool,
    /// So many replies the server has given.
    replies: u64,
    /// The last of them: all that was not compared.
    parts: VecDeque<Part>,
    /// This node's server has not said what is before that: another one has.
    known_from: u64,
    /// All bytes before this were compared, or do not matter any more.
    compared_bytes: u64,
    /// All before this was in entries that are stable.
    reported: u64,
    /// At the primary: all before this is in entries.
    proposed: u64,
    reports: VecDeque<Report>,
}

/// What a server has said, in two pieces, from a position on.
pub(crate) struct Bytes<'a> {
    pub(crate) from: u64,
    pub(crate) pieces: (&'a [u8], &'a [u8]),
}

impl<'a> Bytes<'a> {
    fn digest(&self, from: u64, to: u64) -> u64 {
        let mut hasher = XxHash64::with_seed(0);
        let (front, back) = self.range(from, to);
        hasher.write(front);
        hasher.write(back);
        hasher.finish()
    }

    /// Those from one position to another.
    pub(crate) fn range(&self, from: u64, to: u64) -> (&'a [u8], &'a [u8]) {
        let at = |position: u64| usize::try_from(position.saturating_sub(self.from)).unwrap_or(usize::MAX);
        let (front, back) = self.pieces;
        let cut = |piece: &[u8], skipped: usize| {
            let clamp = |position: u64| at(position).saturating_sub(skipped).min(piece.len());
            clamp(from)..clamp(to)
        };
        let back_range = cut(back, front.len());
        (front.get(cut(front, 0)).unwrap_or_default(), back.get(back_range).unwrap_or_default())
    }
}

impl Comparison {
    pub(crate) fn new(counts_replies: bool) -> Self {
        Self { counts_replies, ..Self::default() }
    }

    /// On a connection on which another server has said so much: so many parts, of which so many were in entries.
    pub(crate) fn resumed(counts_replies: bool, (said, reported): (u64, u64), said_bytes: u64) -> Self {
        Self {
            counts_replies,
            replies: said,
            known_from: said,
            compared_bytes: said_bytes,
            reported,
            proposed: reported,
            ..Self::default()
        }
    }

    /// So much of it was in entries that are stable.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    /// So many parts, of a server that has said so many bytes.
    pub(crate) fn said(&self, said_bytes: u64) -> u64 {
        if self.counts_replies { self.replies } else { said_bytes }
    }

    /// What is before this was compared.
    pub(crate) fn compared_bytes(&self) -> u64 {
        if self.is_over { u64::MAX } else { self.compared_bytes }
    }

    /// Nothing is compared any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The last digest that has come is of what is before this.
    pub(crate) fn reported_bytes(&self) -> u64 {
        self.end_of(self.reported)
    }

    /// Digests have come that are not compared yet.
    pub(crate) fn is_due(&self) -> bool {
        !self.reports.is_empty()
    }

    /// The server has given a reply.
    pub(crate) fn push(&mut self, part: Part) {
        if !self.counts_replies {
            return;
        }
        self.replies += 1;
        if !self.is_over {
            self.parts.push_back(part);
        }
        if self.parts.len() > PARTS_MAX {
            self.end();
        }
    }

    /// Nothing is compared from here on.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        self.parts.clear();
    }

    /// What was only proposed is forgotten.
    pub(crate) fn forget_proposals(&mut self) {
        self.proposed = self.reported;
    }

    /// At the primary: there is something that no entry has.
    pub(crate) fn has_news(&self, said_bytes: u64) -> bool {
        !self.is_over && self.said(said_bytes) > self.proposed
    }

    /// At the primary: what goes into an entry.
    pub(crate) fn propose(&mut self, said_bytes: u64, bytes: &Bytes<'_>) -> Said {
        if self.is_over {
            return Said::Unknown;
        }
        let (from, parts) = (self.proposed, self.said(said_bytes).max(self.proposed));
        self.proposed = parts;
        // What another server has said before this one was there cannot be vouched for.
        if from < self.known_from {
            return Said::Skipped { parts };
        }
        Said::Digest { parts, digest: self.digest(from, parts, bytes) }
    }

    /// How far [`propose`](Self::propose) has come.
    pub(crate) fn proposed(&self) -> u64 {
        self.proposed
    }

    /// What was proposed last was not taken.
    pub(crate) fn take_back(&mut self, proposed: u64) {
        self.proposed = proposed;
    }

    fn digest(&self, from: u64, to: u64, bytes: &Bytes<'_>) -> u64 {
        if !self.counts_replies {
            return bytes.digest(from, to);
        }
        let mut hasher = XxHash64::with_seed(0);
        for part in self.parts_between(from, to) {
            hasher.write_u64(part.digest.to_le());
        }
        hasher.finish()
    }

    fn parts_between(&self, from: u64, to: u64) -> impl Iterator<Item = &Part> {
        let first = self.replies - self.parts.len() as u64;
        let at = |part: u64| usize::try_from(part.saturating_sub(first)).unwrap_or(usize::MAX);
        self.parts.range(at(from).min(self.parts.len())..at(to).min(self.parts.len()))
    }

    /// An entry is stable that has this. Whether there is something to compare.
    pub(crate) fn report(&mut self, index: u64, said: Said, is_own: bool) -> bool {
        let from = self.reported;
        let (to, digest) = match said {
            Said::Digest { parts, digest } => (parts, Some(digest)),
            Said::Skipped { parts } => (parts, None),
            Said::Unknown => {
                // There is nothing to compare with.
                self.end();
                return false;
            }
        };
        if to <= from || self.is_over {
            return false;
        }
        self.reported = to;
        self.proposed = self.proposed.max(to);
        self.reports.push_back(Report { index, from, to, digest, is_own });
        true
    }

    /// Compares the oldest digest, if this node's server has said enough; or nothing has to be waited for.
    pub(crate) fn compare(&mut self, said_bytes: u64, bytes: &Bytes<'_>, is_early: bool) -> Option<Compared> {
        let Report { index, from, to, digest, is_own } = *self.reports.front()?;
        let digest = digest.filter(|_| !self.is_over && from >= self.known_from);
        if is_own || self.said(said_bytes) < to && !self.is_over && !is_early {
            return None;
        }
        let Some(digest) = digest else {
            self.pass(to, said_bytes);
            return Some(Compared::Skipped { index });
        };
        let own = self.digest(from, to, bytes);
        let found = if own == digest {
            Compared::Equal { index }
        } else {
            self.differs(index, own, (from, to), bytes)
        };
        self.pass(to, said_bytes);
        Some(found)
    }

    fn differs(&self, index: u64, digest: u64, (from, to): (u64, u64), bytes: &Bytes<'_>) -> Compared {
        let mut parts = self.parts_between(from, to);
        let (first, is_one) = (parts.next().copied(), parts.next().is_none());
        let command = first.filter(|_| is_one).map_or([0; NAME_BYTES], |part| part.name);
        let (offset, end) = self.bytes_between(from, to);
        let (front, back) = bytes.range(offset, end);
        Compared::Differs { index, digest, offset, bytes: [front, back].concat(), command }
    }

    /// The server says nothing more: what it has said is less than what the oldest digest is of.
    pub(crate) fn compare_less(&self, said_bytes: u64, bytes: &Bytes<'_>) -> Option<Compared> {
        let Report { index, from, to, digest, is_own } = *self.reports.front()?;
        let said = self.said(said_bytes);
        let is_known = digest.is_some() && !is_own && !self.is_over && from >= self.known_from;
        (is_known && said < to)
            .then(|| self.differs(index, self.digest(from, said, bytes), (from, said), bytes))
    }

    /// These parts, in bytes; or the beginning of them.
    fn bytes_between(&self, from: u64, to: u64) -> (u64, u64) {
        let from = self.end_of(from);
        (from, self.end_of(to).min(from.saturating_add(SHOWN_BYTES_MAX)))
    }

    /// Others have compared what this entry has of this node's server.
    pub(crate) fn confirm(&mut self, index: u64, said_bytes: u64) -> Vec<u64> {
        let mut confirmed = Vec::new();
        while let Some(Report { index, to, .. }) =
            self.reports.front().filter(|report| report.is_own && report.index <= index)
        {
            confirmed.push(*index);
            self.pass(*to, said_bytes);
        }
        confirmed
    }

    /// The same of what another node's server has said.
    pub(crate) fn give_up_others(&mut self) -> Vec<u64> {
        let (own, others) = self.reports.drain(..).partition(|report| report.is_own);
        self.reports = own;
        let others: VecDeque<Report> = others;
        others.into_iter().map(|report| report.index).collect()
    }

    /// What others have not compared yet is compared here as well: this node is not the primary any more.
    pub(crate) fn disown(&mut self) {
        self.reports.iter_mut().for_each(|report| report.is_own = false);
    }

    /// What this entry is about, in bytes, or the beginning of it; if it is here still.
    pub(crate) fn bytes_of(&self, index: u64) -> Option<(u64, u64)> {
        let report = self.reports.iter().find(|report| report.index == index)?;
        Some(self.bytes_between(report.from, report.to))
    }

    /// Where this part ends, in bytes.
    fn end_of(&self, to: u64) -> u64 {
        if !self.counts_replies {
            return to;
        }
        let last = self.parts_between(to.saturating_sub(1), to).next();
        last.map_or(self.compared_bytes, |part| part.end)
    }

    /// All before this part does not matter any more.
    fn pass(&mut self, to: u64, said_bytes: u64) {
        self.reports.pop_front();
        self.compared_bytes = self.compared_bytes.max(self.end_of(to)).min(said_bytes);
        let gone = usize::try_from(to.saturating_sub(self.replies - self.parts.len() as u64));
        self.parts.drain(..gone.unwrap_or(usize::MAX).min(self.parts.len()));
    }

    /// What is not compared never will be: the server says nothing more. The entries that wait for that.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = u64> {
        self.end();
        core::mem::take(&mut self.reports).into_iter().map(|report| report.index)
    }
}
