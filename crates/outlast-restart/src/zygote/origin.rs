//! Where generations are split off from: what they share, made before the first one, and how a process begins to stay.

use super::{Begun, CONTROL, Zygote};
use crate::board::{Backend, Board};
use crate::buffers::Buffers;
use crate::control::Control;
use crate::policy::Policy;
use crate::roles::Seat;
use crate::slots::Slots;
use crate::sys::descriptors::Known;
use crate::sys::memory::{Kills, Reserve};
use crate::sys::pages::Code;
use crate::sys::process::{self, Pid};
use crate::sys::robust::RobustList;
use crate::sys::shared;
use crate::sys::signals::{self, Mask};
use crate::sys::{clock, descriptors};
use crate::{Error, Generation, handover};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// By which a program can be seen to take over its connections by itself: a section of its file.
#[used]
#[unsafe(link_section = ".note.outlast")]
static LINKED: [u8; 16] = *b"outlast-restart\0";

/// What all generations of a process share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    pub(crate) control: &'static Control,
    pub(crate) board: &'static Board,
    pub(crate) slots: &'static Slots,
    pub(crate) buffers: &'static Buffers,
}

impl Common {
    pub(crate) fn new(board: &'static Board) -> Result<Self, Error> {
        let mapped = |error| Error::system("map memory for all generations", error);
        Ok(Self {
            control: shared::share().map_err(mapped)?,
            board,
            slots: Slots::new().map_err(mapped)?,
            buffers: Box::leak(Box::new(Buffers::new().map_err(mapped)?)),
        })
    }

    /// Whether children that are made from now on have it.
    pub(crate) fn set_inherited(&self, inherited: bool) -> io::Result<()> {
        shared::set_inherited(self.control, inherited)?;
        shared::set_inherited(self.board, inherited)?;
        shared::set_inherited(self.slots, inherited)?;
        self.buffers.set_inherited(inherited)
    }
}

/// What every generation needs to know of the place it was split off from.
pub(super) struct Origin {
    pub(super) common: Common,
    pub(super) policy: Policy,
    pub(super) kills: Kills,
    pub(super) reserve: &'static Reserve,
    pub(super) code: Code,
    pub(super) list: RobustList,
    pub(super) mask: Mask,
    pub(super) zygote: Pid,
    /// Descriptors that were open, and mean the same to every generation.
    pub(super) known: Arc<Known>,
    /// For the binary before, which waits to hear that this one serves.
    pub(super) ready: Option<Ready>,
    /// The last generation of a zygote before this one.
    pub(super) before: u32,
    /// Of a program with several processes.
    pub(super) seat: Option<Seat>,
}

/// How the binary before hears that this one serves.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    /// Where it waits for that.
    pub(super) descriptor: RawFd,
    /// The wish that this one is the answer to; none if that is over, or there is no supervisor.
    pub(super) wish: Option<u32>,
}

impl Origin {
    /// What people know this process by.
    pub(super) fn name(&self) -> &str {
        self.seat.as_ref().map_or("the server", |seat| &seat.name)
    }

    /// Whether this is one end of a channel between processes of the program.
    pub(super) fn is_channel(&self, descriptor: RawFd) -> bool {
        let mut channels = self.seat.iter().flat_map(|seat| &seat.channels);
        channels.any(|end| end.descriptor == descriptor && end.is_open())
    }

    /// Whether somebody looks after this process together with others, who is gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| process::parent() != seat.root)
    }
}

/// A thread that was joined is gone by then, also on a busy machine: `pthread_join` returns a moment before it is.
const THREADS_END: Duration = Duration::from_secs(5);

/// That a process which is to split has one thread.
pub(crate) fn check_alone() -> Result<(), Error> {
    if CONTROL.get().is_some() {
        return Err(Error::Registered);
    }
    let (us, until) = (process::pid(), Instant::now() + THREADS_END);
    loop {
        match process::thread_count(us) {
            Ok(1) => return Ok(()),
            // The others are on their way out.
            Ok(_) if process::living_thread_count(us) == 1 && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(count) => return Err(Error::Threads { count }),
            Err(error) => return Err(Error::system("read /proc", error)),
        }
    }
}

/// Makes this process a zygote. Returns in each generation that is to serve, and never in the zygote itself: that ends
/// as its last generation did.
pub(crate) fn register(policy: Policy) -> Result<Generation, Error> {
    check_alone()?;
    let board = match Board::of_supervisor_alone() {
        Some(board) => board,
        None => Board::private().map_err(|error| Error::system("map memory for all generations", error))?,
    };
    board.set_backend(Backend::Library);
    enter(Common::new(board)?, policy, None)
}

/// As [`register`], with memory that the generations of an earlier zygote may have used.
pub(crate) fn enter(common: Common, policy: Policy, seat: Option<Seat>) -> Result<Generation, Error> {
    // Whoever calls this has it in its file.
    std::hint::black_box(&LINKED);
    check_alone()?;
    let Common { control, board, .. } = common;
    // What an operator says counts more than what a programmer has thought of.
    let policy = board.policy_over(policy);
    let list = RobustList::of_this_thread();
    control.baton.forget();
    control.baton.prepare(&list);
    signals::can_wait().map_err(|error| Error::system("wait for signals", error))?;
    let mask = signals::hold_all().map_err(|error| Error::system("hold signals back", error))?;
    let origin = origin(common, policy, seat, list, mask).inspect_err(|_| {
        let _ = mask.restore();
    })?;
    match Zygote::begin(origin)? {
        Begun::Zygote(zygote) => zygote.run(),
        Begun::Generation(generation) => Ok(generation),
    }
}

/// What is there now, and what was left by whoever was here before.
fn origin(
    common: Common,
    policy: Policy,
    seat: Option<Seat>,
    list: RobustList,
    mask: Mask,
) -> Result<Origin, Error> {
    let Common { control, board, slots, buffers } = common;
    let mapped = |error| Error::system("map memory for all generations", error);
    let reserve = shared::share().map_err(mapped)?;
    let kills = Kills::of_this_process();
    control.memory_kills.store(kills.count().unwrap_or(0), Ordering::SeqCst);
    let code = Code::of_this_process();
    let mut ready = None;
    let theirs = match &seat {
        Some(seat) => {
            seat.watch_root()
                .map_err(|error| Error::system("watch the process that looks after this one", error))?;
            // Whoever drops a channel may have something else by its number.
            let theirs: BTreeSet<RawFd> = seat.descriptors(slots).collect();
            if control.generation.load(Ordering::SeqCst) > 0 {
                // The zygote before this one is gone, and its last generation with it: so are its clients.
                slots.forget_lost(descriptors::inode_of);
                control.note_death(policy, clock::monotonic_ms());
            }
            theirs
        }
        None => {
            let left = handover::read(control, slots, buffers)
                .map_err(|error| Error::system("take over from the binary before", error))?;
            let (left, theirs) = left.unzip();
            let wish = board.upgrade_wanted().map(|wish| wish.number);
            ready = left.map(|left| Ready { descriptor: left.ready, wish });
            if ready.is_none() {
                board.count_anew(process::pid().cast_unsigned());
            }
            theirs.unwrap_or_default()
        }
    };
    let known = descriptors::open_with_identities();
    let mut known = known.map_err(|error| Error::system("list the open descriptors", error))?;
    known.retain(|descriptor, _| {
        !theirs.contains(descriptor) && ready.is_none_or(|ready| *descriptor != ready.descriptor)
    });
    let (zygote, known) = (process::pid(), Arc::new(known));
    // Also those of a binary before.
    let before = control.generation.load(Ordering::SeqCst);
    Ok(Origin { common, policy, kills, reserve, code, list, mask, zygote, known, ready, before, seat })
}
