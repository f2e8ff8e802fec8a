//! Links of mode `inband`: noticing that nobody is behind whatever terminates TCP on the way.
//!
//! One look at all of them, a quarter of `detect_timeout` apart. An idle session costs no timer of its own, and a Ping as
//! often as TCP would send a keepalive; kernels see to the links of the other modes, which are proven to be direct.

use super::{Engine, Link};
use crate::proto::{Frame, LOOKS_PER_TIMEOUT, Silence, SilenceAdvice};
use crate::sys;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// One link that is listened to.
#[derive(Debug)]
pub(super) struct Listened {
    engine: Weak<Engine>,
    link: Weak<Link>,
    silence: Silence,
    heard: u64,
    due: Instant,
}

impl Listened {
    pub(super) fn new(engine: &Engine, link: &Arc<Link>) -> Self {
        let due = Instant::now() + engine.look_interval();
        Self { engine: engine.weak(), link: Arc::downgrade(link), silence: Silence::default(), heard: 0, due }
    }

    /// False when there is nothing to be heard any more.
    fn look(&mut self, now: Instant) -> bool {
        let (Some(engine), Some(link)) = (self.engine.upgrade(), self.link.upgrade()) else { return false };
        if link.is_dead() {
            return false;
        }
        self.due = now + engine.look_interval();
        let heard = engine.listen(&link, &mut self.heard);
        let advice = self.silence.look(heard);
        // Whoever gives the link up, this end or the other: nothing has passed since then.
        link.note_unheard(self.silence.is_unanswered().then(|| engine.unheard(&link)));
        match advice {
            SilenceAdvice::Wait => {}
            SilenceAdvice::Ask => engine.send_control(Some(Frame::Ping { token: 0 })),
            SilenceAdvice::GiveUp => engine.lost(&link, "nothing was heard for too long"),
        }
        !link.is_dead()
    }
}

/// All links that are listened to.
#[derive(Debug, Default)]
pub(super) struct Silences {
    links: Vec<Listened>,
    next: Option<Instant>,
}

impl Silences {
    pub(super) fn add(&mut self, mut links: Vec<Listened>) {
        let soonest = links.iter().map(|link| link.due).min();
        self.next = self.next.into_iter().chain(soonest).min();
        self.links.append(&mut links);
    }

    /// When to look next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Looks at what is due, and at what is almost due: links of the same settings are soon looked at together.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.links.retain_mut(|link| {
            let slack = link.engine.upgrade().map_or(Duration::ZERO, |engine| engine.look_interval() / 4);
            link.due > now + slack || link.look(now)
        });
        self.links.shrink_to(64);
        self.next = self.links.iter().map(|link| link.due).min();
    }
}

impl Engine {
    fn look_interval(&self) -> Duration {
        self.config.detect_timeout / LOOKS_PER_TIMEOUT
    }

    /// For how long nothing has come on a link that is silent: by the kernel's clock if that says so, but no longer than from before
    /// the first silent look, as what had come may have been left unread until then.
    fn unheard(&self, link: &Link) -> Duration {
        let limit = self.config.detect_timeout + self.look_interval();
        let by_looks = self.config.detect_timeout / LOOKS_PER_TIMEOUT * (LOOKS_PER_TIMEOUT - 1);
        sys::tcp_info(link).map_or(by_looks, |info| Duration::from_millis(info.unheard_ms.into()).min(limit))
    }

    /// Whether anything has come since the last look. With input that nobody reads this end cannot tell.
    fn listen(&self, link: &Arc<Link>, heard: &mut u64) -> bool {
        let news = |heard: &mut u64| std::mem::replace(heard, link.heard()) != *heard;
        if news(heard) {
            return true;
        }
        if sys::unread_bytes(&**link).is_ok_and(|bytes| bytes > 0) {
            // PROTOCOL 4.7: there may be a Ping in it, and the peer must not take this end for dead.
            self.send_control(Some(Frame::Ack));
            return true;
        }
        // TLS holds some input back.
        self.pump_input();
        news(heard)
    }
}
