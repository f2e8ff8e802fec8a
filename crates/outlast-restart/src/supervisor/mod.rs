//! Keeping a program running, whatever it knows of it: started again when it crashes, told what this process is told.
//!
//! A [`Supervisor`] is what service managers see: it stays while the program comes and goes. What to do next is decided by
//! a pure state machine; this module asks the system, and does it. The program finds a
//! [board](crate::board::Board), on which it says what it does for itself. If the process that was started dies and another
//! one lives on for it, by what the board says, that one is the program from then on.

mod awaiting;
mod copies;
mod left;
mod machine;
mod rest;
mod settings;
mod several;
mod shell;
#[cfg(test)]
mod tests;
mod traces;

use crate::Error;
use crate::board::Board;
use crate::custody::name::{Name, Taken};
pub use crate::custody::table::NotKept;
pub use crate::custody::untold::Untold;
use crate::custody::{self, Custody};
use crate::death::Death;
use crate::policy::Inheritance;
use crate::sys::process::{self, Known};
use crate::sys::signals::{Mask, Waited};
use crate::sys::{descriptors, family, signals};
pub(crate) use left::Watch;
pub use left::{ENVIRONMENT, Left, OUTLIVES_ENVIRONMENT, without_supervisor};
use rest::{Rest, Spared};
pub use settings::{Hold, Readiness, Restart, Settings};
pub use several::{Ended, together};
use shell::Shell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// By which a server is told to look at its [board](crate::board::Board::want_upgrade) for another binary: the last of the
/// real-time signals, which means nothing to anybody else.
#[must_use]
pub fn upgrade_signal() -> i32 {
    libc::SIGRTMAX()
}

/// What happens to the program, for whoever tells people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It runs.
    Started {
        /// Its process.
        pid: u32,
        /// Counts from 1.
        run: u32,
    },
    /// It serves.
    Ready,
    /// It has ended, and nobody goes on for it. What follows is told next.
    Ended {
        /// Its process.
        pid: u32,
        /// How.
        death: Death,
    },
    /// It has crashed, and is started again.
    Crashed {
        /// How.
        death: Death,
        /// After this pause.
        pause: Duration,
        /// Starts after a crash within the policy's window, this one among them.
        restarts: usize,
    },
    /// It cannot be started again at the moment.
    CannotStart {
        /// The system's error.
        code: i32,
        /// It is tried again after this pause.
        pause: Duration,
    },
    /// Its process has died, and another one goes on: by its own doing, as its board says.
    Succeeded {
        /// How the old one died.
        death: Death,
        /// The new one.
        pid: u32,
    },
    /// The binary that was to take its place has died before it served, and the old one goes on.
    RolledBack {
        /// How the new one died.
        death: Death,
        /// The old one.
        pid: u32,
    },
    /// It has ended in order, and has left a process that nobody keeps running: what goes into the background does so.
    LeftBehind {
        /// One of those.
        pid: u32,
    },
    /// A wish for another binary has come to its end: see its board for [which](Board::upgrade_end).
    Upgrade {
        /// Its number.
        wish: u32,
    },
    /// It is over, or about to be started again, and others that it has started are not: they are told to end.
    Remaining {
        /// One of those.
        pid: u32,
        /// How many those are.
        count: usize,
        /// By this signal.
        number: i32,
    },
    /// They have not ended in time, and are killed.
    RemainingKilled {
        /// One of those.
        pid: u32,
        /// How many those are.
        count: usize,
        /// It is to be started again, which waits for that, and not for as long as the settings say.
        before_start: bool,
    },
    /// It is about to be started again, and some of what has crashed is answering clients still: that has so long at the
    /// most, and does not keep the next one from starting.
    Finishing {
        /// One of those.
        pid: u32,
        /// How many those are.
        count: usize,
        /// So long.
        limit: Duration,
    },
    /// A process of one that has crashed was ended, or has ended, since its main process was gone.
    PartFinished {
        /// Which.
        pid: u32,
        /// Connections that are kept.
        kept: u32,
        /// And those that are closed.
        closed: u32,
    },
    /// It is about to be started again, and some of what has crashed goes on with clients that it has, as it would by itself:
    /// new ones come to others.
    LeftAlone {
        /// One of those.
        pid: u32,
        /// How many those are.
        count: usize,
    },
    /// Listening sockets that were kept open for it are closed, which may be in its way: it ends before it listens, or does not listen
    /// for a long time.
    LetGo {
        /// How many.
        sockets: usize,
        /// It was started, and runs. Otherwise it is about to be started.
        waits: bool,
    },
    /// It has crashed, and its listening sockets are closed where other programs listen as well (SO_REUSEPORT): new clients are theirs.
    LeftToOthers {
        /// How many.
        sockets: usize,
    },
    /// Another generation of it serves, by its own doing: see its board.
    Generation {
        /// Its number.
        number: u32,
    },
    /// A request was in flight in too many crashes, and is refused: see its board.
    Quarantined {
        /// Counts from 1.
        number: u32,
    },
    /// Its generations take over less than before, after so many crashes; or everything again.
    Inherits {
        /// So much.
        inheritance: Inheritance,
    },
    /// It is told to end.
    Stopping {
        /// By this signal.
        number: i32,
        /// Not to be started again.
        for_good: bool,
    },
    /// It has not ended in time, and is killed.
    Killed,
    /// It was not ready in time, and is killed.
    NotReady,
    /// It has given no sign of life in time, and is killed.
    Silent,
    /// All is well. Comes every [`Settings::alive_interval`].
    Alive,
    /// A process of it has ended, and not in order; it may be the main one. Its idle connections are kept for others.
    PartEnded {
        /// Which.
        pid: u32,
        /// How, if the system says so.
        death: Option<Death>,
        /// Connections that are kept.
        kept: u32,
        /// Those that are closed, as somebody waited for an answer on them, or it was not understood.
        closed: u32,
    },
    /// Connections of this kind have come to it, which are not kept over a crash. Told once of each kind.
    NotKept {
        /// Which.
        kind: NotKept,
    },
    /// A process of it listens, and does not tell so. Told once.
    HoldsNothing {
        /// Which.
        pid: u32,
        /// The reason.
        why: Untold,
    },
    /// Its main process has executed another program, which does not tell of its connections. Told once.
    HoldsNoConnections {
        /// Which.
        pid: u32,
        /// The reason.
        why: Untold,
    },
    /// This process may not have as many descriptors as the program has idle connections: the oldest ones are not kept over
    /// a crash. Told once.
    KeepsFewer {
        /// So many are.
        limit: usize,
    },
    /// This generation serves, and has come to listen at all addresses that the one before had. Said only if it did not before it
    /// served.
    ListensAgain {
        /// Its number.
        number: u32,
        /// After the end of the last one.
        pause: Duration,
    },
    /// Connections were kept over a crash or an upgrade, and the program does not listen any more where they had come to: they
    /// are closed.
    ListensElsewhere {
        /// So many.
        closed: u32,
    },
    /// It has got the listening sockets of processes that an earlier supervisor has left, which are told to end.
    TookOver {
        /// One of those.
        pid: u32,
        /// How many those are.
        count: usize,
        /// So many sockets.
        sockets: usize,
    },
    /// It has ended in order and goes on in the background, where it is looked after as before.
    InBackground {
        /// Its process.
        pid: u32,
    },
    /// It has ended in order as if it went into the background, as it did before, and nobody is there: that is a crash.
    Vanished,
    /// A server with the library still serves that an earlier supervisor has left. The program is started when that has ended.
    Awaits {
        /// One of its processes.
        pid: u32,
        /// How many those are.
        count: usize,
    },
    /// Another process has ended that had this one for a parent.
    Buried {
        /// Which.
        pid: u32,
    },
}

/// How it ended for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It ended in a way that counts as success.
    Finished,
    /// It was told to end, and did so.
    Stopped(Death),
    /// It crashed more often than the policy allows, the last time so.
    GaveUp(Death),
    /// It has ended in order, and gone on in the background, where it cannot be looked after: that was ended, too.
    Background {
        /// One of the processes there.
        pid: u32,
    },
    /// It failed, and was not to be started again.
    Ended(Death),
    /// It never became ready.
    NotReady,
    /// It cannot be started.
    CannotStart {
        /// The system's error.
        code: i32,
    },
}

/// What others tell a supervisor.
enum Message {
    Ready {
        attempt: u32,
    },
    SignOfLife {
        attempt: u32,
    },
    /// The program is to go on as another binary, by its own doing.
    Upgrade {
        wish: u32,
        program: PathBuf,
    },
    /// It is to be stopped, and started as another binary.
    Replace {
        wish: u32,
        program: PathBuf,
    },
}

/// For other threads: to tell a supervisor something.
#[derive(Clone, Debug)]
pub struct Handle {
    board: &'static Board,
    sender: Sender<Message>,
    spared: Spared,
}

impl Handle {
    /// The program serves that was started at this [`Attempt`]. For [`Readiness::Told`].
    pub fn ready(&self, attempt: u32) {
        self.send(Message::Ready { attempt });
    }

    /// The program is alive that was started at this [`Attempt`]. For [`Settings::watchdog_timeout`].
    pub fn sign_of_life(&self, attempt: u32) {
        self.send(Message::SignOfLife { attempt });
    }

    /// Has the program go on as the binary at `program`, or as the same one again if that is empty. With `replace` it is
    /// stopped and started, which closes its connections; without, it takes over from itself, which it has to be
    /// [able to](Board::takes_upgrades). If the new one does not serve within `timeout`, the old one goes on. Gives the number to
    /// ask the board with how [that went](Board::upgrade_end); none while an earlier wish is not dealt with.
    #[must_use]
    pub fn upgrade(&self, program: &Path, replace: bool, timeout: Duration) -> Option<u32> {
        if self.board.upgrade_wanted().is_some() {
            return None;
        }
        let wish = self.board.want_upgrade(program, timeout);
        let program = program.to_owned();
        self.send(if replace {
            Message::Replace { wish, program }
        } else {
            Message::Upgrade { wish, program }
        });
        Some(wish)
    }

    /// Withdraws the wish of this number: the old program goes on, unless the new one serves by now.
    pub fn cancel_upgrade(&self, wish: u32) {
        self.board.cancel_upgrade(wish);
        self.wake();
    }

    /// This child is the caller's own, which has started it since the supervisor was made, and no part of the program: it is
    /// not taken for what that leaves behind.
    pub fn spare(&self, pid: u32) {
        self.spared.add(pid);
    }

    fn send(&self, message: Message) {
        // If nobody listens any more, nobody has to know.
        let _ = self.sender.send(message);
        self.wake();
    }

    fn wake(&self) {
        // The supervisor sleeps until it gets a signal, and looks around at this one.
        let _ = process::kill(process::pid(), libc::SIGCHLD);
    }
}

/// What an earlier supervisor had left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// The processes, which have to end.
    pub pids: Vec<u32>,
    /// How many of their listening sockets stay open for the next program.
    pub sockets: usize,
    /// Some of them listened, and none of that stays open.
    pub refuses: bool,
}

/// A start of the program that is about to be tried.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Counts from 1, also those that fail. What an earlier program has said means nothing to a later one.
    pub number: u32,
    /// The binary, if that is another one since an upgrade.
    pub program: Option<&'a Path>,
}

/// Keeps a program running.
#[derive(Debug)]
pub struct Supervisor {
    settings: Settings,
    /// The board's, for the program; or why that cannot have it.
    memory: io::Result<OwnedFd>,
    board: &'static Board,
    mask: Mask,
    rest: Rest,
    inbox: Receiver<Message>,
    handle: Handle,
    custody: Option<Custody>,
    /// Why there is none, though there should be.
    without_custody: Option<io::Error>,
    /// As long as it is there, nobody else has it.
    _name: Option<Name>,
}

impl Supervisor {
    /// Holds all signals back, in this thread and those that it starts: to be called before there are others. From here on
    /// orphans below this process become its children.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn new(mut settings: Settings) -> Result<Self, Error> {
        let mask = signals::hold_all().map_err(|error| Error::system("hold signals back", error))?;
        family::adopt_orphans().map_err(|error| Error::system("adopt orphans", error))?;
        let own_key = settings.key.take();
        settings.key = own_key.as_deref().map(traces::known_as);
        let key = settings.key.as_deref().unwrap_or("");
        let board = traces::name_of_board(key);
        let (memory, board) = match Board::create_called(&board, &settings.policy) {
            // The program inherits it. What it opens itself has the numbers that it has without us.
            Ok((memory, board)) => (Ok(descriptors::move_up(memory)), board),
            // The program runs all the same, and has none.
            Err(error) => {
                let board = Board::private().map_err(|error| Error::system("make a board", error))?;
                board.set_policy(&settings.policy);
                (Err(error), board)
            }
        };
        if settings.own_hang_timeout {
            board.leave_hang_timeout();
        }
        let (sender, inbox) = channel();
        let rest = Rest::begin();
        let handle = Handle { board, sender, spared: rest.spared().clone() };
        let own_key = own_key.as_deref().unwrap_or("");
        let name = if settings.is_exclusive { Name::take(own_key) } else { Name::any() };
        let (name, failed) = match name {
            Ok(name) => (Some(name), None),
            Err(Taken::By { pid }) => return Err(Error::Taken { pid }),
            Err(Taken::System(error)) => (None, Some(error)),
        };
        let (mut custody, mut without_custody, mut _name) = (None, failed, name);
        if let (Some(hold), Some(name)) = (settings.hold, _name.take_if(|_| settings.hold.is_some())) {
            match Custody::start(name, hold == Hold::Listeners, board, key, &settings.link_folders) {
                Ok(started) => custody = Some(started),
                Err(error) => without_custody = Some(error),
            }
        }
        let without_custody = without_custody.filter(|_| settings.hold.is_some());
        Ok(Self { settings, memory, board, mask, rest, inbox, handle, custody, without_custody, _name })
    }

    /// Deals with processes that an earlier supervisor of the same [key](Settings::key) has left: takes over the listening
    /// sockets of those whose next start asks for them, and ends all, as the earlier one would have done: they are told to,
    /// and killed if they do not within [`Settings::stop_timeout`]; where no sockets can be taken over, and clients are refused
    /// meanwhile, within 5 s at the most. Only those that use the library look after themselves, and are left alone:
    /// [`Self::run`] waits for their end.
    ///
    /// If the key is [not exclusive](Settings::is_exclusive), they may be of another program that is called the same. Then
    /// the sockets are taken over when the program binds to their address.
    ///
    /// `tell` hears of it before they are waited for, if there are any.
    pub fn take_over(&self, tell: impl FnOnce(&TakenOver)) {
        let Some(key) = self.settings.key.as_deref() else { return };
        let held = left::held_by(key);
        if !self.settings.is_exclusive {
            for (supervisor, processes) in self.custody.as_ref().map(|_| held).into_iter().flatten() {
                self.custody.iter().for_each(|custody| custody.expect(supervisor, processes.clone()));
            }
            return;
        }
        let holding: Vec<Known> = held.into_values().flatten().collect();
        let mut all = traces::left_of(key);
        all.retain(|known| !holding.iter().any(|holding| holding.pid == known.pid));
        all.extend(holding.iter().cloned());
        let pids: Vec<u32> = all.iter().map(|known| known.pid.cast_unsigned()).collect();
        let sockets = match &self.custody {
            Some(custody) if !holding.is_empty() => custody.inherit(holding),
            _ => 0,
        };
        let refuses = sockets == 0 && all.iter().any(|known| custody::does_listen(known.pid));
        let time = left::time_to_end(self.settings.stop_timeout, sockets > 0);
        if !pids.is_empty() {
            tell(&TakenOver { pids, sockets, refuses });
        }
        left::end(&all, self.settings.stop_signal, time);
    }

    /// Why no sockets are held, though [`Settings::hold`] asks for it.
    #[must_use]
    pub fn without_custody(&self) -> Option<&io::Error> {
        self.without_custody.as_ref()
    }

    /// Why the program does not have its [board](Self::board): there is no shared memory for it. If it uses the library, its
    /// generations are unknown to this supervisor.
    #[must_use]
    pub fn without_board(&self) -> Option<&io::Error> {
        self.memory.as_ref().err()
    }

    /// For other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// What the program says of itself.
    #[must_use]
    pub fn board(&self) -> &'static Board {
        self.board
    }

    /// Runs what `make` makes, again and again, until it ends in order, is told to end, or fails too often. All signals that
    /// this process gets are passed on, and children that were left to it are buried, as the first process of a container
    /// has to. Unless it ends in order by itself, whatever else it has started is told to end, too, and killed if it does not
    /// within [`Settings::stop_timeout`]. So it is before each start, by [`Settings::stop_signal`], within 5 s at the most.
    ///
    /// A server with the library that an earlier supervisor of the same [key](Settings::key) has left is waited for first, if the key
    /// is [exclusive](Settings::is_exclusive), and ended if this process is told to end.
    ///
    /// The calling thread has to live for as long as the process does: for the kernel it is the program's parent
    /// ([`Settings::orphan_signal`]).
    ///
    /// If a service manager has passed sockets to this process (sd_listen_fds(3)), an `arg0` or an `env_clear` of what `make`
    /// makes has no effect, as no such command can be asked for them: use `env_remove`.
    ///
    /// # Errors
    /// The system does not let us wait.
    pub fn run(
        self,
        make: impl FnMut(Attempt<'_>) -> Command,
        mut tell: impl FnMut(Event),
    ) -> Result<Outcome, Error> {
        let mask = self.mask;
        let outcome = match awaiting::wait(&self.settings, &mut tell) {
            Some(outcome) => Ok(outcome),
            None => Shell::new(self, make, tell).run(),
        };
        // What has come after the program's end, as from one that tells its whole process group to end, must not end us.
        while let Waited::Arrived(_) = signals::wait_for(Some(Duration::ZERO)) {}
        let _ = mask.restore();
        outcome
    }
}
