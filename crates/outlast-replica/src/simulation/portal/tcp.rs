//! A small TCP: what a client has, and what the kernel of a node has for the portal. In order only, a fixed window, no timers of its own.

use crate::Restore;
use crate::connection::{Ends, Flags, InitialSequence, Segment, SynOptions};
use core::fmt;
use std::collections::VecDeque;
use std::vec::Vec;
extern crate std;

/// Bytes that are under way at the most, and that wait for a program at the most.
const WINDOW_BYTES: u64 = 24;
/// In one segment.
const SEGMENT_BYTES: usize = 6;

/// A packet, on its way.
#[derive(Clone, PartialEq, Eq)]
pub struct Packet {
    pub segment: Segment,
    pub payload: Vec<u8>,
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Segment { ends, sequence, ack, flags, .. } = &self.segment;
        let named = [(flags.syn, "SYN "), (flags.fin, "FIN "), (flags.rst, "RST ")];
        let names: std::string::String = named.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        write!(f, "{} {names}{sequence} ack {ack} {:?}", ends.client.port(), self.payload)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    SynSent,
    SynReceived,
    Established,
    /// By the other end.
    Reset,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Tcp {
    pub ends: Ends,
    pub state: State,
    pub local: InitialSequence,
    pub remote: InitialSequence,
    /// The other end's stream: so much has come, what waits for the program, and whether that was all.
    pub received: u64,
    pub inbox: VecDeque<u8>,
    pub fin_received: bool,
    /// The own stream: what is acknowledged, what is behind that, what of it was sent, and whether that is all.
    pub acked: u64,
    pub outbox: VecDeque<u8>,
    pub sent: u64,
    pub ended: bool,
    pub fin_sent: bool,
    pub fin_acked: bool,
    /// Its stream has ended before that of the other end.
    ended_first: bool,
}

impl Tcp {
    fn new(ends: Ends, state: State, local: u32, remote: u32) -> Self {
        Self {
            ends,
            state,
            local: InitialSequence(local),
            remote: InitialSequence(remote),
            received: 0,
            inbox: VecDeque::new(),
            fin_received: false,
            acked: 0,
            outbox: VecDeque::new(),
            sent: 0,
            ended: false,
            fin_sent: false,
            fin_acked: false,
            ended_first: false,
        }
    }

    /// A client's.
    pub fn connect(ends: Ends, local: u32) -> Self {
        Self::new(ends, State::SynSent, local, 0)
    }

    /// The kernel's, for a SYN.
    pub fn answer(syn: &Segment, local: u32) -> Self {
        Self::new(syn.ends, State::SynReceived, local, syn.sequence)
    }

    /// As a socket that leaves repair mode.
    pub fn restore(restore: &Restore<'_>) -> Self {
        // Its streams begin where it was restored: nobody can ask it for what was before.
        let (local, remote) =
            (restore.send_sequence.wrapping_sub(1), restore.receive_sequence.wrapping_sub(1));
        let mut tcp = Self::new(restore.ends, State::Established, local, remote);
        let (front, back) = restore.unacked;
        tcp.outbox.extend(front.iter().chain(back));
        tcp.sent = tcp.outbox.len() as u64;
        (tcp.ended, tcp.fin_received) = (restore.answers_ended, restore.client_ended);
        tcp.fin_sent = tcp.ended;
        tcp.ended_first = tcp.fin_sent && !tcp.fin_received;
        tcp
    }

    /// All was said and heard, at both ends.
    pub fn is_done(&self) -> bool {
        self.fin_received && self.inbox.is_empty() && self.fin_acked
    }

    /// All is over, and the kernel is in TIME-WAIT, as the other end has ended its stream later: the SYN of that connection, late, opens no
    /// new one (Linux: tcp_timewait_state_process).
    pub fn takes_for_old(&self, syn: &Segment) -> bool {
        self.is_done() && self.ended_first && syn.sequence == self.remote.0
    }

    fn segment(&self, sequence: u32, flags: Flags, payload: Vec<u8>) -> Packet {
        let ack = self.remote.number(self.received + u64::from(self.fin_received));
        let ack = if flags.ack { ack } else { 0 };
        let payload_bytes = payload.len() as u32;
        let options = SynOptions::default();
        let segment = Segment { ends: self.ends, sequence, ack, flags, window: 0, payload_bytes, options };
        Packet { segment, payload }
    }

    const ACK: Flags = Flags { ack: true, syn: false, fin: false, rst: false };

    /// What it says first, and again where nothing comes.
    pub fn hello(&self) -> Packet {
        let flags = Flags { syn: true, ack: self.state == State::SynReceived, ..Flags::default() };
        let mut packet = self.segment(self.local.0, flags, Vec::new());
        if self.state == State::SynReceived {
            packet.segment.ack = self.remote.number(0);
        }
        packet
    }

    pub fn bare_ack(&self) -> Packet {
        self.segment(self.local.number(self.sent + u64::from(self.fin_sent)), Self::ACK, Vec::new())
    }

    pub fn reset(&self) -> Packet {
        let flags = Flags { rst: true, ..Self::ACK };
        self.segment(self.local.number(self.sent + u64::from(self.fin_sent)), flags, Vec::new())
    }

    /// Says no more than what was said.
    pub fn end(&mut self) {
        self.ended = true;
    }

    fn part(&self, from: u64) -> Packet {
        let at = (from - self.acked) as usize;
        let payload: Vec<u8> = self.outbox.iter().copied().skip(at).take(SEGMENT_BYTES).collect();
        let is_last = from + payload.len() as u64 == self.acked + self.outbox.len() as u64;
        let flags = Flags { fin: self.ended && is_last, ..Self::ACK };
        self.segment(self.local.number(from), flags, payload)
    }

    /// Sends what has not been sent yet.
    pub fn send(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        if self.state != State::Established {
            return packets;
        }
        let end = self.acked + self.outbox.len() as u64;
        while self.sent < end.min(self.acked + WINDOW_BYTES)
            || self.sent == end && self.ended && !self.fin_sent
        {
            let packet = self.part(self.sent);
            self.sent += packet.payload.len() as u64;
            self.fin_sent |= packet.segment.flags.fin;
            self.ended_first |= self.fin_sent && !self.fin_received;
            packets.push(packet);
        }
        packets
    }

    /// Sends the oldest again: nothing was heard for long.
    pub fn repeat(&mut self) -> Option<Packet> {
        match self.state {
            State::SynSent | State::SynReceived => Some(self.hello()),
            State::Established if self.sent > self.acked || self.fin_sent && !self.fin_acked => {
                Some(self.part(self.acked))
            }
            State::Established | State::Reset => None,
        }
    }

    /// A packet comes. What it answers.
    pub fn receive(&mut self, packet: &Packet) -> Vec<Packet> {
        let segment = &packet.segment;
        if segment.flags.rst {
            // RFC 5961, section 3.2: only the very next number counts, others are asked about.
            let next = self.remote.number(self.received + u64::from(self.fin_received));
            let counts = match self.state {
                State::SynSent => segment.flags.ack && segment.ack == self.local.number(0),
                _ => segment.sequence == next,
            };
            if counts && self.fin_received && self.fin_acked {
                // In TIME-WAIT the program has all that there was, and the kernel forgets the connection sooner (Linux:
                // tcp_timewait_state_process).
                return Vec::new();
            }
            if counts {
                self.state = State::Reset;
                return Vec::new();
            }
            return if self.state == State::Established { std::vec![self.bare_ack()] } else { Vec::new() };
        }
        match self.state {
            State::Reset => return Vec::new(),
            State::SynSent => {
                if segment.flags.syn && segment.flags.ack && segment.ack == self.local.number(0) {
                    self.remote = InitialSequence(segment.sequence);
                    self.state = State::Established;
                    return std::vec![self.bare_ack()];
                }
                // RFC 9293, section 3.10.7.3: an acknowledgement of something else is refused.
                let is_wrong = segment.flags.ack && segment.ack != self.local.number(0);
                return if is_wrong { refuse(packet).into_iter().collect() } else { Vec::new() };
            }
            State::SynReceived if segment.flags.syn && segment.sequence == self.remote.0 => {
                return std::vec![self.hello()];
            }
            State::SynReceived | State::Established => {}
        }
        if segment.flags.syn {
            // A challenge (RFC 5961, section 4.2).
            return std::vec![self.bare_ack()];
        }
        self.learn(packet)
    }

    fn learn(&mut self, packet: &Packet) -> Vec<Packet> {
        let segment = &packet.segment;
        let Some(acks) = self.local.offset(segment.ack, self.acked) else { return Vec::new() };
        if acks > self.sent + u64::from(self.fin_sent) {
            // Of what was never sent: the packet does not count (RFC 9293, section 3.10.7.4).
            return std::vec![self.bare_ack()];
        }
        self.state = State::Established;
        if acks > self.sent {
            self.fin_acked = true;
        }
        let acks = acks.min(self.sent);
        let drops = acks.saturating_sub(self.acked) as usize;
        self.outbox.drain(..drops);
        self.acked = self.acked.max(acks);
        if packet.payload.is_empty() && !segment.flags.fin {
            return Vec::new();
        }
        // A number before the first byte stands for no position.
        let Some(first) = self.remote.offset(segment.sequence, self.received) else {
            return std::vec![self.bare_ack()];
        };
        if first <= self.received && !self.fin_received {
            let skipped = (self.received - first) as usize;
            for byte in packet.payload.iter().skip(skipped) {
                if self.inbox.len() as u64 >= WINDOW_BYTES {
                    break;
                }
                self.inbox.push_back(*byte);
                self.received += 1;
            }
            self.fin_received = segment.flags.fin && self.received == first + packet.payload.len() as u64;
        }
        std::vec![self.bare_ack()]
    }
}

/// What the kernel says to a packet of a connection that it does not know.
pub fn refuse(packet: &Packet) -> Option<Packet> {
    let (segment, flags) = (packet.segment, Flags { rst: true, ..Tcp::ACK });
    let sequence = if segment.flags.ack { segment.ack } else { 0 };
    let length = segment.payload_bytes + u32::from(segment.flags.syn) + u32::from(segment.flags.fin);
    let ack = segment.sequence.wrapping_add(length);
    let segment = Segment { sequence, ack, flags, payload_bytes: 0, ..segment };
    (!packet.segment.flags.rst).then_some(Packet { segment, payload: Vec::new() })
}
