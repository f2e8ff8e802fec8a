//! Steps of handshakes that keep a processor busy for a while, as signatures do: a few at a time. Links that are in use want
//! the processors, too, and the reactor has to hear of what has come for them.

use ::tokio::sync::Semaphore;
use std::num::NonZero;

/// Half of the processors for those who have proved nothing, and as many for the others.
#[derive(Debug)]
pub(super) struct Turns {
    /// Of those from addresses that have proved nothing.
    strangers: Semaphore,
    /// Of those from addresses that have a session: a crowd of strangers is not before them.
    known: Semaphore,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self::with(std::thread::available_parallelism().map_or(1, NonZero::get) / 2)
    }

    fn with(places: usize) -> Self {
        let places = || Semaphore::new(places.max(1));
        Self { strangers: places(), known: places() }
    }

    /// Makes a step when it is its turn.
    pub(super) async fn take<T>(&self, known: bool, step: impl FnOnce() -> T) -> T {
        let places = if known { &self.known } else { &self.strangers };
        let _place = places.acquire().await;
        let made = step();
        // Whatever else there is to do comes before the next step of this kind.
        ::tokio::task::yield_now().await;
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// All in one thread: what is not let in between would come last.
    #[::tokio::test]
    async fn others_have_their_turn_between_the_steps_of_a_crowd() {
        const CROWD: usize = 100;
        let (turns, steps) = (Arc::new(Turns::with(1)), Arc::new(AtomicUsize::new(0)));
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let (turns, steps) = (turns.clone(), steps.clone());
                ::tokio::spawn(
                    async move { turns.take(false, || steps.fetch_add(1, Ordering::Relaxed)).await },
                )
            })
            .collect();
        // All of them are about to take a step.
        ::tokio::task::yield_now().await;
        let before = turns.take(true, || steps.load(Ordering::Relaxed)).await;
        assert!(before < CROWD / 2, "{before} strangers came first");
        for one in crowd {
            one.await.unwrap();
        }
        assert_eq!(steps.load(Ordering::Relaxed), CROWD);
    }
}
