//! Acknowledgement datagrams of the `udp` mode (Ekwall, Urbán, Schiper 2002): the stream stays bare, what was read is
//! told beside it.
//!
//! # Who sends what
//! * The receiving side sends an Ack every 256 KiB and when it falls idle, and a HalfClose when its application has
//!   read the end: again and again until it is confirmed, even after the session is over on this side.
//! * A client repeats its last Ack until that is confirmed, too: the server's questions may not find their way through a
//!   NAT, which lets answers in (PROTOCOL 5.6).
//! * The sending side asks ([`Engine::request_ack`]) when it waits for the peer and hears nothing.
//! * Both are answered by the helper thread, whatever the applications are doing.
//!
//! One socket serves many sessions: one for every listener, and for clients one for every network namespace and
//! address family. Whatever is not for a living session, of its present link, with its MAC, is counted and dropped.

mod mailbox;

pub(crate) use mailbox::Mailbox;

use super::rx::Rx;
use super::{Ctl, Engine, Farewell, Helper, Role};
use crate::proto::{Datagram, DatagramKind, LinkMode, State};
use crate::sys;
use mailbox::{LastAnswer, Recipient};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What has to arrive is sent again so often, and a waiting sender asks so often.
pub(crate) const REPEAT: Duration = Duration::from_millis(50);
/// After so many repetitions the peer is not there, or the path is blocked: go on, but seldom.
const REPEATS_QUICK: u32 = 40;
const REPEAT_SELDOM: Duration = Duration::from_secs(1);
/// In all: about as long as TCP tries to get rid of the last bytes of an orphan.
const REPEATS_SELDOM: u32 = 60;
const REPEATS_MAX: u32 = REPEATS_QUICK + REPEATS_SELDOM;
/// Before the next repetition.
fn pause_after(repeats: u32) -> Duration {
    if repeats < REPEATS_QUICK { REPEAT } else { REPEAT_SELDOM }
}

/// No position of a stream (PROTOCOL 1.6).
const NOWHERE: u64 = u64::MAX;

/// What a session remembers of its datagrams.
#[derive(Debug)]
pub(crate) struct UdpState {
    /// Where the peer's stream ends, once that was read; till then [`NOWHERE`]. Not under `rx`: the peer has to hear of
    /// it whoever holds that, as this process may be about to exit.
    end_read_offset: AtomicU64,
    /// The peer was told that the end was read, on this link.
    end_told_epoch: AtomicU64,
    /// And has confirmed it.
    end_confirmed_epoch: AtomicU64,
    /// What the server has confirmed to know to be read, and whether it is told until then.
    ack_confirmed_offset: AtomicU64,
    ack_repeats: AtomicBool,
    /// When we last asked for an acknowledgement, or found nothing missing.
    asked_ms: AtomicU64,
    /// Since when we ask and nothing at all is heard; 0: not.
    silent_since_ms: AtomicU64,
    warned: AtomicBool,
}

impl Default for UdpState {
    fn default() -> Self {
        Self {
            end_read_offset: AtomicU64::new(NOWHERE),
            end_told_epoch: AtomicU64::new(0),
            end_confirmed_epoch: AtomicU64::new(0),
            ack_confirmed_offset: AtomicU64::new(0),
            ack_repeats: AtomicBool::new(false),
            asked_ms: AtomicU64::new(0),
            silent_since_ms: AtomicU64::new(0),
            warned: AtomicBool::new(false),
        }
    }
}

impl Ctl {
    /// The port to tell the peer, in `udp` mode.
    pub(crate) fn udp_port(&self, mode: LinkMode) -> Option<u16> {
        self.mailbox.as_ref().filter(|_| mode == LinkMode::Udp).map(|mailbox| mailbox.port())
    }
}

impl Engine {
    /// Has the session's datagrams delivered from `mailbox`.
    pub(crate) fn use_mailbox(&self, ctl: &mut Ctl, mailbox: Arc<Mailbox>) {
        mailbox.enter(self.id, Recipient::living(self.weak()));
        ctl.mailbox = Some(mailbox);
    }

    /// A client's, for a new link to `peer`: whichever thread makes it, the peer sees that one's network namespace.
    pub(crate) fn need_client_mailbox(&self, ctl: &mut Ctl, peer: SocketAddr) -> io::Result<()> {
        let mailbox = Mailbox::for_client(peer)?;
        if !ctl.mailbox.as_ref().is_some_and(|known| Arc::ptr_eq(known, &mailbox)) {
            self.use_mailbox(ctl, mailbox);
        }
        Ok(())
    }

    /// Sends, as far as the peer's address is known; may be lost like any datagram.
    fn send_datagram(&self, ctl: &Ctl, kind: DatagramKind, offset: u64, needs_confirm: bool) {
        let (Some(mailbox), Some(port)) = (&ctl.mailbox, ctl.peer_udp_port) else { return };
        let Some(mut peer) = ctl.link.as_ref().map(|link| link.peer_addr).or(ctl.last_peer) else { return };
        peer.set_port(port);
        let datagram = Datagram { kind, needs_confirm, id: self.id, epoch: ctl.epoch, offset };
        let encoded = datagram.encode(ctl.key.as_ref(), self.role == Role::Client);
        if let Err(error) = mailbox.send(&encoded, peer) {
            tracing::debug!(session = %self.id, %peer, %error, "cannot send a datagram");
        }
    }

    /// Tells the peer what was read.
    pub(crate) fn send_datagram_ack(&self) {
        let ctl = self.ctl.lock();
        self.send_datagram(&ctl, DatagramKind::Ack, self.received_offset.load(Ordering::Acquire), false);
        if self.role == Role::Client && !self.udp.ack_repeats.swap(true, Ordering::AcqRel) {
            Helper::get().repeat_ack(self);
        }
    }

    /// A client tells its server once more what was read, and wants to know that it was heard. The pause before the next
    /// time, or none when that is enough.
    pub(crate) fn repeat_ack(&self, repeats: u32) -> Option<Duration> {
        let ctl = self.ctl.lock();
        let offset = self.received_offset.load(Ordering::Acquire);
        let confirmed = self.udp.ack_confirmed_offset.load(Ordering::Relaxed) >= offset;
        // The end is told for itself, and another link tells in its handshake.
        let is_udp = ctl.link.as_ref().is_some_and(|link| link.mode() == LinkMode::Udp);
        if confirmed || !is_udp || self.end_read_offset().is_some() || repeats >= REPEATS_MAX {
            self.udp.ack_repeats.store(false, Ordering::Release);
            return None;
        }
        self.send_datagram(&ctl, DatagramKind::Ack, offset, true);
        Some(pause_after(repeats))
    }

    /// The application may have read the end of the stream: then the peer is told, until it confirms.
    pub(crate) fn tell_end(&self) {
        self.tell_end_on(&self.ctl.lock());
    }

    /// As [`tell_end`](Self::tell_end), on the link that `ctl` has.
    pub(super) fn tell_end_on(&self, ctl: &Ctl) {
        let is_udp = ctl.link.as_ref().is_some_and(|link| link.mode() == LinkMode::Udp);
        if !is_udp || self.udp.end_told_epoch.load(Ordering::Relaxed) >= ctl.epoch {
            return;
        }
        let Some(end_offset) = self.end_read_offset() else { return };
        self.udp.end_told_epoch.store(ctl.epoch, Ordering::Relaxed);
        self.send_end(ctl, end_offset);
        if let Some(engine) = self.arc() {
            Helper::get().repeat_end(engine, ctl.epoch);
        }
    }

    /// Whether the peer has confirmed on the link of `epoch` that it knows that its stream was read to the end.
    pub(super) fn is_end_confirmed(&self, epoch: u64) -> bool {
        self.udp.end_confirmed_epoch.load(Ordering::Relaxed) >= epoch
    }

    /// Takes the end of the peer's stream in when nothing else is left to read: an application that knows how much
    /// there is to read does not look for the end, and its peer waits for it to be acknowledged.
    pub(crate) fn notice_end(&self) {
        let noticed = self.rx.try_lock().is_some_and(|mut rx| {
            let nothing_else = rx.backlog_bytes == 0 && rx.inbox.is_empty() && rx.opening.is_none();
            let is_end = nothing_else
                && !rx.receiver.is_complete()
                && rx.link.as_ref().is_some_and(|link| {
                    link.mode() == LinkMode::Udp && link.is_fin_received(rx.link_read_bytes)
                });
            if is_end {
                let end_offset = rx.receiver.next_offset();
                self.peer_ends_at(&mut rx, end_offset);
                self.wake_reader();
            }
            is_end
        });
        if noticed {
            self.tell_end();
            self.check_over();
        }
    }

    /// Takes note of the end of the peer's stream if the application has read it, or will read no more.
    pub(super) fn note_end_read(&self, rx: &Rx) {
        if rx.receiver.is_complete() && (rx.backlog_bytes == 0 || self.is_read_shut()) {
            self.udp.end_read_offset.store(rx.receiver.next_offset(), Ordering::Release);
        }
    }

    /// Where the peer's stream ends, if that was read.
    fn end_read_offset(&self) -> Option<u64> {
        // A reader at work has the lock: then it is not at the end, or notes it itself.
        if self.udp.end_read_offset.load(Ordering::Acquire) == NOWHERE
            && let Some(rx) = self.rx.try_lock()
        {
            self.note_end_read(&rx);
        }
        Some(self.udp.end_read_offset.load(Ordering::Acquire)).filter(|&offset| offset != NOWHERE)
    }

    fn send_end(&self, ctl: &Ctl, end_offset: u64) {
        self.send_datagram(ctl, DatagramKind::HalfClose, end_offset, true);
    }

    /// Tells the peer once more that the end was read. The pause before the next time, or none when that is enough.
    pub(crate) fn repeat_end(&self, epoch: u64, repeats: u32) -> Option<Duration> {
        let ctl = self.ctl.lock();
        if self.is_end_confirmed(epoch)
            || ctl.epoch != epoch
            || ctl.life.state() == State::Failed
            || repeats >= REPEATS_MAX
        {
            return None;
        }
        self.send_end(&ctl, self.end_read_offset()?);
        Some(pause_after(repeats))
    }

    /// Somebody waits for the peer: asks it how far it is, unless it was asked or heard just now.
    pub(crate) fn request_ack(&self) {
        let now_ms = sys::coarse_now_ms();
        if self.udp.asked_ms.load(Ordering::Relaxed) + super::millis(REPEAT) > now_ms {
            return;
        }
        let ctl = self.ctl.lock();
        if ctl.link.as_ref().is_none_or(|link| link.mode() != LinkMode::Udp) {
            return;
        }
        let first = self.udp.asked_ms.swap(now_ms, Ordering::Relaxed) == 0;
        let (waits, end_sent, sent_offset) = {
            let tx = self.tx.lock();
            let waits = tx.sender.acked_offset() < tx.sender.sent_offset_max()
                || (tx.sender.is_end_sent() && !tx.sender.is_delivered())
                || (ctl.farewell == Farewell::Awaited { epoch: ctl.epoch });
            (waits, tx.sender.is_end_sent(), tx.sender.sent_offset_max())
        };
        if !waits || first {
            self.udp.silent_since_ms.store(0, Ordering::Relaxed);
            return;
        }
        self.send_datagram(&ctl, DatagramKind::RequestAck, sent_offset, false);
        let link = ctl.link.clone();
        let gone = self.note_silence(&ctl, now_ms) && end_sent && self.end_read_offset().is_some();
        drop(ctl);
        if let Some(link) = link.filter(|_| gone) {
            self.udp.silent_since_ms.store(0, Ordering::Relaxed);
            // TCP has ended both ways and tells nothing any more. The handshake of a new link finds out whether the
            // session ended over there, or that there is nobody.
            self.lost(&link, "the end is not acknowledged");
        }
    }

    /// We ask, and nothing comes: something on the way, most likely, which is said once in a session. True when that
    /// has lasted for the time in which a dead link is detected.
    fn note_silence(&self, ctl: &Ctl, now_ms: u64) -> bool {
        let since_ms = self.udp.silent_since_ms.load(Ordering::Relaxed);
        if since_ms == 0 {
            self.udp.silent_since_ms.store(now_ms, Ordering::Relaxed);
            return false;
        }
        let limit_ms = u64::try_from(self.config.detect_timeout.as_millis()).unwrap_or(u64::MAX);
        let overdue = now_ms.saturating_sub(since_ms) >= limit_ms;
        if overdue && !self.udp.warned.swap(true, Ordering::Relaxed) {
            let peer = ctl.link.as_ref().map(|link| link.peer_addr.ip().to_string()).unwrap_or_default();
            tracing::warn!(
                session = %self.id, peer, udp_port = ctl.peer_udp_port,
                "no acknowledgement datagrams arrive: if a firewall drops them, use the mode inband"
            );
        }
        overdue
    }

    /// A datagram that names this session. False if it is not worth anything.
    fn take_datagram(&self, bytes: &[u8], sender: SocketAddr) -> bool {
        let datagram = {
            let mut ctl = self.ctl.lock();
            // PROTOCOL 5.5: until then the client opens, which it does from the first byte.
            if !ctl.welcomed {
                return false;
            }
            // PROTOCOL 5.2
            match Datagram::decode(bytes, ctl.key.as_ref(), self.role == Role::Server) {
                Ok(datagram) if datagram.epoch == ctl.epoch => {
                    self.learn_port(&mut ctl, sender);
                    datagram
                }
                Ok(_) | Err(_) => return false,
            }
        };
        let now_ms = sys::coarse_now_ms();
        let useful = match datagram.kind {
            DatagramKind::Ack => {
                let useful = self.acked_by_datagram(datagram.offset, false);
                if useful && let Some(Datagram { kind, offset, .. }) = datagram.confirmation() {
                    self.send_datagram(&self.ctl.lock(), kind, offset, false);
                }
                useful
            }
            DatagramKind::HalfClose | DatagramKind::Close => {
                let useful = self.acked_by_datagram(datagram.offset, true);
                if useful && let Some(Datagram { kind, offset, .. }) = datagram.confirmation() {
                    let ctl = self.ctl.lock();
                    self.send_datagram(&ctl, kind, offset, false);
                    if ctl.life.is_over() {
                        self.leave_answer(&ctl, datagram, now_ms);
                    }
                }
                useful
            }
            DatagramKind::RequestAck => {
                self.notice_end();
                let ctl = self.ctl.lock();
                if let Some(end_offset) = self.end_read_offset() {
                    self.send_end(&ctl, end_offset);
                } else {
                    let offset = self.received_offset.load(Ordering::Acquire);
                    self.send_datagram(&ctl, DatagramKind::Ack, offset, false);
                }
                true
            }
            DatagramKind::Confirm { of } if of == DatagramKind::HalfClose.number() => {
                self.udp.end_confirmed_epoch.fetch_max(datagram.epoch, Ordering::Relaxed);
                // A client has waited for it.
                self.check_over();
                true
            }
            DatagramKind::Confirm { of } if of == DatagramKind::Ack.number() => {
                self.udp.ack_confirmed_offset.fetch_max(datagram.offset, Ordering::Relaxed);
                true
            }
            // A link that breaks says the same, and cannot be forged from afar.
            DatagramKind::Reset | DatagramKind::Confirm { .. } => false,
        };
        if useful {
            self.udp.silent_since_ms.store(0, Ordering::Relaxed);
            if datagram.kind == DatagramKind::Ack {
                self.udp.asked_ms.store(now_ms, Ordering::Relaxed);
            }
        }
        useful
    }

    /// PROTOCOL 5.6: a server answers where its client's datagrams come from, which a NAT decides.
    fn learn_port(&self, ctl: &mut Ctl, sender: SocketAddr) {
        let peer = ctl.link.as_ref().map(|link| link.peer_addr).or(ctl.last_peer);
        let is_peer = peer.is_some_and(|peer| peer.ip().to_canonical() == sender.ip().to_canonical());
        if self.role == Role::Server && is_peer {
            ctl.peer_udp_port = Some(sender.port());
        }
    }

    /// A server is through, and may be dropped before its client has said that it has read the end, or says so again.
    pub(super) fn expect_end(&self, ctl: &Ctl) {
        let offset = self.tx.lock().sender.end_offset();
        let last_word = Datagram {
            kind: DatagramKind::HalfClose,
            needs_confirm: true,
            id: self.id,
            epoch: ctl.epoch,
            offset,
        };
        self.leave_answer(ctl, last_word, sys::coarse_now_ms());
    }

    /// The session is over, and may be dropped: the answer to its peer's last word stays, in case it is said again.
    fn leave_answer(&self, ctl: &Ctl, last_word: Datagram, now_ms: u64) {
        let Some(mailbox) = &ctl.mailbox else { return };
        let answer = LastAnswer {
            last_word,
            key: ctl.key.clone(),
            is_server: self.role == Role::Server,
            until_ms: now_ms + super::millis(REPEATS_QUICK * REPEAT + REPEATS_SELDOM * REPEAT_SELDOM),
        };
        mailbox.enter(self.id, Recipient::leaving(self.weak(), answer));
    }

    /// The peer has read everything before `offset`, or even the end there. False if that cannot be: anybody can
    /// send a datagram, so the link is not to blame.
    fn acked_by_datagram(&self, offset: u64, with_end: bool) -> bool {
        let mut tx = self.tx.lock();
        if with_end && (!tx.sender.is_ended() || offset != tx.sender.end_offset()) {
            return false;
        }
        if tx.sender.acked(offset).is_err() {
            return false;
        }
        if with_end {
            tx.sender.end_acked();
        }
        drop(tx);
        if with_end {
            self.check_over();
            self.wake_all();
        } else if self.writer_waits.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
        true
    }
}
