//! Input without a reader: what the peer acknowledges, asks and announces, for a writer that waits for it.

use super::{Step, Waiting};
use crate::engine::{Engine, Helper};
use crate::error::Error;
use crate::proto::Control;
use std::sync::atomic::Ordering;

/// So many steps are done for one session at a time: a peer can send control frames without end, and as fast as they are handled.
/// Others wait for less than a millisecond, and acknowledgements come by far more seldom.
pub(super) const STEPS_MAX: u32 = 32;

/// What is left of a link's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// Nothing for now.
    All,
    /// There may be more at once: it was others' turn.
    Some,
    /// Nothing more is to be expected from this link.
    Last,
}

impl Engine {
    /// For a reader that holds `rx` and hence must not wait for `tx`. False if the slow way is needed.
    pub(super) fn peer_acked_at_once(&self, offset: u64) -> bool {
        let acked = self.tx.try_lock().is_some_and(|mut tx| tx.sender.acked(offset).is_ok());
        // A writer that found no room has to be woken, which takes more locks.
        acked && !self.writer_is_stalled()
    }

    /// The peer's control frame, and what the peer has taken in. Called without `rx`: a reader may be asleep with it.
    pub(super) fn handle_control(&self, control: Control, peer_acked_offset: u64) {
        // Those that acknowledge nothing new have been counted: a peer that takes much sends many others.
        if !matches!(control, Control::Acked) {
            self.controls.fetch_add(1, Ordering::Relaxed);
        }
        if !matches!(control, Control::Ping { .. } | Control::Reset { .. }) {
            self.peer_acked(peer_acked_offset);
        }
        match control {
            Control::Acked | Control::Pong { .. } => {}
            Control::Urgent { offset } => self.note_urgent(offset),
            Control::Goodbye => self.farewell(),
            Control::End { .. } => {
                // A server's farewell stands for it.
                if !self.check_over() {
                    self.send_end_ack();
                    self.check_over();
                }
            }
            Control::EndAcked => {
                self.tx.lock().sender.end_acked();
                self.check_over();
                self.wake_all();
            }
            Control::Ping { token } => self.send_pong(token),
            Control::Reset { reason } => {
                self.fail(Error::Reset { id: self.id, reason: reason.to_string() });
            }
        }
    }

    /// How many control frames of the peer have been handled, but for those that acknowledge something new. It wraps.
    pub(crate) fn controls(&self) -> u32 {
        self.controls.load(Ordering::Relaxed)
    }

    /// In the background, for a writer that waits for the peer: takes input in without the application. What is too much for
    /// once the helper takes in, bit by bit.
    pub(crate) fn pump_input(&self) -> Pumped {
        let pumped = self.pump_some();
        if pumped == Pumped::Some {
            Helper::get().pump_soon(self);
        }
        pumped
    }

    fn pump_some(&self) -> Pumped {
        self.request_ack();
        self.notice_end();
        for _ in 0..STEPS_MAX {
            let Some(mut rx) = self.rx.try_lock() else { return Pumped::All };
            let framed = rx.receiver.is_framed();
            // Behind the end of a framed stream there are still acknowledgements.
            let complete = rx.receiver.is_complete() && !framed;
            if rx.failure.is_some() || rx.backlog_bytes >= self.backlog_bytes_max() || complete {
                return Pumped::Last;
            }
            let Some(link) = rx.link.clone() else { return Pumped::Last };
            let step = if rx.opening.is_some() {
                self.handshake_step(&mut rx, link, &mut Waiting::Never)
            } else if framed || self.is_read_shut() {
                let mut scratch = [0u8; 16 << 10];
                match self.read_live(&mut rx, &link, &mut scratch, &mut Waiting::Never) {
                    Step::Data(count) => {
                        if self.is_read_shut() {
                            // Thrown away: the peer is to forget it, or it could say no more.
                            self.consumed(rx);
                            continue;
                        }
                        rx.stash(scratch.get(..count).unwrap_or_default());
                        self.wake_reader();
                        continue;
                    }
                    other => other,
                }
            } else if link.is_broken() {
                // The application reads for itself, but perhaps not now.
                Step::Broken(link, "connection lost".into())
            } else {
                return Pumped::All;
            };
            match step {
                Step::Data(_) => {}
                Step::End => {
                    self.note_end_read(&rx);
                    drop(rx);
                    self.tell_end();
                    self.check_over();
                    return Pumped::Last;
                }
                Step::Wait(_) => return Pumped::All,
                Step::NoLink => return Pumped::Last,
                Step::Broken(link, cause) => {
                    drop(rx);
                    self.lost(&link, &cause);
                    return Pumped::Last;
                }
                Step::Control(control, acked_offset) => {
                    drop(rx);
                    self.handle_control(control, acked_offset);
                }
                Step::Handshake(link, end) => {
                    drop(rx);
                    self.handshake_ended(&link, *end);
                }
            }
        }
        Pumped::Some
    }
}
