//! How much one direction of a relay moves before others have their turn.
//!
//! The runtime polls its tasks one after the other. A relay with a single byte waits for all tasks before it, so turns are
//! short. And a relay that has more to do than a turn takes waits for one of a few places: thousands that have much to
//! do are one after the other there, and not before all those that have little. Who is next there depends on the
//! processor's time that each has had: peers that flood their sessions wait for their turns, and others hardly for them.

mod queue;

use parking_lot::Mutex;
use queue::{Account, Entry, Queue, Ticket};
use rustix::time::{ClockId, clock_gettime};
use std::num::NonZero;
use std::sync::LazyLock;
use std::task::{Context, Poll};

/// Moved in one turn while a place is free. More does not move faster.
const TURN_BYTES_MAX: usize = 256 << 10;
/// And while none is.
const TURN_BYTES_MAX_IN_A_CROWD: usize = 64 << 10;

/// What a turn of a peer that sends control frames without end counts for, besides the time that it takes: dozens of turns that move bytes.
/// Relays that move bytes are served before such peers that wait, however many there are.
const FLOOD_COST_NS: u64 = 5_000_000;

/// One for each thread that may move something.
static PLACES: LazyLock<Mutex<Queue>> =
    LazyLock::new(|| Mutex::new(Queue::new(std::thread::available_parallelism().map_or(1, NonZero::get))));

/// The turns of one direction.
#[derive(Debug, Default)]
pub(super) struct Turn {
    moved_bytes: usize,
    /// In all turns. It wraps.
    total_bytes: u64,
    /// It ended before everything was moved.
    is_cut: bool,
    is_flooded: bool,
    account: Account,
    place: Place,
}

#[derive(Debug, Default)]
enum Place {
    /// What there was to move fitted into one turn.
    #[default]
    Unneeded,
    Awaited(Ticket),
    Had {
        ticket: Ticket,
        /// The thread's time when the turn began; none before that.
        began_ns: Option<u64>,
    },
}

impl Turn {
    /// Ready when there may be a turn: at once if the last one was not used up.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.moved_bytes = 0;
        (self.is_cut, self.is_flooded) = (false, false);
        match &mut self.place {
            Place::Unneeded => {}
            Place::Awaited(ticket) => {
                if !PLACES.lock().ask(*ticket, cx.waker()) {
                    return Poll::Pending;
                }
                self.place = Place::Had { ticket: *ticket, began_ns: Some(thread_time_ns()) };
            }
            Place::Had { began_ns, .. } => *began_ns = Some(thread_time_ns()),
        }
        Poll::Ready(())
    }

    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        self.total_bytes = self.total_bytes.wrapping_add(bytes as u64);
    }

    /// Moved in all turns. It wraps.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Whether others are to have theirs.
    pub(super) fn is_used_up(&self) -> bool {
        self.moved_bytes >= TURN_BYTES_MAX
            || self.moved_bytes >= TURN_BYTES_MAX_IN_A_CROWD && PLACES.lock().free_places() == 0
    }

    /// There is more to do, in another turn.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// As [`cut`](Self::cut), where the peer has sent more control frames than anybody needs.
    pub(super) fn cut_flood(&mut self) {
        (self.is_cut, self.is_flooded) = (true, true);
    }

    /// The turn is over. Wakes the task for the next one if there is more to do.
    pub(super) fn end(&mut self, cx: &mut Context<'_>) {
        if !self.is_cut {
            // The next relay in the queue gets the place.
            self.leave();
            return;
        }
        let flood_ns = if self.is_flooded { FLOOD_COST_NS } else { 0 };
        let (entry, next) = match std::mem::take(&mut self.place) {
            Place::Had { ticket, began_ns } => {
                let cost_ns = cost_ns(began_ns) + flood_ns;
                PLACES.lock().renew(ticket, cost_ns, cx.waker())
            }
            Place::Unneeded | Place::Awaited(_) => {
                (PLACES.lock().enter(self.account, flood_ns, cx.waker()), None)
            }
        };
        self.place = match entry {
            Entry::Waits(ticket) => Place::Awaited(ticket),
            Entry::Served(ticket) => {
                cx.waker().wake_by_ref();
                Place::Had { ticket, began_ns: None }
            }
        };
        if let Some(next) = next {
            next.wake();
        }
    }

    fn leave(&mut self) {
        let next = match std::mem::take(&mut self.place) {
            Place::Unneeded => return,
            Place::Awaited(ticket) => PLACES.lock().give_up(ticket),
            Place::Had { ticket, began_ns } => {
                let cost_ns = cost_ns(began_ns);
                let (account, next) = PLACES.lock().leave(ticket, cost_ns);
                self.account = account;
                next
            }
        };
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.leave();
    }
}

fn cost_ns(began_ns: Option<u64>) -> u64 {
    began_ns.map_or(0, |began_ns| thread_time_ns().saturating_sub(began_ns))
}

/// What this thread has had of a processor: a turn that was interrupted by another program has not cost more.
fn thread_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Held by tests that count the places of the process.
#[cfg(test)]
pub(super) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Turns that have all places, as long as they are there.
#[cfg(test)]
pub(super) async fn all_places() -> Vec<Turn> {
    std::future::poll_fn(|cx| {
        let mut turns: Vec<Turn> = (0..PLACES.lock().free_places()).map(|_| Turn::default()).collect();
        for turn in &mut turns {
            assert!(turn.poll_begin(cx).is_ready());
            turn.cut();
            turn.end(cx);
        }
        Poll::Ready(turns)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// All in one thread: between two polls of one task come those of all others that are to be polled, and this task is
    /// polled again when the reactor was asked, which happens after 61 polls.
    #[tokio::test]
    async fn who_has_little_does_not_wait_for_all_that_have_much() {
        let _alone = ALONE.lock().await;
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

    /// How a relay waits for its next turn: with a count of the turns that others had meanwhile.
    async fn next_turn(turn: &mut Turn, turns: &AtomicUsize) -> usize {
        poll_fn(|cx| {
            turn.cut();
            turn.end(cx);
            Poll::Ready(())
        })
        .await;
        let before = turns.load(Ordering::Relaxed);
        poll_fn(|cx| turn.poll_begin(cx)).await;
        turns.load(Ordering::Relaxed) - before
    }

    /// A peer floods its session with what brings no byte: its turns take long.
    #[tokio::test]
    async fn who_has_taken_little_time_is_next_before_a_crowd_that_takes_much() {
        let _alone = ALONE.lock().await;
        const LONG_NS: u64 = 200_000;
        let places = PLACES.lock().free_places();
        let turns = Arc::new(AtomicUsize::new(0));
        let crowd: Vec<_> = (0..50 * places)
            .map(|_| {
                let (turns, mut turn) = (turns.clone(), Turn::default());
                tokio::spawn(poll_fn(move |cx| -> Poll<()> {
                    std::task::ready!(turn.poll_begin(cx));
                    turns.fetch_add(1, Ordering::Relaxed);
                    let began_ns = thread_time_ns();
                    while thread_time_ns() < began_ns + LONG_NS {}
                    turn.cut();
                    turn.end(cx);
                    Poll::Pending
                }))
            })
            .collect();
        let modest = tokio::spawn(async move {
            let (mut turn, mut most) = (Turn::default(), 0);
            next_turn(&mut turn, &turns).await;
            for _ in 0..20 {
                // It has not much more to move: what it needs next is there a little later.
                turn.leave();
                let before = turns.load(Ordering::Relaxed);
                while turns.load(Ordering::Relaxed) < before + 30 {
                    tokio::task::yield_now().await;
                }
                most = most.max(next_turn(&mut turn, &turns).await);
            }
            most
        });
        let most = modest.await.expect("no panic");
        for one in crowd {
            one.abort();
        }
        // Those that have the places. Without a difference: all of the crowd.
        assert!(most <= 12 * places, "{most} turns of others came before one of this task");
    }

    #[tokio::test]
    async fn a_relay_that_is_dropped_while_it_waits_keeps_no_place() {
        let _alone = ALONE.lock().await;
        let most = PLACES.lock().free_places();
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
        assert_eq!(PLACES.lock().free_places(), most);
    }
}
