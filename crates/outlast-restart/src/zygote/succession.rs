//! In the generations themselves: how one begins to serve, and how the next one comes to.

use super::origin::Ready;
use super::{CONTROL, Common, GAVE_UP_CODE, Origin, SOON_POLL, say};
use crate::board::Cause;
use crate::generation::Shared;
use crate::policy::{Decision, Inheritance};
use crate::sys::process::{self, Pid};
use crate::sys::{clock, descriptors, pages, signals};
use crate::{Error, Generation, STOP_SIGNALS, fault};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A process whose first thread has ended is looked at all the time for so long, and then this often.
const SOON_MS: u64 = 10;
const LATE_POLL: Duration = Duration::from_millis(50);

/// Between two looks at whether the dead have left their memory, which is much: each look takes some.
const ENDED_POLL: Duration = Duration::from_millis(1);

/// In the first generation.
pub(super) fn begin(origin: &Origin) -> Result<Generation, Error> {
    prepare(origin)?;
    origin
        .common
        .control
        .baton
        .take_first(&origin.list)
        .map_err(|error| Error::system("take the lock of who serves", error))?;
    decide_upgrade(origin);
    let generation = serve(origin, Inheritance::Everything, Duration::ZERO)?;
    tell_ready(origin);
    Ok(generation)
}

/// Of another binary that is about to serve. From here on there is no way back: either it serves, or the one before does.
fn decide_upgrade(origin: &Origin) {
    let Some(Ready { wish, .. }) = origin.ready else { return };
    let board = origin.common.board;
    // None: it is over, where there is a supervisor to wish for it.
    let serves = wish.map_or(board.policy().is_none(), |wish| board.decide_upgrade(wish, true));
    if !serves {
        // It is about to be killed.
        crate::sys::fault::park();
    }
}

/// To the binary before, which waits for that: once, as its descriptor is closed then, and its number something else's.
fn tell_ready(origin: &Origin) {
    if let Some(Ready { descriptor, .. }) = origin.ready
        && origin.common.control.told_ready.swap(1, Ordering::SeqCst) == 0
    {
        descriptors::say(descriptor);
    }
}

/// Whatever can be done before it matters.
fn prepare(origin: &Origin) -> Result<(), Error> {
    let _ = CONTROL.set(origin.common.control);
    origin.list.register().map_err(|error| Error::system("register robust locks", error))?;
    fault::watch(origin.common.control).map_err(|error| Error::system("watch for faults", error))?;
    signals::at_exit(note_exit).map_err(|error| Error::system("watch the end of the process", error))
}

/// In a generation that begins to serve, and has the baton.
fn serve(origin: &Origin, inheritance: Inheritance, pause: Duration) -> Result<Generation, Error> {
    let pid = process::pid().cast_unsigned();
    let Common { control, board, slots, buffers } = origin.common;
    let number = control.begin(pid);
    // It may have come when nobody served.
    let stop_signal = control.stop_signal.load(Ordering::SeqCst).cast_signed();
    if stop_signal != 0 {
        let _ = process::kill(process::pid(), stop_signal);
    }
    board.note_begin_of(number, pid, pause);
    origin.mask.restore().map_err(|error| Error::system("let signals in again", error))?;
    if let Some(seat) = &origin.seat {
        seat.tell_root();
    }
    let shared = Shared { control, board, slots, buffers, number, state: OnceLock::new() };
    Ok(Generation {
        shared: Box::leak(Box::new(shared)),
        inheritance,
        zygote: origin.zygote,
        known: Arc::clone(&origin.known),
        channels: origin.seat.as_ref().map(|seat| seat.channels.clone()).unwrap_or_default(),
        channels_given: false,
        found: false,
        refusal: [].into(),
    })
}

/// What will be touched is there then: each page that is first looked for in the pause makes it longer by a microsecond
/// or two.
fn rehearse(origin: &Origin) {
    origin.reserve.fill();
    origin.code.map();
    origin.common.control.rehearse();
    origin.common.board.rehearse();
    origin.common.slots.rehearse();
    pages::populate_stack();
    descriptors::rehearse();
    // The clock's own page, and that from which a little memory is taken.
    std::hint::black_box((clock::monotonic_ns(), clock::since_1970_ms(), vec![0u8; 100]));
}

/// In a generation that waits for its turn. Returns when that has come.
pub(super) fn stand_by(origin: &Origin) -> Result<Generation, Error> {
    let Common { control, board, slots, .. } = origin.common;
    prepare(origin)?;
    rehearse(origin);
    control.baton.take_from_the_dead(&origin.list);
    let noticed_ns = clock::monotonic_ns();
    let number = control.generation.load(Ordering::SeqCst);
    // It may have ended in order, which the exit code decides, which only its parent can see.
    let ends = || {
        control.exiting_generation.load(Ordering::SeqCst) == number
            || control.stop_signal.load(Ordering::SeqCst) != 0
            // Its whole process group was told to end: the zygote is about to hear of that, too.
            || STOP_SIGNALS.into_iter().any(signals::is_pending)
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
    let has_handed_over = control.quiet_generation.load(Ordering::SeqCst) == number;
    if !has_handed_over {
        origin.reserve.give_back();
    }
    let dead = control.serving_pid.load(Ordering::SeqCst).cast_signed();
    // One thread has died: the others are about to, and touch everything until they have.
    let (looked_at, mut pause) = (clock::monotonic_ms(), SOON_POLL);
    while !has_handed_over && dead != 0 && !process::is_dead(dead) {
        std::thread::sleep(pause);
        // The first thread may have ended alone (`pthread_exit`): the others serve then, for hours perhaps.
        if clock::monotonic_ms() - looked_at > SOON_MS {
            pause = (pause * 2).min(LATE_POLL);
        }
    }
    // Also where it could not hand over.
    let has_faulted = control.faulting_thread.load(Ordering::SeqCst) != 0;
    if !has_faulted {
        look_for_want_of_memory(origin, number, dead);
    }
    let begin_ns = if has_faulted { control.fault_ns.load(Ordering::SeqCst) } else { noticed_ns };
    if let Some(blamed) = control.blamed.load(Ordering::SeqCst).checked_sub(1) {
        crate::suspects::blame(control, slots, blamed.cast_signed());
    }
    let decision = control.note_death(origin.policy, clock::monotonic_ms());
    let pause = Duration::from_nanos(clock::monotonic_ns().saturating_sub(begin_ns));
    let Decision::Succeed(inheritance) = decision else { process::exit_now(GAVE_UP_CODE) };
    if inheritance == Inheritance::Listeners {
        say(&format!(
            "{} crashes so often that its connections are closed: only its listening sockets are taken over",
            origin.name()
        ));
    }
    board.note_end(number, None, Cause::Unknown);
    decide_upgrade(origin);
    let generation = serve(origin, inheritance, pause);
    // The first one may have died before it could.
    tell_ready(origin);
    if process::parent() != origin.zygote {
        if let Some(seat) = &origin.seat {
            seat.end_with_root();
        }
        say(&format!(
            "process {} of {}, which starts its generations, is gone: process {} serves, and is the last one",
            origin.zygote,
            origin.name(),
            process::pid()
        ));
    }
    // Only now may the dead have the processor, for taking its memory apart or dumping it.
    control.acknowledged_generation.store(number, Ordering::SeqCst);
    generation
}

/// Where the kernel has killed a generation for the memory it used, one of its requests is to blame. The next one begins
/// when that memory is free: otherwise the kernel would soon kill another one for it, perhaps the zygote.
fn look_for_want_of_memory(origin: &Origin, number: u32, dead: Pid) {
    let (Common { control, board, slots, .. }, Some(kills)) = (origin.common, origin.kills.count()) else {
        return;
    };
    if control.memory_kills.swap(kills, Ordering::SeqCst) >= kills {
        return;
    }
    board.note_end(number, None, Cause::OutOfMemory);
    for descriptor in control.threads(number).all_current() {
        crate::suspects::blame(control, slots, descriptor);
    }
    while !process::has_ended(dead) {
        std::thread::sleep(ENDED_POLL);
    }
}

/// The process ends by itself.
extern "C" fn note_exit() {
    if let Some(control) = CONTROL.get()
        && control.serving_pid.load(Ordering::SeqCst).cast_signed() == process::pid()
    {
        // If that is a failure, its request is to blame.
        let blamed =
            crate::threads::current().map_or(0, |descriptor| descriptor.cast_unsigned().wrapping_add(1));
        control.blamed.store(blamed, Ordering::SeqCst);
        let number = control.generation.load(Ordering::SeqCst);
        control.exiting_generation.store(number, Ordering::SeqCst);
    }
}
