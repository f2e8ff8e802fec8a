//! Peace after the trouble, and what became of the session.

use super::endpoint::{Ctx, Endpoint, Failure};
use super::plan::Mode;
use super::tcp::Side;
use super::world::World;
use outlast_session::proto::{Policy, Refusal, State};

/// What became of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Both applications have everything, and both ends know.
    Delivered,
    /// Both have everything; the server's end does not know that its last bytes arrived, because the client's, which
    /// did, was gone before the news got through. It reports that nobody came back.
    DeliveredUnknown,
    /// The client believes that its bytes arrived, the server's application gets an error and has not all of them.
    FalselyDelivered,
    /// The session ended with an error, which both applications see.
    Failed(Failure),
    /// What must never be.
    Violated(String),
}

/// What became of a schedule, and what happened in it.
pub struct Report {
    pub outcome: Outcome,
    /// It had the right to end like that.
    pub excused: bool,
    pub links: u64,
    pub resent_bytes: u64,
    pub read_bytes: u64,
    pub refusals: u64,
}

/// Rounds of everybody doing everything they can.
const ROUNDS_MAX: u32 = 6000;
/// Rounds after which an end is alone for good.
const LONELY_ROUNDS: u32 = 20;
const EVERYTHING: usize = usize::MAX >> 1;

impl World {
    /// From here on nothing breaks, nothing is lost and everybody is quick.
    pub fn heal(&mut self) {
        let cx = &mut self.cx;
        cx.plan.datagram_loss = 0;
        cx.plan.indirect = u64::from(cx.plan.indirect == 1);
        self.server.policy = Policy::default();
        for conn in &self.foreign_conns {
            cx.net.cut(*conn);
            cx.net.tell(*conn, Side::Server);
        }
        cx.log(|| "peace".into());
        if self.cx.plan.aborts {
            self.abort();
        }
        let mut lonely_rounds = 0;
        for _ in 0..ROUNDS_MAX {
            if self.cx.violation.is_some() || self.is_done() {
                return;
            }
            self.round();
            let alone = self.client.is_over() && self.server.end().is_some_and(|end| !end.is_over());
            lonely_rounds = if alone { lonely_rounds + 1 } else { 0 };
            if lonely_rounds == LONELY_ROUNDS {
                self.cx.log(|| "the client is gone".into());
                self.cx.now_ms += self.cx.plan.keep_ms + 1;
                self.server.expire(&mut self.cx);
                lonely_rounds = 0;
            }
        }
        let (client, server) = (self.client.describe(), self.server.end().map(|end| end.describe()));
        self.cx.violated(|| format!("it never ends: client {client}, server {server:?}"));
    }

    fn round(&mut self) {
        self.cx.now_ms += 20;
        let idle = self.client.link.is_none() && self.client.client.shake.is_none() && !self.client.is_over();
        if idle && self.cx.now_ms >= self.client.client.retry_at_ms {
            self.reconnect();
        }
        for conn in 0..self.cx.net.conns() {
            for side in Side::BOTH {
                self.cx.net.tell(conn, side);
                if self.cx.net.is_busy(conn, side) {
                    self.cx.net.deliver(conn, side, EVERYTHING);
                }
                self.cx.net.acknowledge(conn, side);
            }
        }
        self.server.step_all(&mut self.cx);
        self.client.shake(&mut self.cx, EVERYTHING);
        work(&mut self.client, &mut self.cx);
        self.with_server(work);
        for _ in 0..self.cx.datagrams.len() {
            self.carry_datagram(0);
        }
        self.check();
    }

    fn is_done(&mut self) -> bool {
        let discards = self.cx.plan.discards();
        let done = |end: &Endpoint| {
            // What had arrived before an error is read all the same.
            let all_read = end.backlog_bytes == 0 && !end.receiver.is_complete();
            let nothing_left = end.app.saw_end || (end.life.state() == State::Failed && all_read);
            nothing_left && (end.is_over() || discards)
        };
        done(&self.client) && self.server.end().is_none_or(|end| done(end))
    }

    pub fn report(mut self) -> Report {
        let links = self.server.spent.len() as u64;
        let resent_bytes = self.client.sender.resent_bytes()
            + self.server.ends.iter().map(|end| end.sender.resent_bytes()).sum::<u64>();
        let read_bytes =
            self.client.app.read_bytes + self.server.ends.iter().map(|end| end.app.read_bytes).sum::<u64>();
        let refusals = self.server.refused_conns.len() as u64;
        let outcome = self.outcome();
        let excused = match &outcome {
            Outcome::Delivered => true,
            // PROTOCOL 4.8: there a client does not leave before it is told to.
            Outcome::DeliveredUnknown => self.cx.plan.mode != Mode::Inband || self.cx.plan.keep_ms < 10_000,
            Outcome::Failed(failure) => self.is_excused(failure),
            // A client that is through is not there to be told that the server's end lost patience.
            Outcome::FalselyDelivered | Outcome::Violated(_) => false,
        };
        Report { outcome, excused, links, resent_bytes, read_bytes, refusals }
    }

    fn outcome(&mut self) -> Outcome {
        if let Some(violation) = self.cx.violation.take() {
            return Outcome::Violated(violation);
        }
        let server = self.server.end().map(|end| (end.failure.clone(), end.app.saw_end));
        if let Some(failure) = &self.client.failure {
            return Outcome::Failed(failure.clone());
        }
        match server {
            Some((None, true)) => Outcome::Delivered,
            Some((Some(Failure::Expired), true)) => Outcome::DeliveredUnknown,
            Some((Some(Failure::Expired), false)) if self.client.is_closed() => Outcome::FalselyDelivered,
            Some((Some(failure), _)) => Outcome::Failed(failure),
            // The client has nothing left to ask that a server which has forgotten it could answer.
            None if self.restarted => Outcome::Failed(Failure::Refused(Refusal::UnknownSession)),
            None | Some((None, false)) => {
                Outcome::Violated("the client is done, the server's application is not".into())
            }
        }
    }

    /// Whether this schedule had the right to end like that.
    fn is_excused(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Refused(Refusal::Expired) | Failure::Expired => self.cx.plan.keep_ms < 10_000,
            Failure::Refused(Refusal::UnknownSession) => self.restarted,
            // PROTOCOL 3.11: the server did not wait for somebody to come back.
            Failure::Aborted => {
                let expired =
                    self.server.ends.last().is_some_and(|end| end.failure == Some(Failure::Expired));
                self.cx.plan.aborts && (!expired || self.is_excused(&Failure::Expired))
            }
            _ => self.restarted || self.hijacked,
        }
    }
}

/// Everything an application and its end can do at once.
fn work(end: &mut Endpoint, cx: &mut Ctx) {
    for _ in 0..4 {
        end.app_write(cx, 64 << 10);
    }
    end.tick(cx);
    while end.app_read(cx, 64 << 10) {}
    end.tick(cx);
}

impl Endpoint {
    fn describe(&self) -> String {
        format!(
            "{:?}, link {:?}, wrote {} of {}, read {} of {}, end seen {}, acked {}, retained from {}, \
             sent {}, delivered {}, {:?}",
            self.life.state(),
            self.link,
            self.app.wrote_bytes,
            self.app.total_bytes,
            self.app.read_bytes,
            self.app.peer_total_bytes,
            self.app.saw_end,
            self.sender.acked_offset(),
            self.sender.retained_offset(),
            self.sender.sent_offset(),
            self.sender.is_delivered(),
            self.receiver,
        )
    }
}
