//! The end of a session that has failed, where the local side has not taken all that came before.
//!
//! A slow reader gets it all, as long as it goes on to take some of it now and then. One that takes nothing would keep its connection,
//! and what the session holds, for as long as it likes: it has a minute, and longer if the peer has ended its stream and the local side
//! can still have all of it. Where memory is scarce, or many wait like that, a local side has some seconds; if the session was
//! ended to free memory it has none.

use super::control::Wish;
use super::pump::Pump;
use super::{Control, Local, SETTLE_TIMEOUT};
use crate::engine::is_memory_scarce;
use crate::error::Error;
use crate::tokio::Session;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// A kernel says that a program has read something when a sixteenth of its receive buffer is free: with 6 MiB, and 10 KiB a second, that
/// takes 40 s.
const TAKES_NOTHING_MAX: Duration = Duration::from_secs(60);
/// The same, of a stream that has come whole.
const WHOLE_TAKES_NOTHING_MAX: Duration = Duration::from_secs(600);
/// The same, where memory is scarce.
const SCARCE_TAKES_NOTHING_MAX: Duration = SETTLE_TIMEOUT;
/// And so long one may take there in all.
const SCARCE_MAX: Duration = Duration::from_secs(60);
/// If more wait than that, memory counts as scarce: each has a descriptor, and what the kernel holds for it.
const WAITING_MAX: usize = 256;

/// How often it is looked what the local side has taken.
const LOOK: Duration = Duration::from_secs(1);
/// And how often at first, where the kernel has nearly all.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// For so long the local side of a relay that is to be handed over is waited for: all other sessions wait as well.
const HAND_OVER_SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many of this process wait.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// What is known of a local side since its session has failed.
#[derive(Debug)]
struct Untaken {
    failed_at: Instant,
    /// When it was seen last that it had taken something.
    taken_at: Instant,
    /// What it had taken then, and what the kernel had for it.
    taken_bytes: u64,
    unsent_bytes: usize,
}

impl Untaken {
    fn new(now: Instant, taken_bytes: u64, unsent_bytes: usize) -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Self { failed_at: now, taken_at: now, taken_bytes, unsent_bytes }
    }

    /// Takes in how it is now. Whether the local side has had its time.
    fn is_over(
        &mut self,
        now: Instant,
        taken_bytes: u64,
        unsent_bytes: usize,
        is_whole: bool,
        is_scarce: bool,
    ) -> bool {
        if taken_bytes != self.taken_bytes || unsent_bytes < self.unsent_bytes {
            self.taken_at = now;
        }
        (self.taken_bytes, self.unsent_bytes) = (taken_bytes, unsent_bytes);
        let nothing_for = now.duration_since(self.taken_at);
        if is_scarce {
            return nothing_for >= SCARCE_TAKES_NOTHING_MAX
                || now.duration_since(self.failed_at) >= SCARCE_MAX;
        }
        nothing_for >= if is_whole { WHOLE_TAKES_NOTHING_MAX } else { TAKES_NOTHING_MAX }
    }

    fn look(&mut self, taken_bytes: u64, session: &Session, local: &Local) -> bool {
        let is_scarce = WAITING.load(Ordering::Relaxed) > WAITING_MAX || is_memory_scarce();
        self.is_over(Instant::now(), taken_bytes, local.unsent_bytes(), session.has_peer_end(), is_scarce)
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the local side of a relay is waited for, while it has no room.
#[derive(Default)]
pub(super) enum Settling {
    #[default]
    Unneeded,
    /// The session has not ended, as far as is known.
    Over(Pin<Box<dyn Future<Output = crate::Result<()>> + Send>>),
    Failed(Box<Failed>),
}

pub(super) struct Failed {
    error: Error,
    untaken: Untaken,
    look: Pin<Box<Sleep>>,
}

impl Settling {
    /// Ready, with the session's error, when it has failed and its local side has had its time. To be polled after the pump.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        pump: &Pump,
        session: &Session,
        local: &Local,
    ) -> Poll<Error> {
        // It may wait for its turn, or for the session.
        if !pump.is_blocked() {
            return Poll::Pending;
        }
        loop {
            match self {
                Settling::Unneeded => *self = Settling::Over(Box::pin(session.over())),
                Settling::Over(over) => match ready!(over.as_mut().poll(cx)) {
                    Ok(()) => *self = Settling::Over(Box::pin(std::future::pending())),
                    Err(error) if is_shed(&error) => return Poll::Ready(error),
                    Err(error) => {
                        let untaken = Untaken::new(Instant::now(), pump.taken_bytes(), local.unsent_bytes());
                        *self = Settling::Failed(Box::new(Failed {
                            error,
                            untaken,
                            look: Box::pin(sleep(LOOK)),
                        }));
                    }
                },
                Settling::Failed(failed) => {
                    ready!(failed.look.as_mut().poll(cx));
                    if failed.untaken.look(pump.taken_bytes(), session, local) {
                        return Poll::Ready(failed.error.clone());
                    }
                    failed.look.as_mut().reset(Instant::now() + LOOK);
                }
            }
        }
    }
}

/// The session has failed, and the kernel may have something left for the local side, which a reset would take away: waits until that
/// has it, or has had its time, or the relay is to end.
pub(super) async fn settle(error: &Error, session: &Session, local: &Local, control: &Control) {
    // Others lose nothing by their close.
    if is_shed(error) || !matches!(local, Local::Tcp(_)) || local.unsent_bytes() == 0 {
        return;
    }
    let taken = async {
        let (mut untaken, mut pause) = (Untaken::new(Instant::now(), 0, local.unsent_bytes()), LOOK_MIN);
        while local.unsent_bytes() > 0 && !untaken.look(0, session, local) {
            sleep(pause).await;
            pause = (2 * pause).min(LOOK);
        }
    };
    let wished = async {
        let wish = control.wish(|| Some(session.info())).await;
        tokio::select! {
            () = sleep(settle_timeout(wish)) => {}
            _ = control.at_once() => {}
        }
    };
    tokio::select! {
        () = taken => {}
        () = local.failed() => {}
        () = wished => {}
    }
}

/// For how long the local side may take what a session that has failed has left, where the relay is to end.
pub(super) fn settle_timeout(wish: Wish) -> Duration {
    if wish == Wish::Detach { HAND_OVER_SETTLE_TIMEOUT } else { SETTLE_TIMEOUT }
}

pub(super) fn is_shed(error: &Error) -> bool {
    matches!(error, Error::Shed { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many seconds a local side is given up that takes something every `pause_s`; none if it is not within an hour.
    fn given_up_after_s(pause_s: Option<u64>, is_whole: bool, is_scarce: bool) -> Option<u64> {
        let begin = Instant::now();
        let (mut untaken, mut left) = (Untaken::new(begin, 0, 1 << 20), 1 << 20);
        (1..=3600).find(|second| {
            if pause_s.is_some_and(|pause_s| second % pause_s == 0) {
                left -= 1;
            }
            untaken.is_over(begin + Duration::from_secs(*second), 0, left, is_whole, is_scarce)
        })
    }

    #[tokio::test]
    async fn one_that_takes_something_now_and_then_is_waited_for_while_there_is_memory() {
        for (pause_s, is_whole, is_scarce, after_s) in [
            (None, false, false, Some(60)),
            (None, true, false, Some(600)),
            (None, true, true, Some(5)),
            (Some(30), false, false, None),
            (Some(300), true, false, None),
            (Some(300), false, false, Some(60)),
            (Some(4), false, true, Some(60)),
            (Some(10), false, true, Some(5)),
        ] {
            let found = given_up_after_s(pause_s, is_whole, is_scarce);
            assert_eq!(found, after_s, "{pause_s:?} {is_whole} {is_scarce}");
        }
    }

    #[tokio::test]
    async fn what_is_written_counts_as_taken() {
        let begin = Instant::now();
        let mut untaken = Untaken::new(begin, 0, 100);
        for second in 1..600 {
            // The kernel has as much as before.
            assert!(!untaken.is_over(begin + Duration::from_secs(second), second, 100, false, false));
        }
    }
}
