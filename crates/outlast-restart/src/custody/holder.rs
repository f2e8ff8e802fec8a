//! The thread that holds.

mod ends;
mod frees;
mod hears;
mod postponed;
mod successor;

pub(crate) use successor::Successor;

use super::connections::Connections;
use super::hindrance::Hindrance;
use super::left_over::{LeftOver, Remains};
use super::listeners::Listeners;
use super::settling::Settling;
use super::table::{NotKept, Table};
use super::untold;
use super::{Buried, Report};
use crate::board::{Backend, Board};
use crate::custody::StartEnded;
use crate::sys::process::{self, Known, Pid};
use crate::sys::{custody as sys, family, reserve};
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// Between two looks at the table while connections come and go: an answer that was written less than this before a crash
/// is the last one on its connection.
const TICK: Duration = Duration::from_millis(10);
/// The same, when nothing new has come for a while.
const SLOW_TICK: Duration = Duration::from_millis(50);
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Between two looks at the processes.
const SWEEP: Duration = Duration::from_secs(1);
/// New ones are looked for more often for so long after anything has changed: a program that begins makes others.
const NEW_PROCESSES: Duration = Duration::from_millis(100);
const NEW_FOR: Duration = Duration::from_secs(3);
/// Between two looks at whether the program has given up a listening socket, if it looks so.
const IN_DOUBT: Duration = Duration::from_millis(200);
/// A program for which nothing is held any more has so long to listen everywhere where it has listened before.
const LISTENS_LATER: Duration = Duration::from_secs(10);
/// Descriptors that are left for the supervisor's other work, where there are enough; it has a quarter of few.
const SPARE_DESCRIPTORS: usize = 256;
/// And never less.
const SPARE_DESCRIPTORS_MIN: usize = 40;

const KIND_SHIFT: u32 = 56;
const SOCKET: u64 = 0;
const WAKE: u64 = 1 << KIND_SHIFT;
const CONTROL: u64 = 2 << KIND_SHIFT;
const PROCESS: u64 = 3 << KIND_SHIFT;
const CONNECTION: u64 = 4 << KIND_SHIFT;
const LISTENER: u64 = 5 << KIND_SHIFT;

/// By which an event of a connection is known.
pub(super) fn of_connection(slot: u32) -> u64 {
    CONNECTION | u64::from(slot)
}

/// The same, of a listening socket that was shut down.
pub(super) fn of_listener() -> u64 {
    LISTENER
}

/// What the supervisor says.
#[derive(Debug)]
pub(super) enum Command {
    Inherit {
        from: Vec<Known>,
        answer: Sender<usize>,
    },
    Expect {
        supervisor: Pid,
        processes: Vec<Known>,
    },
    /// Its main process is gone.
    Clear {
        patience: Duration,
        may_be_in_the_way: bool,
        answer: Sender<Remains>,
    },
    /// It is about to be started: what is said from here on is said by the new one.
    Starting {
        ended: Option<StartEnded>,
        answer: Sender<usize>,
    },
    /// It was; or, if nothing was to be started since the last one, it goes on as this process.
    Started {
        pid: u32,
    },
    /// It says that it serves.
    Ready {
        answer: Sender<()>,
    },
    MainEnded {
        answer: Sender<()>,
    },
    /// The main process has ended in order: because of what is held, perhaps?
    MayBeHindered {
        answer: Sender<bool>,
    },
    /// Who goes on for the main process, which has ended in order?
    WhoGoesOn {
        ended: Pid,
        answer: Sender<Successor>,
    },
    Stopping {
        for_good: bool,
    },
    End,
}

/// A process of the program that is watched.
#[derive(Debug)]
struct Part {
    process: OwnedFd,
    /// It has the table: it is the server itself, or was forked by it.
    has_table: bool,
}

/// A connection with one of its processes.
#[derive(Debug)]
struct Control {
    socket: OwnedFd,
    pid: Pid,
    /// As whom it has connected.
    user: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// Another binary takes over.
    Replaced,
    ForGood,
}

pub(super) struct Holder {
    board: &'static Board,
    table: &'static Table,
    memory: OwnedFd,
    epoll: OwnedFd,
    socket: OwnedFd,
    wake: Arc<OwnedFd>,
    inbox: Receiver<Command>,
    outbox: Sender<Report>,
    buried: Arc<Buried>,
    controls: BTreeMap<u64, Control>,
    next_control: u64,
    parts: BTreeMap<Pid, Part>,
    listeners: Listeners,
    connections: Connections,
    /// Closed by their processes, and to be kept if no other process has them.
    released: Vec<ends::Released>,
    /// Closed by their processes just after another one has crashed, and how many of those are kept.
    closed: postponed::Closed,
    left_over: LeftOver,
    main: Option<u32>,
    /// It tells of its connections, or was started as one that does. One that another one has started in its own place may not.
    main_tells: bool,
    /// The file that the main process has executed.
    program: Option<PathBuf>,
    listens: bool,
    /// Whether listening sockets that are held are in its way.
    hindrance: Hindrance,
    /// A process has ended while the main one is down: others may listen where it did.
    leaves_to_others: bool,
    /// Some were closed for it, and it has not listened since.
    has_freed: bool,
    /// Connections stay open until then that had come where the program does not listen.
    strays_stay_until: Option<Instant>,
    /// The one that was started last listens since then.
    serves_since: Option<Instant>,
    /// When that counts as serving, and whether it does.
    settling: Settling,
    ending: Ending,
    /// The last one, from which on nobody has served.
    main_ended_at: Option<Instant>,
    /// The same, when the present one has begun to listen.
    down_since: Option<Instant>,
    /// The same, when the present one counts as serving, and does not listen yet at all addresses that it had.
    late_since: Option<Instant>,
    changed_at: Instant,
    took_at: Instant,
    swept_at: Instant,
    /// When it was looked for connections that the program may have closed.
    doubted_at: Instant,
    listeners_at: Instant,
    watched_at: Instant,
    /// Descriptors that this process may have.
    descriptors: usize,
    told_full: bool,
    told_strange: Vec<NotKept>,
    untold: untold::Watch,
    /// An earlier process may remove the files of UNIX sockets that the next one has.
    puts_back_until: Option<Instant>,
    is_over: bool,
}

impl Holder {
    pub(super) fn new(
        board: &'static Board,
        table: &'static Table,
        memory: OwnedFd,
        socket: OwnedFd,
        wake: Arc<OwnedFd>,
        (inbox, outbox, buried): (Receiver<Command>, Sender<Report>, Arc<Buried>),
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(SOCKET), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let descriptors = sys::descriptors_limit();
        let now = Instant::now();
        Ok(Self {
            connections: Connections::new(table, sys::network(socket.as_fd())),
            board,
            table,
            memory,
            epoll,
            socket,
            wake,
            inbox,
            outbox,
            buried,
            controls: BTreeMap::new(),
            next_control: 0,
            parts: BTreeMap::new(),
            listeners: Listeners::default(),
            released: Vec::new(),
            closed: postponed::Closed::default(),
            left_over: LeftOver::new(now),
            main: None,
            main_tells: true,
            program: None,
            listens: false,
            hindrance: Hindrance::default(),
            leaves_to_others: false,
            has_freed: false,
            strays_stay_until: None,
            serves_since: None,
            settling: Settling::default(),
            ending: Ending::No,
            main_ended_at: None,
            down_since: None,
            late_since: None,
            changed_at: now,
            took_at: now,
            swept_at: now,
            doubted_at: now,
            listeners_at: now,
            watched_at: now,
            descriptors,
            told_full: false,
            told_strange: Vec::new(),
            untold: untold::Watch::new(now),
            puts_back_until: None,
            is_over: false,
        })
    }

    /// Until it is told to end.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        reserve::keep();
        while !self.is_over {
            let patience = self.patience();
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            if let Err(error) = epoll::wait(&self.epoll, room, Some(&patience))
                && error != rustix::io::Errno::INTR
            {
                return;
            }
            self.table.asleep.store(0, Ordering::SeqCst);
            // Before what a program has said that was started since.
            self.hear();
            for event in &events {
                let data = event.data.u64();
                let number = data & !(u64::MAX << KIND_SHIFT);
                match data & (u64::MAX << KIND_SHIFT) {
                    SOCKET => self.accept(),
                    WAKE => {
                        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                    }
                    CONTROL => self.on_control(number),
                    PROCESS => {
                        // What it has said before it ended comes first.
                        self.hear_of(number);
                        self.on_end(number);
                    }
                    // An earlier process ends, and has shut down what the next one has, or will in a moment.
                    LISTENER if self.puts_back_until.is_some() || self.ending == Ending::Replaced => {
                        self.listeners.open_again();
                    }
                    LISTENER => {}
                    _ => {
                        let slot = u32::try_from(number).unwrap_or(u32::MAX);
                        self.connections.on_event(slot, &self.epoll, Instant::now());
                    }
                }
            }
            self.work();
        }
    }

    /// How long nothing needs to be done if nothing comes.
    fn patience(&mut self) -> Timespec {
        let now = Instant::now();
        let tick = |holder: &Self| {
            if now.duration_since(holder.took_at) < SLOW_AFTER { TICK } else { SLOW_TICK }
        };
        let sweep = SWEEP.saturating_sub(now.duration_since(self.swept_at));
        let sweep = sweep.min(self.watch_interval(now).saturating_sub(now.duration_since(self.watched_at)));
        let sweep = self.left_over.patience(now).map_or(sweep, |left| sweep.min(left));
        let sweep = if self.listeners.is_in_doubt() { sweep.min(IN_DOUBT) } else { sweep };
        let doubt = IN_DOUBT.saturating_sub(now.duration_since(self.doubted_at));
        let sweep = if self.connections.is_in_doubt() { sweep.min(doubt) } else { sweep };
        let settles_at = self.settles_at();
        let sweep = settles_at.map_or(sweep, |at| sweep.min(at.saturating_duration_since(now)));
        let is_hurried = self.connections.has_waiting()
            || self.puts_back_until.is_some()
            || self.settling.keeps_waiting() && settles_at.is_some();
        let mut time = if is_hurried { TICK } else { sweep };
        if self.connections.has_new() {
            time = time.min(tick(self));
        } else {
            self.table.asleep.store(1, Ordering::SeqCst);
            // One may have come before that could be seen.
            if self.connections.has_new() {
                time = time.min(TICK);
            }
        }
        let nanos = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 }
    }

    fn watch_interval(&self, now: Instant) -> Duration {
        if now.duration_since(self.changed_at) < NEW_FOR { NEW_PROCESSES } else { SWEEP }
    }

    fn work(&mut self) {
        let now = Instant::now();
        self.keep_released();
        self.close_postponed(now);
        for pid in self.look_at_clients() {
            // One that has said nothing yet.
            if !self.parts.contains_key(&pid) && family::is_below_this(pid) {
                self.watch(pid, true);
            }
        }
        self.note_settled(now);
        self.free_port_when_due(now);
        if self.leaves_to_others && self.is_main_down() {
            self.leave_to_others(&family::below_this());
        }
        let spare = (self.descriptors / 4).clamp(SPARE_DESCRIPTORS_MIN, SPARE_DESCRIPTORS);
        let others = spare + self.parts.len() + self.controls.len() + self.listeners.count();
        self.connections.set_limit(self.descriptors.saturating_sub(others));
        self.take(now);
        self.listeners.watch(&self.epoll);
        self.note_held();
        let (parts, held) = (&self.parts, (&self.listeners, &mut self.connections));
        self.left_over.go_on(|pid| parts.get(&pid).map(|part| part.process.as_fd()), held, now);
        self.look_at_listeners(now);
        if self.table.take_unheard_closes() {
            self.doubted_at = now;
            self.connections.sweep();
        }
        if self.connections.is_in_doubt() && now.duration_since(self.doubted_at) >= IN_DOUBT {
            self.doubted_at = now;
            self.connections.settle_doubts();
        }
        if let Some(until) = self.puts_back_until {
            self.listeners.put_back();
            self.puts_back_until = Some(until).filter(|until| now < *until);
            if self.puts_back_until.is_none() {
                self.table.shut_down.forget_wake_ups();
            }
        }
        if self.ending != Ending::ForGood {
            let serves_since = self.serves_since.filter(|_| self.main_ended_at.is_none());
            self.connections.offer(&self.listeners, serves_since, now);
        }
        let sweeps = now.duration_since(self.swept_at) >= SWEEP;
        if now.duration_since(self.watched_at) < self.watch_interval(now) && !sweeps {
            return;
        }
        let processes = family::below_this();
        for &pid in &processes {
            self.watch(pid, false);
        }
        self.watched_at = now;
        for kind in self.table.not_kept() {
            if !self.told_strange.contains(&kind) {
                self.told_strange.push(kind);
                self.report(Report::NotKept(kind));
            }
        }
        if !sweeps {
            return;
        }
        (self.swept_at, self.doubted_at) = (now, now);
        self.hear_of_closed_listener(now);
        if matches!(self.board.backend(), Backend::Library | Backend::Roles) {
            // The server keeps its sockets by itself.
            self.connections.clear();
            self.listeners = Listeners::default();
            return;
        }
        self.connections.sweep();
        self.connections.forget_gone(|pid| self.parts.contains_key(&pid));
        // It may listen somewhere first, and where its clients had come to a little later.
        let listens_later = self.strays_stay_until.is_some_and(|until| now < until);
        if self.serves_since.is_some() && self.ending == Ending::No && !self.is_main_down() && !listens_later
        {
            let closed = self.connections.close_strays(&self.listeners, now);
            if closed > 0 {
                self.report(Report::ClosedStrays { closed });
            }
        }
        let (listens, main) = (self.listens, self.main.and_then(|main| Pid::try_from(main).ok()));
        let untold = match main.filter(|_| self.serves_since.is_some()) {
            Some(main) => {
                let (parts, listeners) = (&self.parts, &self.listeners);
                let serves = |pid: Pid| {
                    let process = parts.get(&pid).map(|part| part.process.as_fd());
                    process.is_some_and(|process| listeners.is_served_by(process, pid))
                };
                self.untold.look_at_all(main, &processes, serves, now)
            }
            None if listens => None,
            None => self.untold.look(main, &processes, now),
        };
        if !self.main_tells && !self.parts.values().any(|part| part.has_table) {
            // It has come in the place of one that told: nobody can be given what that one's processes have left.
            self.connections.clear();
        }
        if let Some((pid, why)) = untold {
            self.report(Report::Untold { pid, why, listens });
        }
    }

    /// Copies connections that have become idle.
    fn take(&mut self, now: Instant) {
        let parts = &self.parts;
        if self.connections.take(|pid| parts.get(&pid).map(|part| part.process.as_fd())) {
            self.took_at = now;
        }
    }

    /// Whether the program has given up some. Clients are refused there then, as they would be without this one.
    fn look_at_listeners(&mut self, now: Instant) {
        let pause = if self.listeners.is_in_doubt() { IN_DOUBT } else { SWEEP };
        let is_time = now.duration_since(self.listeners_at) >= pause;
        let serves = self.serves_since.is_some();
        let goes_on = serves && self.ending != Ending::Replaced && self.listeners.count() > 0;
        if is_time && goes_on && !self.is_main_down() {
            self.listeners_at = now;
            let left_over = &self.left_over;
            let (all_taken, orphaned) =
                self.listeners.sweep(&family::below_this(), |pid| left_over.is_older(pid), now);
            self.table.note_untaken(!all_taken);
            self.connections.pass_on_all(&orphaned);
            if self.listeners.awaits().is_none() {
                // It was given up, and nobody listens there again.
                self.late_since = None;
            }
        }
    }

    fn note_held(&mut self) {
        if self.board.backend() == Backend::Exec {
            self.board.note_held(u32::try_from(self.connections.count()).unwrap_or(u32::MAX), 0);
        }
        if let Some(limit) = self.connections.was_too_small().filter(|_| !self.told_full) {
            self.told_full = true;
            self.report(Report::Full { limit });
        }
    }

    fn report(&self, report: Report) {
        let _ = self.outbox.send(report);
        // The supervisor looks around at this one.
        let _ = process::kill(process::pid(), libc::SIGCHLD);
    }

    /// Watches a process of the program.
    fn watch(&mut self, pid: Pid, has_table: bool) {
        if let Some(part) = self.parts.get_mut(&pid) {
            part.has_table |= has_table;
            return;
        }
        let Ok(process) = process::open(pid) else { return };
        // Asked now: whoever had its number when it was looked for may have ended.
        if !family::is_ours(pid) {
            return;
        }
        self.buried.forget_earlier(pid, &process);
        let data = epoll::EventData::new_u64(PROCESS | u64::from(pid.cast_unsigned()));
        if epoll::add(&self.epoll, &process, data, epoll::EventFlags::IN).is_ok() {
            let has_table = has_table || self.has_table(pid);
            self.parts.insert(pid, Part { process, has_table });
            self.connections.look_again(pid);
        }
    }

    fn has_table(&self, pid: Pid) -> bool {
        let maps = reserve::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains(super::MARK)
    }
}
