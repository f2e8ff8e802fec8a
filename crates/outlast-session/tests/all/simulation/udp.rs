//! Acknowledgement datagrams beside the link, over a network that loses, repeats and reorders them.

use super::endpoint::{Ctx, Endpoint};
use super::plan::Mode;
use super::tcp::Side;
use outlast_session::proto::{Datagram, DatagramKind, State};

/// Datagrams under way, with the end they go to.
#[derive(Debug, Default)]
pub struct Datagrams {
    under_way: Vec<(Side, Vec<u8>)>,
}

impl Datagrams {
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Any of them, in no order.
    pub fn take(&mut self, which: u64) -> Option<(Side, Vec<u8>)> {
        let count = self.under_way.len();
        (count > 0).then(|| self.under_way.swap_remove(which as usize % count))
    }
}

/// More than this is lost in some router's queue.
const UNDER_WAY_MAX: usize = 64;

impl Endpoint {
    fn say(&self, cx: &mut Ctx, kind: DatagramKind, offset: u64) {
        let last_ack = kind == DatagramKind::Ack && self.side == Side::Client;
        let needs_confirm = kind == DatagramKind::HalfClose || last_ack;
        self.send_datagram(cx, &Datagram { kind, needs_confirm, id: self.id, epoch: self.epoch, offset });
    }

    fn send_datagram(&self, cx: &mut Ctx, datagram: &Datagram) {
        if cx.plan.datagram_nat && self.side == Side::Server && self.heard_from_epoch != self.epoch {
            return;
        }
        let bytes = datagram.encode(self.key.as_ref(), self.side == Side::Client).as_ref().to_vec();
        let copies = if cx.random.one_in(cx.plan.datagram_copies) { 2 } else { 1 };
        for _ in 0..copies {
            if !cx.random.one_in(cx.plan.datagram_loss) && cx.datagrams.len() < UNDER_WAY_MAX {
                cx.datagrams.under_way.push((self.side.other(), bytes.clone()));
            }
        }
    }

    fn has_read_end(&self) -> bool {
        self.receiver.is_complete() && self.backlog_bytes == 0
    }

    /// How far the application has read, or that it has read everything.
    fn say_position(&self, cx: &mut Ctx) {
        if self.has_read_end() {
            self.say(cx, DatagramKind::HalfClose, self.receiver.next_offset());
        } else {
            self.say(cx, DatagramKind::Ack, self.consumed_offset());
        }
    }

    /// Says what is to be said, the end again and again until that is confirmed, even when the session is over here;
    /// and asks the peer, if anything is missing.
    pub fn tick_datagrams(&mut self, cx: &mut Ctx) {
        if cx.plan.mode != Mode::Udp || !self.welcomed || self.life.state() == State::Failed {
            return;
        }
        if self.has_read_end() {
            if self.end_confirmed_epoch < self.epoch {
                self.say_position(cx);
            }
        } else if self.consumed_offset() > self.told_offset || self.is_unsure(cx) {
            self.told_offset = self.consumed_offset();
            self.say_position(cx);
        }
        let waits = self.sender.acked_offset() < self.sender.sent_offset_max()
            || (self.sender.is_end_sent() && !self.sender.is_delivered());
        if waits && !self.is_over() {
            self.say(cx, DatagramKind::RequestAck, self.sender.sent_offset_max());
        }
    }

    /// PROTOCOL 5.6: a client says it again, if a question would not get through.
    fn is_unsure(&self, cx: &Ctx) -> bool {
        self.side == Side::Client
            && cx.plan.datagram_nat
            && self.consumed_offset() > self.ack_confirmed_offset
    }

    pub fn receive_datagram(&mut self, cx: &mut Ctx, bytes: &[u8]) {
        let datagram = match Datagram::decode(bytes, self.key.as_ref(), self.side == Side::Server) {
            // PROTOCOL 5.2
            Ok(datagram) if datagram.id == self.id && datagram.epoch == self.epoch && self.welcomed => {
                datagram
            }
            Ok(_) | Err(_) => return,
        };
        self.heard_from_epoch = self.epoch;
        match datagram.kind {
            DatagramKind::Ack => {
                // Anybody can say what was never sent: it is worth nothing.
                if self.sender.acked(datagram.offset).is_ok()
                    && let Some(confirmation) = datagram.confirmation()
                {
                    self.send_datagram(cx, &confirmation);
                }
            }
            DatagramKind::RequestAck => self.say_position(cx),
            DatagramKind::HalfClose | DatagramKind::Close => {
                let ended = self.sender.is_ended() && datagram.offset == self.sender.end_offset();
                if !ended || self.sender.acked(datagram.offset).is_err() {
                    return;
                }
                self.sender.end_acked();
                if let Some(confirmation) = datagram.confirmation() {
                    self.send_datagram(cx, &confirmation);
                }
            }
            DatagramKind::Confirm { of } if of == DatagramKind::HalfClose.number() => {
                self.end_confirmed_epoch = self.end_confirmed_epoch.max(datagram.epoch);
            }
            DatagramKind::Confirm { of } if of == DatagramKind::Ack.number() => {
                self.ack_confirmed_offset = self.ack_confirmed_offset.max(datagram.offset);
            }
            DatagramKind::Reset | DatagramKind::Confirm { .. } => {}
        }
        self.check_over(cx);
    }
}
