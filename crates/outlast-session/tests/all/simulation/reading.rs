//! From what earlier links left behind, then from the present link, to the application.

use super::endpoint::{Ctx, Endpoint, Link, Segment};
use super::oracle;
use super::plan::Mistake;
use super::tcp::{Got, shift};
use outlast_session::proto::{ClientStep, Control, Frame, Piece, Welcomed};
use std::collections::VecDeque;

/// What one look at the input came to.
pub enum Step {
    Data,
    End,
    Wait,
    NoLink,
    Broken(String),
    Control(Control),
    Handshake(Link, Box<Result<Welcomed, ClientStep>>),
}

/// Received from a link in one go where the stream is framed.
const INBOX_READ_BYTES: usize = 4096;

impl Endpoint {
    /// The application reads up to `most` bytes, and checks them. False if there was nothing.
    pub fn app_read(&mut self, cx: &mut Ctx, most: usize) -> bool {
        let mut out = Vec::new();
        loop {
            let step = self.read_step(cx, most, &mut out);
            match step {
                Step::Data => {
                    oracle::check_read(self, cx, &out);
                    self.app.read_bytes += out.len() as u64;
                    return true;
                }
                Step::End => {
                    oracle::check_end(self, cx);
                    self.app.saw_end = true;
                    self.check_over(cx);
                    return false;
                }
                Step::Wait | Step::NoLink => return false,
                other => self.react(cx, other),
            }
        }
    }

    /// `inband`: takes input in without the application, as for a writer that waits for the peer.
    pub fn pump_input(&mut self, cx: &mut Ctx) {
        while self.receiver.is_framed() && self.backlog_bytes < cx.plan.retain_bytes_max as u64 {
            let Some(link) = self.link else { return };
            let mut out = Vec::new();
            let step = match self.client.awaiting {
                Some(_) => self.handshake_step(cx, link),
                None => self.read_live(cx, link, INBOX_READ_BYTES, &mut out),
            };
            match step {
                Step::Data => self.stash(out),
                Step::Wait | Step::NoLink | Step::End => return,
                other => self.react(cx, other),
            }
        }
    }

    fn react(&mut self, cx: &mut Ctx, step: Step) {
        match step {
            Step::Broken(why) => {
                cx.log(|| format!("{:?}: {why}", self.side));
                self.lost(cx);
            }
            Step::Control(control) => self.handle_control(cx, &control),
            Step::Handshake(link, end) => self.handshake_ended(cx, link, *end),
            Step::Data | Step::End | Step::Wait | Step::NoLink => {}
        }
    }

    fn read_step(&mut self, cx: &mut Ctx, most: usize, out: &mut Vec<u8>) -> Step {
        if self.read_backlog(cx, most, out) {
            return Step::Data;
        }
        if self.receiver.is_complete() {
            return Step::End;
        }
        let Some(link) = self.link else { return Step::NoLink };
        if self.client.awaiting.is_some() {
            return self.handshake_step(cx, link);
        }
        self.read_live(cx, link, most, out)
    }

    fn read_backlog(&mut self, cx: &mut Ctx, most: usize, out: &mut Vec<u8>) -> bool {
        let Some(segment) = self.backlog.front_mut() else { return false };
        let empty = match segment {
            Segment::Bytes(bytes) => {
                shift(bytes, most, out);
                bytes.is_empty()
            }
            Segment::Frozen { conn, left_bytes } => {
                let most = most.min(*left_bytes as usize);
                let got = cx.net.receive(*conn, self.side, most, out);
                if got != Got::Data {
                    let left_bytes = *left_bytes;
                    cx.violated(|| format!("a frozen link lost {left_bytes} received bytes: {got:?}"));
                }
                *left_bytes -= out.len() as u64;
                if *left_bytes == 0 {
                    cx.net.close(*conn, self.side, false);
                }
                *left_bytes == 0
            }
        };
        if empty {
            self.backlog.pop_front();
        }
        self.backlog_bytes -= out.len() as u64;
        true
    }

    fn stash(&mut self, bytes: Vec<u8>) {
        self.backlog_bytes += bytes.len() as u64;
        self.backlog.push_back(Segment::Bytes(bytes.into()));
    }

    /// A client's opening link: looks for the Welcome.
    pub fn handshake_step(&mut self, cx: &mut Ctx, link: Link) -> Step {
        let before = self.inbox.len();
        match cx.net.receive(link.conn, self.side, INBOX_READ_BYTES, &mut self.inbox) {
            Got::Data => self.link_read_bytes += (self.inbox.len() - before) as u64,
            Got::Nothing => return Step::Wait,
            Got::Eof | Got::Broken => return Step::Broken("connection closed during the handshake".into()),
        }
        let Some(handshake) = self.client.awaiting.as_mut() else { return Step::NoLink };
        match handshake.feed(&self.inbox) {
            ClientStep::NeedMore => self.handshake_step(cx, link),
            ClientStep::Welcomed(welcomed) => {
                self.inbox.drain(..welcomed.consumed_bytes);
                Step::Handshake(link, Box::new(Ok(*welcomed)))
            }
            other => Step::Handshake(link, Box::new(Err(other))),
        }
    }

    /// Input of the present link, backlog aside.
    fn read_live(&mut self, cx: &mut Ctx, link: Link, most: usize, out: &mut Vec<u8>) -> Step {
        if self.receiver.is_framed() {
            return self.framed_step(cx, link, most, out);
        }
        if !self.inbox.is_empty() {
            out.extend(self.inbox.drain(..most.min(self.inbox.len())));
            self.receiver.took(out.len());
            return Step::Data;
        }
        match cx.net.receive(link.conn, self.side, most, out) {
            Got::Data => {
                self.link_read_bytes += out.len() as u64;
                self.receiver.took(out.len());
                Step::Data
            }
            Got::Nothing => Step::Wait,
            Got::Eof if self.is_fin_received(cx, link) || cx.is(Mistake::EofIsEnd) => {
                let end_offset = self.receiver.next_offset();
                if !self.receiver.ends_at(end_offset) {
                    cx.violated(|| format!("a FIN at {end_offset}, where the stream does not end"));
                }
                Step::End
            }
            Got::Eof => Step::Broken("end of input without an end of the stream".into()),
            Got::Broken => Step::Broken("reset".into()),
        }
    }

    /// Whether the kernel has received a FIN, all before which is read: it counts as one byte.
    fn is_fin_received(&self, cx: &Ctx, link: Link) -> bool {
        cx.net.received_bytes(link.conn, self.side) == self.link_read_bytes + 1
    }

    /// Looks for payload between frame headers.
    fn framed_step(&mut self, cx: &mut Ctx, link: Link, most: usize, out: &mut Vec<u8>) -> Step {
        loop {
            let acked_before = self.receiver.peer_acked_offset();
            let piece = match self.receiver.parse(&self.inbox) {
                Ok(piece) => piece,
                Err(error) => {
                    cx.violated(|| format!("{:?}: {error}", self.side));
                    return Step::Broken(error.to_string());
                }
            };
            match piece {
                Piece::Payload { skip_bytes } => {
                    self.inbox.drain(..skip_bytes);
                    if self.receiver.peer_acked_offset() > acked_before {
                        return Step::Control(Control::Acked);
                    }
                    let count = most.min(self.receiver.payload_left_bytes()).min(self.inbox.len());
                    if count > 0 {
                        out.extend(self.inbox.drain(..count));
                        self.receiver.took(count);
                        return Step::Data;
                    }
                }
                Piece::Control { bytes, control } => {
                    self.inbox.drain(..bytes);
                    if let Control::End { end_offset } = control
                        && (end_offset != self.receiver.next_offset() || !self.receiver.ends_at(end_offset))
                    {
                        cx.violated(|| {
                            format!("{:?}: the stream ends at {end_offset}, which is wrong", self.side)
                        });
                    }
                    return Step::Control(control);
                }
                Piece::Incomplete => {}
            }
            match cx.net.receive(link.conn, self.side, INBOX_READ_BYTES, &mut self.inbox) {
                Got::Data => {}
                Got::Nothing => return Step::Wait,
                Got::Eof | Got::Broken => return Step::Broken("connection closed by the peer".into()),
            }
        }
    }

    fn handle_control(&mut self, cx: &mut Ctx, control: &Control) {
        self.apply_ack(cx);
        match control {
            Control::End { .. } => {
                if !self.check_over(cx) {
                    self.send_control(cx, Some(Frame::EndAck));
                }
            }
            Control::EndAcked => self.sender.end_acked(),
            Control::Ping { token } => self.send_control(cx, Some(Frame::Pong { token: *token })),
            Control::Goodbye => {
                self.sender.end_acked();
                self.farewell_heard = true;
            }
            Control::Acked | Control::Pong { .. } | Control::Reset { .. } | Control::Urgent { .. } => {}
        }
        self.check_over(cx);
    }

    fn apply_ack(&mut self, cx: &mut Ctx) {
        if self.sender.acked(self.receiver.peer_acked_offset()).is_err() {
            cx.violated(|| format!("{:?}: bytes are acknowledged that were never sent", self.side));
        }
    }

    /// Takes what a link that is given up has received and nobody has read into account: it stays readable.
    pub fn unload_input(&mut self, cx: &mut Ctx, link: Link) {
        if !cx.is(Mistake::NoFreeze) {
            // PROTOCOL 3.5: first freeze, then count, then tell.
            cx.net.freeze(link.conn, self.side);
        }
        let read_bytes = std::mem::take(&mut self.link_read_bytes);
        let inbox = std::mem::take(&mut self.inbox);
        if self.receiver.is_framed() {
            cx.net.close(link.conn, self.side, false);
            return;
        }
        let unread_bytes = cx.net.unread_bytes(link.conn, self.side);
        let kept_bytes = if cx.plan.discards() { 0 } else { unread_bytes };
        let received_bytes = cx.net.received_bytes(link.conn, self.side);
        // PROTOCOL 2.4: the FIN of a link that broke afterwards is one all the same.
        let fin = received_bytes == read_bytes + unread_bytes + 1;
        cx.log(|| {
            let inbox_bytes = inbox.len();
            format!(
                "{:?}: connection {} leaves {inbox_bytes} + {unread_bytes} bytes, {read_bytes} were read of \
                 {received_bytes}",
                self.side, link.conn
            )
        });
        self.receiver.took(inbox.len() + kept_bytes as usize);
        if !inbox.is_empty() {
            self.backlog_bytes += inbox.len() as u64;
            self.backlog.push_back(Segment::Bytes(VecDeque::from(inbox)));
        }
        if kept_bytes > 0 {
            self.backlog_bytes += kept_bytes;
            self.backlog.push_back(Segment::Frozen { conn: link.conn, left_bytes: kept_bytes });
        } else {
            cx.net.close(link.conn, self.side, false);
        }
        if fin && kept_bytes == unread_bytes && !cx.is(Mistake::ForgottenFin) {
            let end_offset = self.receiver.next_offset();
            if !self.receiver.ends_at(end_offset) {
                cx.violated(|| format!("a FIN at {end_offset}, where the stream does not end"));
            }
        }
    }
}
