//! Packets of the portal: which pass, and when. A client must not learn what a machine may take with it.

use super::{Action, LeadershipCheck, PacketId, Replica, Role};
use crate::connection::{Connection, Direction, Handshake, Segment, Verdict};
use crate::entry::{ConnectionId, Entry};
use crate::is_mutant;
use alloc::vec::Vec;

/// SYNs that wait for their answers: the kernel gives them at once. More are a flood.
const OPENING_MAX: usize = 1_024;
/// Packets that wait: what a queue of the kernel holds.
const HELD_MAX: usize = 65_536;
/// Of connections that nobody knows: more are a flood.
const STRAYS_MAX: usize = 1_024;

impl Replica {
    /// A packet of the portal waits for a verdict.
    pub fn handle_packet(&mut self, packet: PacketId, direction: Direction, segment: &Segment, now_ms: u64) {
        if self.withhold(packet, direction, segment) {
            return;
        }
        let known = self.by_ends.get(&segment.ends).copied();
        let is_serving = self.role == Role::Serving || is_mutant!(self, ServesTooEarly);
        let verdict = if is_serving {
            match direction {
                Direction::In => self.judge_in(segment, known, now_ms),
                Direction::Out => match self.judge_out(segment, known, now_ms) {
                    Some(verdict) => verdict,
                    None => return self.hold_stray(packet, segment, now_ms),
                },
            }
        } else {
            Verdict::Drop
        };
        self.decide(packet, verdict, direction, segment);
        self.take_outputs(now_ms);
    }

    fn decide(&mut self, packet: PacketId, verdict: Verdict, direction: Direction, segment: &Segment) {
        let known = self.by_ends.get(&segment.ends).copied();
        match (verdict, known) {
            (Verdict::Hold, Some(connection)) if self.held.len() < HELD_MAX => {
                self.held.insert((connection, packet), (direction, *segment));
            }
            _ => self.actions.push_back(Action::Verdict { packet, passes: verdict == Verdict::Pass }),
        }
    }

    fn judge_in(&mut self, segment: &Segment, known: Option<ConnectionId>, now_ms: u64) -> Verdict {
        let connection = known.and_then(|known| self.connections.get(&known).map(|state| (known, state)));
        if segment.flags.syn && !segment.flags.ack {
            return self.judge_syn(segment, connection.map(|(known, _)| known));
        }
        if connection.is_none()
            && let Some(last_ack) = self.closed.answer(segment)
        {
            self.actions.push_back(Action::Acknowledge(last_ack));
            return Verdict::Drop;
        }
        if connection.is_none() && self.closed.is_late_ack(segment) {
            return Verdict::Drop;
        }
        match connection {
            Some((connection, state))
                if now_ms < state.ahead_until_ms
                    && state.acks(segment).is_some_and(|acks| acks > state.answers.sent)
                    && !is_mutant!(self, AcksOfUnsaidEnter) =>
            {
                self.actions.push_back(Action::AskSent { connection });
                Verdict::Hold
            }
            _ => Verdict::Pass,
        }
    }

    /// The kernel of a restored connection has sent all answers before this position, their end counting one.
    ///
    /// The client may have got more from the node before: from a server that was faster, or through a window that is smaller here. Then
    /// the kernel would take its acknowledgements for wrong ones, and go on waiting for others. So the socket is made again, where the
    /// client is.
    pub fn handle_sent(&mut self, connection: ConnectionId, offset: u64) {
        let range = (connection, PacketId(0))..=(connection, PacketId(u32::MAX));
        let may_go_out =
            self.connections.get(&connection).map_or(u64::MAX, |state| self.may_go_out(&state.answers));
        let Some(state) = self.connections.get_mut(&connection) else { return };
        state.answers.sent = offset;
        let waiting = self.held.range(range).filter(|(_, (direction, _))| *direction == Direction::In);
        let waiting: Vec<(PacketId, bool, u64)> = waiting
            .map(|((_, packet), (_, segment))| {
                (*packet, state.is_plausible(segment), state.acks(segment).unwrap_or(0))
            })
            .collect();
        let acked = waiting.iter().filter(|(_, plausible, _)| *plausible).map(|(_, _, acks)| *acks).max();
        if let Some(acked) = acked.filter(|acked| *acked > offset) {
            state.skip_to(acked, self.order.limits().resent_bytes_max, may_go_out);
            // What is given to the client before would go to the socket of before, and count as given.
            self.actions.push_front(Action::RestoreAgain { connection });
            self.tell_client(connection);
        }
        for (packet, plausible, acks) in waiting {
            self.held.remove(&(connection, packet));
            let passes = plausible || acks <= offset;
            self.actions.push_back(Action::Verdict { packet, passes });
        }
    }

    fn judge_syn(&mut self, segment: &Segment, known: Option<ConnectionId>) -> Verdict {
        let state = known.and_then(|known| self.connections.get(&known));
        let is_same = state.is_some_and(|state| state.handshake.client.0 == segment.sequence);
        if let (Some(connection), Some(state)) = (known, state)
            && is_same
            && state.is_restored
        {
            // The answer was lost with the machine that gave it. The kernel here knows the connection as a whole one, and would not
            // answer.
            if state.is_open && !is_mutant!(self, SynIsNotAnswered) {
                self.actions.push_back(Action::AnswerSyn { connection });
            }
            return Verdict::Drop;
        }
        // One that is known may be answered again, where the kernel has forgotten it.
        self.opening.retain(|syn| syn.ends != segment.ends);
        if self.opening.len() >= OPENING_MAX {
            self.opening.pop_front();
        }
        self.opening.push_back(*segment);
        Verdict::Pass
    }

    /// None for a packet of a connection that is not known here.
    fn judge_out(&mut self, segment: &Segment, known: Option<ConnectionId>, now_ms: u64) -> Option<Verdict> {
        let state = known.and_then(|known| self.connections.get(&known));
        if let Some(state) = state
            && (!segment.flags.syn || state.is_same(segment))
        {
            return Some(self.judge(state, Direction::Out, segment));
        }
        if segment.flags.syn {
            self.open(segment, known, now_ms);
            // It is judged when the entry is stable.
            let opened = self.by_ends.get(&segment.ends).copied().filter(|opened| Some(*opened) != known);
            if opened.is_some() && is_mutant!(self, SynAckLeavesEarly) {
                return Some(Verdict::Pass);
            }
            let state = opened.and_then(|opened| self.connections.get(&opened));
            return Some(state.map_or(Verdict::Drop, |state| self.judge(state, Direction::Out, segment)));
        }
        // One that was forgotten, or that never was. A reset says just that; an acknowledgement is of a stream that has ended.
        let is_bare = segment.payload_bytes == 0 && !segment.flags.fin;
        if is_bare && !is_mutant!(self, StraysLeave) {
            return None;
        }
        Some(if is_bare { Verdict::Pass } else { Verdict::Drop })
    }

    /// Another node may lead already, and know the connection: then what this kernel says of it is wrong. If a no-op becomes stable that is
    /// proposed now, this node led still when the kernel said it.
    fn hold_stray(&mut self, packet: PacketId, segment: &Segment, now_ms: u64) {
        if self.strays.len() >= STRAYS_MAX {
            self.actions.push_back(Action::Verdict { packet, passes: false });
            return;
        }
        self.strays.push((packet, *segment));
        self.take_outputs(now_ms);
    }

    pub(super) fn check_leadership(&mut self, now_ms: u64) {
        let strays = self.strays.len();
        if strays == 0 || self.leadership_check.is_some() || self.role != Role::Serving {
            return;
        }
        // Where there is no room it is asked again when something happens.
        self.leadership_check =
            self.order.propose(Entry::NoOp, now_ms).ok().map(|index| LeadershipCheck { index, strays });
    }

    /// A no-op is stable.
    pub(super) fn answer_strays(&mut self, index: u64, now_ms: u64) {
        let Some(check) = self.leadership_check.take_if(|check| check.index == index) else { return };
        let rest = self.strays.split_off(check.strays);
        for (packet, segment) in core::mem::replace(&mut self.strays, rest) {
            let passes = !self.by_ends.contains_key(&segment.ends);
            self.actions.push_back(Action::Verdict { packet, passes });
        }
        self.check_leadership(now_ms);
    }

    pub(super) fn drop_strays(&mut self) {
        self.leadership_check = None;
        for (packet, _) in core::mem::take(&mut self.strays) {
            self.actions.push_back(Action::Verdict { packet, passes: false });
        }
    }

    fn judge(&self, state: &Connection, direction: Direction, segment: &Segment) -> Verdict {
        if direction == Direction::In {
            return Verdict::Hold;
        }
        let verdict = state.may_leave(segment);
        match verdict {
            Verdict::Hold if is_mutant!(self, AcksLeaveEarly) && state.is_open => Verdict::Pass,
            Verdict::Drop if is_mutant!(self, ResetsLeave) => Verdict::Pass,
            Verdict::Hold if is_mutant!(self, EndsBeforeItIsStable) && segment.flags.fin => Verdict::Pass,
            verdict => verdict,
        }
    }

    /// The portal's kernel answers a SYN: from now on there is a connection, and once that is stable the answer may leave.
    fn open(&mut self, syn_ack: &Segment, before: Option<ConnectionId>, now_ms: u64) {
        let Some(at) = self.opening.iter().position(|syn| syn.ends == syn_ack.ends) else { return };
        let handshake = self.opening.get(at).and_then(|syn| Handshake::new(syn, syn_ack));
        let Some(handshake) = handshake.filter(|_| self.pending.is_empty()) else { return };
        if let Some(connection) = before {
            // The client has begun again from the same port: the kernel has found the old connection at its end.
            if self.order.propose(Entry::Closed { connection }, now_ms).is_err() {
                return;
            }
        }
        // Where there is no room the kernel, or the client, repeats it.
        let Ok(index) = self.order.propose(Entry::Open { handshake, at_ms: now_ms }, now_ms) else { return };
        self.opening.remove(at);
        let connection = ConnectionId(index);
        self.connections.insert(connection, Connection::new(handshake, false, now_ms));
        self.by_ends.insert(handshake.ends, connection);
    }

    /// Something has become stable, or was said: packets of this connection are looked at again.
    pub(super) fn judge_again(&mut self, connection: ConnectionId) {
        let range = (connection, PacketId(0))..=(connection, PacketId(u32::MAX));
        let Some(state) = self.connections.get(&connection) else {
            self.drop_held(connection);
            return;
        };
        let decided: Vec<(PacketId, bool)> = self
            .held
            .range(range)
            .map(|((_, packet), (direction, segment))| (*packet, self.judge(state, *direction, segment)))
            .filter(|(_, verdict)| *verdict != Verdict::Hold)
            .map(|(packet, verdict)| (packet, verdict == Verdict::Pass))
            .collect();
        for (packet, passes) in decided {
            self.held.remove(&(connection, packet));
            self.actions.push_back(Action::Verdict { packet, passes });
        }
    }

    pub(super) fn drop_held(&mut self, connection: ConnectionId) {
        let range = (connection, PacketId(0))..=(connection, PacketId(u32::MAX));
        let packets: Vec<PacketId> = self.held.range(range).map(|((_, packet), _)| *packet).collect();
        for packet in packets {
            self.held.remove(&(connection, packet));
            self.actions.push_back(Action::Verdict { packet, passes: false });
        }
    }
}
