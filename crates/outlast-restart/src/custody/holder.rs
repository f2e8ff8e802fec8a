//! The thread that holds.

use super::address::Address;
use super::connections::Connections;
use super::left_over::{self, LeftOver, Remains, Was};
use super::listeners::Listeners;
use super::message::{BYTES, Message, VERSION, Verb};
use super::table::{NotKept, Table};
use super::untold;
use super::{Buried, PartEnded, Report};
use crate::board::{Backend, Board};
use crate::death::Death;
use crate::holder::packet;
use crate::sys::process::{self, Pid};
use crate::sys::{custody as sys, family};
use rustix::event::{Timespec, epoll};
use rustix::net::{SocketFlags, accept_with};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
/// Descriptors that are left for the supervisor's other work, where there are enough; it has a quarter of few.
const SPARE_DESCRIPTORS: usize = 256;
/// And never less.
const SPARE_DESCRIPTORS_MIN: usize = 40;
/// After another binary was asked for, or sockets were taken over: servers have so long to end.
const PUTS_BACK: Duration = Duration::from_secs(30);
/// Packets of one program, before it is another one's turn.
const PACKETS: usize = 32;

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
        from: Vec<Pid>,
        answer: Sender<usize>,
    },
    Expect {
        supervisor: Pid,
        processes: Vec<Pid>,
    },
    /// Its main process is gone.
    Clear {
        patience: Duration,
        may_be_in_the_way: bool,
        answer: Sender<Remains>,
    },
    /// It is about to be started: what is said from here on is said by the new one.
    Starting,
    Started {
        pid: u32,
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
    left_over: LeftOver,
    main: Option<u32>,
    listens: bool,
    serves: bool,
    ending: Ending,
    /// The last one, from which on nobody has served.
    main_ended_at: Option<Instant>,
    changed_at: Instant,
    took_at: Instant,
    swept_at: Instant,
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
            connections: Connections::new(table),
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
            left_over: LeftOver::new(now),
            main: None,
            listens: false,
            serves: false,
            ending: Ending::No,
            main_ended_at: None,
            changed_at: now,
            took_at: now,
            swept_at: now,
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
                    LISTENER if self.puts_back_until.is_some() => self.listeners.open_again(),
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
        let is_hurried = self.connections.has_waiting() || self.puts_back_until.is_some();
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
        for pid in self.connections.owners() {
            // One that has said nothing yet.
            if !self.parts.contains_key(&pid) && family::is_below_this(pid) {
                self.watch(pid, true);
            }
        }
        let spare = (self.descriptors / 4).clamp(SPARE_DESCRIPTORS_MIN, SPARE_DESCRIPTORS);
        let others = spare + self.parts.len() + self.controls.len() + self.listeners.count();
        self.connections.set_limit(self.descriptors.saturating_sub(others));
        self.take(now);
        self.listeners.watch(&self.epoll);
        self.note_held();
        let (parts, held) = (&self.parts, (&self.listeners, &self.connections));
        self.left_over.go_on(|pid| parts.get(&pid).map(|part| part.process.as_fd()), held, now);
        self.look_at_listeners(now);
        if let Some(until) = self.puts_back_until {
            self.listeners.put_back();
            self.puts_back_until = Some(until).filter(|until| now < *until);
        }
        if self.ending != Ending::ForGood {
            self.connections.offer(&self.listeners, now);
        }
        if now.duration_since(self.watched_at) < self.watch_interval(now) {
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
        if now.duration_since(self.swept_at) < SWEEP {
            return;
        }
        self.swept_at = now;
        if matches!(self.board.backend(), Backend::Library | Backend::Roles) {
            // The server keeps its sockets by itself.
            self.connections.clear();
            self.listeners = Listeners::default();
            return;
        }
        self.connections.sweep();
        let (listens, main) = (self.listens, self.main.and_then(|main| Pid::try_from(main).ok()));
        let untold = match main.filter(|_| self.serves) {
            Some(main) => self.untold.look_at_main(main, now),
            None if listens => None,
            None => self.untold.look(&processes, now),
        };
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
        let goes_on = self.serves && self.ending != Ending::Replaced && self.listeners.count() > 0;
        if is_time && goes_on && !self.is_main_down() {
            self.listeners_at = now;
            self.listeners.sweep(&family::below_this(), now);
        }
    }

    /// The main process is gone: deals with who is left.
    fn clear(&mut self, patience: Duration, may_be_in_the_way: bool) -> Remains {
        let now = Instant::now();
        // What is idle by now stays open.
        self.take(now);
        let living = family::below_this();
        living.iter().for_each(|pid| self.watch(*pid, false));
        let main = self.main.and_then(|main| Pid::try_from(main).ok());
        self.left_over.note_older(self.parts.keys().copied().filter(|pid| Some(*pid) != main));
        // Where a sandbox forbids that.
        let is_unknown =
            |pid: &Pid| !self.parts.contains_key(pid) && family::parent_of_living(*pid).is_some();
        let may_be_in_the_way = may_be_in_the_way || living.iter().any(is_unknown);
        let process = |pid: &Pid| {
            let part = self.parts.get(pid)?;
            Some(left_over::Process { pid: *pid, known: part.process.as_fd(), has_table: part.has_table })
        };
        let processes: Vec<left_over::Process<'_>> = living.iter().filter_map(process).collect();
        let (held, how) = ((&self.listeners, &self.connections), (patience, may_be_in_the_way));
        self.left_over.sort(&processes, main, held, how, now)
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

    /// What the supervisor says.
    fn hear(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            self.changed_at = Instant::now();
            match command {
                Command::Inherit { from, answer } => {
                    self.puts_back_until = Some(Instant::now() + PUTS_BACK);
                    let count = from.into_iter().map(|pid| self.listeners.inherit(pid, self.table)).sum();
                    let _ = answer.send(count);
                }
                Command::Expect { supervisor, processes } => {
                    self.listeners.expect(supervisor, processes, self.table);
                }
                Command::Clear { patience, may_be_in_the_way, answer } => {
                    let _ = answer.send(self.clear(patience, may_be_in_the_way));
                }
                Command::Starting => {
                    // It has ended, as is known to who says this, and may not have been heard of here.
                    let main = self.main.and_then(|main| Pid::try_from(main).ok());
                    if let Some(main) = main.filter(|main| sys::is_exiting(*main)) {
                        let main = u64::from(main.cast_unsigned());
                        self.hear_of(main);
                        self.on_end(main);
                    }
                    (self.main, self.listens, self.serves) = (None, false, false);
                    if self.ending == Ending::ForGood {
                        self.ending = Ending::No;
                    }
                }
                Command::Started { pid } => {
                    self.main = Some(pid);
                    self.untold.begin(Instant::now());
                    self.watch(pid.cast_signed(), false);
                    self.note_serving();
                }
                Command::Stopping { for_good: true } => {
                    self.ending = Ending::ForGood;
                    // When the program closes its own, clients are refused.
                    self.listeners = Listeners::default();
                }
                Command::Stopping { for_good: false } => {
                    self.ending = Ending::Replaced;
                    self.puts_back_until = Some(Instant::now() + PUTS_BACK);
                }
                Command::End => self.is_over = true,
            }
        }
    }

    fn accept(&mut self) {
        while let Ok(socket) = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            // Whoever has no process here is a stranger.
            let Some((pid, _)) = sys::peer_of(socket.as_fd()) else { continue };
            if !family::is_below_this(pid) {
                continue;
            }
            let number = self.next_control;
            let data = epoll::EventData::new_u64(CONTROL | number);
            if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
                self.next_control += 1;
                self.controls.insert(number, Control { socket, pid });
                self.watch(pid, false);
            }
        }
    }

    fn on_control(&mut self, number: u64) {
        for _ in 0..PACKETS {
            let Some(control) = self.controls.get(&number) else { return };
            let mut bytes = [0; BYTES];
            match packet::receive(control.socket.as_fd(), &mut bytes, false) {
                Ok(packet) if packet.length > 0 => {
                    let pid = control.pid;
                    let message = bytes.get(..packet.length).and_then(Message::decode);
                    match message {
                        Some(message) if !packet.is_cut => {
                            self.on_message(number, pid, &message, packet.descriptors);
                        }
                        _ => drop(self.controls.remove(&number)),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => drop(self.controls.remove(&number)),
            }
        }
    }

    fn on_message(&mut self, control: u64, pid: Pid, message: &Message, descriptors: Vec<OwnedFd>) {
        let address = Address::parse(message.address.as_ref());
        let mut answer = Message::new(Verb::No);
        match message.verb {
            Verb::Attach => {
                let understood = message.slot == VERSION;
                self.watch(pid, understood);
                answer.verb = if understood { Verb::Yes } else { Verb::No };
                answer.descriptor = pid;
                self.answer(control, &answer, understood.then(|| self.memory.as_fd()));
            }
            Verb::Bind => {
                let left = address.as_ref().and_then(|it| self.listeners.take_left(it, self.table));
                if let Some((supervisor, sockets)) = left {
                    self.puts_back_until = Some(Instant::now() + PUTS_BACK);
                    self.report(Report::TookOver { supervisor, sockets });
                }
                let Some(control) = self.controls.get(&control) else { return };
                let processes = self.left_over.newer(family::below_this());
                let socket = address.and_then(|address| self.listeners.adopt(pid, &address, &processes));
                answer.verb = if socket.is_some() { Verb::Yes } else { Verb::No };
                let _ = packet::send(control.socket.as_fd(), &answer.encode(), socket, false);
            }
            Verb::Probe => {
                let alone = address.is_some_and(|address| {
                    let processes = || self.left_over.newer(family::below_this());
                    self.listeners.has(&address) && self.listeners.is_alone(&address, &processes())
                });
                answer.verb = if alone { Verb::Yes } else { Verb::No };
                self.answer(control, &answer, None);
            }
            Verb::Listen => {
                for socket in descriptors.into_iter().filter(|_| self.ending != Ending::ForGood) {
                    let by = (pid, Some(message.descriptor));
                    self.listeners.add(socket, message.address, by, self.table);
                }
                self.listens = true;
                self.note_serving();
            }
            Verb::Swap => {
                let Some(control) = self.controls.get(&control) else { return };
                let given = address.and_then(|peer| self.connections.swap(pid, message.descriptor, &peer));
                let socket = given.as_ref().map(|given| given.socket);
                if let Some(given) = &given {
                    (answer.verb, answer.slot, answer.cookie) = (Verb::Yes, given.slot, given.cookie);
                }
                let _ = packet::send(control.socket.as_fd(), &answer.encode(), socket, false);
            }
            Verb::Release => {
                let is_alone = self.is_main_down() || self.left_over.is_older(pid);
                let keep = self.ending == Ending::Replaced || (self.ending == Ending::No && is_alone);
                self.connections.release(pid, message.slot, message.cookie, keep, &self.epoll);
            }
            Verb::Look | Verb::Yes | Verb::No => {}
        }
    }

    fn answer(&self, control: u64, answer: &Message, descriptor: Option<BorrowedFd<'_>>) {
        if let Some(control) = self.controls.get(&control) {
            let _ = packet::send(control.socket.as_fd(), &answer.encode(), descriptor, false);
        }
    }

    /// The program listens, perhaps.
    fn note_serving(&mut self) {
        self.changed_at = Instant::now();
        let Some(main) = self.main.filter(|_| self.listens && !self.serves) else { return };
        if self.board.backend() != Backend::None {
            return;
        }
        self.serves = true;
        if self.ending == Ending::Replaced {
            self.ending = Ending::No;
        }
        self.board.set_backend(Backend::Exec);
        let pause = self.main_ended_at.take().map_or(Duration::ZERO, |at| at.elapsed());
        self.board.note_begin(main, pause);
    }

    /// Whether the main process has ended, or is about to, and the next one is not started yet. Others may learn that before
    /// its descriptor tells it.
    fn is_main_down(&self) -> bool {
        let main = self.main.and_then(|main| Pid::try_from(main).ok());
        main.filter(|main| self.parts.contains_key(main)).is_none_or(sys::is_exiting)
    }

    /// Watches a process of the program.
    fn watch(&mut self, pid: Pid, has_table: bool) {
        if let Some(part) = self.parts.get_mut(&pid) {
            part.has_table |= has_table;
            return;
        }
        let Ok(process) = process::open(pid) else { return };
        let data = epoll::EventData::new_u64(PROCESS | u64::from(pid.cast_unsigned()));
        if epoll::add(&self.epoll, &process, data, epoll::EventFlags::IN).is_ok() {
            let has_table = has_table || self.has_table(pid);
            self.parts.insert(pid, Part { process, has_table });
        }
    }

    fn has_table(&self, pid: Pid) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains(super::MARK)
    }

    /// What the process has said that is not heard yet.
    fn hear_of(&mut self, pid: u64) {
        let its = |control: &Control| u64::from(control.pid.cast_unsigned()) == pid;
        let numbers: Vec<u64> =
            self.controls.iter().filter(|(_, control)| its(control)).map(|(number, _)| *number).collect();
        self.accept();
        numbers.into_iter().for_each(|number| self.on_control(number));
    }

    fn on_end(&mut self, pid: u64) {
        let Ok(pid) = Pid::try_from(pid) else { return };
        let Some(part) = self.parts.remove(&pid) else { return };
        // Asked last: it may be buried just now, which is noted before.
        let told = sys::exit_status(part.process.as_fd(), pid);
        let status = self.buried.take(pid).or(told);
        self.changed_at = Instant::now();
        let Was { older, killed } = self.left_over.ended(pid);
        let is_main = self.main == Some(pid.cast_unsigned());
        if is_main {
            self.main_ended_at = Some(Instant::now());
            self.listeners.make_room();
        }
        let keep = match self.ending {
            // Some end in order because their master has crashed.
            Ending::No => status != Some(0) || older || (!is_main && self.is_main_down()),
            Ending::Replaced => true,
            Ending::ForGood => false,
        };
        if self.ending == Ending::No && !is_main && !self.is_main_down() {
            self.listeners.on_end(pid, status == Some(0), family::below_this, self.changed_at);
        }
        let (kept, closed) = self.connections.ended(pid, keep, &self.epoll);
        let death = status.map(Death::from_status);
        let is_crash = match death {
            // Servers with a process for each client have them end so when a client goes.
            _ if killed => false,
            Some(Death::Exited(code)) => code != 0 && !older && part.has_table && kept + closed > 0,
            Some(Death::Signal(number)) => part.has_table && !is_usual(number),
            None => kept + closed > 0,
        };
        if self.ending == Ending::No && !is_crash && older && kept + closed > 0 {
            self.report(Report::Finished { pid, kept, closed });
        } else if self.ending == Ending::No && (is_crash || (is_main && kept + closed > 0)) {
            self.report(Report::PartEnded(PartEnded { pid, death, kept, closed }));
        }
    }
}

/// By which processes are told to end, or told that nobody reads what they write.
fn is_usual(number: i32) -> bool {
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE].contains(&number)
}
