//! Reading: from what earlier links left behind, then from the present link.

mod backlog;
mod pump;

pub(crate) use backlog::Segment;
pub(crate) use pump::Pumped;

use super::gap::{self, Gap};
use super::inbox::{INBOX_READ_BYTES, Inbox};
use super::opening::{HandshakeEnd, Opening};
use super::{Engine, Helper, Link, Progress, Waiting};
use crate::error::{Error, Result, in_words};
use crate::proto::{Control, Piece, Receiver};
use parking_lot::MutexGuard;
use pump::STEPS_MAX;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// From this size on a frame's payload is received straight into the application's buffer.
const DIRECT_BYTES_MIN: usize = 4096;
/// The peer is told at once when it can forget so much (`inband`, `udp`).
const ACK_BYTES: u64 = 256 << 10;

/// What readers share.
#[derive(Debug)]
pub(crate) struct Rx {
    pub(crate) receiver: Receiver,
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) failure: Option<Error>,
    /// Counted by `receiver` already, not yet read by the application.
    pub(crate) backlog: VecDeque<Segment>,
    pub(crate) backlog_bytes: u64,
    /// Received on the present link, not yet looked at.
    pub(crate) inbox: Inbox,
    /// Bytes received on the present link, handshake included.
    pub(crate) link_read_bytes: u64,
    /// A client's opening link, as long as it is not welcomed.
    pub(crate) opening: Option<Opening>,
    /// How the peer has ended this end's stream on the present link. A thread that has read it may not have acted on it when
    /// another one finds that the link is gone.
    pub(crate) ended_by_peer: Option<EndedByPeer>,
}

/// What a peer says in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedByPeer {
    /// It has this end's stream, up to its end.
    EndAck,
    /// And it is through with the session.
    Goodbye,
}

/// What one look at the input came to.
pub(super) enum Step {
    Data(usize),
    End,
    Wait(Arc<Link>),
    NoLink,
    Broken(Arc<Link>, String),
    /// And what the peer has taken in.
    Control(Control, u64),
    Handshake(Arc<Link>, Box<HandshakeEnd>),
}

impl Rx {
    pub(crate) fn new() -> Self {
        Self {
            receiver: Receiver::default(),
            link: None,
            failure: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            inbox: Inbox::default(),
            link_read_bytes: 0,
            opening: None,
            ended_by_peer: None,
        }
    }

    /// What is held for an application that has not read it yet.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.backlog_bytes + self.inbox.buffer_bytes() as u64
    }

    /// Everything before this was read by the application.
    pub(crate) fn consumed_offset(&self) -> u64 {
        self.receiver.next_offset() - self.backlog_bytes
    }

    /// The link, if the next bytes of the stream come from it as they are.
    pub(super) fn raw_link(&self) -> Option<Arc<Link>> {
        let link = self.link.as_ref().filter(|link| !link.is_tls())?;
        self.is_plain().then(|| link.clone())
    }

    /// Whether what comes next, if anything, are bytes of the stream as the link has them.
    #[inline]
    fn is_plain(&self) -> bool {
        self.backlog.is_empty()
            && self.inbox.is_empty()
            && self.opening.is_none()
            && !self.receiver.is_framed()
            && !self.receiver.is_complete()
            && self.failure.is_none()
    }
}

impl Engine {
    /// Remembers the task of a reader that goes to sleep; called with `rx` held, so that no change comes in between.
    pub(super) fn wait_to_read(&self, waiting: &Waiting<'_, '_>) {
        if let Waiting::Task(context) = waiting {
            let mut reader = self.reader.lock();
            if !reader.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                *reader = Some(context.waker().clone());
            }
        }
    }

    /// Reads for the application: `Done(0)` is the end of the stream (or an empty buffer).
    ///
    /// # Errors
    /// The session failed; everything that had arrived before was read first.
    #[inline]
    pub(crate) fn read(&self, buffer: &mut [u8], mut waiting: Waiting<'_, '_>) -> Result<Progress<usize>> {
        if buffer.is_empty() {
            return Ok(Progress::Done(0));
        }
        // The short way, for most of all reads. What it leaves to be done was not begun.
        let mut rx = self.rx.lock();
        if rx.is_plain()
            && !self.is_read_shut()
            && self.begin_read()
            && let Rx { link: Some(link), receiver, link_read_bytes, .. } = &mut *rx
        {
            match link.receive(buffer, &mut waiting) {
                Ok(count @ 1..) => {
                    *link_read_bytes += count as u64;
                    receiver.took(count);
                    self.consumed(rx);
                    return Ok(Progress::Done(count));
                }
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && matches!(waiting, Waiting::Task(_)) =>
                {
                    // The reactor wakes the task, which need not know the link.
                    self.wait_to_read(&waiting);
                    return Ok(Progress::Stalled);
                }
                received => {
                    let link = link.clone();
                    let step = self.plain_step(&mut rx, &link, received);
                    if let Some(progress) = self.take_step(rx, step, &waiting) {
                        return Ok(progress);
                    }
                }
            }
            rx = self.rx.lock();
        }
        self.read_slowly(rx, buffer, &mut waiting)
    }

    #[inline(never)]
    fn read_slowly<'a>(
        &'a self,
        mut rx: MutexGuard<'a, Rx>,
        buffer: &mut [u8],
        waiting: &mut Waiting<'_, '_>,
    ) -> Result<Progress<usize>> {
        let mut steps = 0;
        loop {
            steps += 1;
            if steps > STEPS_MAX && matches!(waiting, Waiting::Task(_)) {
                return Ok(self.ask_again(waiting));
            }
            if rx.backlog.is_empty()
                && rx.inbox.is_empty()
                && let Some(flush) = self.flush_before_read()
            {
                drop(rx);
                self.settle(flush);
            } else {
                let step = self.read_step(&mut rx, buffer, waiting)?;
                if let Some(progress) = self.take_step(rx, step, waiting) {
                    return Ok(progress);
                }
            }
            rx = self.rx.lock();
        }
    }

    /// What a step of a read has come to. None: the next one has to follow.
    fn take_step(
        &self,
        rx: MutexGuard<'_, Rx>,
        step: Step,
        waiting: &Waiting<'_, '_>,
    ) -> Option<Progress<usize>> {
        match step {
            Step::Data(count) => {
                self.consumed(rx);
                return Some(Progress::Done(count));
            }
            Step::End => {
                self.note_end_read(&rx);
                drop(rx);
                gap::reached(Gap::EndUntold, self);
                self.tell_end();
                self.check_over();
                return Some(Progress::Done(0));
            }
            Step::Wait(link) => {
                self.wait_to_read(waiting);
                return Some(Progress::Wait(link));
            }
            Step::NoLink => {
                self.wait_to_read(waiting);
                drop(rx);
                self.wake_passive();
                return Some(Progress::Stalled);
            }
            Step::Broken(link, cause) => {
                drop(rx);
                self.lost(&link, &cause);
            }
            Step::Control(control, acked_offset) => {
                drop(rx);
                let urgent = matches!(control, Control::Urgent { .. });
                self.handle_control(control, acked_offset);
                return (urgent && self.looks_for_urgent(waiting)).then(|| self.ask_again(waiting));
            }
            Step::Handshake(link, end) => {
                drop(rx);
                self.handshake_ended(&link, *end);
                return self.looks_for_urgent(waiting).then(|| self.ask_again(waiting));
            }
        }
        None
    }

    /// Whether the peer's stream has been taken in to its end.
    pub(crate) fn has_peer_end(&self) -> bool {
        self.rx.lock().receiver.is_complete()
    }

    fn read_step(&self, rx: &mut Rx, buffer: &mut [u8], waiting: &mut Waiting<'_, '_>) -> Result<Step> {
        if let Some(result) = rx.read_backlog(buffer) {
            return result.map(Step::Data);
        }
        if rx.receiver.is_complete() || self.is_read_shut() {
            return Ok(Step::End);
        }
        if let Some(failure) = &rx.failure {
            return Err(failure.clone());
        }
        if rx.opening.is_some()
            && let Some(link) = rx.link.clone()
        {
            return Ok(self.handshake_step(rx, link, waiting));
        }
        // Taken and put back, which is cheaper than another reference for every read: nobody else has `rx` meanwhile.
        let Some(link) = rx.link.take() else { return Ok(Step::NoLink) };
        let step = self.read_live(rx, &link, buffer, waiting);
        rx.link = Some(link);
        Ok(step)
    }

    pub(super) fn read_failed(link: &Arc<Link>, error: &io::Error) -> Step {
        match error.kind() {
            // With `wait` this is a time-out of the socket, or a signal: the shell decides.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Step::Wait(link.clone()),
            _ => Step::Broken(link.clone(), in_words(error)),
        }
    }

    /// Whether a read found nothing only because this end has shut its reading, and what the peer said before it closed has
    /// come since: it closes before this end asks whether it has.
    fn is_input_left(&self, link: &Link) -> bool {
        self.is_read_shut() && !link.is_dead() && link.has_peer_ended() && link.has_unread()
    }

    /// An end of input that is not the end of the stream: the link broke, unless it is our own doing.
    pub(super) fn input_ended(&self, link: &Arc<Link>, what: &str) -> Step {
        if self.is_read_shut() && !link.is_dead() && !link.has_peer_ended() {
            return Step::Wait(link.clone());
        }
        Step::Broken(link.clone(), what.to_owned())
    }

    /// Looks for payload between frame headers.
    fn framed_step(
        &self,
        rx: &mut Rx,
        link: &Arc<Link>,
        buffer: &mut [u8],
        waiting: &mut Waiting<'_, '_>,
    ) -> Step {
        // Behind what TLS has ended nothing comes any more, whatever the kernel has.
        let mut was_empty = false;
        loop {
            let acked_before = rx.receiver.peer_acked_offset();
            let piece = match rx.receiver.parse(rx.inbox.as_slice()) {
                Ok(piece) => piece,
                Err(error) => {
                    return Step::Broken(link.clone(), format!("the peer broke the protocol: {error}"));
                }
            };
            if rx.receiver.peer_acked_offset() > acked_before {
                // If the writers' lock cannot be had at once, the payload waits: it is parsed on from here then.
                if let Piece::Payload { skip_bytes } = piece
                    && !self.peer_acked_at_once(rx.receiver.peer_acked_offset())
                {
                    rx.inbox.consume(skip_bytes);
                    return Step::Control(Control::Acked, rx.receiver.peer_acked_offset());
                }
            }
            match piece {
                Piece::Control { bytes, control } => {
                    rx.inbox.consume(bytes);
                    if matches!(control, Control::Acked) && rx.receiver.peer_acked_offset() == acked_before {
                        self.controls.fetch_add(1, Ordering::Relaxed);
                    }
                    if let Control::End { end_offset } = control
                        && (end_offset != rx.receiver.next_offset() || !self.peer_ends_at(rx, end_offset))
                    {
                        return Step::Broken(
                            link.clone(),
                            "the peer's stream ended at a wrong offset".into(),
                        );
                    }
                    match control {
                        Control::Goodbye => rx.ended_by_peer = Some(EndedByPeer::Goodbye),
                        Control::EndAcked => _ = rx.ended_by_peer.get_or_insert(EndedByPeer::EndAck),
                        _ => {}
                    }
                    return Step::Control(control, rx.receiver.peer_acked_offset());
                }
                Piece::Payload { skip_bytes } => {
                    rx.inbox.consume(skip_bytes);
                    let left_bytes = rx.receiver.payload_left_bytes();
                    let most = left_bytes.min(buffer.len());
                    let room = buffer.get_mut(..most).unwrap_or_default();
                    if !rx.inbox.is_empty() {
                        let count = rx.inbox.read(room);
                        rx.receiver.took(count);
                        return Step::Data(count);
                    }
                    if most >= DIRECT_BYTES_MIN {
                        return match link.receive(room, waiting) {
                            Ok(0) if !was_empty && self.is_input_left(link) => {
                                was_empty = true;
                                continue;
                            }
                            Ok(0) => self.input_ended(link, "connection closed by the peer"),
                            Ok(count) => {
                                link.note_heard();
                                rx.receiver.took(count);
                                Step::Data(count)
                            }
                            Err(error) => Self::read_failed(link, &error),
                        };
                    }
                }
                Piece::Incomplete => {}
            }
            match rx.inbox.fill(INBOX_READ_BYTES, |room| link.receive(room, waiting)) {
                Ok(0) if !was_empty && self.is_input_left(link) => was_empty = true,
                Ok(0) => return self.input_ended(link, "connection closed by the peer"),
                Ok(_) => {
                    was_empty = false;
                    link.note_heard();
                }
                Err(error) => {
                    rx.inbox.shrink();
                    return Self::read_failed(link, &error);
                }
            }
        }
    }

    /// The application has read something: lets the peer forget it.
    pub(super) fn consumed(&self, rx: MutexGuard<'_, Rx>) {
        let consumed_offset = rx.consumed_offset();
        self.received_offset.store(consumed_offset, Ordering::Release);
        let acks = rx.link.as_ref().is_some_and(|link| link.mode().is_acked_by_peer());
        drop(rx);
        if acks {
            let told_offset = self.ack_told_offset.load(Ordering::Relaxed);
            if consumed_offset.saturating_sub(told_offset) >= ACK_BYTES {
                self.send_ack();
            } else {
                Helper::get().flush_soon(self);
            }
        }
    }

    /// The peer's stream ends there. False if that cannot be.
    pub(super) fn peer_ends_at(&self, rx: &mut Rx, end_offset: u64) -> bool {
        let possible = rx.receiver.ends_at(end_offset);
        if rx.receiver.is_complete() {
            self.peer_end_received.store(true, Ordering::Release);
        }
        possible
    }

    /// Input of the present link only, backlog aside.
    fn read_live(
        &self,
        rx: &mut Rx,
        link: &Arc<Link>,
        buffer: &mut [u8],
        waiting: &mut Waiting<'_, '_>,
    ) -> Step {
        if rx.receiver.is_framed() {
            return self.framed_step(rx, link, buffer, waiting);
        }
        if !rx.inbox.is_empty() {
            let count = rx.inbox.read(buffer);
            rx.inbox.shrink();
            rx.receiver.took(count);
            return Step::Data(count);
        }
        let mut received = link.receive(buffer, waiting);
        if matches!(received, Ok(0)) && self.is_input_left(link) {
            received = link.receive(buffer, waiting);
        }
        self.plain_step(rx, link, received)
    }

    /// What was received outside of frames.
    fn plain_step(&self, rx: &mut Rx, link: &Arc<Link>, received: io::Result<usize>) -> Step {
        match received {
            Ok(0) if link.is_fin_received(rx.link_read_bytes) => {
                let end_offset = rx.receiver.next_offset();
                self.peer_ends_at(rx, end_offset);
                Step::End
            }
            Ok(0) => self.input_ended(link, "end of input without an end of the stream"),
            Ok(count) => {
                rx.link_read_bytes += count as u64;
                rx.receiver.took(count);
                Step::Data(count)
            }
            Err(error) => Self::read_failed(link, &error),
        }
    }
}
