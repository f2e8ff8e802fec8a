//! One end of a session: what the engine does with the protocol's parts, in one thread and without sockets.

use super::oracle;
use super::plan::{Mistake, Plan};
use super::tcp::{ConnId, Net, Side};
use super::udp::Datagrams;
use outlast_session::LinkMode;
use outlast_session::proto::{
    ClientHandshake, Frame, Happening, Life, LifeRole, OffsetError, Psk, Receiver, Refusal, Sender,
    SessionId, SessionKey, State,
};
use outlast_stream::{Heap, SplitMix64};
use std::collections::VecDeque;

/// Everything outside of the two ends.
pub struct Ctx {
    pub plan: Plan,
    pub random: SplitMix64,
    pub net: Net,
    pub datagrams: Datagrams,
    pub now_ms: u64,
    pub psk: Psk,
    /// What must never happen and did.
    pub violation: Option<String>,
    pub trace: bool,
}

impl Ctx {
    pub fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    pub fn log(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>8} ms  {}", self.now_ms, what());
        }
    }

    pub fn is(&self, mistake: Mistake) -> bool {
        self.plan.mistake == mistake
    }

    pub fn nonce(&mut self) -> [u8; 32] {
        let mut nonce = [0; 32];
        self.random.fill(&mut nonce);
        nonce
    }
}

/// Why a session ended before its time. All of these are reported to the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Bytes that were acknowledged are gone, or a position is impossible.
    Offset(OffsetError),
    /// The server can no longer send what comes next.
    Missing,
    Refused(Refusal),
    Expired,
    /// The client has given it up.
    Aborted,
    Protocol(String),
}

/// A connection in the service of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub conn: ConnId,
    pub epoch: u64,
    pub mode: LinkMode,
}

/// Bytes of the stream that come before those of the present link.
#[derive(Debug)]
pub enum Segment {
    Bytes(VecDeque<u8>),
    /// In the receive queue of a link that was frozen.
    Frozen {
        conn: ConnId,
        left_bytes: u64,
    },
}

/// The application at one end: it writes one stream and reads another.
#[derive(Debug)]
pub struct App {
    pub writes_seed: u64,
    pub reads_seed: u64,
    pub total_bytes: u64,
    pub peer_total_bytes: u64,
    pub wrote_bytes: u64,
    pub read_bytes: u64,
    pub saw_end: bool,
}

/// A client's handshake under way, outside of the session.
#[derive(Debug)]
pub struct Shake {
    pub handshake: ClientHandshake,
    pub link: Link,
    pub output: Vec<u8>,
    pub input: Vec<u8>,
    pub read_bytes: u64,
}

/// What only clients need.
#[derive(Debug)]
pub struct ClientSide {
    pub mode: LinkMode,
    pub auto: bool,
    pub epochs: u64,
    pub shake: Option<Box<Shake>>,
    /// The opening link carries data already, its Welcome is still to come.
    pub awaiting: Option<Box<ClientHandshake>>,
    pub retry_at_ms: u64,
}

pub struct Endpoint {
    pub side: Side,
    pub id: SessionId,
    pub life: Life,
    pub sender: Sender<Heap>,
    pub receiver: Receiver,
    pub link: Option<Link>,
    pub epoch: u64,
    pub key: Option<SessionKey>,
    pub welcomed: bool,
    pub backlog: VecDeque<Segment>,
    pub backlog_bytes: u64,
    pub inbox: Vec<u8>,
    /// Received on the present link, the handshake included.
    pub link_read_bytes: u64,
    /// What the peer was told to have been read.
    pub told_offset: u64,
    /// `udp`: on this link the peer has confirmed to know that its stream was read to the end.
    pub end_confirmed_epoch: u64,
    /// A server: the link on which a datagram has come, and opened a way back.
    pub heard_from_epoch: u64,
    /// What the server has confirmed to know to be read.
    pub ack_confirmed_offset: u64,
    pub client: ClientSide,
    /// The server has said that it is through (PROTOCOL 4.8).
    pub farewell_heard: bool,
    pub failure: Option<Failure>,
    pub app: App,
    pub seen: oracle::Seen,
}

impl Endpoint {
    pub fn new(side: Side, id: SessionId, plan: &Plan) -> Self {
        let seeds = [plan.seed ^ 0xC11E, plan.seed ^ 0x5E12];
        let (this, peer) = (side as usize, side.other() as usize);
        let (mode, auto) = plan.first_mode();
        Self {
            side,
            id,
            life: Life::new(if side == Side::Client { LifeRole::Client } else { LifeRole::Server }),
            sender: Sender::new(Heap, plan.retain_bytes_max),
            receiver: Receiver::default(),
            link: None,
            epoch: 0,
            key: None,
            welcomed: false,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            inbox: Vec::new(),
            link_read_bytes: 0,
            told_offset: 0,
            end_confirmed_epoch: 0,
            ack_confirmed_offset: 0,
            heard_from_epoch: 0,
            client: ClientSide { mode, auto, epochs: 0, shake: None, awaiting: None, retry_at_ms: 0 },
            farewell_heard: false,
            failure: None,
            app: App {
                writes_seed: seeds[this],
                reads_seed: seeds[peer],
                total_bytes: plan.total_bytes[this],
                peer_total_bytes: plan.total_bytes[peer],
                wrote_bytes: 0,
                read_bytes: 0,
                saw_end: false,
            },
            seen: oracle::Seen::default(),
        }
    }

    pub fn is_over(&self) -> bool {
        self.life.is_over()
    }

    pub fn is_closed(&self) -> bool {
        self.life.state() == State::Closed
    }

    /// Takes note of what happened; that it can happen here is part of what is tested.
    pub fn happens(&mut self, cx: &mut Ctx, happening: Happening) {
        let before = self.life.state();
        match self.life.on(happening) {
            Ok(effect) => {
                let after = self.life.state();
                cx.log(|| format!("{:?}: {happening:?}: {before:?} -> {after:?}, {effect:?}", self.side));
            }
            Err(illegal) => cx.violated(|| illegal.to_string()),
        }
    }

    /// Everything before this was read by the application.
    pub fn consumed_offset(&self) -> u64 {
        self.receiver.next_offset() - self.backlog_bytes
    }

    /// The session cannot go on.
    pub fn fail(&mut self, cx: &mut Ctx, failure: Failure, happening: Happening) {
        if self.is_over() {
            return;
        }
        cx.log(|| format!("{:?}: failed: {failure:?}", self.side));
        if matches!(failure, Failure::Refused(_)) && self.is_through() {
            // Only the server's word for it was missing.
            self.happens(cx, Happening::Finished);
            self.drop_links(cx, false);
            return;
        }
        self.happens(cx, happening);
        self.failure = Some(failure);
        self.drop_links(cx, false);
    }

    /// Concludes the session if both streams have ended and arrived.
    pub fn check_over(&mut self, cx: &mut Ctx) -> bool {
        if self.is_over() {
            return true;
        }
        self.learn_acked(cx);
        let done = self.is_through() && self.is_end_told();
        if done {
            if self.side == Side::Server {
                // PROTOCOL 4.8: the client may go.
                self.send_control(cx, Some(Frame::Goodbye));
                if self.is_over() {
                    return true;
                }
            }
            if self.life.state() == State::Passive {
                // The news came beside the link (`udp`).
                self.happens(cx, Happening::Woken);
            }
            self.happens(cx, Happening::Finished);
            self.drop_links(cx, true);
        }
        done
    }

    /// Whether both streams have arrived up to their ends.
    pub fn is_through(&self) -> bool {
        self.sender.is_delivered() && self.receiver.is_complete()
    }

    /// Whether the peer has heard that its end has arrived, or will on the present link (PROTOCOL 2.6).
    fn is_end_told(&self) -> bool {
        self.side == Side::Server
            || self.farewell_heard
            || self.link.is_some_and(|link| link.mode != LinkMode::Inband)
    }

    fn drop_links(&mut self, cx: &mut Ctx, orderly: bool) {
        self.client.awaiting = None;
        if let Some(shake) = self.client.shake.take() {
            cx.net.close(shake.link.conn, self.side, false);
        }
        if let Some(link) = self.link.take() {
            cx.net.close(link.conn, self.side, orderly);
        }
        self.sender.unlink();
    }
}
