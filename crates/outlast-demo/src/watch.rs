//! Watching a file arrive: how far it is, when it stands still, and whether it is what was sent.

use crate::compare::{Comparison, Damage};
use crate::screen::{Screen, mebibytes};
use anyhow::Result;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Standing still for so long is told as a pause.
const PAUSE_MIN: Duration = Duration::from_millis(250);

#[derive(Debug)]
struct State {
    received: u64,
    grown_at: Instant,
    pause_longest: Duration,
    told: bool,
    damage: Damage,
}

/// A file that arrives.
#[derive(Debug)]
pub struct Watch {
    state: Arc<Mutex<State>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Damage>>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Watches `received`, which need not be there yet.
    pub fn start(original: &Path, received: &Path, screen: &Screen) -> Result<Self> {
        let original = File::open(original)?;
        let state = Arc::new(Mutex::new(State {
            received: 0,
            grown_at: Instant::now(),
            pause_longest: Duration::ZERO,
            told: false,
            damage: Damage::default(),
        }));
        let ended = Arc::new(AtomicBool::new(false));
        let (path, screen) = (received.to_owned(), screen.clone());
        let watched = (Arc::clone(&state), Arc::clone(&ended));
        let thread = std::thread::spawn(move || watch(original, path, &screen, &watched.0, &watched.1));
        Ok(Self { state, ended, thread: Some(thread) })
    }

    /// Bytes that have arrived.
    pub fn received(&self) -> u64 {
        lock(&self.state).received
    }

    /// What was found wrong so far.
    pub fn damage(&self) -> Damage {
        lock(&self.state).damage
    }

    /// The longest time without a byte since the last call, the present one included.
    pub fn pause_longest(&self) -> Duration {
        let mut state = lock(&self.state);
        let now = state.grown_at.elapsed();
        std::mem::take(&mut state.pause_longest).max(now)
    }

    /// The transfer is over: looks at the rest of the file.
    pub fn finish(mut self) -> Result<Damage> {
        self.ended.store(true, Ordering::Release);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(found)) => found,
            _ => anyhow::bail!("the watching thread has ended before"),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
    }
}

fn watch(
    original: File,
    path: PathBuf,
    screen: &Screen,
    state: &Mutex<State>,
    ended: &AtomicBool,
) -> Result<Damage> {
    let received = loop {
        match File::open(&path) {
            Ok(file) => break file,
            Err(error) if ended.load(Ordering::Acquire) => return Err(error.into()),
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    };
    let mut comparison = Comparison::new(original, received);
    while !ended.load(Ordering::Acquire) {
        let grown = comparison.advance()?;
        note(&comparison, grown, screen, &mut lock(state));
        std::thread::sleep(LOOK_EVERY);
    }
    comparison.finish()
}

fn note(comparison: &Comparison, grown: bool, screen: &Screen, state: &mut State) {
    let still = state.grown_at.elapsed();
    if !grown {
        let begun = state.received > 0;
        if begun && still >= PAUSE_MIN && !std::mem::replace(&mut state.told, true) {
            screen.event(format!("           the transfer pauses at {}", mebibytes(state.received)));
        }
        return;
    }
    if std::mem::take(&mut state.told) {
        screen.event(format!("           the transfer goes on after {still:.2?}"));
    }
    if state.received > 0 {
        state.pause_longest = state.pause_longest.max(still);
    }
    state.received = comparison.received();
    state.grown_at = Instant::now();
    state.damage = comparison.damage();
    screen.progress(state.received);
}
