//! Crashes from outside: whoever serves is killed, many times a second, in every way.

use super::server::Server;
use crate::screen::Screen;
use anyhow::Result;
use outlast_lab::MemoryGroup;
use outlast_lab::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// From a crash to the next, at random: 20 a second, if the next one serves at once.
const BETWEEN_US: std::ops::Range<u64> = 20_000..80_000;

/// How a process is made to die.
#[derive(Debug)]
pub enum Way<'a> {
    /// By a signal, which is also what a fault of its own ends in.
    Signal(&'static str, Signal),
    /// By the kernel, as there is no memory left for it.
    NoMemory(&'a MemoryGroup),
}

impl Way<'_> {
    /// A program in C is killed by any signal.
    pub const OF_C: [Self; 4] = [
        Way::Signal("SIGSEGV", Signal::SEGV),
        Way::Signal("SIGKILL", Signal::KILL),
        Way::Signal("SIGABRT", Signal::ABORT),
        Way::Signal("SIGBUS", Signal::BUS),
    ];
    /// Rust's own handler takes a SIGSEGV that somebody sends for none, the first time.
    pub const OF_RUST: [Self; 4] = [
        Way::Signal("SIGILL", Signal::ILL),
        Way::Signal("SIGKILL", Signal::KILL),
        Way::Signal("SIGABRT", Signal::ABORT),
        Way::Signal("SIGFPE", Signal::FPE),
    ];

    fn name(&self) -> &'static str {
        match self {
            Way::Signal(name, _) => name,
            Way::NoMemory(_) => "no memory",
        }
    }

    fn hit(&self, pid: Pid) -> Result<()> {
        match self {
            Way::Signal(_, signal) => Ok(kill_process(pid, *signal)?),
            Way::NoMemory(group) => Ok(group.take(pid.as_raw_pid().cast_unsigned())?),
        }
    }
}

/// What the crashes were.
#[derive(Debug, Default)]
pub struct Crashes {
    pub number: u64,
    /// By kind.
    pub kinds: BTreeMap<String, u64>,
    pub took: Duration,
    /// Crash to successor, as the server measured it, sorted.
    pub pauses: Vec<Duration>,
}

impl Crashes {
    /// These, and then those.
    pub fn and(mut self, then: Self) -> Self {
        self.number += then.number;
        self.took += then.took;
        self.pauses.extend(then.pauses);
        self.pauses.sort_unstable();
        for (kind, times) in then.kinds {
            *self.kinds.entry(kind).or_default() += times;
        }
        self
    }
}

/// Kills whoever serves, for so long. Nobody is hit twice: the next one has to be there first.
pub fn hit(
    server: &Server,
    ways: &[Way<'_>],
    seed: u64,
    time: Duration,
    screen: &Screen,
    interrupted: &AtomicBool,
) -> Result<Crashes> {
    let (mut random, mut ways) = (Random::new(seed), ways.iter().cycle());
    let began = Instant::now();
    let mut crashes = Crashes::default();
    let mut serving = server.wait_for(None)?;
    let before = serving.crashes;
    while began.elapsed() < time && !interrupted.load(Ordering::Relaxed) {
        let between_us = BETWEEN_US.start + random.below(BETWEEN_US.end - BETWEEN_US.start);
        std::thread::sleep(Duration::from_micros(between_us));
        // In turn: each comes, however short the time is.
        let Some(way) = ways.next() else { break };
        way.hit(serving.pid)?;
        serving = server.wait_for(Some(serving.pid))?;
        *crashes.kinds.entry(way.name().to_owned()).or_default() += 1;
        crashes.pauses.extend(serving.pause);
        screen.progress(u64::try_from(began.elapsed().as_millis())?);
    }
    crashes.took = began.elapsed();
    crashes.number = serving.crashes - before;
    crashes.pauses.sort_unstable();
    Ok(crashes)
}

/// Looks on while clients' own requests crash the server, for so long.
pub fn look_on(
    server: &Server,
    time: Duration,
    screen: &Screen,
    interrupted: &AtomicBool,
) -> Result<Crashes> {
    let began = Instant::now();
    let mut crashes = Crashes::default();
    let mut last = server.wait_for(None)?;
    let before = last.crashes;
    while began.elapsed() < time && !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
        let now = server.wait_for(None)?;
        if now.crashes > last.crashes {
            crashes.pauses.extend(now.pause);
        }
        last = now;
        screen.progress(u64::try_from(began.elapsed().as_millis())?);
    }
    crashes.took = began.elapsed();
    crashes.number = last.crashes - before;
    crashes.pauses.sort_unstable();
    Ok(crashes)
}
