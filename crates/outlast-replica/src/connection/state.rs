//! What a node knows of one connection.

use super::comparison::{Bytes, Compared, Comparison, Part, Said};
use super::handshake::Handshake;
use super::own::{Own, Piece};
use super::segment::Segment;
use crate::replica::Known;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What a client may be ahead of this node, in each direction: several of the largest windows that Linux gives by default (6 MiB), as what the node
/// before has sent is known some milliseconds later. It is not the largest window that there may be (1 GiB; RFC 7323, section 2.3): a late packet
/// of an earlier connection from the same port would count too often, and its numbers are any.
const AHEAD_MAX: u64 = 64 << 20;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on.
    Pass,
    /// It is looked at again when something has become stable, or was answered.
    Hold,
    /// It is dropped: whoever sent it repeats it.
    Drop,
}

/// One connection, on any node. Positions count the bytes of a stream from its beginning.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) handshake: Handshake,
    /// When it was opened, or the entry that says so came to this node: its timestamps are reckoned from there.
    pub(crate) opened_at_ms: u64,
    /// The entry that opens it is stable.
    pub(crate) is_open: bool,
    /// The server has reset it, and that is stable.
    pub(crate) is_aborted: bool,
    /// At the primary: some of its packets need no verdict.
    pub(crate) passes: bool,
    /// The connection to the server of this node was closed, before the client's was.
    pub(crate) is_server_closed: bool,
    /// At the primary: its kernel has a whole connection.
    pub(crate) is_accepted: bool,
    /// At the primary: another one has had it before, and this node has made it again.
    pub(crate) is_restored: bool,
    /// It did so in the view of this epoch.
    pub(crate) restored_epoch: u64,
    /// Until then packets of its client may tell of answers that only the node before has sent.
    pub(crate) ahead_until_ms: u64,
    pub(crate) input: Input,
    pub(crate) answers: Answers,
}

/// What the client sends.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// All before this was delivered, so it is stable.
    pub(crate) delivered: u64,
    /// That was all.
    pub(crate) ended: bool,
    /// The server gets nothing more of it, as it has ended its stream: on no node.
    pub(crate) is_refused: bool,
    /// At the primary: all before this has an index.
    pub(crate) proposed: u64,
    /// At the primary: its end has an index.
    pub(crate) end_proposed: bool,
    /// Of that, the node's server has not taken so many bytes yet.
    pub(crate) waiting_bytes: usize,
}

/// What the node's server says.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The client has all before this.
    pub(crate) acked: u64,
    /// The server has said so much.
    pub(crate) produced: u64,
    /// The server has said all.
    pub(crate) server_ended: bool,
    /// The server has reset the connection.
    pub(crate) server_reset: bool,
    /// The last bytes of what it has said: those that the client may not have, and those that may have to be compared.
    kept: VecDeque<u8>,
    /// The position of the first of them.
    kept_from: u64,
    pub(crate) comparison: Comparison,
    /// Replies that each server gives in its own way, and what comes behind them.
    pub(crate) own: Own,
    /// They end here on all nodes: the primary's server has said so, and that is stable.
    pub(crate) end: Option<u64>,
    /// That was before the client had ended its stream.
    pub(crate) ended_first: bool,
    /// Other servers have said all before this as well, as far as this node knows.
    pub(crate) agreed: u64,
    /// At the primary: the kernel has all before this, to send it to the client.
    pub(crate) written: u64,
    /// At the primary, of a restored connection: its kernel has sent all before this, the end counting one.
    pub(crate) sent: u64,
    /// At the primary: the kernel was told of the end.
    pub(crate) end_written: bool,
    /// At the primary: the end has an index.
    pub(crate) end_proposed: bool,
    /// At the primary: the reset has an index.
    pub(crate) abort_proposed: bool,
    /// At the primary: the others were told, or are being told, that the client has all before this.
    pub(crate) acked_proposed: u64,
    /// At the primary: the client has all before this.
    pub(crate) acked_seen: u64,
}

impl Connection {
    pub(crate) fn new(handshake: Handshake, is_open: bool, now_ms: u64) -> Self {
        Self {
            handshake,
            opened_at_ms: now_ms,
            is_open,
            is_aborted: false,
            passes: false,
            is_server_closed: false,
            is_accepted: false,
            is_restored: false,
            restored_epoch: 0,
            ahead_until_ms: 0,
            input: Input::default(),
            answers: Answers::default(),
        }
    }

    /// One that is older than the snapshot that this node began with.
    pub(crate) fn known(known: &Known, counts_replies: bool, now_ms: u64) -> Self {
        let mut state = Self::new(known.handshake, true, now_ms.saturating_sub(known.age_ms));
        (state.input.delivered, state.input.ended) = (known.delivered, known.ended);
        state.is_aborted = known.is_aborted;
        let answers = &mut state.answers;
        answers.produced = known.produced;
        answers.acked = known.produced.saturating_sub(known.unacked.len() as u64);
        (answers.kept, answers.kept_from) = (known.unacked.iter().copied().collect(), answers.acked);
        answers.own = Own::resumed(known.own);
        answers.comparison =
            Comparison::resumed(counts_replies, (known.said, known.reported), known.produced);
        (answers.server_ended, answers.end) = (known.resume.is_none(), known.end);
        answers.ended_first = known.ended_first;
        answers.server_reset = known.is_reset;
        state.forget_proposals();
        state
    }

    /// The server of this node has reset the connection before it has said all.
    pub(crate) fn is_lost(&self) -> bool {
        let answers = &self.answers;
        answers.server_reset && answers.end.is_none_or(|end| answers.produced.max(answers.acked) < end)
    }

    /// The server of this node says nothing more: it has ended its stream, or the connection to it was closed.
    pub(crate) fn has_server_ended(&self) -> bool {
        self.answers.server_ended || self.answers.server_reset || self.is_aborted || self.is_server_closed
    }

    /// Whether this is the SYN-ACK of this connection.
    pub(crate) fn is_same(&self, syn_ack: &Segment) -> bool {
        let handshake = &self.handshake;
        syn_ack.sequence == handshake.server.0 && syn_ack.ack == handshake.client.0.wrapping_add(1)
    }

    /// Whether a packet may go to the client: what it acknowledges has to be stable, and so has its end. What it carries follows from
    /// stable input alone, as the server gets nothing else.
    pub(crate) fn may_leave(&self, segment: &Segment) -> Verdict {
        let (flags, handshake) = (segment.flags, &self.handshake);
        if !self.is_open {
            return Verdict::Hold;
        }
        if flags.rst {
            // It stays true: whoever has no socket for the connection says so again.
            return if self.is_aborted { Verdict::Pass } else { Verdict::Drop };
        }
        if flags.syn {
            return if self.is_same(segment) { Verdict::Pass } else { Verdict::Drop };
        }
        let stable = self.input.delivered + u64::from(self.input.ended);
        let acks = handshake.client.offset(segment.ack, self.input.delivered);
        let last = handshake.server.offset(segment.sequence, self.answers.written);
        let last = last.map(|first| first + u64::from(segment.payload_bytes));
        let is_end_stable = !flags.fin || self.answers.end.is_some_and(|end| last == Some(end));
        let is_stable = flags.ack && acks.is_some_and(|acks| acks <= stable) && is_end_stable;
        if is_stable { Verdict::Pass } else { Verdict::Hold }
    }

    /// The server of this node has ended its stream.
    pub(crate) fn is_server_done(&self) -> bool {
        self.answers.server_ended || self.answers.server_reset
    }

    /// The position in the answers that a packet from the client acknowledges.
    pub(crate) fn acks(&self, segment: &Segment) -> Option<u64> {
        let counts = segment.flags.ack && !segment.flags.rst;
        counts.then(|| self.handshake.server.offset(segment.ack, self.answers.sent)).flatten()
    }

    /// Whether this may be the client's packet, with an acknowledgement of what another node has sent: somebody who cannot see the connection
    /// would have to guess both of its positions (RFC 5961, section 5.2).
    pub(crate) fn is_plausible(&self, segment: &Segment) -> bool {
        let comes = self.handshake.client.offset(segment.sequence, self.input.proposed);
        let acks = self.acks(segment).unwrap_or(0);
        comes.is_some_and(|comes| comes.abs_diff(self.input.proposed) <= AHEAD_MAX)
            && acks.saturating_sub(self.answers.sent) <= AHEAD_MAX
    }

    /// The client has this many of the answers: what is before that need not be sent. The socket is made again so.
    pub(crate) fn skip_to(&mut self, acked: u64, resent_bytes_max: usize, may_go_out: u64) {
        let answers = &mut self.answers;
        answers.ack(answers.end.map_or(acked, |end| end.min(acked)));
        self.restored(resent_bytes_max, may_go_out);
    }

    /// A socket has been made, with the first of what is kept in its send queue, and clients may get.
    pub(crate) fn restored(&mut self, resent_bytes_max: usize, may_go_out: u64) {
        let answers = &mut self.answers;
        answers.written = answers.resent_until(resent_bytes_max, may_go_out);
        answers.end_written = answers.end.is_some_and(|end| answers.written >= end);
        answers.sent = answers.written + u64::from(answers.end_written);
    }

    /// Nothing that this node had as the primary holds any more: another one leads, or will know better.
    pub(crate) fn forget_proposals(&mut self) {
        let (input, answers) = (&mut self.input, &mut self.answers);
        (input.proposed, input.end_proposed) = (input.delivered, input.ended);
        (answers.end_proposed, answers.abort_proposed) = (answers.end.is_some(), self.is_aborted);
        (answers.acked_proposed, answers.acked_seen) = (answers.acked, answers.acked);
        answers.comparison.forget_proposals();
        answers.own.forget_proposals();
        (self.is_restored, self.is_accepted, self.ahead_until_ms) = (false, false, 0);
        self.passes = false;
        (answers.written, answers.end_written) = (answers.acked, false);
    }
}

impl Input {
    /// Bytes are stable. Whether they are the next ones: others are not for the server.
    pub(crate) fn deliver(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let is_next = offset == self.delivered && !self.ended;
        if is_next {
            self.waiting_bytes += bytes.len();
            self.delivered += bytes.len() as u64;
            self.proposed = self.proposed.max(self.delivered);
        }
        is_next
    }
}

impl Answers {
    /// The server has said this, and nothing that comes before it is waited for.
    pub(crate) fn take(&mut self, piece: Piece<'_>) {
        match self.own.take(piece) {
            Some(piece) => self.take_now(piece),
            None => self.go_on(),
        }
    }

    /// The server has ended its stream, and that has no place in the order yet, as a reply of its own is being ordered: it works on nothing that
    /// comes behind that, and those of other nodes would.
    pub(crate) fn ends_later(&self) -> bool {
        self.server_ended && self.own.waits()
    }

    /// What waited, and does no more.
    fn go_on(&mut self) {
        while let Some(piece) = self.own.next() {
            self.take_now(piece.as_piece());
        }
    }

    fn take_now(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Bytes(bytes) => self.say(bytes),
            Piece::Part(part) => self.comparison.push(Part { end: self.produced, ..part }),
            Piece::Own(..) => {}
        }
    }

    /// Clients get this as the reply of that number. Whether there is more for them.
    pub(crate) fn take_canonical(&mut self, number: u64, offset: u64, is_last: bool, bytes: &[u8]) -> bool {
        let before = self.produced;
        self.own.take_canonical(number, offset, is_last, bytes);
        self.go_on();
        self.produced > before
    }

    /// The server has said this. What is behind the end that all nodes know is passed over.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let room = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.produced));
        let bytes = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        self.produced += bytes.len() as u64;
        self.kept.extend(bytes);
        self.forget();
    }

    /// What the client has, and what was compared, is not needed any more.
    pub(crate) fn forget(&mut self) {
        let from = self.acked.min(self.comparison.compared_bytes()).min(self.produced);
        let count = usize::try_from(from.saturating_sub(self.kept_from)).unwrap_or(usize::MAX);
        self.kept.drain(..count.min(self.kept.len()));
        self.kept_from = self.kept_from.max(from);
    }

    /// All bytes that are here still.
    pub(crate) fn kept(&self) -> Bytes<'_> {
        Bytes { from: self.kept_from, pieces: self.kept.as_slices() }
    }

    /// What the client may not have of what the server has said.
    pub(crate) fn unacked(&self) -> (&[u8], &[u8]) {
        let (front, back) = self.kept.as_slices();
        split_at(front, back, self.acked.saturating_sub(self.kept_from))
    }

    /// Compares the oldest digest that has come, if that can be done.
    pub(crate) fn compare(&mut self, is_early: bool) -> Option<Compared> {
        let bytes = Bytes { from: self.kept_from, pieces: self.kept.as_slices() };
        let compared = self.comparison.compare(self.produced, &bytes, is_early)?;
        self.forget();
        Some(compared)
    }

    /// Others have compared what entries up to this one have of this node's server: these.
    pub(crate) fn confirm(&mut self, index: u64) -> Vec<u64> {
        let confirmed = self.comparison.confirm(index, self.produced);
        self.forget();
        confirmed
    }

    /// The server says nothing more, and has said less than the oldest digest is of.
    pub(crate) fn compare_less(&self) -> Option<Compared> {
        let bytes = Bytes { from: self.kept_from, pieces: self.kept.as_slices() };
        self.comparison.compare_less(self.produced, &bytes)
    }

    /// What this entry is about, and where it begins, if it is here still.
    pub(crate) fn shown(&self, index: u64) -> Option<(u64, Vec<u8>)> {
        let (from, to) = self.comparison.bytes_of(index)?;
        let kept = self.kept();
        let (front, back) = kept.range(from, to);
        Some((from, [front, back].concat()))
    }

    /// So much of what the client has is kept, to be compared.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.acked.min(self.produced).saturating_sub(self.kept_from)
    }

    /// At the primary: what goes into an entry about what its server has said.
    pub(crate) fn propose_said(&mut self) -> Said {
        let bytes = Bytes { from: self.kept_from, pieces: self.kept.as_slices() };
        self.comparison.propose(self.produced, &bytes)
    }

    /// The client has all before this.
    pub(crate) fn ack(&mut self, offset: u64) {
        self.acked = self.acked.max(offset);
        self.written = self.written.max(self.acked);
        self.forget();
    }

    /// A socket that is made again takes all before this for sent.
    pub(crate) fn resent_until(&self, resent_bytes_max: usize, may_go_out: u64) -> u64 {
        let kept = self.produced.max(self.acked).min(may_go_out).saturating_sub(self.acked);
        self.acked + kept.min(resent_bytes_max as u64)
    }

    /// What is before this has been compared here, or never will be.
    pub(crate) fn compared_to(&self) -> u64 {
        let is_all = self.end.is_some() && !self.comparison.is_due();
        if is_all { u64::MAX } else { self.comparison.compared_bytes() }
    }

    /// Answers end here on all nodes.
    pub(crate) fn end_at(&mut self, offset: u64) {
        self.end = Some(offset);
        let extra = usize::try_from(self.produced.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.kept.truncate(self.kept.len().saturating_sub(extra));
        self.produced = self.produced.min(offset);
    }

    /// What the kernel has not got yet, to send it to the client: all before a position.
    pub(crate) fn unwritten(&self, may_go_out: u64) -> (&[u8], &[u8]) {
        self.kept().range(self.written, may_go_out.max(self.written))
    }
}

/// What is left of two pieces behind so many bytes.
fn split_at<'a>(front: &'a [u8], back: &'a [u8], skipped: u64) -> (&'a [u8], &'a [u8]) {
    let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
    let rest = skipped.saturating_sub(front.len());
    (front.get(skipped..).unwrap_or(&[]), back.get(rest..).unwrap_or(&[]))
}
