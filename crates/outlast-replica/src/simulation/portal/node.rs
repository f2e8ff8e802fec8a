//! A machine: the replica, and the shell around it, with a kernel and a server.

use super::invariants::{Watch, clock, fenced, verdicts};
use super::server::{Answer, Request, Server};
use super::tcp::{Packet, State, Tcp, refuse};
use crate::mutant::Mutant;
use crate::simulation::invariants::Violation;
use crate::view::{NodeId, View};
use crate::{
    Action, ConnectionId, Delivery, Direction, Ends, InitialSequence, Limits, Message, PacketId, Protocol,
    Replica, ServerClock,
};
use crate::{AnswerPolicy, Entry};
use outlast_stream::SplitMix64;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;
extern crate std;

/// The time of day when a schedule begins, and by how much later it is at each next node.
const CLOCK_BEGINS_MS: u64 = 1_000_000;
const CLOCKS_DIFFER_MS: u64 = 60;

/// How a node and its server work.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub protocol: Protocol,
    pub clock: ServerClock,
    pub answers: AnswerPolicy,
    /// Kernels let packets pass that need no verdict, and backups say what they have to say before they do anything else.
    pub kernel_filters: bool,
}

/// A socket of the portal.
#[derive(Debug)]
struct Socket {
    tcp: Tcp,
    /// Once it is accepted.
    connection: Option<ConnectionId>,
    /// A restored one counts from here.
    acked_base: u64,
    end_read: bool,
    reset_told: bool,
    done_told: bool,
}

impl Socket {
    fn new(tcp: Tcp, connection: Option<ConnectionId>, acked_base: u64) -> Self {
        Self { tcp, connection, acked_base, end_read: false, reset_told: false, done_told: false }
    }
}

/// What leaves a machine.
#[derive(Debug, Default)]
pub struct Out {
    pub messages: VecDeque<(NodeId, Message<Entry>)>,
    pub packets: VecDeque<Packet>,
    /// It takes the portal's address.
    pub takes_address: bool,
    /// For another node, which is the primary now.
    pub forwarded: Vec<(NodeId, Packet)>,
    /// Which of all packets that were ever forwarded come from the network.
    pub injected: Vec<usize>,
    /// Members whose servers have said something else, and who leads without them.
    pub differing: Vec<(NodeId, NodeId)>,
    /// Clients get answers on these connections.
    pub fed: Vec<ConnectionId>,
}

#[derive(Debug)]
pub struct Node {
    pub me: NodeId,
    pub replica: Replica,
    pub server: Server,
    pub out: Out,
    /// It knows so many of the views.
    pub views: usize,
    pub excluded: bool,
    /// The last one to which it was to hand over.
    pub hands_over_to: Option<NodeId>,
    how: How,
    /// Its server is to say when it has worked off all, about these entries.
    asked: Vec<u64>,
    /// Its server is to end what waits for these clients.
    interrupts: Vec<ConnectionId>,
    /// It has begun with a copy of another one's server, whose connections it does not have yet.
    joins: bool,
    /// It was told that it needs a newer snapshot.
    pub outdated: bool,
    /// Nobody else serves.
    has_lease: bool,
    sockets: BTreeMap<Ends, Socket>,
    packets: BTreeMap<PacketId, (Direction, Packet)>,
    /// Connections whose packets its kernel lets pass by itself, and what they may acknowledge.
    passing: BTreeMap<ConnectionId, u32>,
    packets_seen: u32,
    /// It is about to restore connections.
    pub restoring: Option<u64>,
    /// Its server has ended these streams for a reason of its own.
    quits: Vec<ConnectionId>,
    /// It has done so, and no other server will: only a comparison of answers would find that.
    pub differs: bool,
    traces: bool,
}

impl Node {
    pub fn new(me: NodeId, view: View, limits: Limits, how: How, mutant: Option<Mutant>) -> Self {
        Self::with(me, Replica::new(me, view, limits), Server::default(), how, mutant)
    }

    /// Whether clients get nothing that the servers of others have not said as well.
    pub fn answers_wait(&self) -> bool {
        matches!(self.how.answers, AnswerPolicy::Majority | AnswerPolicy::All)
    }

    /// With a copy of this one's server, which has worked off all that it was given.
    pub fn join(
        &self,
        me: NodeId,
        (view, views): (View, usize),
        limits: Limits,
        now_ms: u64,
    ) -> Result<Self, Violation> {
        let snapshot = self.replica.snapshot(now_ms);
        let server = self.server.copy();
        clock::check_copy(me, server.clock_ms, snapshot.clock_ms)?;
        let how = (Delivery::Serial, self.how.protocol);
        let replica = Replica::join(me, &snapshot, view, limits, how, now_ms);
        Ok(Self { views, joins: true, ..Self::with(me, replica, server, self.how, self.replica.mutant) })
    }

    fn with(me: NodeId, replica: Replica, server: Server, how: How, mutant: Option<Mutant>) -> Self {
        let mut server = server;
        server.own = me.0 as u8;
        let mut replica =
            replica.with(Delivery::Serial, how.protocol).timed(how.clock).answering(how.answers);
        // Clocks of machines differ.
        replica.handle_time_of_day(CLOCK_BEGINS_MS + me.0 * CLOCKS_DIFFER_MS, 0);
        replica.set_mutant(mutant);
        Self {
            me,
            replica,
            server,
            out: Out::default(),
            views: 1,
            excluded: false,
            hands_over_to: None,
            outdated: false,
            joins: false,
            how,
            asked: Vec::new(),
            interrupts: Vec::new(),
            has_lease: false,
            sockets: BTreeMap::new(),
            packets: BTreeMap::new(),
            passing: BTreeMap::new(),
            packets_seen: 0,
            restoring: None,
            quits: Vec::new(),
            differs: false,
            traces: std::env::var_os("OUTLAST_TRACE").is_some(),
        }
    }

    /// Its server has not worked off all that it was given, or does what no other does.
    pub fn is_busy(&self) -> bool {
        let is_whole =
            if self.replica.is_serving() { self.replica.is_refreshed() } else { !self.server.is_loaded() };
        !is_whole
            || !self.server.is_idle()
            || !self.replica.is_settled()
            || !self.replica.not_transferable().is_empty()
            || self.may_differ()
            || self.excluded
    }

    /// The copy of the server has its connections.
    pub fn resume(&mut self, now_ms: u64) {
        if self.joins {
            self.joins = false;
            self.replica.handle_resumed(now_ms);
        }
    }

    /// Has its server come to an end with what it has got, or go on.
    pub fn hold(&mut self, now_ms: u64) {
        if self.joins {
            // It does so anyway.
        } else if self.replica.is_holding() {
            self.replica.release(now_ms);
        } else if !self.replica.refresh_and_hold(now_ms) {
            self.replica.hold();
        }
    }

    /// Another member is to lead, or is not.
    pub fn hand_over(&mut self, to: NodeId, now_ms: u64) {
        if self.replica.is_handing_over() {
            self.replica.keep_on(now_ms);
        } else if self.replica.hand_over(to, 1_000, now_ms).is_ok() {
            self.hands_over_to = Some(to);
        }
    }

    /// Its lease is about to end, or is not.
    pub fn prepare_to_fence(&mut self, now_ms: u64) {
        if self.replica.is_about_to_fence() {
            self.replica.keep_on(now_ms);
        } else {
            self.replica.prepare_to_fence(now_ms);
        }
    }

    /// What its server has done is not stable.
    pub fn may_differ(&self) -> bool {
        self.quits.iter().any(|connection| !self.replica.is_end_stable(*connection))
    }

    /// It has the lease, or has it no longer.
    pub fn set_lease(&mut self, has_lease: bool, now_ms: u64) {
        self.has_lease = has_lease;
        self.replica.handle_lease(has_lease, now_ms);
    }

    /// A packet comes from the wire.
    pub fn packet_in(
        &mut self,
        packet: Packet,
        random: &mut SplitMix64,
        _: &mut Watch,
        now_ms: u64,
    ) -> Result<(), Violation> {
        if self.passing_of(&packet).is_some() {
            self.kernel_receives(&packet, random, now_ms);
        } else {
            self.queue(Direction::In, packet, now_ms);
        }
        self.act(random, now_ms)
    }

    /// What packets may acknowledge that need no verdict, if this may be one of these.
    fn passing_of(&self, packet: &Packet) -> Option<u32> {
        let flags = packet.segment.flags;
        let connection = self.sockets.get(&packet.segment.ends)?.connection?;
        let acknowledges = self.passing.get(&connection).copied()?;
        (flags.ack && !flags.syn && !flags.fin && !flags.rst).then_some(acknowledges)
    }

    fn queue(&mut self, direction: Direction, packet: Packet, now_ms: u64) {
        // A kernel may go on for a moment when the lease is over.
        if direction == Direction::Out
            && let Some(acknowledges) = self.passing_of(&packet)
            && acknowledges.wrapping_sub(packet.segment.ack).cast_signed() >= 0
        {
            return self.out.packets.push_back(packet);
        }
        self.packets_seen += 1;
        let id = PacketId(self.packets_seen);
        let segment = packet.segment;
        self.packets.insert(id, (direction, packet));
        self.replica.handle_packet(id, direction, &segment, now_ms);
    }

    /// Does all that there is to do.
    pub fn act(&mut self, random: &mut SplitMix64, now_ms: u64) -> Result<(), Violation> {
        if self.how.kernel_filters && !self.replica.order().is_primary() {
            while let Some(message) = self.replica.poll_message() {
                self.out.messages.push_back(message);
            }
        }
        while let Some(action) = self.replica.poll_action() {
            if self.traces {
                std::println!("    {:?}: {action:?}", self.me);
            }
            match action {
                Action::Send { to, message } => self.out.messages.push_back((to, message)),
                Action::Verdict { packet, passes } => {
                    let Some((direction, packet)) = self.packets.remove(&packet) else {
                        return Err(verdicts::second(packet));
                    };
                    match direction {
                        _ if !passes => {}
                        Direction::Out if !self.has_lease => return Err(fenced::packet(self.me)),
                        Direction::Out => self.out.packets.push_back(packet),
                        Direction::In => self.kernel_receives(&packet, random, now_ms),
                    }
                }
                // The copy of the server has it.
                Action::ReconnectServer { .. } => {}
                Action::LetPass { connection, acknowledges } => {
                    match acknowledges.filter(|_| self.how.kernel_filters) {
                        Some(acknowledges) => _ = self.passing.insert(connection, acknowledges),
                        None => _ = self.passing.remove(&connection),
                    }
                }
                Action::ConnectServer { connection } => {
                    self.server.give(connection, Request::Connect);
                }
                Action::ToServer { connection, bytes } => {
                    self.replica.handle_server_took(connection, bytes.len());
                    self.server.give(connection, Request::Bytes(bytes.to_vec()));
                }
                Action::EndToServer { connection } => self.server.give(connection, Request::End),
                Action::CloseServer { connection } => self.server.give(connection, Request::Close),
                Action::ClientReady { connection } => self.feed_client(connection, now_ms),
                Action::ResetClient { connection } => {
                    let of_it = |socket: &Socket| socket.connection == Some(connection);
                    let ends = self.sockets.iter().find(|(_, socket)| of_it(socket)).map(|(ends, _)| *ends);
                    if let Some(socket) = ends.and_then(|ends| self.sockets.remove(&ends)) {
                        self.queue(Direction::Out, socket.tcp.reset(), now_ms);
                    }
                    self.replica.handle_closed(connection, now_ms);
                }
                Action::AnswerSyn { connection } => {
                    if let Some(restore) = self.replica.restore(connection, now_ms)
                        && let Some(handshake) = restore.syn_ack
                    {
                        let mut tcp = Tcp::connect(handshake.ends, handshake.server.0);
                        (tcp.remote, tcp.state) = (handshake.client, State::SynReceived);
                        self.out.packets.push_back(tcp.hello());
                    }
                }
                Action::AskSent { connection } => {
                    let of_it = |socket: &&Socket| socket.connection == Some(connection);
                    let sent = self.sockets.values().find(of_it).map_or(0, |socket| {
                        socket.acked_base + socket.tcp.sent + u64::from(socket.tcp.fin_sent)
                    });
                    self.replica.handle_sent(connection, sent);
                }
                Action::RestoreAgain { connection } => {
                    if let Some(restore) = self.replica.restore(connection, now_ms) {
                        let socket = Socket::new(
                            Tcp::restore(&restore),
                            Some(connection),
                            self.replica.acked(connection),
                        );
                        self.sockets.insert(restore.ends, socket);
                    }
                }
                Action::Acknowledge(last_ack) => {
                    let mut tcp = Tcp::connect(last_ack.handshake.ends, last_ack.sequence.wrapping_sub(1));
                    tcp.remote = InitialSequence(last_ack.ack.wrapping_sub(1));
                    self.out.packets.push_back(tcp.bare_ack());
                }
                Action::TakeOver { epoch } => self.restoring = Some(epoch),
                Action::Forward { packet, to } => {
                    let Some((_, packet)) = self.packets.remove(&packet) else {
                        return Err(verdicts::second(packet));
                    };
                    self.out.forwarded.push((to, packet));
                }
                Action::Inject { bytes } => {
                    let number = bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
                    self.out.injected.push(number as usize);
                }
                // The network brings packets to earlier owners anyway.
                Action::GiveUpAddress => {}
                Action::Fence => {
                    self.differs |= self.may_differ();
                    self.sockets.clear();
                    self.passing.clear();
                    self.restoring = None;
                }
                Action::Excluded { .. } => self.excluded = true,
                Action::AskServer { index, .. } => self.asked.push(index),
                Action::Interrupt { connection, .. } => self.interrupts.push(connection),
                Action::SetClock { at_ms } => {
                    clock::check(self.me, self.server.clock_ms, at_ms)?;
                    self.server.clock_ms = at_ms;
                }
                Action::RefreshServer { index } => {
                    self.server.give(ConnectionId(0), Request::Refresh(index));
                }
                Action::Outdated => self.outdated = true,
                Action::AnswersDiffer { node, successor, .. } => self.out.differing.push((node, successor)),
                Action::FoundDifference { .. }
                | Action::CommandRefused { .. }
                | Action::LogIn { .. }
                | Action::TooFar { .. }
                | Action::Lags { .. }
                | Action::ServerHangs
                | Action::ServerDiffers { .. } => {}
            }
        }
        verdicts::check(self)
    }

    /// Sockets for all connections, then the address.
    pub fn restore(&mut self, random: &mut SplitMix64, _: &mut Watch, now_ms: u64) -> Result<(), Violation> {
        let Some(epoch) = self.restoring.take() else { return Ok(()) };
        self.sockets.clear();
        self.passing.clear();
        let mut raw = Vec::new();
        for connection in self.replica.connections() {
            let Some(restore) = self.replica.restore(connection, now_ms) else { continue };
            let tcp = Tcp::restore(&restore);
            if restore.is_aborted {
                raw.push(tcp.reset());
                continue;
            }
            if let Some(handshake) = restore.syn_ack {
                let mut tcp = Tcp::connect(handshake.ends, handshake.server.0);
                (tcp.remote, tcp.state) = (handshake.client, State::SynReceived);
                raw.push(tcp.hello());
            }
            raw.push(tcp.bare_ack());
            raw.extend(tcp.clone().repeat());
            let base = self.replica.acked(connection);
            self.sockets.insert(restore.ends, Socket::new(tcp, Some(connection), base));
        }
        self.out.takes_address = true;
        self.replica.handle_restored(epoch, now_ms);
        // They are raw packets, with a mark that the portal's rules let pass.
        self.out.packets.extend(raw);
        for connection in self.replica.connections() {
            if self.replica.restore(connection, now_ms).is_some_and(|restore| restore.is_aborted) {
                self.replica.handle_closed(connection, now_ms);
            }
        }
        self.act(random, now_ms)
    }

    fn kernel_receives(&mut self, packet: &Packet, random: &mut SplitMix64, now_ms: u64) {
        let ends = packet.segment.ends;
        let is_syn = packet.segment.flags.syn && !packet.segment.flags.ack;
        let is_over = |socket: &Socket| socket.tcp.is_done() || socket.tcp.state == State::Reset;
        let answers = match self.sockets.get_mut(&ends) {
            Some(socket)
                if !is_over(socket)
                    || !is_syn && socket.tcp.state != State::Reset
                    || is_syn && socket.tcp.takes_for_old(&packet.segment) =>
            {
                let was_new = socket.tcp.state == State::SynReceived;
                let answers = socket.tcp.receive(packet);
                if was_new && socket.tcp.state == State::Established {
                    socket.connection = self.replica.handle_accepted(&ends);
                    let connection = socket.connection;
                    for packet in answers {
                        self.queue(Direction::Out, packet, now_ms);
                    }
                    // Answers may have come before the client's first acknowledgement.
                    if let Some(connection) = connection {
                        self.feed_client(connection, now_ms);
                    }
                    return;
                }
                answers
            }
            _ if is_syn => {
                let tcp = Tcp::answer(&packet.segment, random.next_u64() as u32);
                let hello = tcp.hello();
                self.sockets.insert(ends, Socket::new(tcp, None, 0));
                std::vec![hello]
            }
            _ => refuse(packet).into_iter().collect(),
        };
        for packet in answers {
            self.queue(Direction::Out, packet, now_ms);
        }
    }

    fn feed_client(&mut self, connection: ConnectionId, now_ms: u64) {
        let of_it = |socket: &&mut Socket| socket.connection == Some(connection);
        let Some(socket) = self.sockets.values_mut().find(of_it) else { return };
        let Some((front, back, ends)) = self.replica.client_bytes(connection) else { return };
        let count = front.len() + back.len();
        socket.tcp.outbox.extend(front.iter().chain(back));
        if ends {
            socket.tcp.end();
        }
        let packets = socket.tcp.send();
        self.replica.handle_client_took(connection, count, ends);
        if count > 0 {
            self.out.fed.push(connection);
        }
        for packet in packets {
            self.queue(Direction::Out, packet, now_ms);
        }
    }

    /// The server works off one request.
    pub fn serve(
        &mut self,
        random: &mut SplitMix64,
        watch: &mut Watch,
        now_ms: u64,
    ) -> Result<(), Violation> {
        for connection in core::mem::take(&mut self.interrupts) {
            if let Some(answer) = self.server.interrupt(connection) {
                self.replica.handle_answer(connection, &answer, now_ms);
                if self.replica.is_kept(connection) {
                    self.server.expect_again(connection);
                }
            }
        }
        if self.server.is_idle() {
            for index in core::mem::take(&mut self.asked) {
                self.replica.handle_server_idle(index, now_ms);
            }
            self.act(random, now_ms)?;
        }
        let Some((connection, read, answers)) = self.server.work(random) else { return Ok(()) };
        watch.served(self.me, connection, &read, &answers)?;
        for answer in answers {
            match answer {
                Answer::Bytes(bytes) | Answer::Own(bytes) => {
                    self.replica.handle_answer(connection, &bytes, now_ms);
                }
                Answer::Refreshed(index) => self.replica.handle_refreshed(index, now_ms),
                Answer::Closed => self.replica.handle_server_closed(connection, now_ms),
                Answer::End => self.replica.handle_answer_end(connection, now_ms),
                Answer::Reset => self.replica.handle_server_reset(connection, now_ms),
            }
        }
        self.act(random, now_ms)
    }

    /// The server of a primary ends a stream for a reason of its own.
    pub fn quit(&mut self, random: &mut SplitMix64, watch: &mut Watch, now_ms: u64) -> Result<(), Violation> {
        let idle: Vec<ConnectionId> = self
            .replica
            .connections()
            .into_iter()
            .filter(|connection| self.replica.is_idle(*connection))
            .collect();
        if idle.is_empty() || !self.replica.is_serving() {
            return Ok(());
        }
        let connection = idle[(random.next_u64() % idle.len() as u64) as usize];
        if self.server.quit(connection) {
            watch.has_quit = true;
            watch.served(self.me, connection, &[], &[Answer::End])?;
            self.replica.handle_answer_end(connection, now_ms);
            self.quits.push(connection);
        }
        self.act(random, now_ms)
    }

    /// The shell looks at one of its sockets: reads it, and learns how far the client is.
    pub fn look(&mut self, random: &mut SplitMix64, watch: &mut Watch, now_ms: u64) -> Result<(), Violation> {
        let known: Vec<Ends> = self
            .sockets
            .iter()
            .filter(|(_, socket)| socket.connection.is_some())
            .map(|(ends, _)| *ends)
            .collect();
        if known.is_empty() || !self.replica.is_serving() {
            return Ok(());
        }
        let ends = known[(random.next_u64() % known.len() as u64) as usize];
        let Some(socket) = self.sockets.get_mut(&ends) else { return Ok(()) };
        let Some(connection) = socket.connection else { return Ok(()) };
        let bytes: Vec<u8> = socket.tcp.inbox.iter().copied().collect();
        let reads_end = socket.tcp.fin_received && !socket.end_read;
        let is_reset = socket.tcp.state == State::Reset;
        if !bytes.is_empty() && self.replica.handle_input(connection, bytes.into(), now_ms).is_ok() {
            socket.tcp.inbox.clear();
        }
        if socket.tcp.inbox.is_empty() {
            if reads_end {
                socket.end_read = self.replica.handle_input_end(connection, now_ms);
            }
            if is_reset && !core::mem::replace(&mut socket.reset_told, true) {
                watch.reset(self.me, connection, self.replica.own_replies(connection));
                self.replica.handle_reset(connection, now_ms);
            }
            if socket.tcp.is_done() && socket.end_read && !core::mem::replace(&mut socket.done_told, true) {
                self.replica.handle_closed(connection, now_ms);
            }
        }
        self.replica.handle_acked(connection, socket.acked_base + socket.tcp.acked, now_ms);
        let packets = socket.tcp.send();
        for packet in packets {
            self.queue(Direction::Out, packet, now_ms);
        }
        self.act(random, now_ms)
    }

    /// The portal's address is here: an earlier primary may have said so late.
    pub fn announce(&mut self, _: &mut SplitMix64, _: &mut Watch, _: u64) -> Result<(), Violation> {
        self.out.takes_address = self.replica.is_serving();
        Ok(())
    }

    /// A kernel's timers: each socket says again what was not acknowledged.
    pub fn repeat(&mut self, random: &mut SplitMix64, _: &mut Watch, now_ms: u64) -> Result<(), Violation> {
        let packets: Vec<Packet> =
            self.sockets.values_mut().filter_map(|socket| socket.tcp.repeat()).collect();
        for packet in packets {
            self.queue(Direction::Out, packet, now_ms);
        }
        self.act(random, now_ms)
    }

    /// Packets that wait for a verdict.
    pub fn waiting(&self) -> usize {
        self.packets.len()
    }
}
