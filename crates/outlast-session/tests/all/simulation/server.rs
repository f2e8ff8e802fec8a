//! The server: a table of sessions, and what becomes of every connection that comes in.

use super::endpoint::{Ctx, Endpoint, Failure, Link};
use super::linking::PeerPosition;
use super::plan::Plan;
use super::tcp::{ConnId, Got, Side};
use outlast_session::proto::{
    Decision, Demand, DirectVerdict, Greeted, HANDSHAKE_BYTES_MAX, Happening, NotDirect, Policy, Refusal,
    Registry, RegistryLimits, ServerHandshake, ServerStep, Welcome, refuse,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A connection that has not said yet what it wants.
struct Pending {
    conn: ConnId,
    handshake: ServerHandshake,
    input: Vec<u8>,
    read_bytes: u64,
    output: Vec<u8>,
}

pub struct Server {
    registry: Registry<usize>,
    /// The session's end, once for every life of the server process.
    pub ends: Vec<Endpoint>,
    pending: Vec<Pending>,
    pub policy: Policy,
    /// The ends before this one died with the process that held them.
    pub alive_from: usize,
    /// Hellos that were accepted: their epochs are spent, unless the process that knew it died.
    pub spent: Vec<Vec<u8>>,
    /// Refusals that closed a connection, by where it came from.
    pub refused_conns: Vec<ConnId>,
}

impl Server {
    pub fn new(plan: &Plan) -> Self {
        Self {
            registry: registry(plan),
            ends: Vec::new(),
            pending: Vec::new(),
            policy: Policy::default(),
            alive_from: 0,
            spent: Vec::new(),
            refused_conns: Vec::new(),
        }
    }

    /// The session as the running process knows it.
    pub fn end(&mut self) -> Option<&mut Endpoint> {
        self.ends.get_mut(self.alive_from..)?.last_mut()
    }

    pub fn accept(&mut self, cx: &mut Ctx, conn: ConnId) {
        let demand = if cx.plan.psk { Demand::Psk(cx.psk.clone()) } else { Demand::Open };
        let handshake = ServerHandshake::new(demand, cx.nonce());
        self.pending.push(Pending { conn, handshake, input: Vec::new(), read_bytes: 0, output: Vec::new() });
    }

    /// The process dies, with all it knows, and comes back.
    pub fn restart(&mut self, cx: &mut Ctx) {
        cx.log(|| "Server: starts again".into());
        for pending in self.pending.drain(..) {
            cx.net.close(pending.conn, Side::Server, false);
        }
        for end in &mut self.ends[self.alive_from..] {
            if let Some(link) = end.link.take() {
                cx.net.close(link.conn, Side::Server, false);
            }
        }
        self.alive_from = self.ends.len();
        self.registry = registry(&cx.plan);
    }

    /// One of the connections in their handshake goes on.
    pub fn step(&mut self, cx: &mut Ctx, which: u64, most: usize) {
        if self.pending.is_empty() {
            return;
        }
        // 0 is the latest.
        let last = self.pending.len() - 1;
        let mut pending = self.pending.swap_remove(last - (which % self.pending.len() as u64) as usize);
        if !pending.output.is_empty() {
            let Ok(count) = cx.net.send(pending.conn, Side::Server, &pending.output) else {
                return self.drop_pending(cx, &pending);
            };
            pending.output.drain(..count);
        }
        let before = pending.input.len();
        match cx.net.receive(pending.conn, Side::Server, most, &mut pending.input) {
            Got::Data => pending.read_bytes += (pending.input.len() - before) as u64,
            Got::Nothing => return self.pending.push(pending),
            Got::Eof | Got::Broken => return self.drop_pending(cx, &pending),
        }
        self.greet(cx, pending);
    }

    pub fn step_all(&mut self, cx: &mut Ctx) {
        for _ in 0..self.pending.len() {
            // What is not done goes to the end of the list.
            let first = self.pending.len().saturating_sub(1) as u64;
            self.step(cx, first, HANDSHAKE_BYTES_MAX);
        }
    }

    fn drop_pending(&mut self, cx: &mut Ctx, pending: &Pending) {
        cx.net.close(pending.conn, Side::Server, false);
    }

    fn greet(&mut self, cx: &mut Ctx, mut pending: Pending) {
        let mut step = pending.handshake.feed(&pending.input);
        loop {
            step = match step {
                ServerStep::NeedMore => return self.pending.push(pending),
                ServerStep::Send { bytes, consumed_bytes } => {
                    pending.output.extend_from_slice(&bytes);
                    pending.input.drain(..consumed_bytes);
                    pending.handshake.feed(&pending.input)
                }
                ServerStep::NeedKey { id } => {
                    let key = self.registry.key(&id).cloned();
                    pending.handshake.provide_key(key)
                }
                ServerStep::Greeted(greeted) => return self.decide(cx, pending, &greeted),
                ServerStep::Failed(error) => {
                    cx.log(|| format!("Server: handshake failed: {error}"));
                    return match error.refusal() {
                        Some(refusal) => self.say_no(cx, pending.conn, refusal),
                        None => self.drop_pending(cx, &pending),
                    };
                }
            };
        }
    }

    fn say_no(&mut self, cx: &mut Ctx, conn: ConnId, refusal: Refusal) {
        cx.log(|| format!("Server: refuses connection {conn}: {refusal}"));
        // If it does not get through, the client hears nothing, and tries again.
        let _ = cx.net.send(conn, Side::Server, &refuse(refusal));
        cx.net.close(conn, Side::Server, true);
        self.refused_conns.push(conn);
    }

    fn decide(&mut self, cx: &mut Ctx, mut pending: Pending, greeted: &Greeted) {
        let hello = &greeted.hello;
        let direct = match cx.net.conn(pending.conn).direct {
            true => DirectVerdict::Direct,
            false => DirectVerdict::NotDirect(NotDirect::NoProof),
        };
        let now = Duration::from_millis(cx.now_ms);
        let decision = self.registry.decide(now, hello, CLIENT_ADDRESS, greeted.auth, direct, &self.policy);
        let which = match decision {
            Decision::Refuse(refusal) => return self.say_no(cx, pending.conn, refusal),
            Decision::Create => {
                let end = Endpoint::new(Side::Server, hello.id, &cx.plan);
                self.ends.push(end);
                let which = self.ends.len() - 1;
                if self.registry.insert(hello.id, which, hello.epoch, CLIENT_ADDRESS).is_err() {
                    cx.violated(|| "a session was created twice".into());
                }
                which
            }
            Decision::Resume(which) => which,
            Decision::Abort(which) => {
                let end = &mut self.ends[which];
                end.retire(cx);
                end.fail(cx, Failure::Aborted, Happening::Refused);
                let offset = end.receiver.next_offset();
                self.book(cx);
                return self.say_no(cx, pending.conn, Refusal::Ended { offset });
            }
        };
        if let Err(refusal) = self.attach(cx, &mut pending, greeted, which) {
            self.say_no(cx, pending.conn, refusal);
        }
    }

    /// Puts the link into the service of its session. The newcomer has proved itself.
    fn attach(
        &mut self,
        cx: &mut Ctx,
        pending: &mut Pending,
        greeted: &Greeted,
        which: usize,
    ) -> Result<(), Refusal> {
        let hello = &greeted.hello;
        let end = &mut self.ends[which];
        let opening = end.epoch == 0;
        if end.is_over() {
            return Err(Refusal::UnknownSession);
        }
        // PROTOCOL 3.6: what cannot be is refused before anything is touched.
        let possible =
            end.sender.acked_offset().min(end.sender.retained_offset())..=end.sender.sent_offset_max();
        if !possible.contains(&hello.next_offset) {
            return Err(Refusal::OffsetOutOfRange);
        }
        if !opening {
            if let Err(error) = self.registry.attach(&hello.id, hello.epoch, CLIENT_ADDRESS) {
                cx.violated(|| format!("decided to resume, then: {error}"));
            }
            end.happens(cx, Happening::Attempt);
        }
        end.retire(cx);
        let welcome = Welcome {
            next_offset: end.receiver.next_offset(),
            retained_offset: end.sender.retained_offset(),
            sent_offset: end.sender.sent_offset_max(),
            end_offset: end.sender.is_ended().then(|| end.sender.end_offset()),
            send_buffer_bytes: cx.plan.buffers.send_bytes as u64,
            receive_buffer_bytes: cx.plan.buffers.receive_bytes as u64,
            keep_ms: cx.plan.keep_ms,
            ..Welcome::to_new(hello)
        };
        let mut head = std::mem::take(&mut pending.output);
        head.extend_from_slice(&pending.handshake.accept(welcome));
        let peer = PeerPosition {
            next_offset: hello.next_offset,
            end_offset: hello.end_offset,
            rest: &pending.input[greeted.consumed_bytes..],
            read_bytes: pending.read_bytes,
        };
        end.key = greeted.session_key.clone().or_else(|| end.key.take());
        self.registry.set_key(&hello.id, end.key.clone());
        end.welcomed = true;
        let link = Link { conn: pending.conn, epoch: hello.epoch, mode: hello.mode };
        cx.log(|| format!("Server: takes link {}, expects {}", link.epoch, peer.next_offset));
        self.spent.push(pending.input[..greeted.consumed_bytes].to_vec());
        if let Err(error) = end.install(cx, link, &peer, &head, None) {
            end.offset_failure(cx, error);
            self.book(cx);
            return Err(Refusal::OffsetOutOfRange);
        }
        end.connected(cx);
        end.flush(cx);
        self.book(cx);
        Ok(())
    }

    /// The table learns what has become of the session: a lost link, its end.
    pub fn book(&mut self, cx: &mut Ctx) {
        let now = Duration::from_millis(cx.now_ms);
        let Some(end) = self.end() else { return };
        let (id, epoch) = (end.id, end.epoch);
        // An orderly end has all of the client's stream, even if the application has not read it yet.
        let offset = if end.is_closed() { end.receiver.next_offset() } else { end.consumed_offset() };
        let (over, linked) = (end.is_over(), end.link.is_some());
        if over {
            self.registry.end(&id, offset, None, now);
        } else if !linked {
            self.registry.detach(&id, epoch, now);
        }
    }

    /// Gives up what nobody came back for.
    pub fn expire(&mut self, cx: &mut Ctx) {
        for (_, which) in self.registry.expire(Duration::from_millis(cx.now_ms)) {
            self.ends[which].fail(cx, Failure::Expired, Happening::GaveUp);
        }
    }
}

fn registry(plan: &Plan) -> Registry<usize> {
    Registry::new(RegistryLimits { keep: Duration::from_millis(plan.keep_ms), ..RegistryLimits::default() })
}
