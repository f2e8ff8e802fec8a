//! From the application into the ring and onto the link.

use super::bytes;
use super::endpoint::{Ctx, Endpoint, Link};
use super::plan::Mistake;
use super::tcp::Dead;
use outlast_session::LinkMode;
use outlast_session::proto::Frame;

/// What sending came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    All,
    Full,
    NoLink,
    Broken,
}

impl Endpoint {
    /// The application writes up to `most` bytes of its stream, and ends it when all is written.
    pub fn app_write(&mut self, cx: &mut Ctx, most: u64) {
        if self.is_over() || self.sender.is_ended() {
            return;
        }
        let left_bytes = self.app.total_bytes - self.app.wrote_bytes;
        if left_bytes == 0 {
            if cx.plan.ends_last != Some(self.side) || self.app.saw_end {
                self.sender.end();
                self.flush(cx);
            }
            return;
        }
        // More than there can be room for, but not so much more that making it costs most of the time.
        let most = most.min((cx.plan.retain_bytes_max.min(self.sender.room_bytes() + 512)) as u64);
        let mut buffer = vec![0; left_bytes.min(most) as usize];
        bytes::fill(self.app.writes_seed, self.app.wrote_bytes, &mut buffer);
        let taken_bytes = self.write(cx, &buffer);
        self.app.wrote_bytes += taken_bytes as u64;
    }

    fn write(&mut self, cx: &mut Ctx, buffer: &[u8]) -> usize {
        if buffer.len() >= cx.plan.bypass_bytes_min
            && let Some(link) = self.link
            && self.flush(cx) == Flush::All
            && self.sender.can_bypass()
        {
            return self.write_past_the_ring(cx, link, buffer);
        }
        self.learn_acked(cx);
        let taken_bytes = self.sender.push(buffer);
        // Small writes may be joined: whoever comes next sends them.
        if !cx.random.one_in(4) {
            self.flush(cx);
        }
        taken_bytes
    }

    fn write_past_the_ring(&mut self, cx: &mut Ctx, link: Link, buffer: &[u8]) -> usize {
        self.learn_acked(cx);
        let room_bytes = match link.mode {
            // Every write pushes out what is a window older than it.
            LinkMode::Window => cx.plan.retain_bytes_max - cx.plan.window_bytes() as usize,
            _ => self.sender.room_bytes(),
        };
        let offered = &buffer[..room_bytes.min(buffer.len())];
        if offered.is_empty() {
            return 0;
        }
        match cx.net.send(link.conn, self.side, offered) {
            Ok(0) => 0,
            Ok(count) => {
                let held_bytes = match link.mode {
                    LinkMode::Kernel => cx.net.unacked_bytes(link.conn, self.side),
                    _ => u64::MAX,
                };
                self.sender.bypassed(&offered[..count], held_bytes);
                count
            }
            Err(Dead) => {
                self.lost(cx);
                0
            }
        }
    }

    /// Hands everything pending to the link, as far as it takes it.
    pub fn flush(&mut self, cx: &mut Ctx) -> Flush {
        let flush = self.flush_link(cx);
        if flush == Flush::Broken {
            self.lost(cx);
        }
        flush
    }

    fn flush_link(&mut self, cx: &mut Ctx) -> Flush {
        let Some(link) = self.link else { return Flush::NoLink };
        loop {
            if self.sender.can_push_frame() && self.sender.pending_bytes() > 0 {
                // Only the header of a new frame can say so; the one under way says what was so when it began.
                self.told_offset = self.told_offset.max(self.consumed_offset());
            }
            self.sender.prepare(self.consumed_offset());
            if !self.sender.has_output() || self.sender.fin_due() {
                break;
            }
            let resending = self.sender.sent_offset() < self.sender.sent_offset_max();
            let room_bytes = cx.net.room_bytes(link.conn, self.side);
            let mut output = Vec::new();
            for chunk in self.sender.chunks() {
                output.extend_from_slice(&chunk[..chunk.len().min(room_bytes - output.len())]);
            }
            if resending
                && cx.is(Mistake::ChangedByte)
                && let Some(last) = output.last_mut()
            {
                *last ^= 1;
            }
            match cx.net.send(link.conn, self.side, &output) {
                Ok(0) => return Flush::Full,
                Ok(count) => {
                    self.sender.sent(count);
                    if link.mode == LinkMode::Inband && cx.is(Mistake::AckTooOld) {
                        self.told_offset = self.consumed_offset();
                    }
                }
                Err(Dead) => return Flush::Broken,
            }
        }
        if self.sender.fin_due() {
            // PROTOCOL 2.4: the end of the stream is the FIN.
            if cx.net.shut_write(link.conn, self.side).is_err() {
                return Flush::Broken;
            }
            self.sender.fin_sent();
        }
        self.learn_acked(cx);
        Flush::All
    }

    /// Asks the kernel what it still holds, and forgets the rest.
    pub fn learn_acked(&mut self, cx: &mut Ctx) {
        let Some(link) = self.link else { return };
        let held_bytes = cx.net.unacked_bytes(link.conn, self.side);
        match link.mode {
            LinkMode::Kernel => self.sender.kernel_holds(held_bytes),
            LinkMode::Window => {
                // An acknowledged FIN stands for an end that was read only if the peer reads what a link has left.
                let counts = !cx.plan.discards() || cx.is(Mistake::FinMeansRead);
                let confirmed = self.sender.is_confirmed() || cx.is(Mistake::UnwelcomedFin);
                if counts && confirmed && self.sender.is_end_sent() && held_bytes == 0 {
                    let end_offset = self.sender.end_offset();
                    if self.sender.acked(end_offset).is_ok() {
                        self.sender.end_acked();
                    }
                }
            }
            LinkMode::Udp | LinkMode::Inband => {}
        }
    }

    /// `inband`: queues a control frame, or tells how far the application has read.
    pub fn send_control(&mut self, cx: &mut Ctx, frame: Option<Frame<'_>>) {
        let consumed_offset = self.consumed_offset();
        if self.link.is_none_or(|link| link.mode != LinkMode::Inband) {
            return;
        }
        match frame {
            Some(_) if cx.is(Mistake::DroppedEndAck) && !self.sender.can_push_frame() => {}
            Some(frame) => {
                self.sender.push_frame(&frame, consumed_offset);
            }
            // The next header carries it along.
            None if self.sender.pending_bytes() > 0 => {}
            None if self.sender.can_push_frame() => {
                let told = self.sender.push_frame(&Frame::Ack, consumed_offset);
                self.told_offset = self.told_offset.max(if told { consumed_offset } else { 0 });
            }
            None => {}
        }
        if cx.is(Mistake::AckTooOld) {
            self.told_offset = self.told_offset.max(consumed_offset);
        }
        self.flush(cx);
    }
}
