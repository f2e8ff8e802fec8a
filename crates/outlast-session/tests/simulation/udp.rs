//! Acknowledgement datagrams beside the link, over a network that loses, repeats and reorders them.

use super::endpoint::{Ctx, Endpoint};
use super::tcp::Side;
use outlast_session::proto::{Datagram, DatagramKind};

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
        let needs_confirm = kind == DatagramKind::HalfClose;
        self.send_datagram(cx, &Datagram { kind, needs_confirm, id: self.id, epoch: self.epoch.max(1), offset });
    }

    fn send_datagram(&self, cx: &mut Ctx, datagram: &Datagram) {
        let bytes = datagram.encode(self.key.as_ref(), self.side == Side::Client).as_ref().to_vec();
        let copies = if cx.random.one_in(cx.plan.datagram_copies) { 2 } else { 1 };
        for _ in 0..copies {
            if !cx.random.one_in(cx.plan.datagram_loss) && cx.datagrams.len() < UNDER_WAY_MAX {
                cx.datagrams.under_way.push((self.side.other(), bytes.clone()));
            }
        }
    }

    /// Says what is to be said, again and again until it was heard. An end that is through with its session goes on
    /// answering.
    pub fn tick_datagrams(&mut self, cx: &mut Ctx) {
        if cx.plan.mode != super::plan::Mode::Udp || !self.welcomed || self.is_over() {
            return;
        }
        let consumed_offset = self.consumed_offset();
        if consumed_offset > self.told_offset {
            self.told_offset = consumed_offset;
            self.say(cx, DatagramKind::Ack, consumed_offset);
        }
        if self.sender.acked_offset() < self.sender.sent_offset_max() {
            self.say(cx, DatagramKind::RequestAck, self.sender.sent_offset_max());
        }
        if self.sender.is_ended() && !self.end_confirmed {
            self.say(cx, DatagramKind::HalfClose, self.sender.end_offset());
        }
    }

    pub fn receive_datagram(&mut self, cx: &mut Ctx, bytes: &[u8]) {
        let Ok(datagram) = Datagram::decode(bytes, self.key.as_ref(), self.side == Side::Server) else {
            // PROTOCOL 5.2
            return;
        };
        if datagram.id != self.id || !self.welcomed {
            return;
        }
        match datagram.kind {
            DatagramKind::Ack => {
                // What was never sent is an error of the peer: the positions of a server that knows less than before.
                let _ = self.sender.acked(datagram.offset);
            }
            DatagramKind::RequestAck => self.say(cx, DatagramKind::Ack, self.consumed_offset()),
            DatagramKind::HalfClose => {
                if !self.receiver.ends_at(datagram.offset) {
                    return;
                }
            }
            DatagramKind::Confirm { of } if of == DatagramKind::HalfClose.number() => {
                if self.sender.is_ended() && datagram.offset == self.sender.end_offset() {
                    self.end_confirmed = true;
                }
            }
            DatagramKind::Close | DatagramKind::Reset | DatagramKind::Confirm { .. } => {}
        }
        if self.end_confirmed {
            self.sender.end_acked();
        }
        if let Some(confirmation) = datagram.confirmation() {
            self.send_datagram(cx, &confirmation);
        }
        self.check_over(cx);
    }
}
