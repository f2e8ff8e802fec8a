//! Telling a running relay what to do, and asking it how it is.

use super::reasons;
use crate::{Info, Role};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

const GO_ON: u8 = 0;
const STOP: u8 = 1;
const DETACH: u8 = 2;
const END: u8 = 3;
const KILL: u8 = 4;

/// A handle to one relay. Clones refer to the same relay.
#[derive(Clone, Debug, Default)]
pub struct Control(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    wish: AtomicU8,
    asked: AtomicBool,
    answer: Mutex<Option<Info>>,
    wake: Notify,
    answered: Notify,
}

/// What somebody wants of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Stop,
    Detach,
    End,
    Kill,
}

impl Control {
    /// A handle for a relay that is about to run.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the relay: no more bytes are accepted, what was accepted is delivered, then both sides are reset.
    pub fn stop(&self) {
        self.0.wish.fetch_max(STOP, Ordering::SeqCst);
        self.0.wake.notify_one();
    }

    /// Takes the relay out of this process as it is, for the next one to go on with: [`Outcome::Detached`]. A relay that is
    /// about to end anyway is [stopped](Self::stop) instead.
    ///
    /// [`Outcome::Detached`]: super::Outcome::Detached
    pub fn detach(&self) {
        self.0.wish.fetch_max(DETACH, Ordering::SeqCst);
        self.0.wake.notify_one();
    }

    /// Ends the relay at once, because its process ends: both sides are reset. The outcome is
    /// [`Outcome::Stopped`](super::Outcome::Stopped).
    pub fn end(&self) {
        self.0.wish.fetch_max(END, Ordering::SeqCst);
        self.0.wake.notify_one();
    }

    /// Ends the relay at once, because an administrator wants this session to end: both sides are reset.
    pub fn kill(&self) {
        self.0.wish.fetch_max(KILL, Ordering::SeqCst);
        self.0.wake.notify_one();
    }

    /// The session's state now; `None` when the relay has ended or does not answer within a second.
    pub async fn info(&self) -> Option<Info> {
        let answered = self.0.answered.notified();
        let mut answered = std::pin::pin!(answered);
        answered.as_mut().enable();
        self.0.asked.store(true, Ordering::SeqCst);
        self.0.wake.notify_one();
        tokio::time::timeout(Duration::from_secs(1), answered).await.ok()?;
        self.0.answer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a relay that was told to end, before it ran, says to its peer.
    #[must_use]
    pub fn reason(&self, role: Role) -> &'static str {
        match self.0.wish.load(Ordering::SeqCst) {
            KILL => reasons::killed(role),
            _ => reasons::stopped(role),
        }
    }

    /// Completes when the relay is told to end, before it runs. Questions are answered with "not yet".
    pub async fn told_to_end(&self) {
        self.wish(|| None).await;
    }

    /// Completes when there is a wish. Answers questions on the way, with what `info` gives.
    pub(super) async fn wish(&self, mut info: impl FnMut() -> Option<Info>) -> Wish {
        loop {
            if let Some(wish) = self.attend(&mut info) {
                return wish;
            }
            self.0.wake.notified().await;
        }
    }

    /// Completes when the relay is to end at once, whatever it was told before. Questions are answered with "not known".
    pub(super) async fn at_once(&self) -> Wish {
        loop {
            if let Some(wish @ (Wish::End | Wish::Kill)) = self.attend(&mut || None) {
                return wish;
            }
            self.0.wake.notified().await;
        }
    }

    /// Answers a question if there is one; the wish if there is one.
    pub(super) fn attend(&self, info: &mut dyn FnMut() -> Option<Info>) -> Option<Wish> {
        if self.0.asked.swap(false, Ordering::SeqCst) {
            *self.0.answer.lock().unwrap_or_else(PoisonError::into_inner) = info();
            self.0.answered.notify_waiters();
        }
        match self.0.wish.load(Ordering::SeqCst) {
            GO_ON => None,
            STOP => Some(Wish::Stop),
            DETACH => Some(Wish::Detach),
            END => Some(Wish::End),
            _ => Some(Wish::Kill),
        }
    }

    pub(super) fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.0.wake.notified()
    }
}
