//! Changing the link: losing one, and carrying on with the next.

use super::fruitless::Fruitless;
use super::gap::{self, Gap};
use super::memory::ROOM_BYTES_FIRST;
use super::opening::{NoWelcome, Opening};
use super::rx::{EndedByPeer, Segment};
use super::{Ctl, Engine, EventKind, Farewell, Helper, Link, Role, Rx, Tx};
use crate::error::{Error, Result};
use crate::proto::{ClientHandshake, Happening, LinkMode, OffsetError, State};
use crate::sys;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// By how much a send queue can exceed SO_SNDBUF: one segment of the largest kind, rounded up (54.6 KB were seen).
const QUEUE_OVERSHOOT_BYTES: u64 = 64 << 10;

/// Where this endpoint stands, for a handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// The next byte expected from the peer.
    pub next_offset: u64,
    /// The earliest byte that can be sent again.
    pub retained_offset: u64,
    /// The end of what was ever given to a link.
    pub sent_offset: u64,
    /// Where our own stream ends, once it has.
    pub end_offset: Option<u64>,
}

/// Where the peer stands, from its handshake message, and what came behind that message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerPosition<'a> {
    pub next_offset: u64,
    pub end_offset: Option<u64>,
    pub receive_buffer_bytes: u64,
    /// Received behind the message.
    pub rest: &'a [u8],
    /// Received on the link in all.
    pub read_bytes: u64,
    /// It takes urgent bytes.
    pub takes_urgent: bool,
}

/// A link that was taken out of service.
pub(super) struct Taken {
    link: Arc<Link>,
    stuck_for: Duration,
    /// What an opening link has brought instead of a Welcome.
    answer: Option<NoWelcome>,
}

/// There is no link now.
pub(super) struct Retired {
    pub(super) position: Position,
    /// For a client: what its opening link has brought instead of a Welcome.
    pub(super) answer: Option<(Arc<Link>, NoWelcome)>,
}

impl Engine {
    /// The link broke. The first to notice takes it away from both halves and has it replaced.
    pub(crate) fn lost(&self, link: &Arc<Link>, cause: &str) {
        // Killing it wakes its reader, which has another idea of what happened and may be here first.
        let cause = link.blame(cause);
        let stuck_for = link.stuck_for();
        link.kill();
        let mut ctl = self.ctl.lock();
        if !ctl.link.as_ref().is_some_and(|present| Arc::ptr_eq(present, link)) {
            return;
        }
        let (answer, delivered, complete) = {
            let mut tx = self.tx.lock();
            let mut rx = self.rx.lock();
            if let Some(ended) = rx.ended_by_peer {
                tx.sender.end_acked();
                if ended == EndedByPeer::Goodbye && self.role == Role::Client {
                    ctl.farewell = Farewell::Heard;
                }
            }
            let answer = self.unload(&mut ctl, &mut tx, &mut rx, link);
            let passed = (tx.sender.acked_offset(), rx.receiver.next_offset());
            // Longer than this it was not stuck: it had nothing to carry, and was not heard for that.
            let detect_timeout = self.config.detect_timeout;
            let stuck_for = stuck_for.min(detect_timeout.saturating_mul(2));
            // In some modes a peer that does not answer is asked after half of that.
            let owes = tx.sender.acked_offset() < tx.sender.end_offset();
            let notices_after = owes.then(|| detect_timeout * 3 / 4);
            ctl.client.fruitless.lost(passed, stuck_for, notices_after, Instant::now());
            (answer, tx.sender.is_delivered(), rx.receiver.is_complete())
        };
        ctl.link = None;
        ctl.last_peer = Some(link.peer_addr);
        if delivered && complete && (self.role == Role::Server || ctl.farewell == Farewell::Heard) {
            // Both ends are through with each other, and a client that does not know is told when it comes.
            self.conclude(ctl, Happening::Finished);
            return;
        }
        if delivered && !complete && ctl.released {
            // The application has let go and nothing of it is missing.
            self.conclude(ctl, Happening::Abandoned);
            return;
        }
        self.mark_lost(&mut ctl, cause, stuck_for);
        drop(ctl);
        gap::reached(Gap::LostUntold, self);
        if let Some(answer) = answer {
            self.act_on_refusal(answer, link);
        }
        self.note_without_link(link.epoch);
    }

    /// The session has no link any more, as the one of this epoch is gone, or was to be the next one and is none: others hear of it.
    pub(super) fn note_without_link(&self, epoch: u64) {
        let hooks = {
            let ctl = self.ctl.lock();
            self.changed.notify_all();
            ctl.hooks.clone()
        };
        if let (Some(hooks), Some(engine)) = (hooks, self.arc()) {
            hooks.lost(&engine, epoch);
        }
    }

    fn mark_lost(&self, ctl: &mut Ctl, cause: &str, stuck_for: Duration) {
        // An opening that has to be tried again is no outage yet.
        let now = Instant::now();
        ctl.lost_at.get_or_insert(now);
        ctl.paused_at.get_or_insert(now.checked_sub(stuck_for).unwrap_or(now));
        let connected = ctl.life.state() == State::Connected;
        self.happens(ctl, Happening::LinkLost);
        if connected {
            ctl.outages += 1;
            self.emit(ctl, EventKind::Lost { cause: cause.to_owned() });
        }
    }

    /// Takes a link away from both halves. What it has received and nobody has read stays readable, and counts. If it
    /// was an opening link and not welcomed: the answer that it has brought, to be dealt with without any lock.
    fn unload(&self, ctl: &mut Ctl, tx: &mut Tx, rx: &mut Rx, link: &Arc<Link>) -> Option<NoWelcome> {
        // PROTOCOL 3.5: first freeze, then count, then tell.
        let frozen = link.freeze();
        // Whatever was to become of it: it does not end in order.
        let _ = sys::reset_on_close(&**link, true);
        let answer = self.last_look(ctl, tx, rx, link);
        // The last word of the kernel on what the peer has; it keeps its count on a dead socket.
        self.learn_acked(tx);
        tx.link = None;
        self.put_back(tx);
        tx.sender.unlink();
        if self.role == Role::Server {
            // Whoever comes back finds what was under way; what comes of the application meanwhile has to wait.
            Self::limit_room(tx, ROOM_BYTES_FIRST);
        }
        rx.link = None;
        rx.ended_by_peer = None;
        // Before its Welcome a link has brought nothing of the stream.
        let opening = rx.opening.take().is_some();
        if opening || rx.receiver.is_framed() {
            rx.inbox.clear();
        } else {
            let inbox = std::mem::take(&mut rx.inbox);
            if !inbox.is_empty() {
                rx.backlog_bytes += inbox.len() as u64;
                rx.receiver.took(inbox.len());
                rx.backlog.push_back(Segment::Bytes(inbox));
            }
            let fin_received = sys::unread_bytes(&**link).is_ok_and(|unread_bytes| {
                let received_bytes = rx.link_read_bytes + unread_bytes;
                sys::tcp_info(&**link).is_ok_and(|info| info.bytes_received == received_bytes + 1)
            });
            let comes_again = link.mode().is_acked_by_peer();
            let unread = frozen.and_then(|()| sys::unread_bytes(&**link));
            let counted = match unread {
                // Only the peer itself says what it may forget there: what is not counted comes again.
                Ok(left_bytes) if comes_again && left_bytes > 0 => {
                    let has_room = rx.backlog_bytes < self.backlog_bytes_max();
                    if has_room {
                        rx.keep_unread(link, left_bytes);
                    }
                    has_room
                }
                Ok(left_bytes) => {
                    rx.keep_unread(link, left_bytes);
                    true
                }
                Err(_) if comes_again => false,
                Err(error) => {
                    // What comes after this moment is acknowledged, and lost: less than all of it.
                    tracing::warn!(session = %self.id, %error, "cannot freeze a link");
                    let known_bytes = sys::unread_bytes(&**link).unwrap_or(u64::MAX);
                    rx.take_unread(link, u64::MAX) >= known_bytes
                }
            };
            if fin_received && counted {
                // The peer's end is behind all that: it need not come again.
                let end_offset = rx.receiver.next_offset();
                self.peer_ends_at(rx, end_offset);
            }
        }
        if self.is_read_shut() {
            // Counted, as the peer's kernel has been told, and not wanted.
            rx.drop_input();
            self.received_offset.store(rx.consumed_offset(), Ordering::Release);
        }
        rx.link_read_bytes = 0;
        answer
    }

    /// Where this endpoint stands. Only final while there is no link.
    pub(crate) fn position(&self) -> Position {
        let tx = self.tx.lock();
        let rx = self.rx.lock();
        Position {
            next_offset: rx.receiver.next_offset(),
            retained_offset: tx.sender.retained_offset(),
            sent_offset: tx.sender.sent_offset_max(),
            end_offset: tx.sender.is_ended().then(|| tx.sender.end_offset()),
        }
    }

    /// Whether the stream could be continued where the peer says it is, as far as can be told with a link in use.
    pub(crate) fn could_continue_at(&self, peer_offset: u64) -> bool {
        let tx = self.tx.lock();
        (tx.sender.acked_offset().min(tx.sender.retained_offset())..=tx.sender.sent_offset_max())
            .contains(&peer_offset)
    }

    /// Takes the present link out of service for a better one, and says where this endpoint stands.
    pub(super) fn retire(&self, ctl: &mut Ctl, cause: &str) -> Retired {
        let mut answer = None;
        if let Some(old) = self.take_link(ctl) {
            self.mark_lost(ctl, cause, old.stuck_for);
            answer = old.answer.map(|answer| (old.link, answer));
        }
        Retired { position: self.position(), answer }
    }

    /// Takes the present link, if there is one, away from both halves.
    pub(super) fn take_link(&self, ctl: &mut Ctl) -> Option<Taken> {
        // Before anything is waited for: a writer or a reader at work is done the sooner.
        ctl.link.as_ref()?.kill();
        self.take_link_from(ctl, &mut self.tx.lock())
    }

    /// As [`take_link`](Self::take_link), with the writers held up already.
    fn take_link_from(&self, ctl: &mut Ctl, tx: &mut Tx) -> Option<Taken> {
        let link = ctl.link.take()?;
        ctl.last_peer = Some(link.peer_addr);
        self.service_linked(ctl);
        let stuck_for = link.stuck_for();
        // Wakes a reader that is asleep with its lock.
        link.kill();
        let answer = self.unload(ctl, tx, &mut self.rx.lock(), &link);
        Some(Taken { link, stuck_for, answer })
    }

    /// Puts a new link into service.
    ///
    /// `head` (a Welcome, or the Hello of an opening) goes out before any payload. With `awaiting` this is a
    /// client's opening link: it carries data at once, and its Welcome is still to come.
    ///
    /// # Errors
    /// The session has failed, or the peer's position cannot be continued from: then nothing is changed.
    pub(crate) fn install(
        &self,
        ctl: &mut Ctl,
        link: &Arc<Link>,
        peer: &PeerPosition<'_>,
        head: &[u8],
        awaiting: Option<Box<ClientHandshake>>,
    ) -> Result<()> {
        let opening = awaiting.is_some();
        let resent_bytes = {
            let mut tx = self.tx.lock();
            let mut rx = self.rx.lock();
            if let Some(failure) = &tx.failure {
                return Err(failure.clone());
            }
            if link.mode() == LinkMode::Window {
                tx.sender.set_retain_bytes_max(self.config.retain_bytes_max);
            }
            let window = self.window_bytes(link, peer.receive_buffer_bytes);
            let confirmed = !opening;
            let linked = tx.sender.link(link.mode(), window, peer.next_offset, confirmed);
            let resent_bytes = match linked {
                Ok(bytes) => bytes,
                Err(error) => return Err(self.offset_error(error, &link.peer_addr.to_string())),
            };
            tx.sender.peer_takes_urgent(peer.takes_urgent);
            tx.sender.push_head(head);
            tx.link = Some(link.clone());
            rx.receiver.link(link.mode());
            rx.inbox.clear();
            rx.inbox.extend(peer.rest);
            rx.link_read_bytes = peer.read_bytes;
            rx.opening = awaiting.map(Opening::Waiting);
            rx.link = Some(link.clone());
            if let Some(end_offset) = peer.end_offset
                && end_offset == rx.receiver.next_offset()
            {
                self.peer_ends_at(&mut rx, end_offset);
            }
            self.ack_told_offset.store(rx.consumed_offset(), Ordering::Relaxed);
            resent_bytes
        };
        if link.mode() == LinkMode::Inband {
            Helper::get().listen_to(self, link);
        }
        ctl.link = Some(link.clone());
        self.service_linked(ctl);
        // The helper has the kernel watch over the link, which may be full from its first moment on and never get rid of
        // anything.
        self.list_idle();
        ctl.epoch = link.epoch;
        ctl.reconnecting = false;
        if !opening {
            self.mark_connected(ctl, link, resent_bytes);
        }
        Ok(())
    }

    /// PROTOCOL 3.17: the peer knows since when nothing has passed. A client may have heard something since then: its kernel was
    /// answered, while what the server had to say waited. A server that has nothing under way notices nothing at all.
    pub(crate) fn hear_of_pause(&self, ctl: &mut Ctl, paused_ms: Option<u64>) {
        let paused = paused_ms.map(Duration::from_millis).filter(|paused| *paused < self.opened_at.elapsed());
        let told_at = paused.and_then(|paused| Instant::now().checked_sub(paused));
        ctl.paused_at = ctl.paused_at.map(|at| told_at.map_or(at, |told_at| told_at.min(at)));
    }

    /// Books the end of an outage, or the first connection.
    pub(crate) fn mark_connected(&self, ctl: &mut Ctl, link: &Arc<Link>, resent_bytes: u64) {
        let first = ctl.life.state() == State::Opening;
        self.happens(ctl, if first { Happening::Welcomed } else { Happening::Resumed });
        let (epoch, mode, peer) = (link.epoch, link.mode(), link.peer_addr);
        ctl.lost_at = None;
        let paused_at = ctl.paused_at.take();
        ctl.client.fruitless.linked(paused_at, Instant::now());
        let pause = paused_at.map(|at| at.elapsed());
        if first {
            self.emit(ctl, EventKind::Connected { epoch, mode, peer });
        } else {
            let pause = pause.unwrap_or_default();
            ctl.pause_longest = ctl.pause_longest.max(pause);
            ctl.pause_total += pause;
            self.emit(ctl, EventKind::Resumed { epoch, mode, pause, resent_bytes, peer });
        }
    }

    /// After [`install`](Self::install), without any lock: sends what is pending and wakes who waited.
    pub(crate) fn resume_io(&self) {
        self.flush();
        self.tell_end();
        self.wake_all();
        self.watch_end();
        let released = {
            let ctl = self.ctl.lock();
            ctl.link.clone().filter(|_| ctl.released)
        };
        if let Some(link) = released {
            Helper::get().attend(self, &link);
        }
    }

    /// Whether the ring can hold a window as large as the peer's buffer makes it.
    pub(crate) fn holds_window(config: &crate::Config, link: &Link, peer_receive_buffer_bytes: u64) -> bool {
        let send_buffer_bytes = sys::buffer_bytes(link).map_or(0, |(send, _)| send);
        let needed_bytes = send_buffer_bytes
            .saturating_add(peer_receive_buffer_bytes)
            .saturating_add(2 * QUEUE_OVERSHOOT_BYTES);
        needed_bytes <= config.retain_bytes_max as u64
    }

    /// How much the two kernels can hold between this end and the peer's application (`window` mode).
    pub(crate) fn window_bytes(&self, link: &Link, peer_receive_buffer_bytes: u64) -> u64 {
        if link.mode() != LinkMode::Window {
            return 0;
        }
        let send_buffer_bytes = sys::buffer_bytes(link).map_or(0, |(send, _)| send);
        send_buffer_bytes.saturating_add(peer_receive_buffer_bytes).saturating_add(QUEUE_OVERSHOOT_BYTES)
    }

    /// A position of the peer that cannot be continued from, as an error for people.
    pub(crate) fn offset_error(&self, error: OffsetError, peer: &str) -> Error {
        match error {
            OffsetError::Forgotten { peer_offset, retained_offset } => Error::BytesMissing {
                id: self.id,
                missing_bytes: retained_offset - peer_offset,
                delivered_offset: peer_offset,
            },
            OffsetError::Future { .. } => Error::Protocol { peer: peer.to_owned(), what: error.to_string() },
        }
    }

    /// The peer has taken in everything before `offset` (`inband`, `udp`).
    pub(crate) fn peer_acked(&self, offset: u64) {
        let mut tx = self.tx.lock();
        if tx.sender.acked(offset).is_err() {
            let link = tx.link.clone();
            drop(tx);
            if let Some(link) = link {
                self.lost(&link, "the peer acknowledged bytes that were never sent");
            }
            return;
        }
        drop(tx);
        if self.writer_is_stalled() && self.writer_waits.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Drops the link of a quiet session; the next byte brings a new one. False if the session is not quiet.
    pub(crate) fn passivate(&self) -> Result<bool> {
        self.check_alive()?;
        if self.role == Role::Server {
            return Err(Error::Config(
                "only the client can passivate a session: only it can make links".into(),
            ));
        }
        let mut ctl = self.ctl.lock();
        let Some(link) = ctl.link.clone() else { return Ok(ctl.life.state() == State::Passive) };
        {
            // Until the link is taken away: what is written then finds the session passive, and wakes it.
            let mut tx = self.tx.lock();
            self.learn_acked(&mut tx);
            // All that is left of it is that the server lets it go, on this link. A reader who is asleep with the lock
            // has not read the peer's end.
            let through =
                tx.sender.is_delivered() && self.rx.try_lock().is_some_and(|rx| rx.receiver.is_complete());
            let quiet = ctl.life.state() == State::Connected
                && !through
                && !tx.sender.is_lent()
                && !tx.sender.has_output()
                && (tx.sender.acked_offset() == tx.sender.end_offset() || link.mode() == LinkMode::Window)
                && (link.mode() != LinkMode::Window
                    || sys::unacked_bytes(&*link).is_ok_and(|bytes| bytes == 0))
                && sys::unread_bytes(&*link).is_ok_and(|bytes| bytes == 0);
            if !quiet {
                drop((tx, ctl));
                // Nobody reads or writes, perhaps: what there is to hear from the peer is taken in, or asked for, here.
                self.pump_input();
                return Ok(false);
            }
            gap::reached(Gap::FoundQuiet, self);
            self.take_link_from(&mut ctl, &mut tx);
        }
        self.happens(&mut ctl, Happening::Passivated);
        self.emit(&ctl, EventKind::Passivated);
        drop(ctl);
        // The link may have had something after all, and nobody looks at its descriptor any more. Who reads wakes the session.
        if self.rx.try_lock().is_some_and(|rx| rx.receiver.is_complete() || rx.backlog_bytes > 0) {
            self.wake_reader();
        }
        // What the link has left may have been the end.
        self.check_over();
        Ok(true)
    }

    /// A passive session is wanted again.
    pub(crate) fn wake_passive(&self) {
        let mut ctl = self.ctl.lock();
        if ctl.life.state() != State::Passive {
            return;
        }
        self.happens(&mut ctl, Happening::Woken);
        ctl.lost_at = Some(Instant::now());
        ctl.paused_at = ctl.lost_at;
        ctl.client.fruitless = Fruitless::default();
        let (hooks, epoch) = (ctl.hooks.clone(), ctl.epoch);
        drop(ctl);
        if let (Some(hooks), Some(engine)) = (hooks, self.arc()) {
            hooks.lost(&engine, epoch);
        }
    }
}
