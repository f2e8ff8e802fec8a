//! How the helper looks at one session.

use super::super::memory::ROOM_BYTES_FIRST;
use super::super::{Engine, Farewell, Link, Pumped, Role};
use crate::proto::LinkMode;
use mio::Interest;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// With something under way that nobody answers for so long, a client tries a second link beside the first.
const SECOND_LINK_AFTER: Duration = Duration::from_secs(1);

/// A writer that waits for the peer is looked after with every tick so often, then with every eighth, ...
const LOOKS_OFTEN: u32 = 200;
/// ... and from here on with every 32nd.
const LOOKS_SELDOM: u32 = 2000;

/// What a look at a session came to that has sent something.
pub(super) enum Idle {
    /// In use: look again later.
    Busy,
    /// The peer does not answer what was sent. Look again later.
    Stuck,
    /// The peer has not answered for too long.
    Unanswered(Arc<Link>),
    /// The server does not answer the opening.
    Unwelcome(Arc<Link>),
    /// Everything is acknowledged, or nothing can be learned.
    Forget,
    /// The link still owes acknowledgements: watch it.
    Unacked {
        link: Arc<Link>,
        interest: Interest,
        /// And look again later.
        again: bool,
    },
}

impl Engine {
    /// For a writer that waits: acknowledgements are looked for. True if there is room now.
    pub(super) fn make_room(&self) -> bool {
        self.pump_input();
        let room = {
            let mut tx = self.tx();
            self.learn_acked(&mut tx);
            self.want_room(&mut tx, 1);
            tx.sender.room_bytes() > 0
        };
        if room || self.is_over() {
            self.looks_in_vain.store(0, Ordering::Relaxed);
            self.writer_waits.store(false, Ordering::Release);
            self.wake_all();
            return true;
        }
        self.look_for_standstill();
        false
    }

    /// Whether a writer that waits for room is not looked at this time: for long in vain, less often.
    pub(super) fn rests_from_looks(&self) -> bool {
        if !self.writer_is_stalled() {
            return false;
        }
        let looks = self.looks_in_vain.fetch_add(1, Ordering::Relaxed);
        let every = match looks {
            0..LOOKS_OFTEN => 1,
            LOOKS_OFTEN..LOOKS_SELDOM => 8,
            _ => 32,
        };
        !looks.is_multiple_of(every)
    }

    /// Looks at a session that has sent something since it was last idle.
    pub(super) fn check_idle(&self) -> Idle {
        let Some(mut tx) = self.tx.try_lock() else { return Idle::Busy };
        let mut has_output = false;
        if let Some(link) = &tx.link {
            link.guard(self.config.detect_timeout);
            match link.look_at_unanswered(self.config.detect_timeout) {
                Some(true) => return Idle::Unanswered(link.clone()),
                looked => has_output = looked.is_some(),
            }
        }
        if let Some(link) = &tx.link
            && !tx.sender.is_confirmed()
        {
            // Nothing can be forgotten before the Welcome.
            return if link.age() < self.config.handshake_timeout {
                Idle::Busy
            } else {
                Idle::Unwelcome(link.clone())
            };
        }
        if self.role == Role::Client
            && let Some(link) = tx.link.clone()
            && link.is_stuck(SECOND_LINK_AFTER)
        {
            link.wait_anew();
            return Idle::Stuck;
        }
        let end_offset = tx.sender.end_offset();
        if tx.idle_end_offset != end_offset {
            tx.idle_end_offset = end_offset;
            return Idle::Busy;
        }
        self.learn_acked(&mut tx);
        let acked = tx.sender.retained_bytes() == 0;
        if acked {
            if tx.hold.as_ref().is_some_and(|hold| hold.is_sent()) {
                tx.hold = None;
            }
            tx.sender.shrink();
            if tx.link.as_ref().is_none_or(|link| link.mode() != LinkMode::Window) {
                // A sender that has much to send again asks again.
                Self::limit_room(&mut tx, ROOM_BYTES_FIRST);
            }
        }
        let idle = match &tx.link {
            Some(link) if !acked => {
                let interest = match link.mode() {
                    // Acknowledgements come with the input.
                    LinkMode::Inband => Interest::READABLE,
                    LinkMode::Kernel | LinkMode::Window | LinkMode::Udp => Interest::PRIORITY,
                };
                // Kernels have to be asked, and datagrams get lost; what nobody answers may be stuck, and a peer may take
                // in nothing for a long time.
                let again = has_output || matches!(link.mode(), LinkMode::Kernel | LinkMode::Udp);
                Idle::Unacked { link: link.clone(), interest, again }
            }
            // Without a link there is nothing to learn; the next link lists the session again.
            _ => Idle::Forget,
        };
        if !matches!(idle, Idle::Unacked { again: true, .. }) {
            self.idle_listed.store(false, Ordering::Release);
        }
        idle
    }

    /// Something has happened on a watched link. True when the session has no more use for the helper.
    pub(super) fn attend(&self, link: &Arc<Link>, ended: bool) -> bool {
        if self.ctl().released && self.linger_step() {
            return true;
        }
        let pumped = self.pump_input();
        // What had come before the end is taken in first: it may say why.
        if ended && pumped != Pumped::Some && !link.is_dead() && link.is_broken() {
            self.lost(link, "connection lost while the application did nothing");
        }
        false
    }

    /// More input was there than could be taken in at once.
    pub(super) fn pump_again(&self) {
        self.pump_listed.store(false, Ordering::Release);
        self.pump_input();
    }

    /// Whether input is looked for on the application's behalf.
    pub(super) fn needs_input(&self) -> bool {
        let last_words = {
            let ctl = self.ctl();
            ctl.released || matches!(ctl.farewell, Farewell::Awaited { .. })
        };
        last_words || self.tx.try_lock().is_none_or(|tx| tx.sender.retained_bytes() > 0)
    }

    pub(super) fn is_stuck(&self) {
        let hooks = self.ctl().hooks.clone();
        if let (Some(hooks), Some(engine)) = (hooks, self.arc()) {
            hooks.stuck(&engine);
        }
    }

    pub(super) fn network_changed(&self) {
        let hooks = self.ctl().hooks.clone();
        if let (Some(hooks), Some(engine)) = (hooks, self.arc()) {
            hooks.network_changed(&engine);
        }
    }
}
