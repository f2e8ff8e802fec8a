//! The end of a session that has failed, where the local side has not taken all that came before.
//!
//! A slow reader gets it all, as long as it goes on to take some of it now and then. One that takes nothing would keep its connection,
//! and what the session holds, for as long as it likes: it has a minute, and longer if the peer has ended its stream and the local side
//! can still have all of it. Where memory is scarce, or many wait like that, a local side has some seconds; where very many do
//! it has a second without taking anything; if the session was ended to free memory it has none.

use super::control::Wish;
use super::pump::Pump;
use super::{Control, Local, SETTLE_TIMEOUT};
use crate::engine::{Memory, is_memory_scarce};
use crate::error::Error;
use crate::sys::descriptors_max;
use crate::tokio::Session;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
/// Many wait if more do than that, or than this part of the descriptors that there may be: each has one.
const MANY: usize = 256;
const MANY_DESCRIPTORS_PART: u64 = 16;
/// Or if the kernel holds more for them than this part of the memory budget. Very many wait if it is twice as much.
const MANY_BYTES_PART: u64 = 16;
/// Two may have a full send buffer of the usual size.
const MANY_BYTES_LEAST: u64 = 8 << 20;

/// How often it is looked what the local side has taken.
const LOOK: Duration = Duration::from_secs(1);
/// And how often at first, where the kernel has nearly all.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// For so long the local side of a relay that is to be handed over is waited for: all other sessions wait as well.
const HAND_OVER_SETTLE_TIMEOUT: Duration = Duration::from_millis(200);

/// How many of this process wait, and what the kernel has for them.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static WAITING_BYTES: AtomicU64 = AtomicU64::new(0);

/// How much there is of what local sides that are waited for take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    Plenty,
    Scarce,
    None,
}

impl Room {
    fn now() -> Self {
        let descriptors = usize::try_from(descriptors_max() / MANY_DESCRIPTORS_PART).unwrap_or(usize::MAX);
        let bytes = (Memory::now().budget_bytes / MANY_BYTES_PART).max(MANY_BYTES_LEAST);
        let by_count = Self::of(WAITING.load(Ordering::Relaxed), descriptors.min(MANY));
        let by_bytes = Self::of(WAITING_BYTES.load(Ordering::Relaxed), bytes);
        let by_memory = if is_memory_scarce() { Self::Scarce } else { Self::Plenty };
        by_count.max(by_bytes).max(by_memory)
    }

    fn of<T: PartialOrd + std::ops::Add<Output = T> + Copy>(used: T, many: T) -> Self {
        if used > many + many {
            Self::None
        } else if used > many {
            Self::Scarce
        } else {
            Self::Plenty
        }
    }
}

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
        WAITING_BYTES.fetch_add(unsent_bytes as u64, Ordering::Relaxed);
        Self { failed_at: now, taken_at: now, taken_bytes, unsent_bytes }
    }

    /// Takes in how it is now. Whether the local side has had its time.
    fn is_over(
        &mut self,
        now: Instant,
        taken_bytes: u64,
        unsent_bytes: usize,
        is_whole: bool,
        room: Room,
    ) -> bool {
        if taken_bytes != self.taken_bytes || unsent_bytes < self.unsent_bytes {
            self.taken_at = now;
        }
        // Also where that wraps, the sum is right.
        WAITING_BYTES
            .fetch_add((unsent_bytes as u64).wrapping_sub(self.unsent_bytes as u64), Ordering::Relaxed);
        (self.taken_bytes, self.unsent_bytes) = (taken_bytes, unsent_bytes);
        let nothing_for = now.duration_since(self.taken_at);
        let failed_for = now.duration_since(self.failed_at);
        match room {
            Room::None => nothing_for >= LOOK || failed_for >= SCARCE_MAX,
            Room::Scarce => nothing_for >= SCARCE_TAKES_NOTHING_MAX || failed_for >= SCARCE_MAX,
            Room::Plenty if is_whole => nothing_for >= WHOLE_TAKES_NOTHING_MAX,
            Room::Plenty => nothing_for >= TAKES_NOTHING_MAX,
        }
    }

    fn look(&mut self, taken_bytes: u64, session: &Session, local: &Local) -> bool {
        let (is_whole, room) = (session.has_peer_end(), Room::now());
        self.is_over(Instant::now(), taken_bytes, local.unsent_bytes(), is_whole, room)
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        WAITING_BYTES.fetch_sub(self.unsent_bytes as u64, Ordering::Relaxed);
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
    fn given_up_after_s(pause_s: Option<u64>, is_whole: bool, room: Room) -> Option<u64> {
        let begin = Instant::now();
        let (mut untaken, mut left) = (Untaken::new(begin, 0, 1 << 20), 1 << 20);
        (1..=3600).find(|second| {
            if pause_s.is_some_and(|pause_s| second % pause_s == 0) {
                left -= 1;
            }
            untaken.is_over(begin + Duration::from_secs(*second), 0, left, is_whole, room)
        })
    }

    #[tokio::test]
    async fn one_that_takes_something_now_and_then_is_waited_for_while_there_is_memory() {
        use Room::{None as NoRoom, Plenty, Scarce};
        for (pause_s, is_whole, room, after_s) in [
            (None, false, Plenty, Some(60)),
            (None, true, Plenty, Some(600)),
            (None, true, Scarce, Some(5)),
            (Some(30), false, Plenty, None),
            (Some(300), true, Plenty, None),
            (Some(300), false, Plenty, Some(60)),
            (Some(4), false, Scarce, Some(60)),
            (Some(10), false, Scarce, Some(5)),
            (None, true, NoRoom, Some(1)),
            (Some(1), true, NoRoom, Some(60)),
        ] {
            let found = given_up_after_s(pause_s, is_whole, room);
            assert_eq!(found, after_s, "{pause_s:?} {is_whole} {room:?}");
        }
    }

    #[test]
    fn there_is_less_room_the_more_wait() {
        let rooms = [256, 257, 512, 513].map(|used| Room::of(used, 256));
        assert_eq!(rooms, [Room::Plenty, Room::Scarce, Room::Scarce, Room::None]);
    }

    #[tokio::test]
    async fn what_is_written_counts_as_taken() {
        let begin = Instant::now();
        let mut untaken = Untaken::new(begin, 0, 100);
        for second in 1..600 {
            // The kernel has as much as before.
            assert!(!untaken.is_over(begin + Duration::from_secs(second), second, 100, false, Room::Plenty));
        }
    }
}
