//! How a session ends: in order, by an error, or because the application lets go.

use super::abort::reason_for_peer;
use super::{Ctl, Engine, EventKind, Farewell, Helper, Role};
use crate::error::{Error, Result};
use crate::proto::{Frame, Happening, LinkMode, Refusal, State};
use crate::sys;
use parking_lot::MutexGuard;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often `finish` looks: at first, and at the least.
pub(crate) const FINISH_POLL_MIN: Duration = Duration::from_micros(100);
pub(crate) const FINISH_POLL_MAX: Duration = Duration::from_millis(20);

/// How long `finish` waits for a server's last word when everything is delivered: time for a new link.
pub(crate) const FAREWELL_TIMEOUT: Duration = Duration::from_secs(3);

impl Engine {
    /// Ends one direction or both: no more writes, or no more reads.
    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<()> {
        if how != Shutdown::Read {
            let mut tx = self.tx.lock();
            if let Some(failure) = &tx.failure {
                return Err(failure.clone());
            }
            if tx.hold.as_ref().is_some_and(|hold| !hold.is_sent()) {
                self.put_back(&mut tx);
            }
            tx.sender.end();
            drop(tx);
            self.flush();
            self.wake_passive();
        }
        if how != Shutdown::Write {
            self.shut_reading();
        }
        Ok(())
    }

    /// No more reads: one that sleeps gets the end.
    fn shut_reading(&self) {
        self.read_shut.store(true, Ordering::Release);
        let reader = match self.rx.try_lock() {
            Some(rx) => Some(rx),
            None => {
                // A reader is at it, asleep perhaps. The link goes on taking input in for the protocol's sake.
                if let Some(link) = self.link() {
                    sys::shut_read(&*link);
                }
                None
            }
        };
        let mut rx = reader.unwrap_or_else(|| self.rx.lock());
        rx.drop_input();
        self.consumed(rx);
        // A reader without a link waits for a change; the lock orders this after its look at the flag.
        drop(self.ctl.lock());
        self.changed.notify_all();
        self.wake_reader();
    }

    pub(crate) fn is_read_shut(&self) -> bool {
        self.read_shut.load(Ordering::Acquire)
    }

    /// Whether the peer has everything, the end included.
    pub(crate) fn is_delivered(&self) -> bool {
        let mut tx = self.tx.lock();
        self.learn_acked(&mut tx);
        tx.sender.is_delivered()
    }

    /// Whether the session is over: closed in order or failed.
    pub(crate) fn is_over(&self) -> bool {
        self.ctl.lock().life.is_over()
    }

    /// Concludes the session if both directions have ended and arrived. True if it is over.
    pub(crate) fn check_over(&self) -> bool {
        let mut ctl = self.ctl.lock();
        if ctl.life.is_over() {
            return true;
        }
        let done = {
            let mut tx = self.tx.lock();
            if !tx.sender.is_ended() {
                return false;
            }
            self.learn_acked(&mut tx);
            // A reader may be asleep with the lock: then the peer's end has not been read.
            tx.sender.is_delivered()
                && self.rx.try_lock().is_some_and(|rx| rx.receiver.is_complete())
                && self.is_end_told(&mut ctl)
        };
        if done {
            // A reader that is about to send this would find no link.
            self.tell_end_on(&ctl);
            self.say_farewell(&ctl);
            self.conclude(ctl, Happening::Finished);
        }
        done
    }

    /// Whether the peer has heard that its end has arrived, or will on the present link.
    ///
    /// A server need not care: a client that does not know comes back and is told. But nobody can ask a client that has
    /// left, and its server would keep the session: a client without a link makes one more, to end it in order, one whose
    /// link may be cut behind a middlebox stays until the server is through, and one that says it in a datagram until the
    /// server confirms that (PROTOCOL 2.6).
    fn is_end_told(&self, ctl: &mut Ctl) -> bool {
        if self.role == Role::Server || ctl.farewell == Farewell::Heard {
            return true;
        }
        let Some(link) = &ctl.link else { return false };
        match link.mode() {
            LinkMode::Kernel | LinkMode::Window => return true,
            LinkMode::Udp => {
                self.tell_end_on(ctl);
                if self.is_end_confirmed(link.epoch) {
                    return true;
                }
            }
            LinkMode::Inband => {}
        }
        let awaited = Farewell::Awaited { epoch: link.epoch };
        if ctl.farewell != awaited {
            ctl.farewell = awaited;
            // A process that exits now has said all it had to say: its last words are not to be cut off.
            let _ = sys::reset_on_close(&**link, false);
            // The application may have nothing more to ask.
            Helper::get().attend(self, link);
        }
        false
    }

    /// PROTOCOL 2.4: all that this end had to say has arrived, its end included: should the process exit from now on, its link is closed as any other.
    /// A server that has nothing more to say but its end is through then.
    pub(crate) fn may_exit(&self) {
        if let Some(link) = self.link() {
            // Input that is unread resets it all the same.
            let _ = sys::reset_on_close(&*link, false);
        }
    }

    /// For a client all of whose stream has arrived: whether both streams are through, and the server may not have heard
    /// of it. That is so on a link on which it waits for the server's last word, without a link (PROTOCOL 2.6), and for as
    /// long as another thread has the receiving half in hand.
    pub(crate) fn awaits_farewell(&self) -> bool {
        !self.check_over() && self.role == Role::Client && self.peer_end_received.load(Ordering::Acquire)
    }

    /// PROTOCOL 4.8: a server that is through lets its client go.
    fn say_farewell(&self, ctl: &Ctl) {
        if self.role == Role::Server && ctl.link.as_ref().is_some_and(|link| link.mode() == LinkMode::Inband)
        {
            let mut tx = self.tx.lock();
            tx.sender.push_frame(&Frame::Goodbye, self.received_offset.load(Ordering::Relaxed));
            // Without it the client comes back and is told.
            let _ = self.flush_locked(&mut tx);
        }
    }

    /// The server says that it is through with the session.
    pub(super) fn farewell(&self) {
        if self.role == Role::Client {
            // It stands for an EndAck.
            self.tx.lock().sender.end_acked();
            self.ctl.lock().farewell = Farewell::Heard;
            self.check_over();
            self.wake_all();
        }
    }

    /// Whether both streams have arrived up to their ends, as far as this end knows.
    pub(super) fn is_through(&self) -> bool {
        // A reader who is asleep with the lock has not read the peer's end.
        self.tx.lock().sender.is_delivered() && self.rx.try_lock().is_some_and(|rx| rx.receiver.is_complete())
    }

    /// Everything that matters has arrived: closes the link in order.
    pub(crate) fn conclude(&self, mut ctl: MutexGuard<'_, Ctl>, happening: Happening) {
        if ctl.life.is_over() {
            return;
        }
        self.happens(&mut ctl, happening);
        let link = ctl.link.take();
        if let Some(link) = link {
            if self.role == Role::Server && link.mode() == LinkMode::Udp {
                self.expect_end(&ctl);
            }
            let fin_acked = {
                let mut tx = self.tx.lock();
                tx.link = None;
                link.mode() == LinkMode::Kernel && tx.sender.is_end_sent() && tx.sender.is_delivered()
            };
            match self.rx.try_lock() {
                Some(mut rx) => {
                    link.retire();
                    rx.link = None;
                }
                None => {
                    // A reader is asleep with it.
                    link.kill();
                    self.rx.lock().link = None;
                }
            }
            // Where both FINs are through, the connection is closed already and nothing can reset it.
            if !(fin_acked && link.is_fin_seen()) {
                let _ = sys::reset_on_close(&*link, false);
            }
            ctl.last_peer = Some(link.peer_addr);
        }
        self.emit(&ctl, EventKind::Closed);
        self.finish_up(ctl);
    }

    /// The session cannot go on: everybody gets `error`, the link is reset, the peer hears of it if possible.
    pub(crate) fn fail(&self, error: Error) {
        self.fail_with(self.ctl.lock(), error);
    }

    /// The same, by who has looked at how it is, and lets nobody change that before.
    pub(super) fn fail_with(&self, mut ctl: MutexGuard<'_, Ctl>, error: Error) {
        if ctl.life.is_over() {
            return;
        }
        if matches!(error, Error::PatienceExhausted { .. }) && ctl.link.is_some() {
            // It has one again since its patience was looked at.
            return;
        }
        if matches!(error, Error::PatienceExhausted { .. } | Error::Refused { .. }) && self.is_through() {
            // Only the server's word for it was missing, and nothing of the streams.
            self.conclude(ctl, Happening::Finished);
            return;
        }
        let lost = is_lost(&ctl);
        let ended_by_peer =
            matches!(error, Error::Reset { .. } | Error::Refused { refusal: Refusal::Ended { .. }, .. });
        self.happens(&mut ctl, how_it_fails(&error));
        if !ctl.life.is_over() {
            // Whatever it was: those who wait have to hear of it.
            self.happens(&mut ctl, Happening::Killed);
        }
        ctl.failure = Some(error.clone());
        self.note_abort(&mut ctl, &error);
        if let Some(link) = ctl.link.take() {
            let mut tx = self.tx.lock();
            if tx.sender.can_push_frame() {
                let reason = reason_for_peer(&error);
                tx.sender.push_frame(&Frame::reset(&reason), self.received_offset.load(Ordering::Relaxed));
                let _ = self.flush_locked(&mut tx);
            }
            tx.link = None;
            drop(tx);
            // The default of reset_on_close holds: closing resets the connection.
            link.kill();
            ctl.last_peer = Some(link.peer_addr);
        }
        self.tx.lock().failure = Some(error.clone());
        {
            let mut rx = self.rx.lock();
            rx.failure = Some(error.clone());
            rx.link = None;
        }
        ctl.lost_at = None;
        if let Some(at) = ctl.paused_at.take() {
            let pause = at.elapsed();
            ctl.pause_longest = ctl.pause_longest.max(pause);
            ctl.pause_total += pause;
        }
        self.emit(&ctl, EventKind::Failed(error));
        if lost && ended_by_peer {
            ctl.outages = ctl.outages.saturating_sub(1);
        }
        self.finish_up(ctl);
    }

    pub(super) fn finish_up(&self, mut ctl: MutexGuard<'_, Ctl>) {
        let hooks = ctl.hooks.take();
        ctl.events = None;
        self.changed.notify_all();
        self.hurry.notify_waiters();
        drop(ctl);
        if let (Some(hooks), Some(engine)) = (hooks, self.arc()) {
            hooks.over(&engine);
        }
        self.wake_all();
    }

    /// The application lets go of the session. What it wrote is still delivered, in the background if need be.
    pub(crate) fn release(self: &Arc<Self>) {
        if std::thread::panicking() {
            // Nobody has said that this is all.
            self.fail(Error::Killed {
                id: self.id,
                reason: "the program that had it has panicked".to_owned(),
            });
        }
        self.ctl.lock().released = true;
        // An error was reported when it happened.
        let _ = self.shutdown(Shutdown::Both);
        if !self.check_over() {
            Helper::get().linger(self);
        }
    }

    /// In the background, after the application has let go. True when there is nothing left to do.
    pub(crate) fn linger_step(&self) -> bool {
        if self.is_over() {
            return true;
        }
        self.flush();
        self.pump_input();
        self.check_over()
    }

    /// The peer has everything and does not end its side: closes as TCP closes an orphan.
    pub(crate) fn give_up_lingering(&self) {
        self.conclude(self.ctl.lock(), Happening::Abandoned);
    }

    /// `inband`: tells the peer what was read.
    pub(crate) fn send_ack(&self) {
        self.send_control(None);
    }

    /// `inband`: the end of the peer's stream has arrived.
    pub(crate) fn send_end_ack(&self) {
        self.send_control(Some(Frame::EndAck));
    }

    /// `inband`: answers a ping.
    pub(crate) fn send_pong(&self, token: u64) {
        self.send_control(Some(Frame::Pong { token }));
    }

    pub(super) fn send_control(&self, frame: Option<Frame<'_>>) {
        let consumed_offset = self.received_offset.load(Ordering::Acquire);
        let (mut told, mut full) = (true, false);
        let mode = {
            let mut tx = self.tx.lock();
            let Some(link) = &tx.link else { return };
            let mode = link.mode();
            if mode == LinkMode::Inband {
                // The header of the next data frame carries the acknowledgement along, and counts it as told.
                told = frame.is_some() || tx.sender.ready_bytes() == 0;
                // A data frame may have told it meanwhile.
                let news = frame.is_some() || consumed_offset > self.ack_told_offset.load(Ordering::Relaxed);
                if told && news {
                    told = tx.sender.push_frame(&frame.unwrap_or(Frame::Ack), consumed_offset);
                    full = !told;
                }
            }
            mode
        };
        match mode {
            LinkMode::Inband => self.flush(),
            LinkMode::Udp => self.send_datagram_ack(),
            LinkMode::Kernel | LinkMode::Window => {}
        }
        if told {
            self.ack_told_offset.fetch_max(consumed_offset, Ordering::Relaxed);
        } else if full {
            // The link is: what is due is looked for when it takes more.
        } else if self.ack_told_offset.load(Ordering::Relaxed) < consumed_offset {
            Helper::get().flush_soon(self);
        }
    }

    /// Whether the peer should hear what was read since it heard last.
    pub(crate) fn owes_ack(&self) -> bool {
        self.received_offset.load(Ordering::Acquire) > self.ack_told_offset.load(Ordering::Relaxed)
            && self.tx.lock().link.as_ref().is_some_and(|link| link.mode().is_acked_by_peer())
    }
}

/// Whether the last link is lost and was not replaced. If the session is over with that, it was no outage: the peer has let
/// go of both.
fn is_lost(ctl: &Ctl) -> bool {
    matches!(ctl.life.state(), State::Lost | State::Resuming)
}

/// What an error means for the life of a session.
fn how_it_fails(error: &Error) -> Happening {
    match error {
        Error::Killed { .. } => Happening::Killed,
        // Nobody came back in time, or could be reached.
        Error::PatienceExhausted { .. } | Error::Expired { .. } | Error::Shed { .. } => Happening::GaveUp,
        _ => Happening::Refused,
    }
}
