//! How much one direction of a relay moves before others have their turn.
//!
//! The runtime polls its tasks one after the other. A relay with a single byte waits for all tasks before it, so turns are
//! short. And a relay that has more to move than a turn takes waits for one of a few places: thousands that have much to
//! move are one after the other there, and not before all those that have little.

use std::num::NonZero;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Moved in one turn when nobody waits for a place. More does not move faster.
const TURN_BYTES_MAX: usize = 256 << 10;
/// And when somebody does.
const TURN_BYTES_MAX_IN_A_CROWD: usize = 64 << 10;

/// One for each thread that may move something.
static PLACES: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, NonZero::get))));

/// The turns of one direction.
#[derive(Default)]
pub(super) struct Turn {
    moved_bytes: usize,
    /// It ended before everything was moved.
    is_cut: bool,
    place: Place,
}

#[derive(Default)]
enum Place {
    /// What there was to move fitted into one turn.
    #[default]
    Unneeded,
    Awaited(Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send + Sync>>),
    Had {
        /// Held for the next turn.
        _place: OwnedSemaphorePermit,
    },
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").field("moved_bytes", &self.moved_bytes).finish_non_exhaustive()
    }
}

impl Turn {
    /// Ready when there may be a turn: at once if the last one was not used up.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.moved_bytes = 0;
        self.is_cut = false;
        self.poll_place(cx)
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Place::Awaited(place) = &mut self.place else { return Poll::Ready(()) };
        let place = std::task::ready!(place.as_mut().poll(cx));
        self.place = place.map_or(Place::Unneeded, |place| Place::Had { _place: place });
        Poll::Ready(())
    }

    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
    }

    /// Whether others are to have theirs.
    pub(super) fn is_used_up(&self) -> bool {
        self.moved_bytes >= TURN_BYTES_MAX
            || self.moved_bytes >= TURN_BYTES_MAX_IN_A_CROWD && PLACES.available_permits() == 0
    }

    /// There is more to move, in another turn.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// The turn is over. Wakes the task for the next one if there is more to move.
    pub(super) fn end(&mut self, cx: &mut Context<'_>) {
        // The next relay in the queue gets the place.
        self.place = Place::Unneeded;
        if !self.is_cut {
            return;
        }
        if let Ok(place) = PLACES.clone().try_acquire_owned() {
            self.place = Place::Had { _place: place };
            cx.waker().wake_by_ref();
            return;
        }
        self.place = Place::Awaited(Box::pin(async { PLACES.clone().acquire_owned().await.ok() }));
        // Has the task woken when there is one.
        if self.poll_place(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// All in one thread: between two polls of one task come those of all others that are to be polled, and this task is
    /// polled again when the reactor was asked, which happens after 61 polls.
    #[tokio::test]
    async fn who_has_little_does_not_wait_for_all_that_have_much() {
        const CROWD: usize = 400;
        const TURNS: usize = 20;
        let turns = Arc::new(AtomicUsize::new(0));
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let (turns, mut turn, mut left) = (turns.clone(), Turn::default(), TURNS);
                tokio::spawn(poll_fn(move |cx| {
                    std::task::ready!(turn.poll_begin(cx));
                    turns.fetch_add(1, Ordering::Relaxed);
                    left -= 1;
                    turn.moved(TURN_BYTES_MAX);
                    if left > 0 {
                        turn.cut();
                    }
                    turn.end(cx);
                    if left > 0 { Poll::Pending } else { Poll::Ready(()) }
                }))
            })
            .collect();
        let mut most = 0;
        // Each has its first turn.
        tokio::task::yield_now().await;
        while crowd.iter().any(|one| !one.is_finished()) {
            let before = turns.load(Ordering::Relaxed);
            tokio::task::yield_now().await;
            most = most.max(turns.load(Ordering::Relaxed) - before);
        }
        assert_eq!(turns.load(Ordering::Relaxed), CROWD * TURNS, "each has all its turns");
        assert!(most <= CROWD / 4, "{most} turns of others came between two of this task");
    }

    #[tokio::test]
    async fn a_relay_that_is_dropped_while_it_waits_keeps_no_place() {
        let most = PLACES.available_permits();
        poll_fn(|cx| {
            let mut turns: Vec<Turn> = (0..3 * most).map(|_| Turn::default()).collect();
            for turn in &mut turns {
                assert!(turn.poll_begin(cx).is_ready());
                turn.moved(TURN_BYTES_MAX);
                assert!(turn.is_used_up());
                turn.cut();
                turn.end(cx);
            }
            let has = |turn: &Turn| matches!(turn.place, Place::Had { .. });
            assert_eq!(turns.iter().filter(|turn| has(turn)).count(), most);
            let last = turns.last_mut().expect("some");
            assert!(last.poll_begin(cx).is_pending(), "it has no place yet");
            Poll::Ready(())
        })
        .await;
        assert_eq!(PLACES.available_permits(), most);
    }
}
