//! Steps of handshakes that keep a processor busy for a while, as signatures do: a few at a time. Links that are in use want
//! the processors, too, and the reactor has to hear of what has come for them.

use ::tokio::sync::{Semaphore, SemaphorePermit};
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

    /// Completes when a step may be made. What it came to is not to wait for the others' turn: the task may end there.
    pub(super) async fn enter(&self, known: bool) -> Turn<'_> {
        let places = if known { &self.known } else { &self.strangers };
        Turn { _place: places.acquire().await.ok() }
    }
}

/// One step's turn.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    _place: Option<SemaphorePermit<'a>>,
}

impl Turn<'_> {
    /// The step is made, and what it came to was passed on: whatever else there is to do comes before the next one of this kind.
    pub(super) async fn pass_on(self) {
        ::tokio::task::yield_now().await;
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
                ::tokio::spawn(async move {
                    let turn = turns.enter(false).await;
                    steps.fetch_add(1, Ordering::Relaxed);
                    turn.pass_on().await;
                })
            })
            .collect();
        // All of them are about to take a step.
        ::tokio::task::yield_now().await;
        let turn = turns.enter(true).await;
        let before = steps.load(Ordering::Relaxed);
        turn.pass_on().await;
        assert!(before < CROWD / 2, "{before} strangers came first");
        for one in crowd {
            one.await.unwrap();
        }
        assert_eq!(steps.load(Ordering::Relaxed), CROWD);
    }
}
