//! What is left of a program whose main process is gone, when it is about to be started again. By itself it would go on, or
//! end; what has to be is done to it, and no more:
//!
//! * Who has a listening socket of the program, or serves connections of which there are copies, would take clients away
//!   from the next start. If nobody waits for an answer there it is killed: its idle connections stay open so, as a process
//!   that is told to end closes them. If somebody does, it has a limited time, and is killed as soon as nobody does any
//!   more. The next start does not wait for that. Clients whom it accepts meanwhile have as much time again, and none is
//!   lost whom it has only just accepted.
//! * Who listens at UNIX sockets alone may be asked by those for what they answer: it is ended behind them.
//! * Who serves a client that another process has accepted, and accepts none itself (a session of sshd), is left alone, also
//!   if it keeps the listening socket open (pure-ftpd). If it is the server itself, as it has executed nothing, it may be about
//!   to end by itself (PostgreSQL): that is waited for, a moment.
//! * So is what such a session has started, and who has begun a session of its own.
//! * Who reads what those write into a pipe (a log) ends with the pipe, or is told to behind them.
//! * Other helpers, which have nothing of that, have a moment to end by themselves before they are told to.

mod pipes;

use super::connections::Connections;
use super::listeners::{Client, Listeners, Sockets};
use crate::sys::process::Pid;
use crate::sys::{custody as sys, family};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Between the first two looks at whether somebody still waits for an answer.
const LOOK_MIN: Duration = Duration::from_millis(10);
/// And later.
const LOOK_MAX: Duration = Duration::from_millis(100);
/// A process that is told to stop has so long to do that.
const STANDS_STILL: Duration = Duration::from_millis(20);
/// A program that workers have asked, which is told to end when these have, has so long.
const TOLD: Duration = Duration::from_secs(5);

/// Who is left, as the supervisor deals with them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remains {
    /// Of the server itself nobody is left but these: all could be looked at.
    pub(crate) is_known: bool,
    /// They were killed, or end by themselves as a rule.
    pub(crate) ending: Vec<Pid>,
    /// They have clients whom they answer, and are killed by the holder when they have.
    pub(crate) finishing: Vec<Pid>,
    /// They are left alone, those of them that do not end by themselves.
    pub(crate) sessions: Vec<Pid>,
}

/// A process that is left.
pub(super) struct Process<'a> {
    pub(super) pid: Pid,
    pub(super) known: BorrowedFd<'a>,
    /// It is the server itself, or was forked by it.
    pub(super) has_table: bool,
}

/// What it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Worker {
        waiting: Waiting,
        /// It listens at UNIX sockets alone: other workers may ask it for what they answer.
        is_asked: bool,
    },
    /// It has a listening socket, at which it does not accept anybody, and serves nobody.
    Bystander,
    Session,
    Helper,
}

/// The cookies of connections whose clients wait for an answer.
type Waiting = BTreeSet<u64>;
/// Stands for all clients that could not be looked at: some of them may wait.
const UNSEEN: u64 = 0;

/// Why a process goes on for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It has clients whom it answers.
    Answers,
    /// It may be asked by others that have.
    IsAsked,
    /// They write to it.
    Reads,
}

/// A process that goes on for a time.
#[derive(Debug)]
struct Finishing {
    /// See [`Process`].
    has_table: bool,
    why: Why,
    /// It was told to end.
    is_told: bool,
    /// Who has waited since its master's end.
    first: Waiting,
    /// These have their answers by then, or do not get them.
    first_until: Instant,
    /// The same of all.
    until: Instant,
}

impl Finishing {
    fn new(has_table: bool, why: Why, first: Waiting, patience: Duration, now: Instant) -> Self {
        let (first_until, until) = (now + patience, now + 2 * patience);
        Self { has_table, why, is_told: false, first, first_until, until }
    }

    /// Whether all of these have had their time.
    fn is_over(&self, waiting: &Waiting, now: Instant) -> bool {
        now >= self.until || waiting.is_empty() || now >= self.first_until && waiting.is_subset(&self.first)
    }
}

/// What was done to one that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Was {
    /// It was left from an earlier start.
    pub(super) older: bool,
    /// It was killed for that.
    pub(super) killed: bool,
}

/// All that are left, of all starts.
#[derive(Debug)]
pub(super) struct LeftOver {
    older: BTreeSet<Pid>,
    killed: BTreeSet<Pid>,
    finishing: BTreeMap<Pid, Finishing>,
    look_at: Instant,
    pause: Duration,
}

impl LeftOver {
    pub(super) fn new(now: Instant) -> Self {
        let (older, killed, finishing) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Self { older, killed, finishing, look_at: now, pause: LOOK_MIN }
    }

    /// These are of the start that is over. Some have ended since, which is heard of later.
    pub(super) fn note_older(&mut self, pids: impl Iterator<Item = Pid>) {
        self.older.extend(pids);
    }

    /// The main process is gone: deals with those that are left. Nobody is to be left of the server itself who
    /// `may_be_in_the_way`: that is the caller's.
    pub(super) fn sort(
        &mut self,
        processes: &[Process<'_>],
        main: Option<Pid>,
        (listeners, connections): (&Listeners, &mut Connections),
        (patience, may_be_in_the_way): (Duration, bool),
        now: Instant,
    ) -> Remains {
        let mut remains = Remains { is_known: !may_be_in_the_way, ..Remains::default() };
        let (mut asked, mut bystanders, mut helpers) = (Vec::new(), Vec::new(), Vec::new());
        for process in processes {
            let &Process { pid, has_table, .. } = process;
            self.finishing.remove(&pid);
            let kind = kind(process, main, listeners, connections);
            if has_table && may_be_in_the_way {
                self.note_killed(pid);
                continue;
            }
            match kind {
                // When it is known whether others finish.
                Kind::Worker { waiting, is_asked: true } if !may_be_in_the_way => {
                    asked.push((process, waiting));
                }
                // The supervisor tells it, as whatever else the program has executed.
                Kind::Worker { .. } | Kind::Bystander if !has_table => {}
                Kind::Worker { waiting, .. } => {
                    let finishing = Finishing::new(has_table, Why::Answers, waiting, patience, now);
                    self.finish(process, finishing, (listeners, connections), now, &mut remains);
                }
                Kind::Bystander => bystanders.push(process),
                Kind::Session => {
                    remains.sessions.push(pid);
                    remains.ending.extend(has_table.then_some(pid));
                }
                Kind::Helper => helpers.push(process),
            }
        }
        asked.sort_by_key(|(_, waiting)| waiting.is_empty());
        for (process, waiting) in asked {
            // The supervisor tells it.
            if process.has_table || self.is_any_answering() {
                let finishing = Finishing::new(process.has_table, Why::IsAsked, waiting, patience, now);
                self.finish(process, finishing, (listeners, connections), now, &mut remains);
            }
        }
        let of_sessions =
            if bystanders.is_empty() { Vec::new() } else { family::and_below_each(&remains.sessions) };
        for process in bystanders.into_iter().filter(|process| !of_sessions.contains(&process.pid)) {
            // It may be a worker that has accepted nobody yet.
            let finishing = Finishing::new(true, Why::Answers, Waiting::new(), patience, now);
            self.finish(process, finishing, (listeners, connections), now, &mut remains);
        }
        let helper_pids: Vec<Pid> = helpers.iter().map(|process| process.pid).collect();
        let writers: Vec<Pid> = self.finishing.keys().copied().collect();
        let readers = pipes::readers(&helper_pids, writers.into_iter());
        for &Process { pid, has_table, .. } in helpers {
            if readers.contains(&pid) {
                let finishing = Finishing::new(has_table, Why::Reads, Waiting::new(), patience, now);
                self.finishing.insert(pid, finishing);
                remains.finishing.push(pid);
            } else {
                remains.ending.extend(has_table.then_some(pid));
            }
        }
        (self.look_at, self.pause) = (now + LOOK_MIN, LOOK_MIN);
        remains
    }

    /// Ends a worker, at once if nobody waits for it.
    fn finish(
        &mut self,
        process: &Process<'_>,
        finishing: Finishing,
        held: (&Listeners, &mut Connections),
        now: Instant,
        remains: &mut Remains,
    ) {
        let is_asked = finishing.why == Why::IsAsked && self.is_any_answering();
        let goes_on = is_asked || !finishing.first.is_empty();
        if !goes_on && self.end(process, &finishing, held, now) {
            remains.ending.push(process.pid);
        } else {
            self.finishing.insert(process.pid, finishing);
            remains.finishing.push(process.pid);
        }
    }

    /// Whether somebody has clients to answer, and may ask others for what.
    fn is_any_answering(&self) -> bool {
        let answers = |it: &Finishing| it.why == Why::Answers || !it.first.is_empty();
        self.finishing.values().any(answers)
    }

    /// It is about to be killed for being left. One that has crashed with its master, and is not buried yet, has a crash of its own.
    fn note_killed(&mut self, pid: Pid) {
        if !sys::is_exiting(pid) {
            self.killed.insert(pid);
        }
    }

    fn kill(&mut self, &Process { pid, known, .. }: &Process<'_>) {
        self.finishing.remove(&pid);
        self.note_killed(pid);
        let _ = family::signal_known(known, pid, libc::SIGKILL);
    }

    /// Kills a worker if all who wait for it have had their time: it stands still while that is looked at, so that it takes no
    /// client with it whom it has just accepted. What it has not read from yet goes on to others. False: it goes on.
    fn end(
        &mut self,
        process: &Process<'_>,
        finishing: &Finishing,
        (listeners, connections): (&Listeners, &mut Connections),
        now: Instant,
    ) -> bool {
        let &Process { pid, known, .. } = process;
        // It may be about to have one more. Later it may stand still.
        if !stand_still(process) && now < finishing.until {
            let _ = family::signal_known(known, pid, libc::SIGCONT);
            return false;
        }
        connections.take_of(Some(pid), |_| Some(known));
        let mut sockets = listeners.sockets_of(known, pid).unwrap_or_default();
        let untouched: Vec<Client> = sockets.clients.extract_if(.., |client| client.is_untouched).collect();
        if !finishing.is_over(&waiting(pid, &sockets, connections), now) {
            let _ = family::signal_known(known, pid, libc::SIGCONT);
            return false;
        }
        // Those of which there are copies stay open when it ends.
        let (held, _) = connections.of(pid);
        let others = untouched.iter().filter(|client| !held.contains(&client.cookie));
        for copy in others.filter_map(|client| client.copy(known)) {
            connections.pass_on(copy);
        }
        self.kill(process);
        true
    }

    /// How long nothing has to be done.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        (!self.finishing.is_empty()).then(|| self.look_at.saturating_duration_since(now))
    }

    /// Kills those that have answered all, or had their time.
    pub(super) fn go_on<'a>(
        &mut self,
        known: impl Fn(Pid) -> Option<BorrowedFd<'a>>,
        (listeners, connections): (&Listeners, &mut Connections),
        now: Instant,
    ) {
        if self.finishing.is_empty() || now < self.look_at {
            return;
        }
        let all = std::mem::take(&mut self.finishing).into_iter();
        let (answering, others): (Vec<_>, Vec<_>) = all.partition(|(_, it)| it.why == Why::Answers);
        for (pid, mut finishing) in answering.into_iter().chain(others) {
            // One that is not known any more has ended.
            let Some(known) = known(pid) else { continue };
            let process = Process { pid, known, has_table: finishing.has_table };
            let Some(sockets) = listeners.sockets_of(known, pid) else {
                self.kill(&process);
                continue;
            };
            let is_needed = match finishing.why {
                Why::Answers => false,
                Why::IsAsked => self.is_any_answering(),
                // It ends by itself when it has read all.
                Why::Reads => !finishing.is_told,
            };
            if is_needed && now < finishing.until
                || !finishing.is_over(&waiting(pid, &sockets, connections), now)
            {
                self.finishing.insert(pid, finishing);
            } else if !finishing.has_table && !finishing.is_told {
                // Another program, which may have something to put in order.
                let _ = family::signal_known(known, pid, libc::SIGTERM);
                (finishing.is_told, finishing.until) = (true, now + TOLD);
                self.finishing.insert(pid, finishing);
            } else if now < finishing.until && finishing.is_told
                || !self.end(&process, &finishing, (listeners, connections), now)
            {
                self.finishing.insert(pid, finishing);
            }
        }
        self.pause = (self.pause * 2).min(LOOK_MAX);
        self.look_at = now + self.pause;
    }

    /// Those that are not left from an earlier start: whoever is may have the sockets that the next one asks for.
    pub(super) fn newer(&self, mut processes: Vec<Pid>) -> Vec<Pid> {
        processes.retain(|pid| !self.older.contains(pid));
        processes
    }

    /// Whether it was told to end at once: it may not have yet.
    pub(super) fn is_killed(&self, pid: Pid) -> bool {
        self.killed.contains(&pid)
    }

    pub(super) fn is_older(&self, pid: Pid) -> bool {
        self.older.contains(&pid)
    }

    /// A process has ended.
    pub(super) fn ended(&mut self, pid: Pid) -> Was {
        self.finishing.remove(&pid);
        Was { older: self.older.remove(&pid), killed: self.killed.remove(&pid) }
    }
}

fn kind(
    process: &Process<'_>,
    main: Option<Pid>,
    listeners: &Listeners,
    connections: &mut Connections,
) -> Kind {
    let &Process { pid, known, has_table } = process;
    let Some(sockets) = listeners.sockets_of(known, pid) else {
        let worker = Kind::Worker { waiting: Waiting::new(), is_asked: false };
        return if has_table { worker } else { Kind::Helper };
    };
    let (idle, busy) = connections.of(pid);
    let serves = !idle.is_empty() || !busy.is_empty();
    // What a session listens at by itself is its user's, as if that is passed on to somewhere else.
    let may_accept = sockets.shares && connections.may_accept(pid);
    let is_session = !serves && !may_accept && sockets.clients.iter().any(|client| !client.is_own);
    if is_session {
        return Kind::Session;
    }
    let is_cut = has_table && sockets.is_cut;
    if !serves && !may_accept && sockets.shares && !sockets.listens && !is_cut {
        return Kind::Bystander;
    }
    if serves || sockets.shares || sockets.listens || is_cut {
        let is_asked = (sockets.shares || sockets.listens) && !sockets.is_at_internet;
        return Kind::Worker { waiting: waiting(pid, &sockets, connections), is_asked };
    }
    let session = family::session(pid);
    let is_server = listeners.count() > 0;
    let is_by_itself = is_server && !has_table && session != family::session(0) && session != main;
    if is_by_itself { Kind::Session } else { Kind::Helper }
}

/// Who waits for what it has to say, of these clients and those of which there are copies.
fn waiting(pid: Pid, sockets: &Sockets, connections: &mut Connections) -> Waiting {
    let (idle, mut waiting) = connections.of(pid);
    let others = sockets.clients.iter().filter(|client| client.is_under_way).map(|client| client.cookie);
    waiting.extend(others.filter(|cookie| !idle.contains(cookie)));
    waiting.extend(sockets.is_cut.then_some(UNSEEN));
    waiting
}

/// Stops a process, and waits until it has, a moment at most: whether it has. On a busy machine that may take longer, and as
/// long one of its threads may be about to accept a client.
fn stand_still(&Process { pid, known, .. }: &Process<'_>) -> bool {
    if family::signal_known(known, pid, libc::SIGSTOP).is_err() {
        return sys::is_exiting(pid);
    }
    let until = Instant::now() + STANDS_STILL;
    while !sys::is_stopped(pid) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    true
}
