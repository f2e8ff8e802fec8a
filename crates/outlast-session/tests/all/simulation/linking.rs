//! Losing a link and carrying on with the next: what both ends do alike.

use super::endpoint::{Ctx, Endpoint, Failure, Link};
use super::plan::Mistake;
use super::reading::Step;
use super::tcp::Side;
use outlast_session::proto::{ClientHandshake, Happening, OffsetError, State};

/// Where the peer stands, from its handshake message, and what came behind that message.
pub struct PeerPosition<'a> {
    pub next_offset: u64,
    pub end_offset: Option<u64>,
    pub rest: &'a [u8],
    pub read_bytes: u64,
}

impl Endpoint {
    /// The link broke.
    pub fn lost(&mut self, cx: &mut Ctx) {
        self.look_for_answer(cx);
        if self.link.is_none() {
            return;
        }
        self.unload(cx);
        if self.is_through() && self.side == Side::Server {
            self.happens(cx, Happening::Finished);
        } else {
            self.happens(cx, Happening::LinkLost);
        }
    }

    /// Takes the present link out of service for a better one.
    pub fn retire(&mut self, cx: &mut Ctx) {
        if !cx.is(Mistake::WelcomeAsPayload) {
            self.look_for_answer(cx);
        }
        if self.link.is_some() {
            self.unload(cx);
            self.happens(cx, Happening::LinkLost);
        }
    }

    /// A client's opening link is about to be given up before its answer was read: it may be there.
    fn look_for_answer(&mut self, cx: &mut Ctx) {
        let Some(link) = self.link.filter(|_| self.client.awaiting.is_some()) else { return };
        cx.net.freeze(link.conn, self.side);
        match self.handshake_step(cx, link) {
            Step::Handshake(link, end) => self.handshake_ended(cx, link, *end),
            _ => {
                // Nothing, or the beginning of a message: none of it belongs to the stream.
                self.drop_opening(cx);
            }
        }
    }

    /// The opening link brought no answer, and hence nothing of the stream.
    pub fn drop_opening(&mut self, cx: &mut Ctx) {
        self.client.awaiting = None;
        self.inbox.clear();
        self.link_read_bytes = 0;
        self.sender.unlink();
        if let Some(link) = self.link.take() {
            cx.net.close(link.conn, self.side, false);
        }
        if self.life.state() == State::Opening {
            self.happens(cx, Happening::AttemptFailed);
        }
    }

    pub fn unload(&mut self, cx: &mut Ctx) {
        // The last word of the kernel on what the peer has.
        self.learn_acked(cx);
        let Some(link) = self.link.take() else { return };
        self.sender.unlink();
        self.client.awaiting = None;
        self.unload_input(cx, link);
    }

    /// Puts a new link into service; `head` goes out before any payload.
    pub fn install(
        &mut self,
        cx: &mut Ctx,
        link: Link,
        peer: &PeerPosition<'_>,
        head: &[u8],
        awaiting: Option<Box<ClientHandshake>>,
    ) -> Result<(), OffsetError> {
        let window_bytes = cx.plan.window_bytes();
        self.sender.link(link.mode, window_bytes, peer.next_offset, awaiting.is_none())?;
        self.sender.push_head(head);
        self.receiver.link(link.mode);
        self.inbox = peer.rest.to_vec();
        self.link_read_bytes = peer.read_bytes;
        self.client.awaiting = awaiting;
        if let Some(end_offset) = peer.end_offset
            && end_offset == self.receiver.next_offset()
        {
            // PROTOCOL 2.5: the end is announced again, and here it is the only thing missing.
            if !self.receiver.ends_at(end_offset) {
                cx.violated(|| format!("the peer says that its stream ends at {end_offset}, which is wrong"));
            }
        }
        if link.epoch <= self.epoch {
            cx.violated(|| format!("link {} after link {}", link.epoch, self.epoch));
        }
        self.told_offset = self.consumed_offset();
        self.epoch = link.epoch;
        self.link = Some(link);
        Ok(())
    }

    /// The new link is in service.
    pub fn connected(&mut self, cx: &mut Ctx) {
        let first = self.life.state() == State::Opening;
        self.happens(cx, if first { Happening::Welcomed } else { Happening::Resumed });
    }

    /// The helper: sends what waits, tells what was read, looks for what was acknowledged.
    pub fn tick(&mut self, cx: &mut Ctx) {
        if !self.is_over() {
            self.flush(cx);
            self.pump_input(cx);
            self.notice_loss(cx);
            if self.consumed_offset() > self.told_offset {
                self.send_control(cx, None);
            }
            self.check_over(cx);
        }
        self.tick_datagrams(cx);
    }

    /// Behind the end of the peer's stream nobody reads any more, but what was sent may still be lost with the link.
    fn notice_loss(&mut self, cx: &mut Ctx) {
        if let Some(link) = self.link
            && self.receiver.is_complete()
            && cx.net.is_told(link.conn, self.side)
        {
            self.lost(cx);
        }
    }

    pub fn offset_failure(&mut self, cx: &mut Ctx, error: OffsetError) {
        self.fail(cx, Failure::Offset(error), Happening::Refused);
    }
}
