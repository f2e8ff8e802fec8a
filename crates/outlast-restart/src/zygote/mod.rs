//! The process that stays, and the generations that come and go below it.
//!
//! [`Zygote`] is the process itself after its initialisation: it keeps its id, which a service manager knows, and does
//! nothing but wait. It splits off the generation that serves and another one that stands by, and all three share one
//! table of descriptors: whatever is opened or closed later is open or closed in all of them, and stays open as long as
//! one of them lives. The one that stands by sleeps on the [baton](crate::sys::robust::Baton) of the one that serves,
//! which the kernel hands on when that dies, before it takes its memory apart. No descriptor is handed over, no program
//! is loaded.

mod origin;
mod replace;
mod succession;

use crate::board::Cause;
use crate::control::Control;
use crate::death::Death;
use crate::policy::Policy;
use crate::supervisor::{Watch, upgrade_signal};
use crate::sys::clock;
use crate::sys::process::{self, Ended, Pid, Side};
use crate::sys::signals::{self, Arrived, Waited};
use crate::threads::Beats;
use crate::{Error, Generation, STOP_SIGNALS};
use origin::Origin;
pub(crate) use origin::{Common, check_alone, enter, register};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How a generation that must not serve ends, so that the zygote knows why.
pub(crate) const GAVE_UP_CODE: i32 = 125;
/// How a generation ends that cannot even begin.
const CANNOT_BEGIN_CODE: i32 = 1;
/// For those that are killed to be dead.
const KILLED_WITHIN_MS: u64 = 1000;
/// Until there is another try to have somebody stand by, where the last one has failed.
const SPLIT_PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at something that is about to come.
const SOON_POLL: Duration = Duration::from_micros(20);

/// How often the supervisor is told how much is held.
const TELL_PAUSE: Duration = Duration::from_secs(1);
/// A hang is noticed a quarter of its time too late at the most.
const LOOKS_PER_HANG: u32 = 4;

/// Who stand by at the most: a word that a crash has overwritten must not ask for more.
const LACKING_MAX: u32 = 4;

/// In a generation, for the exit handler, which has no arguments.
static CONTROL: OnceLock<&'static Control> = OnceLock::new();

/// A generation below the zygote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Child {
    First,
    StandsBy,
}

enum Begun {
    Zygote(Box<Zygote>),
    Generation(Generation),
}

/// The process that stays.
struct Zygote {
    origin: Origin,
    /// That serve, have served and are not buried yet, or stand by.
    children: Vec<Pid>,
    /// How many should be split off, as soon as that is possible.
    lacking: u32,
    /// The last generation whose successor has been counted among those.
    replaced: u32,
    /// Until it is known to be gone.
    supervisor: Option<Watch>,
}

impl Zygote {
    fn begin(origin: Origin) -> Result<Begun, Error> {
        let mask = origin.mask;
        // Others have a root that does.
        let supervisor = if origin.seat.is_none() { Watch::begin() } else { None };
        let replaced = origin.common.control.generation.load(Ordering::SeqCst);
        let mut zygote = Self { origin, children: Vec::new(), lacking: 0, replaced, supervisor };
        for child in [Child::First, Child::StandsBy] {
            match zygote.split(child) {
                Ok(Some(generation)) => return Ok(Begun::Generation(generation)),
                Ok(None) => {}
                Err(error) => {
                    zygote.end_all();
                    let _ = mask.restore();
                    return Err(error);
                }
            }
        }
        Ok(Begun::Zygote(Box::new(zygote)))
    }

    /// Splits a child off. In that, returns what it is when it serves.
    fn split(&mut self, child: Child) -> Result<Option<Generation>, Error> {
        let side = process::split(self.origin.list.thread_word())
            .map_err(|error| Error::system("make a process for the next generation", error))?;
        match side {
            Side::Parent(pid) => {
                self.origin.common.control.note_split(pid.cast_unsigned());
                self.children.push(pid);
                Ok(None)
            }
            Side::Child => {
                self.origin.common.control.note_split(process::pid().cast_unsigned());
                let generation = match child {
                    Child::First => succession::begin(&self.origin),
                    Child::StandsBy => succession::stand_by(&self.origin),
                };
                // What follows an error is the zygote's business, of which this is a copy.
                generation.map(Some).or_else(|error| {
                    say(&format!("a generation cannot begin: {error}"));
                    process::exit_now(CANNOT_BEGIN_CODE)
                })
            }
        }
    }

    /// Has as many stand by as should. What is not possible now is tried again: who serves must not suffer from it.
    fn provide(&mut self) -> Option<Generation> {
        while self.lacking > 0 {
            let Ok(generation) = self.split(Child::StandsBy) else { break };
            if generation.is_some() {
                return generation;
            }
            self.lacking -= 1;
        }
        None
    }

    /// Waits, as long as there is a generation.
    fn run(mut self) -> Result<Generation, Error> {
        let pause = self.look_pause();
        let mut beats = None;
        self.end_if_abandoned();
        loop {
            self.note_inheritance();
            let pause = if self.lacking > 0 { Some(SPLIT_PAUSE) } else { pause };
            let arrived = match signals::wait_for(pause) {
                Waited::Arrived(arrived) => arrived,
                Waited::Nothing => {
                    self.end_if_abandoned();
                    if let Some(generation) = self.provide() {
                        return Ok(generation);
                    }
                    self.look(&mut beats);
                    Watch::tell_once(&mut self.supervisor, say);
                    continue;
                }
            };
            self.end_if_abandoned();
            if arrived.number == upgrade_signal() && self.origin.common.board.upgrade_wanted().is_some() {
                if let Some(generation) = self.upgrade()? {
                    return Ok(generation);
                }
                continue;
            }
            if arrived.number != libc::SIGCHLD {
                self.forward(arrived);
                continue;
            }
            let lacking = self.lacking;
            while let Some(ended) = process::ended() {
                if let Some(generation) = self.bury(ended)? {
                    return Ok(generation);
                }
                // When the next one stands by.
                process::bury(ended.pid);
            }
            let may_end_as_soon = self.lacking > lacking;
            self.note_inheritance();
            self.supervisor.iter().for_each(Watch::alert);
            // It has been succeeded, and may be dumped for long before it has ended.
            self.replace(self.origin.common.control.acknowledged_generation.load(Ordering::SeqCst));
            if may_end_as_soon {
                continue;
            }
            if let Some(generation) = self.provide() {
                return Ok(generation);
            }
        }
    }

    /// This generation, which is the last one that has been succeeded or is about to be, has had one who stood by: another
    /// one is to.
    fn replace(&mut self, generation: u32) {
        if generation > self.origin.common.control.generation.load(Ordering::SeqCst) {
            // There was none: a crash has overwritten that.
            return;
        }
        let lacking = self.lacking.saturating_add(generation.saturating_sub(self.replaced));
        self.lacking = lacking.min(LACKING_MAX);
        self.replaced = self.replaced.max(generation);
    }

    /// For the supervisor's log.
    fn note_inheritance(&self) {
        let Common { control, board, .. } = self.origin.common;
        board.note_inheritance(control.inheritance());
    }

    /// Who looks after all processes of the program is gone, and can tell nobody to end any more.
    fn end_if_abandoned(&mut self) {
        if self.origin.is_abandoned() {
            self.end_all();
            say(&format!("the process that looks after {} is gone: it ends", self.origin.name()));
            process::exit_now(CANNOT_BEGIN_CODE);
        }
    }

    /// How often there is something to look at, if there is.
    fn look_pause(&self) -> Option<Duration> {
        let hang = match self.origin.policy.hang_timeout_ms {
            0 => None,
            timeout_ms => {
                Some((Duration::from_millis(timeout_ms) / LOOKS_PER_HANG).max(Duration::from_millis(1)))
            }
        };
        let told = self.origin.common.board.policy().map(|_| TELL_PAUSE);
        hang.into_iter().chain(told).min()
    }

    /// At the generation that serves: whether it still does, and how much it holds.
    fn look(&self, beats: &mut Option<(u32, u64, Beats)>) {
        let Origin { common: Common { control, board, slots, .. }, policy, .. } = &self.origin;
        // Somebody else counts the connections of a program that does not know of this.
        if board.policy().is_some() {
            let (mut connections, mut held_bytes) = (0, 0);
            for (descriptor, slot) in slots.in_use() {
                // To another process of the program, which is no client.
                if self.origin.is_channel(descriptor) {
                    continue;
                }
                connections += 1;
                held_bytes += u64::from(slot.held_bytes());
            }
            board.note_held(connections, held_bytes);
        }
        if policy.hang_timeout_ms == 0 {
            return;
        }
        let serving = control.serving_pid.load(Ordering::SeqCst);
        let (number, now_ms) = (control.generation.load(Ordering::SeqCst), clock::monotonic_ms());
        if control.number_of(serving) != Some(number) {
            // Another one begins just now.
            return;
        }
        let threads = control.threads(number);
        let stuck = match beats {
            Some((generation, since_ms, before)) if *generation == number => {
                let stuck = threads.stuck(before);
                if !stuck.is_empty() && now_ms - *since_ms < policy.hang_timeout_ms {
                    return;
                }
                stuck
            }
            _ => Vec::new(),
        };
        *beats = Some((number, now_ms, threads.beats()));
        let serving = serving.cast_signed();
        if stuck.is_empty() || !self.children.contains(&serving) {
            return;
        }
        if control.hung_generation.swap(number, Ordering::SeqCst) == number {
            // It was killed, and has not come to its end yet: its requests were blamed for that, once.
            return;
        }
        for descriptor in stuck.into_iter().flatten() {
            crate::suspects::blame(control, self.origin.common.slots, descriptor);
        }
        // Before anybody can see that it has ended.
        board.note_end(number, None, Cause::Hang);
        let _ = process::kill(serving, libc::SIGKILL);
    }

    /// Signals are meant for who serves; those of a terminal it has got already.
    fn forward(&self, arrived: Arrived) {
        let control = self.origin.common.control;
        if STOP_SIGNALS.contains(&arrived.number) {
            // Before it is sent: whoever dies of it is not to be succeeded.
            control.stop_signal.store(arrived.number.cast_unsigned(), Ordering::SeqCst);
        }
        let serving = control.serving_pid.load(Ordering::SeqCst).cast_signed();
        if arrived.by_process && self.children.contains(&serving) {
            let _ = process::kill(serving, arrived.number);
        }
    }

    /// A child has ended. Returns in a new one.
    fn bury(&mut self, ended: Ended) -> Result<Option<Generation>, Error> {
        let Some(place) = self.children.iter().position(|pid| *pid == ended.pid) else {
            // Somebody else's, who has left it to the first process of the container.
            return Ok(None);
        };
        self.children.remove(place);
        let control = self.origin.common.control;
        control.forget_split(ended.pid.cast_unsigned());
        let death = Death::from_status(ended.status);
        let Some(number) = control.number_of(ended.pid.cast_unsigned()) else {
            if death == Death::Exited(GAVE_UP_CODE) {
                let Policy { intensity, intensity_window_ms, .. } = self.origin.policy;
                self.give_up(&format!(
                    "it crashed more than the tolerated {intensity} times within {intensity_window_ms} ms, even when only its \
                     listening sockets were taken over"
                ));
            }
            if control.generation.load(Ordering::SeqCst) == self.origin.before {
                if let Death::Exited(code) = death {
                    self.end_all();
                    process::exit_now(code.max(1));
                }
                if place == 0 {
                    // The first one, which has never had the baton.
                    control
                        .baton
                        .declare_dead(ended.pid)
                        .map_err(|error| Error::system("wake the next generation", error))?;
                }
            }
            // Who stood by. Another one does after a pause: it may end as soon.
            self.lacking += 1;
            return Ok(None);
        };
        control.death_status.store(ended.status.cast_unsigned(), Ordering::SeqCst);
        control.death_generation.store(number, Ordering::SeqCst);
        self.write_down(number, ended.status);
        if control.is_end_in_order(number, death) {
            self.end_all();
            process::exit_now(0);
        }
        if control.is_end_as_told(death) {
            self.end_all();
            process::exit_now(death.exit_code());
        }
        // It was no end in order after all.
        // One that died before may be buried later.
        control.failed_generation.fetch_max(number, Ordering::SeqCst);
        // In case the kernel has not: a list of locks can be overwritten by whoever crashes.
        control
            .baton
            .declare_dead(ended.pid)
            .map_err(|error| Error::system("wake the next generation", error))?;
        self.replace(number);
        Ok(self.provide())
    }

    /// How a generation has ended.
    fn write_down(&self, number: u32, status: i32) {
        let Common { control, board, .. } = self.origin.common;
        let death = Death::from_status(status);
        let cause = if control.hung_generation.load(Ordering::SeqCst) == number {
            Cause::Hang
        } else if control.is_end_in_order(number, death) || control.is_end_as_told(death) {
            Cause::Ended
        } else if death == Death::Signal(libc::SIGKILL) {
            Cause::Killed
        } else {
            Cause::Crash
        };
        board.note_end(number, Some(status), cause);
    }

    fn end_all(&mut self) {
        // Whoever would succeed first.
        for pid in self.children.iter().rev() {
            let _ = process::kill(*pid, libc::SIGKILL);
        }
        // Who waits for the end of this process may need its addresses at once, and each of those has what listens. One that is
        // traced may be buried by its tracer alone.
        let until_ms = clock::monotonic_ms() + KILLED_WITHIN_MS;
        while !self.children.is_empty() && clock::monotonic_ms() < until_ms {
            match process::ended() {
                Some(ended) => {
                    process::bury(ended.pid);
                    self.children.retain(|pid| *pid != ended.pid);
                }
                None => std::thread::sleep(SOON_POLL),
            }
        }
    }

    /// The status of a child that has ended or is about to: whoever gives up may have ended before its predecessor has. Nobody
    /// waits for one that lives, and for one that is traced only so long: its tracer buries it.
    fn await_dead(&self, pid: Pid) -> Option<i32> {
        if !self.children.contains(&pid) {
            return None;
        }
        let until_ms = clock::monotonic_ms() + KILLED_WITHIN_MS;
        while process::is_dead(pid) {
            let status = process::bury(pid);
            if status.is_some() || clock::monotonic_ms() >= until_ms {
                return status;
            }
            std::thread::sleep(SOON_POLL);
        }
        None
    }

    fn give_up(&mut self, why: &str) -> ! {
        let control = self.origin.common.control;
        let last = control.serving_pid.load(Ordering::SeqCst).cast_signed();
        let unburied = self.await_dead(last);
        let known = control.death_status.load(Ordering::SeqCst).cast_signed();
        if let Some(status) = unburied {
            let number = control.generation.load(Ordering::SeqCst);
            self.write_down(number, status);
            self.children.retain(|pid| *pid != last);
        }
        self.end_all();
        let death = Death::from_status(unburied.unwrap_or(known));
        say(&format!("{} has {death}, and is not restarted: {why}", self.origin.name()));
        process::exit_now(death.exit_code())
    }
}

/// To whoever reads the standard error.
pub(crate) fn say(what: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("outlast: {what}\n").as_bytes());
}
