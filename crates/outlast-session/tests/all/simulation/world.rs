//! One schedule: two ends, the network between them, and what happens to all of them.

use super::endpoint::{Ctx, Endpoint};
use super::plan::Plan;
use super::server::Server;
use super::tcp::{ConnId, Net, Side};
use super::udp::Datagrams;
use super::{oracle, outcome};
use outlast_session::proto::{Happening, Policy, Psk, SessionId, State};
use outlast_stream::SplitMix64;

/// How many kinds of things happen.
pub const ACTIONS: usize = 18;
/// The network and the applications at work; the rest is trouble.
const WORK: usize = 12;

/// Everything of one schedule.
pub struct World {
    pub cx: Ctx,
    pub client: Endpoint,
    pub server: Server,
    /// Hellos as the client sent them.
    pub hellos: Vec<Vec<u8>>,
    /// Connections that somebody else made.
    pub foreign_conns: Vec<ConnId>,
    pub restarted: bool,
    pub hijacked: bool,
}

/// Trouble is rarer than work, and most schedules have the means to get somewhere between two troubles.
pub fn temper(weights: &mut [u32; ACTIONS], random: &mut SplitMix64) {
    let sluggish = random.one_in(8);
    for (action, weight) in weights.iter_mut().enumerate().take(WORK) {
        let moves = matches!(action, 4 | 5 | 8 | 9 | 11);
        *weight = *weight * 3 + if moves && !sluggish { 30 } else { 1 };
    }
    for weight in &mut weights[WORK..] {
        *weight = (*weight).min(8);
    }
    // Breaks are what this is about.
    weights[12] *= 3;
}

impl World {
    pub fn new(plan: Plan, trace: bool) -> Self {
        let mut random = SplitMix64::new(plan.seed);
        let mut id = [0; 16];
        random.fill(&mut id);
        let id = SessionId::from_bytes(id);
        let mut key = [0; 32];
        random.fill(&mut key);
        let client = Endpoint::new(Side::Client, id, &plan);
        let server = Server::new(&plan);
        let psk = Psk::from_bytes(&key).expect("32 bytes are a key");
        let cx = Ctx {
            plan,
            random,
            net: Net::default(),
            datagrams: Datagrams::default(),
            now_ms: 0,
            psk,
            violation: None,
            trace,
        };
        Self {
            cx,
            client,
            server,
            hellos: Vec::new(),
            foreign_conns: Vec::new(),
            restarted: false,
            hijacked: false,
        }
    }

    /// Trouble, then peace; and what became of the session.
    pub fn run(mut self) -> outcome::Report {
        self.reconnect();
        let weights = self.cx.plan.weights;
        let total: u32 = weights.iter().sum();
        for _ in 0..self.cx.plan.steps {
            let mut ticket = self.cx.random.below(u64::from(total)) as u32;
            let action = weights.iter().position(|weight| {
                let hit = ticket < *weight;
                ticket = ticket.saturating_sub(*weight);
                hit
            });
            self.cx.now_ms += self.cx.random.below(self.cx.plan.step_ms_max + 1);
            self.act(action.unwrap_or(0));
            self.check();
            if self.cx.violation.is_some() {
                break;
            }
        }
        self.heal();
        self.report()
    }

    pub fn check(&mut self) {
        self.server.book(&mut self.cx);
        oracle::check_end_state(&mut self.client, &mut self.cx);
        if let Some(end) = self.server.end() {
            oracle::check_end_state(end, &mut self.cx);
            if let Some(link) = end.link
                && !self.hijacked
                && self.foreign_conns.contains(&link.conn)
            {
                self.cx.violated(|| format!("a stranger's connection {} carries the session", link.conn));
            }
        }
    }

    fn act(&mut self, action: usize) {
        let cx = &mut self.cx;
        let write_bytes = 1 + cx.random.below(cx.plan.write_bytes_max);
        let read_bytes = 1 + cx.random.below(cx.plan.read_bytes_max) as usize;
        match action {
            0 => self.client.app_write(cx, write_bytes),
            1 => self.with_server(|end, cx| end.app_write(cx, write_bytes)),
            2 => _ = self.client.app_read(cx, read_bytes),
            3 => self.with_server(|end, cx| _ = end.app_read(cx, read_bytes)),
            4 => self.carry(Side::Client),
            5 => self.carry(Side::Server),
            6 => self.client.tick(cx),
            7 => self.with_server(|end, cx| end.tick(cx)),
            8 => {
                let which = if cx.random.one_in(2) { 0 } else { cx.random.next_u64() };
                self.server.step(cx, which, read_bytes.max(256));
            }
            9 => self.client.shake(cx, read_bytes.max(256)),
            10 => {
                let which = cx.random.next_u64();
                self.carry_datagram(which);
            }
            11 => self.maybe_reconnect(),
            12 => self.break_link(),
            13 => self.attack(),
            14 => self.pass_time(),
            15 => self.passivate(),
            16 => self.change_policy(),
            _ => self.notice(),
        }
    }

    pub fn with_server(&mut self, act: impl FnOnce(&mut Endpoint, &mut Ctx)) {
        if let Some(end) = self.server.end() {
            act(end, &mut self.cx);
        }
    }

    /// One of the latest connections, most often the client's present one.
    fn some_conn(&mut self) -> ConnId {
        let shake = self.client.client.shake.as_ref().map(|shake| shake.link.conn);
        if let Some(conn) = self.client.link.map(|link| link.conn).or(shake)
            && !self.cx.random.one_in(4)
        {
            return conn;
        }
        let conns = self.cx.net.conns() as u64;
        (conns - 1 - self.cx.random.below(conns.min(4))) as ConnId
    }

    fn carry(&mut self, from: Side) {
        let conn = self.some_conn();
        let cx = &mut self.cx;
        let most = if cx.random.one_in(4) { 8 } else { cx.plan.carry_bytes_max };
        let most = 1 + cx.random.below(most) as usize;
        cx.net.deliver(conn, from, most);
        if !cx.random.one_in(4) {
            cx.net.acknowledge(conn, from);
        }
    }

    pub fn carry_datagram(&mut self, which: u64) {
        match self.cx.datagrams.take(which) {
            Some((Side::Client, bytes)) => self.client.receive_datagram(&mut self.cx, &bytes),
            Some((Side::Server, bytes)) => self.with_server(|end, cx| end.receive_datagram(cx, &bytes)),
            None => {}
        }
    }

    /// The client makes a new link: it has none, or the network has changed.
    pub fn reconnect(&mut self) {
        let cx = &mut self.cx;
        let Some(begun) = self.client.begin(cx) else { return };
        self.hellos.push(begun.hello);
        let conn = cx.net.conns() - 1;
        self.server.accept(cx, conn);
        self.client.flush(cx);
    }

    /// The client gives the session up and says so on a connection of its own.
    pub fn abort(&mut self) {
        let Some(hello) = self.client.abort(&mut self.cx) else { return };
        let conn = self.cx.net.connect(self.cx.plan.buffers, true, false);
        let _ = self.cx.net.send(conn, Side::Client, &hello);
        self.server.accept(&mut self.cx, conn);
    }

    fn maybe_reconnect(&mut self) {
        let cx = &mut self.cx;
        let busy = self.client.link.is_some() || self.client.client.shake.is_some();
        let rest = self.client.life.state() == State::Passive || cx.now_ms < self.client.client.retry_at_ms;
        if rest || busy && !cx.random.one_in(12) {
            return;
        }
        self.reconnect();
        // Most networks are quicker than the trouble in them.
        for _ in 0..self.cx.random.below(8) {
            let conn = self.cx.net.conns() - 1;
            for side in Side::BOTH {
                self.cx.net.deliver(conn, side, 1024);
            }
            self.server.step(&mut self.cx, 0, 1024);
            self.client.shake(&mut self.cx, 1024);
        }
    }

    fn break_link(&mut self) {
        let conn = self.some_conn();
        let cx = &mut self.cx;
        if cx.net.conn(conn).cut {
            return;
        }
        cx.net.cut(conn);
        let told = cx.random.below(4);
        cx.log(|| format!("connection {conn} breaks, told: {told:02b}"));
        for side in Side::BOTH {
            if told & (1 << side as u64) != 0 {
                cx.net.tell(conn, side);
                if cx.random.one_in(4) {
                    cx.net.take_error(conn, side);
                }
            }
        }
    }

    /// An end notices that its link is dead.
    fn notice(&mut self) {
        let conn = self.some_conn();
        let side = Side::BOTH[self.cx.random.below(2) as usize];
        self.cx.net.tell(conn, side);
    }

    fn pass_time(&mut self) {
        self.cx.now_ms += self.cx.random.below(1500);
        self.server.expire(&mut self.cx);
    }

    /// The client gives the link of a quiet session up, on purpose.
    fn passivate(&mut self) {
        let (cx, client) = (&mut self.cx, &mut self.client);
        client.learn_acked(cx);
        let Some(link) = client.link else { return };
        let quiet = client.life.state() == State::Connected
            && !client.sender.has_output()
            && !client.is_through()
            && client.sender.acked_offset() == client.sender.end_offset()
            && cx.net.unread_bytes(link.conn, Side::Client) == 0;
        if quiet && client.client.shake.is_none() {
            client.passivate(cx);
        }
    }

    fn change_policy(&mut self) {
        let cx = &mut self.cx;
        let draining = cx.random.one_in(2);
        let draining_retry_after_ms = draining.then(|| cx.random.below(200));
        self.server.policy = Policy { draining_retry_after_ms, ..Policy::default() };
        if cx.plan.restarts && !self.restarted && cx.random.one_in(4) {
            self.restarted = true;
            self.server.restart(cx);
        }
    }
}

impl Endpoint {
    fn passivate(&mut self, cx: &mut Ctx) {
        self.unload(cx);
        // What the link has left may have been the end.
        if !self.check_over(cx) {
            self.happens(cx, Happening::Passivated);
        }
    }
}
