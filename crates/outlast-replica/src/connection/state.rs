//! What a node knows of one connection.

use super::handshake::Handshake;
use super::segment::Segment;
use crate::replica::Known;
use alloc::collections::VecDeque;

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
    /// The last bytes of what it has said: from `acked` on.
    pub(crate) kept: VecDeque<u8>,
    /// They end here on all nodes: the primary's server has said so, and that is stable.
    pub(crate) end: Option<u64>,
    /// That was before the client had ended its stream.
    pub(crate) ended_first: bool,
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
    pub(crate) fn known(known: &Known, now_ms: u64) -> Self {
        let mut state = Self::new(known.handshake, true, now_ms.saturating_sub(known.age_ms));
        (state.input.delivered, state.input.ended) = (known.delivered, known.ended);
        state.is_aborted = known.is_aborted;
        let answers = &mut state.answers;
        answers.produced = known.produced;
        answers.acked = known.produced.saturating_sub(known.unacked.len() as u64);
        answers.kept = known.unacked.iter().copied().collect();
        (answers.server_ended, answers.end) = (known.resume.is_none(), known.end);
        answers.ended_first = known.ended_first;
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

    /// Whether this node's server is where the primary's was when it ended its stream, if it has.
    pub(crate) fn hears(&self) -> bool {
        self.answers.end.is_none() || self.answers.server_ended || self.answers.server_reset
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
    pub(crate) fn skip_to(&mut self, acked: u64, resent_bytes_max: usize) {
        let answers = &mut self.answers;
        answers.ack(answers.end.map_or(acked, |end| end.min(acked)));
        self.restored(resent_bytes_max);
    }

    /// A socket has been made, with the first of what is kept in its send queue.
    pub(crate) fn restored(&mut self, resent_bytes_max: usize) {
        let answers = &mut self.answers;
        answers.written = answers.resent_until(resent_bytes_max);
        answers.end_written = answers.end.is_some_and(|end| answers.written >= end);
        answers.sent = answers.written + u64::from(answers.end_written);
    }

    /// Nothing that this node had as the primary holds any more: another one leads, or will know better.
    pub(crate) fn forget_proposals(&mut self) {
        let (input, answers) = (&mut self.input, &mut self.answers);
        (input.proposed, input.end_proposed) = (input.delivered, input.ended);
        (answers.end_proposed, answers.abort_proposed) = (answers.end.is_some(), self.is_aborted);
        (answers.acked_proposed, answers.acked_seen) = (answers.acked, answers.acked);
        (self.is_restored, self.is_accepted, self.ahead_until_ms) = (false, false, 0);
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
    /// The server has said this. What is behind the end that all nodes know is passed over.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let room = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.produced));
        let bytes = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let had = usize::try_from(self.acked.saturating_sub(self.produced)).unwrap_or(usize::MAX);
        self.produced += bytes.len() as u64;
        self.kept.extend(bytes.iter().skip(had));
    }

    /// The client has all before this.
    pub(crate) fn ack(&mut self, offset: u64) {
        let more = offset.saturating_sub(self.acked);
        let drops = usize::try_from(more).unwrap_or(usize::MAX).min(self.kept.len());
        self.kept.drain(..drops);
        self.acked = self.acked.max(offset);
        self.written = self.written.max(self.acked);
    }

    /// A socket that is made again takes all before this for sent.
    pub(crate) fn resent_until(&self, resent_bytes_max: usize) -> u64 {
        let kept = self.produced.max(self.acked) - self.acked;
        self.acked + kept.min(resent_bytes_max as u64)
    }

    /// Answers end here on all nodes.
    pub(crate) fn end_at(&mut self, offset: u64) {
        self.end = Some(offset);
        let extra = usize::try_from(self.produced.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.kept.truncate(self.kept.len().saturating_sub(extra));
        self.produced = self.produced.min(offset);
    }

    /// What the kernel has not got yet, to send it to the client.
    pub(crate) fn unwritten(&self) -> (&[u8], &[u8]) {
        let skipped = usize::try_from(self.written - self.acked).unwrap_or(usize::MAX);
        let (front, back) = self.kept.as_slices();
        let rest = skipped.saturating_sub(front.len());
        (front.get(skipped..).unwrap_or(&[]), back.get(rest..).unwrap_or(&[]))
    }
}
