//! Sockets of a program that was not changed, held while it is down: by its supervisor, from outside.
//!
//! The program runs as it would without anybody: its processes have the parents that they would have, and there are no
//! others. A library that is loaded into it (`outlast-preload`) tells the *holder*, a thread of the supervisor, of each
//! socket that listens, and writes into a [table] which connections are idle. The holder takes copies of those
//! (`pidfd_getfd`). When a process crashes, its copies stay open, and are given to whoever accepts connections next: when a
//! client's next byte is there the holder connects to the program's own listening socket, and the library swaps what was
//! accepted for the connection that is held. A program that is started again and binds to an address of before gets the
//! socket that listens there, with all who wait in its queue.
//!
//! The library finds the holder by the name of a socket in [`ENVIRONMENT`], when the program first binds or accepts.

pub mod address;
mod connections;
mod hindrance;
mod holder;
mod left_over;
mod listeners;
mod mark;
pub mod message;
pub(crate) mod name;
mod overlap;
mod settling;
pub mod table;
mod tcp_table;
pub(crate) mod untold;

use crate::board::Board;
use crate::death::Death;
use crate::sys::custody as sys;
use crate::sys::descriptors;
use crate::sys::mapping::Mapping;
use crate::sys::process::{Ended, Known, Pid};
pub(crate) use hindrance::Ended as StartEnded;
pub(crate) use holder::Successor;
use holder::{Command, Holder};
pub(crate) use left_over::Remains;
pub(crate) use listeners::does_listen;
use listeners::use_folders;
use mark::{MARK, mark, owner_of_table};
pub(crate) use mark::{Marks, is_ours, name_of_memory, supervisor_in, supervisor_of};
use name::Name;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use table::{NotKept, Table};
use untold::Untold;

/// The variable with the name of the holder's socket, in the kernel's space of names, without the zero before it.
pub const ENVIRONMENT: &str = "OUTLAST_CUSTODY";

/// The variable with what the table's memory is called, for who listens when the supervisor is gone: memory of this name is
/// then made by the library, so that the next supervisor finds the process.
pub const MARK_ENVIRONMENT: &str = "OUTLAST_CUSTODY_MARK";

/// A process of the program has ended, and not in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartEnded {
    pub(crate) pid: Pid,
    /// If the system says so.
    pub(crate) death: Option<Death>,
    /// Of its connections, those that are kept.
    pub(crate) kept: u32,
    /// And those that are closed: somebody waited for an answer.
    pub(crate) closed: u32,
}

/// What the holder tells the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    PartEnded(PartEnded),
    /// A process whose main process was gone has ended.
    Finished {
        pid: Pid,
        kept: u32,
        closed: u32,
    },
    /// The generation that serves has come to listen at all addresses that the one before had.
    ListensAgain {
        number: u32,
        pause: Duration,
    },
    /// Connections of this kind have come.
    NotKept(NotKept),
    /// A process of the program does not say what it does. If it is known where that `listens`, its connections are not.
    Untold {
        pid: Pid,
        why: Untold,
        listens: bool,
    },
    /// The program has come to listen when nothing was kept any more that was in its way: so many starts before had failed for that.
    FailedForUs {
        starts: u32,
    },
    /// The start runs and does not listen: listening sockets that may be in its way are closed.
    LetGo {
        sockets: usize,
    },
    /// The program has crashed, and other programs listen where it did: its listening sockets are closed.
    LeftToOthers {
        sockets: usize,
    },
    /// Copies are given up, as there is room for so many.
    Full {
        limit: usize,
    },
    /// The program does not listen any more where so many kept connections had come to.
    ClosedStrays {
        closed: u32,
    },
    /// The program has got listening sockets of those that this supervisor has left, which is gone.
    TookOver {
        supervisor: Pid,
        sockets: usize,
    },
}

/// How the last children of this process have ended.
#[derive(Debug, Default)]
struct Buried(Mutex<VecDeque<Ended>>);

impl Buried {
    const COUNT: usize = 256;

    fn all(&self) -> MutexGuard<'_, VecDeque<Ended>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, ended: Ended) {
        let mut all = self.all();
        if all.len() == Self::COUNT {
            all.pop_front();
        }
        all.push_back(ended);
    }

    /// This process is looked at from here on: how earlier ones of its number have ended is not how it will.
    fn forget_earlier(&self, pid: Pid, process: &OwnedFd) {
        let mut last = None;
        self.all().retain(|ended| {
            let is_its = ended.pid == pid;
            last = if is_its { Some(*ended) } else { last };
            !is_its
        });
        // What is noted from here on is its own. What was noted before may be, too, if it has ended by now.
        if let Some(last) = last.filter(|_| descriptors::wait_readable(process, Duration::ZERO)) {
            self.add(last);
        }
    }

    /// The status of one, once.
    fn take(&self, pid: Pid) -> Option<i32> {
        let mut all = self.all();
        let at = all.iter().rposition(|ended| ended.pid == pid)?;
        all.remove(at).map(|ended| ended.status)
    }
}

/// The supervisor's side.
#[derive(Debug)]
pub(crate) struct Custody {
    name: String,
    mark: String,
    table: &'static Table,
    mapping: Option<Mapping>,
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    reports: Receiver<Report>,
    buried: Arc<Buried>,
    thread: Option<JoinHandle<()>>,
    /// Descriptors that this process was allowed before, and is now.
    limits: Option<(u64, u64)>,
}

impl Custody {
    /// Begins to hold. All signals are to be held back by the calling thread. `link_folders` are for second names of UNIX sockets' files.
    ///
    /// # Errors
    /// There are no threads, or no shared memory, for us.
    pub(crate) fn start(
        name: Name,
        listeners_only: bool,
        board: &'static Board,
        of: &str,
        link_folders: &[PathBuf],
    ) -> io::Result<Self> {
        use_folders(link_folders);
        let mark = mark(std::process::id(), of);
        let (memory, table) = Table::create(listeners_only, &mark)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ((commands, inbox), (outbox, reports)) = (channel(), channel());
        let limits = sys::raise_descriptors_limit();
        let (text, socket) = name.into_parts();
        let buried = Arc::new(Buried::default());
        let told = (inbox, outbox, Arc::clone(&buried));
        let holder = Holder::new(board, table, memory, socket, Arc::clone(&wake), told)?;
        let thread = std::thread::Builder::new().name("holder".into()).spawn(move || holder.run())?;
        let mapping = Mapping::at(table);
        let thread = Some(thread);
        Ok(Self { name: text, mark, table, mapping, commands, wake, reports, buried, thread, limits })
    }

    /// Has the program find the holder.
    pub(crate) fn give_to(&self, command: &mut std::process::Command) {
        command.env(ENVIRONMENT, &self.name).env(MARK_ENVIRONMENT, &self.mark);
        if let Some((before, raised)) = self.limits {
            sys::restore_descriptors_limit(before, raised, command);
        }
    }

    /// By which the program's processes are known that have bound, or accepted, or were forked by one that has.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        self.mapping.as_ref()
    }

    /// Takes over the listening sockets of processes that an earlier supervisor has left: how many.
    pub(crate) fn inherit(&self, from: Vec<Known>) -> usize {
        let (answer, count) = channel();
        self.send(Command::Inherit { from, answer });
        count.recv().unwrap_or(0)
    }

    /// Those processes are another supervisor's, which is gone: as soon as the program binds to an address of theirs, it
    /// gets what listens there.
    pub(crate) fn expect(&self, supervisor: Pid, processes: Vec<Known>) {
        self.send(Command::Expect { supervisor, processes });
    }

    /// The program has crashed, and is to be started again as soon as what is left of it allows that. Who answers clients has
    /// so long for it at the most; nobody has who `may_be_in_the_way`.
    pub(crate) fn clear(&self, patience: Duration, may_be_in_the_way: bool) -> Remains {
        let (answer, remains) = channel();
        self.send(Command::Clear { patience, may_be_in_the_way, answer });
        remains.recv().unwrap_or_default()
    }

    /// The program is about to be started; how its last start has `ended`, if there was one. The holder knows when this returns. Listening
    /// sockets that may be in its way are closed. How many.
    pub(crate) fn starting(&self, ended: Option<StartEnded>) -> usize {
        self.table.set_replaced(false);
        let (answer, heard) = channel();
        self.send(Command::Starting { ended, answer });
        heard.recv().unwrap_or(0)
    }

    /// The program was started, as this process.
    pub(crate) fn started(&self, pid: u32) {
        self.send(Command::Started { pid });
    }

    /// The program says that it serves. The holder has noted that when this returns, if the program listens.
    pub(crate) fn ready(&self) {
        let (answer, heard) = channel();
        self.send(Command::Ready { answer });
        let _ = heard.recv();
    }

    /// A child of this process has ended, and is about to be buried: nobody else could find out how it has ended then.
    pub(crate) fn note_end(&self, ended: Ended) {
        self.buried.add(ended);
    }

    /// The program's main process has ended. The holder knows when this returns.
    pub(crate) fn main_ended(&self) {
        let (answer, heard) = channel();
        self.send(Command::MainEnded { answer });
        let _ = heard.recv();
    }

    /// Whether the main process, which has ended in order, has not listened, and may have ended because of listening sockets that
    /// are held.
    pub(crate) fn may_be_hindered(&self) -> bool {
        let (answer, heard) = channel();
        self.send(Command::MayBeHindered { answer });
        heard.recv().unwrap_or(false)
    }

    /// Who goes on for the main process, which has ended in order.
    pub(crate) fn who_goes_on(&self, ended: Pid) -> Successor {
        let (answer, heard) = channel();
        self.send(Command::WhoGoesOn { ended, answer });
        heard.recv().unwrap_or(Successor::Unknown)
    }

    /// It is about to end: for good, or to be started as another binary.
    pub(crate) fn stopping(&self, for_good: bool) {
        // Before it is told.
        self.table.set_replaced(!for_good);
        self.send(Command::Stopping { for_good });
    }

    /// What has happened since this was asked last.
    pub(crate) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    fn send(&self, command: Command) {
        // If the holder is gone, so is what it held.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Custody {
    fn drop(&mut self) {
        self.send(Command::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process;

    #[test]
    fn how_a_process_ended_is_not_how_the_next_one_of_its_number_does() {
        let buried = Buried::default();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        for (pid, status) in [(pid, 0), (pid + 1, 256), (pid, 0)] {
            buried.add(Ended { pid, status });
        }
        let known = process::open(pid).unwrap();
        buried.forget_earlier(pid, &known);
        assert_eq!((buried.take(pid), buried.take(pid + 1)), (None, Some(256)));
        // It has ended before it was looked at.
        child.kill().unwrap();
        child.wait().unwrap();
        buried.add(Ended { pid, status: libc::SIGKILL });
        buried.forget_earlier(pid, &known);
        assert_eq!(buried.take(pid), Some(libc::SIGKILL));
    }
}
