//! The thread that carries packets between two TUN devices, as the core tells it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::WireSpec;
use super::core::{Lane, LaneStats};
use crate::error::{Context, Result};
use crate::link::Direction;
use crate::sys;

/// Packets read from one end before the other gets its turn.
const BATCH: usize = 64;
/// How long the pump sleeps when nothing is under way.
const IDLE: Duration = Duration::from_secs(3600);

type Lanes = [Lane<Vec<u8>>; 2];

struct Shared {
    lanes: Mutex<Lanes>,
    /// How many callers want the lanes: the pump lets them go first, or a busy wire would never be cut.
    waiting: AtomicUsize,
    stop: AtomicBool,
    wake: File,
}

impl Shared {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Lanes) -> T) -> T {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let result = change(&mut self.lanes());
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn wake(&self) {
        let _ = (&self.wake).write(&1_u64.to_ne_bytes());
    }
}

/// A running wire. Dropping it stops the pump.
pub(crate) struct Wire {
    shared: Arc<Shared>,
    pump: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    /// Starts carrying packets between the TUN devices `client` and `server`.
    pub(crate) fn start(client: File, server: File, spec: WireSpec) -> Result<Self> {
        let wake = sys::eventfd().context(|| "cannot create an eventfd".to_owned())?;
        let shared = Arc::new(Shared {
            lanes: Mutex::new([Lane::new(spec, 0), Lane::new(spec, 1)]),
            waiting: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wake,
        });
        let for_pump = Arc::clone(&shared);
        let pump = std::thread::Builder::new()
            .name("outlast-wire".to_owned())
            .spawn(move || {
                if let Err(error) = pump(&for_pump, &[client, server]) {
                    tracing::error!(%error, "the wire has stopped carrying packets");
                }
            })
            .context(|| "cannot start the thread of a wire".to_owned())?;
        Ok(Self { shared, pump: Mutex::new(Some(pump)) })
    }

    /// Blocks or frees one direction. Once this returns, nothing more comes out of a blocked one.
    pub(crate) fn set_blocked(&self, direction: Direction, blocked: bool) {
        self.shared.change(|lanes| lanes[direction.index()].set_blocked(blocked));
    }

    /// Changes what happens to packets from now on in one direction.
    pub(crate) fn set_spec(&self, direction: Direction, spec: WireSpec) {
        self.shared.change(|lanes| lanes[direction.index()].set_spec(spec));
    }

    /// What has happened to the packets of one direction.
    pub(crate) fn stats(&self, direction: Direction) -> LaneStats {
        self.shared.change(|lanes| lanes[direction.index()].stats())
    }

    /// Stops the pump and waits until its thread has ended.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake();
        let pump = self.pump.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(pump) = pump {
            let _ = pump.join();
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop();
    }
}

fn pump(shared: &Shared, ends: &[File; 2]) -> io::Result<()> {
    sys::exact_timers();
    let start = Instant::now();
    let mut buffer = vec![0; 65_536];
    while !shared.stop.load(Ordering::SeqCst) {
        while shared.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        let mut lanes = shared.lanes();
        for (lane, from) in lanes.iter_mut().zip(ends) {
            take_in(lane, from, &mut buffer, start.elapsed());
        }
        let now = start.elapsed();
        for (lane, to) in lanes.iter_mut().zip(ends.iter().rev()) {
            give_out(lane, to, now);
        }
        let due = lanes.iter().filter_map(Lane::next_due).min();
        drop(lanes);
        let wait = due.map_or(IDLE, |due| due.saturating_sub(start.elapsed()));
        let [.., woken] = sys::poll_readable([ends[0].as_fd(), ends[1].as_fd(), shared.wake.as_fd()], wait)?;
        if woken {
            let _ = (&shared.wake).read(&mut [0; 8]);
        }
    }
    Ok(())
}

fn take_in(lane: &mut Lane<Vec<u8>>, mut from: &File, buffer: &mut [u8], now: Duration) {
    for _ in 0..BATCH {
        // An error means that nothing is waiting, or that the device is down: both end the turn.
        let Ok(len) = from.read(buffer) else { return };
        lane.send(now, buffer[..len].to_vec());
    }
}

fn give_out(lane: &mut Lane<Vec<u8>>, mut to: &File, now: Duration) {
    while let Some(packet) = lane.receive(now) {
        // A device that is down loses what is written to it, as a cable would.
        if let Err(error) = to.write(&packet) {
            tracing::trace!(%error, len = packet.len(), "packet lost at the end of the wire");
        }
    }
}
