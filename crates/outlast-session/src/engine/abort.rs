//! A session that its client gives up with an error, and its server, which would otherwise wait for the client to come
//! back. PROTOCOL 3.11.
//!
//! Frames have a Reset for it, but only `inband` has frames, and a link that is reset loses them: the client says it on
//! a connection of its own, in the background and for a short time. If it cannot get through, the server keeps the
//! session as long as it keeps any.

use super::client::{Begun, Shake, Verdict};
use super::gap::{self, Gap};
use super::{Ctl, Engine, Link, Role};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::proto::{ClientHandshake, ClientStep, Hello, Intent, LastWord, LinkMode, Refusal, Refuse};
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

/// For how long a client tries to tell the server.
pub(crate) const ABORT_MAX: Duration = Duration::from_secs(30);

/// The server's application gets this where there is no reason.
const NO_REASON: &str = "no reason given";

impl Engine {
    /// Of another process's session: can do nothing but give it up.
    pub(crate) fn for_last_word(word: LastWord, reason: &str, config: &Arc<Config>) -> Arc<Self> {
        let engine = Self::new(word.id(), Role::Client, config.clone());
        engine.ctl().client.only_abort(word, reason.to_owned());
        engine
    }

    /// The session fails with `error`: whether the server has to hear of it.
    pub(super) fn note_abort(&self, ctl: &mut Ctl, error: &Error) {
        let owed = match error {
            Error::Killed { .. } => ctl.epoch > 0,
            // It said so itself, or cannot be reached.
            Error::Refused { .. } | Error::Reset { .. } => false,
            Error::PatienceExhausted { .. }
            | Error::Connect { .. }
            | Error::Expired { .. }
            | Error::Shed { .. } => false,
            // Before the Welcome the peer may be anything.
            _ => ctl.welcomed,
        };
        ctl.client.owed_abort = (owed && self.role == Role::Client).then(|| reason_for_peer(error));
    }

    /// Whether the server does not know yet that the session was given up.
    pub(crate) fn owes_abort(&self) -> bool {
        self.ctl().client.owes_abort()
    }

    /// Completes when it does.
    pub(crate) async fn abort_told(&self) {
        loop {
            let mut told = std::pin::pin!(self.hurry.notified());
            told.as_mut().enable();
            if !self.owes_abort() {
                return;
            }
            told.await;
        }
    }

    /// The link is connected (and encrypted), the session has failed.
    pub(super) fn begin_abort(&self, ctl: &mut Ctl, mut link: Link, reason: String) -> Result<Begun> {
        link.mark(ctl.client.next_epoch(), LinkMode::Inband);
        let mut hello = Hello::open(self.id, LinkMode::Inband);
        hello.epoch = link.epoch;
        hello.intent = Intent::Abort;
        hello.reason = Some(reason);
        let credentials = self.credentials(ctl, &link)?;
        let handshake = ClientHandshake::new(hello, credentials, rand::rng().random())
            .map_err(|error| self.protocol_error(&link, &error.to_string()))?;
        Ok(Begun::Shake(Arc::new(link), Box::new(Shake::new(handshake, true))))
    }

    /// A server has said something to it. Whatever that is, unless it is "later", it will not help to repeat it there.
    pub(super) fn abort_answered(&self, step: &ClientStep, link: &Link) -> Verdict {
        let mut ctl = self.ctl();
        let mut had_it = false;
        if let ClientStep::Refused(Refuse { refusal, .. }) = step {
            if let Refusal::StaleEpoch { current } = refusal {
                ctl.client.saw_epoch(*current);
            }
            if refusal.is_passing() {
                let after = Duration::from_millis(refusal.retry_after_ms().unwrap_or_default());
                return Verdict::Again { error: refusal.to_string(), after };
            }
            had_it = matches!(refusal, Refusal::Ended { .. } | Refusal::Expired);
        }
        tracing::debug!(session = %self.id, ?step, "a server has heard that the session was given up");
        // PROTOCOL 3.14: several servers may be tried, and one of them has it.
        let error = ctl.failure.clone().unwrap_or(Error::Closed { id: self.id });
        if !had_it && ctl.client.may_be_stranger(link.peer_addr, &error) {
            return Verdict::Elsewhere { error: "this server does not have the session".into() };
        }
        self.abort_is_told(&mut ctl, error)
    }

    /// No server has to hear any more that the session was given up.
    pub(super) fn abort_is_told(&self, ctl: &mut Ctl, error: Error) -> Verdict {
        ctl.client.owed_abort = None;
        self.interrupt_wait(ctl);
        Verdict::Fatal(error)
    }

    /// The server's side: the client has proved itself and gives the session up. What it is told; none if the session goes on
    /// in another process, which has to hear of it.
    pub(super) fn aborted_by_peer(&self, hello: &Hello) -> Option<Refusal> {
        gap::reached(Gap::GivesUp, self);
        let mut ctl = self.ctl.lock();
        if ctl.is_detached() {
            return None;
        }
        // What was delivered stays readable, as after any other break.
        self.take_link(&mut ctl);
        let reason = hello.reason.clone().unwrap_or_else(|| NO_REASON.into());
        self.fail_with(ctl, Error::Reset { id: self.id, reason });
        Some(Refusal::Ended { offset: self.position().next_offset })
    }
}

impl Engine {
    /// What a link is told that comes for a session which has just ended, with `failure` or without.
    pub(super) fn ended_refusal(&self, failure: Option<&Error>) -> Refuse {
        match failure {
            Some(Error::Expired { .. } | Error::Shed { .. }) => Refusal::Expired.into(),
            _ => {
                let offset = self.position().next_offset;
                Refuse { refusal: Refusal::Ended { offset }, why: failure.map(reason_for_peer) }
            }
        }
    }
}

/// What the peer's application hears about an error of ours.
pub(super) fn reason_for_peer(error: &Error) -> String {
    match error {
        Error::Killed { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
