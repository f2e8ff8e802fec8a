//! The process that stays, and the generations that come and go below it.
//!
//! [`Zygote`] is the process itself after its initialisation: it keeps its id, which a service manager knows, and does
//! nothing but wait. It splits off the generation that serves and another one that stands by, and all three share one
//! table of descriptors: whatever is opened or closed later is open or closed in all of them, and stays open as long as
//! one of them lives. The one that stands by sleeps on the [baton](crate::sys::robust::Baton) of the one that serves,
//! which the kernel hands on when that dies, before it takes its memory apart. No descriptor is handed over, no program
//! is loaded.

use crate::control::Control;
use crate::death::Death;
use crate::policy::{Decision, Inheritance, Policy};
use crate::slots::Slots;
use crate::sys::descriptors;
use crate::sys::process::{self, Ended, Pid, Side};
use crate::sys::robust::RobustList;
use crate::sys::signals::{self, Arrived, Mask};
use crate::{Error, Generation, STOP_SIGNALS};
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How a generation that must not serve ends, so that the zygote knows why.
const GAVE_UP_CODE: i32 = 125;
/// Between two looks at whether the last threads of the dead have gone: they are on their way.
const DEAD_POLL: Duration = Duration::from_micros(20);

/// For the exit handler, which has no arguments.
static CONTROL: OnceLock<&'static Control> = OnceLock::new();

/// What every generation needs to know of the place it was split off from.
struct Origin {
    control: &'static Control,
    slots: &'static Slots,
    policy: Policy,
    list: RobustList,
    mask: Mask,
    zygote: Pid,
    /// Descriptors that were open, and mean the same to every generation.
    known: BTreeSet<RawFd>,
}

/// A generation below the zygote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Child {
    First,
    StandsBy,
}

/// Makes this process a zygote. Returns in each generation that is to serve, and never in the zygote itself: that ends
/// as its last generation did.
pub(crate) fn register(policy: Policy) -> Result<Generation, Error> {
    if CONTROL.get().is_some() {
        return Err(Error::Registered);
    }
    let threads =
        process::thread_count(process::pid()).map_err(|error| Error::system("read /proc", error))?;
    if threads != 1 {
        return Err(Error::Threads { count: threads });
    }
    let control = crate::sys::shared::share::<Control>()
        .map_err(|error| Error::system("map memory for all generations", error))?;
    let _ = CONTROL.set(control);
    let list = RobustList::of_this_thread();
    control.baton.prepare(&list);
    let mask = signals::hold_all().map_err(|error| Error::system("hold signals back", error))?;
    let slots =
        Slots::new().map_err(|error| Error::system("map memory for what is held of connections", error))?;
    let known = descriptors::open().map_err(|error| Error::system("list the open descriptors", error))?;
    let origin = Origin { control, slots, policy, list, mask, zygote: process::pid(), known };
    match Zygote::begin(origin)? {
        Begun::Zygote(zygote) => zygote.run(),
        Begun::Generation(generation) => Ok(generation),
    }
}

enum Begun {
    Zygote(Zygote),
    Generation(Generation),
}

/// The process that stays.
struct Zygote {
    origin: Origin,
    /// That serves, and that stands by, in this order.
    children: Vec<Pid>,
}

impl Zygote {
    fn begin(origin: Origin) -> Result<Begun, Error> {
        let mask = origin.mask;
        let mut zygote = Self { origin, children: Vec::new() };
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
        Ok(Begun::Zygote(zygote))
    }

    /// Splits a child off. In that, returns what it is when it serves.
    fn split(&mut self, child: Child) -> Result<Option<Generation>, Error> {
        let side = process::split(self.origin.list.thread_word())
            .map_err(|error| Error::system("make a process for the next generation", error))?;
        match side {
            Side::Parent(pid) => {
                self.children.push(pid);
                Ok(None)
            }
            Side::Child => match child {
                Child::First => begin(&self.origin).map(Some),
                Child::StandsBy => stand_by(&self.origin).map(Some),
            },
        }
    }

    /// Waits, as long as there is a generation.
    fn run(mut self) -> Result<Generation, Error> {
        loop {
            // Interrupted only by what it waits for.
            let Ok(arrived) = signals::wait() else { continue };
            if arrived.number != libc::SIGCHLD {
                self.forward(arrived);
                continue;
            }
            while let Some(ended) = process::reap() {
                if let Some(generation) = self.bury(ended)? {
                    return Ok(generation);
                }
            }
        }
    }

    /// Signals are meant for who serves; those of a terminal it has got already.
    fn forward(&self, arrived: Arrived) {
        let control = self.origin.control;
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
        let control = self.origin.control;
        let death = Death::from_status(ended.status);
        if death == Death::Exited(GAVE_UP_CODE) && place > 0 {
            self.give_up(&format!("the restarts are more than the policy allows ({:?})", self.origin.policy));
        }
        // Who stands by may have begun to serve before its predecessor was buried.
        let served = place == 0 || control.serving_pid.load(Ordering::SeqCst) == ended.pid.cast_unsigned();
        self.children.remove(place);
        if served {
            let generation = control.generation.load(Ordering::SeqCst);
            // A successor has counted on, if it was quick.
            let begun = control.serving_pid.load(Ordering::SeqCst) != ended.pid.cast_unsigned();
            let number = if begun { generation.saturating_sub(1) } else { generation };
            control.death_status.store(ended.status.cast_unsigned(), Ordering::SeqCst);
            control.death_generation.store(number, Ordering::SeqCst);
            if control.exiting_generation.load(Ordering::SeqCst) == number && death == Death::Exited(0) {
                self.end_all();
                process::exit_now(0);
            }
            let stop_signal = control.stop_signal.load(Ordering::SeqCst).cast_signed();
            if stop_signal != 0 && death == Death::Signal(stop_signal) {
                self.end_all();
                process::exit_now(death.exit_code());
            }
            // It was no end in order after all.
            control.failed_generation.store(number, Ordering::SeqCst);
            if let Some(&successor) = self.children.first().filter(|_| stop_signal != 0) {
                let _ = process::kill(successor, stop_signal);
            }
            // In case the kernel has not: a list of locks can be overwritten by whoever crashes.
            control
                .baton
                .declare_dead(ended.pid)
                .map_err(|error| Error::system("wake the next generation", error))?;
        }
        let generation = self.split(Child::StandsBy)?;
        Ok(generation)
    }

    fn end_all(&mut self) {
        for pid in self.children.drain(..) {
            let _ = process::kill(pid, libc::SIGKILL);
        }
        while process::reap().is_some() {}
    }

    fn give_up(&mut self, why: &str) -> ! {
        self.end_all();
        let status = self.origin.control.death_status.load(Ordering::SeqCst).cast_signed();
        let death = Death::from_status(status);
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            format!("outlast: the server has {death}, and is not restarted: {why}\n").as_bytes(),
        );
        process::exit_now(death.exit_code())
    }
}

/// In the first generation.
fn begin(origin: &Origin) -> Result<Generation, Error> {
    origin.list.register().map_err(|error| Error::system("register robust locks", error))?;
    origin
        .control
        .baton
        .take_first(&origin.list)
        .map_err(|error| Error::system("take the lock of who serves", error))?;
    serve(origin, Inheritance::Everything)
}

/// In a generation that begins to serve, and has the baton.
fn serve(origin: &Origin, inheritance: Inheritance) -> Result<Generation, Error> {
    let control = origin.control;
    control.serving_pid.store(process::pid().cast_unsigned(), Ordering::SeqCst);
    let number = control.generation.fetch_add(1, Ordering::SeqCst) + 1;
    signals::at_exit(note_exit).map_err(|error| Error::system("watch the end of the process", error))?;
    origin.mask.restore().map_err(|error| Error::system("let signals in again", error))?;
    let (zygote, known) = (origin.zygote, origin.known.clone());
    Ok(Generation { number, inheritance, control, slots: origin.slots, zygote, known, found: false })
}

/// In a generation that waits for its turn. Returns when that has come.
fn stand_by(origin: &Origin) -> Result<Generation, Error> {
    let control = origin.control;
    origin.list.register().map_err(|error| Error::system("register robust locks", error))?;
    control.baton.take_from_the_dead(&origin.list);
    let number = control.generation.load(Ordering::SeqCst);
    // It may have ended in order, which the exit code decides, which only its parent can see.
    let ends = || {
        control.exiting_generation.load(Ordering::SeqCst) == number
            || control.stop_signal.load(Ordering::SeqCst) != 0
    };
    while ends() && control.failed_generation.load(Ordering::SeqCst) != number {
        if process::parent() != origin.zygote {
            // Nobody will decide any more, and the server was about to end.
            process::exit_now(0);
        }
        crate::sys::futex::wait(
            &control.failed_generation,
            number.saturating_sub(1),
            Some(Duration::from_millis(1)),
        );
    }
    let dead = control.serving_pid.load(Ordering::SeqCst).cast_signed();
    // One thread has died: the others are about to, and touch everything until they have.
    while dead != 0 && !process::is_dead(dead) {
        std::thread::sleep(DEAD_POLL);
    }
    match control.note_death(origin.policy, crate::sys::clock::monotonic_ms()) {
        Decision::Succeed(inheritance) => serve(origin, inheritance),
        Decision::GiveUp => process::exit_now(GAVE_UP_CODE),
    }
}

/// The process ends by itself.
extern "C" fn note_exit() {
    if let Some(control) = CONTROL.get()
        && control.serving_pid.load(Ordering::SeqCst).cast_signed() == process::pid()
    {
        let number = control.generation.load(Ordering::SeqCst);
        control.exiting_generation.store(number, Ordering::SeqCst);
    }
}
