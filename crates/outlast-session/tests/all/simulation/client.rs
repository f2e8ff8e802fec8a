//! The client's side of making links.

use super::endpoint::{Ctx, Endpoint, Failure, Link, Shake};
use super::linking::PeerPosition;
use super::plan::Mistake;
use super::tcp::{Got, Side};
use outlast_session::LinkMode;
use outlast_session::proto::{
    ClientHandshake, ClientStep, Credentials, Happening, Hello, Intent, Refusal, State, Welcomed,
};

/// What a client begins with: the connection, and the Hello that was sent on it.
pub struct Begun {
    pub hello: Vec<u8>,
}

impl Endpoint {
    /// One attempt at a new link, whatever became of earlier ones.
    pub fn begin(&mut self, cx: &mut Ctx) -> Option<Begun> {
        self.give_up_attempt(cx);
        if self.is_over() {
            return None;
        }
        if self.life.state() == State::Passive {
            self.happens(cx, Happening::Woken);
        }
        // The old link may hold an answer that changes the mode of the next.
        self.retire(cx);
        if self.is_over() {
            return None;
        }
        self.client.epochs += 1;
        let indirect = cx.random.one_in(cx.plan.indirect);
        // What terminates TCP acknowledges on its own account, and loses it when it goes down.
        let acks_early = indirect
            || cx.is(Mistake::AckingMiddlebox)
            || (self.client.mode == LinkMode::Inband && cx.random.one_in(2));
        let conn = cx.net.connect(cx.plan.buffers, !indirect, acks_early);
        let link = Link { conn, epoch: self.client.epochs, mode: self.client.mode };
        self.happens(cx, Happening::Attempt);
        let hello = self.hello(cx, link);
        let intent = hello.intent;
        let credentials = match cx.plan.psk {
            true => Credentials::Psk { psk: cx.psk.clone(), key: self.key.clone() },
            false => Credentials::Open,
        };
        let nonce = cx.nonce();
        let handshake = match ClientHandshake::new(hello, credentials, nonce) {
            Ok(handshake) => handshake,
            Err(error) => {
                cx.violated(|| format!("{intent:?}: {error}"));
                return None;
            }
        };
        let output = handshake.start().to_vec();
        cx.log(|| {
            format!("Client: {intent:?} with link {} ({:?}), connection {conn}", link.epoch, link.mode)
        });
        if handshake.carries_early_data() {
            // PROTOCOL 3.2
            let nothing = PeerPosition { next_offset: 0, end_offset: None, rest: &[], read_bytes: 0 };
            let installed = self.install(cx, link, &nothing, &output, Some(Box::new(handshake)));
            if let Err(error) = installed {
                self.offset_failure(cx, error);
            }
        } else {
            let shake = Shake { handshake, link, output: output.clone(), input: Vec::new(), read_bytes: 0 };
            self.client.shake = Some(Box::new(shake));
        }
        Some(Begun { hello: output })
    }

    /// Gives the session up; the Hello that tells the server, if there is anything to tell.
    pub fn abort(&mut self, cx: &mut Ctx) -> Option<Vec<u8>> {
        self.give_up_attempt(cx);
        if self.is_over() || !self.welcomed {
            return None;
        }
        self.client.epochs += 1;
        let mut hello = Hello::open(self.id, LinkMode::Inband);
        hello.epoch = self.client.epochs;
        hello.intent = Intent::Abort;
        let credentials = match cx.plan.psk {
            true => Credentials::Psk { psk: cx.psk.clone(), key: self.key.clone() },
            false => Credentials::Open,
        };
        let nonce = cx.nonce();
        let handshake =
            ClientHandshake::new(hello, credentials, nonce).expect("a welcomed session has its key");
        cx.log(|| "Client: gives the session up".into());
        self.fail(cx, Failure::Aborted, Happening::Refused);
        Some(handshake.start().to_vec())
    }

    fn hello(&self, cx: &Ctx, link: Link) -> Hello {
        let mut hello = Hello::open(self.id, link.mode);
        hello.epoch = link.epoch;
        hello.intent = if self.welcomed { Intent::Resume } else { Intent::Open };
        hello.auto = self.client.auto;
        hello.next_offset = self.receiver.next_offset();
        hello.retained_offset = self.sender.retained_offset();
        hello.sent_offset = self.sender.sent_offset_max();
        hello.end_offset = self.sender.is_ended().then(|| self.sender.end_offset());
        hello.send_buffer_bytes = cx.plan.buffers.send_bytes as u64;
        hello.receive_buffer_bytes = cx.plan.buffers.receive_bytes as u64;
        hello
    }

    /// A handshake goes on, as far as the network lets it.
    pub fn shake(&mut self, cx: &mut Ctx, most: usize) {
        let Some(mut shake) = self.client.shake.take() else { return };
        let conn = shake.link.conn;
        if !shake.output.is_empty() {
            // An error shows when reading, behind what has arrived before it.
            let count = cx.net.send(conn, Side::Client, &shake.output).unwrap_or(0);
            shake.output.drain(..count);
        }
        let before = shake.input.len();
        match cx.net.receive(conn, Side::Client, most, &mut shake.input) {
            Got::Data => shake.read_bytes += (shake.input.len() - before) as u64,
            Got::Nothing => {
                self.client.shake = Some(shake);
                return;
            }
            Got::Eof | Got::Broken => {
                cx.net.close(conn, Side::Client, false);
                self.happens(cx, Happening::AttemptFailed);
                return;
            }
        }
        self.feed(cx, shake);
    }

    fn feed(&mut self, cx: &mut Ctx, mut shake: Box<Shake>) {
        loop {
            match shake.handshake.feed(&shake.input) {
                ClientStep::NeedMore => {
                    self.client.shake = Some(shake);
                    return;
                }
                ClientStep::Send { bytes, consumed_bytes } => {
                    shake.output.extend_from_slice(&bytes);
                    shake.input.drain(..consumed_bytes);
                }
                ClientStep::Welcomed(welcomed) => return self.welcomed(cx, &welcomed, &shake),
                ClientStep::Refused(refuse) => {
                    cx.net.close(shake.link.conn, Side::Client, false);
                    return self.refused(cx, refuse.refusal);
                }
                ClientStep::Failed(error) => {
                    cx.net.close(shake.link.conn, Side::Client, false);
                    return self.fail(cx, Failure::Protocol(error.to_string()), Happening::Refused);
                }
            }
        }
    }

    /// The client will not wait for this handshake any longer. What its connection has received counts: a server that
    /// has welcomed the link sends, and takes for delivered what this kernel has acknowledged.
    pub fn give_up_attempt(&mut self, cx: &mut Ctx) {
        let Some(link) = self.client.shake.as_ref().map(|shake| shake.link) else { return };
        cx.log(|| format!("Client: gives up waiting for the answer to link {}", link.epoch));
        if !cx.is(Mistake::UnreadWelcome) {
            cx.net.freeze(link.conn, Side::Client);
            loop {
                let unread_bytes = cx.net.unread_bytes(link.conn, Side::Client);
                if self.client.shake.is_none() || unread_bytes == 0 {
                    break;
                }
                self.shake(cx, 4096);
            }
        }
        if let Some(shake) = self.client.shake.take() {
            cx.net.close(shake.link.conn, Side::Client, false);
            self.happens(cx, Happening::AttemptFailed);
        }
    }

    fn welcomed(&mut self, cx: &mut Ctx, welcomed: &Welcomed, shake: &Shake) {
        let welcome = &welcomed.welcome;
        if welcome.retained_offset > self.receiver.next_offset() {
            cx.net.close(shake.link.conn, Side::Client, false);
            return self.fail(cx, Failure::Missing, Happening::Refused);
        }
        self.key = welcomed.session_key.clone().or_else(|| self.key.take());
        self.welcomed = true;
        let peer = PeerPosition {
            next_offset: welcome.next_offset,
            end_offset: welcome.end_offset,
            rest: &shake.input[welcomed.consumed_bytes..],
            read_bytes: shake.read_bytes,
        };
        match self.install(cx, shake.link, &peer, &[], None) {
            Ok(()) => {
                self.connected(cx);
                self.flush(cx);
            }
            Err(error) => {
                cx.net.close(shake.link.conn, Side::Client, false);
                self.offset_failure(cx, error);
            }
        }
    }

    /// The handshake of an opening link that is in service already has ended.
    pub fn handshake_ended(&mut self, cx: &mut Ctx, link: Link, end: Result<Welcomed, ClientStep>) {
        match end {
            Ok(welcomed) => {
                debug_assert_eq!(self.link, Some(link));
                self.client.awaiting = None;
                self.welcomed = true;
                self.key = welcomed.session_key;
                self.sender.confirm(cx.plan.window_bytes());
                self.connected(cx);
            }
            Err(step) => {
                self.drop_opening(cx);
                match step {
                    ClientStep::Refused(refuse) => self.refused(cx, refuse.refusal),
                    other => self.fail(cx, Failure::Protocol(format!("{other:?}")), Happening::Refused),
                }
            }
        }
    }

    fn refused(&mut self, cx: &mut Ctx, refusal: Refusal) {
        cx.log(|| format!("Client: refused: {refusal}"));
        let all_delivered = self.sender.is_ended() && self.receiver.is_complete();
        match refusal {
            Refusal::NotDirect if self.client.auto => {
                self.client.auto = false;
                self.client.mode = LinkMode::Inband;
            }
            Refusal::StaleEpoch { current } => self.client.epochs = self.client.epochs.max(current),
            Refusal::Ended { offset } if all_delivered && offset == self.sender.end_offset() => {
                // PROTOCOL 1.7: that is all of it.
                self.happens(cx, Happening::Finished);
                return;
            }
            // To an opening only a server that restarts is as good as one that is not there for the moment.
            _ if refusal.is_passing() && (self.welcomed || matches!(refusal, Refusal::Draining { .. })) => {
                self.client.retry_at_ms = cx.now_ms + refusal.retry_after_ms().unwrap_or(1000);
            }
            _ => return self.fail(cx, Failure::Refused(refusal), Happening::Refused),
        }
        if self.link.is_none() {
            self.happens(cx, Happening::AttemptFailed);
        }
    }
}
