//! In the holder: what the supervisor says, and what processes of the program say.

use super::ends::Released;
use super::successor::program_of;
use super::untold;
use super::{CONTROL, Command, Control, Ending, Holder, LISTENS_LATER, Part};
use crate::board::{Backend, Sign};
use crate::custody::Report;
use crate::custody::address::Address;
use crate::custody::listeners::{Listeners, Place, User, open_of};
use crate::custody::message::{ACCEPTS, BYTES, IN_USE, INHERITED, IPV6_ONLY, Message, VERSION, Verb};
use crate::holder::packet;
use crate::sys::process::Pid;
use crate::sys::{custody as sys, descriptors, family, local, reserve};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Connections that are accepted before it is others' turn. The rest is still there then.
const ACCEPTED: usize = 32;
/// Packets of one program, before it is another one's turn.
const PACKETS: usize = 32;
/// Connections of one process with the holder.
const CONTROLS: usize = 8;
/// After another binary was asked for, or sockets were taken over: servers may shut them down so late, as they end. `outlast run` gives
/// them 45 s for that, if it is not told otherwise.
const PUTS_BACK: Duration = Duration::from_secs(60);

/// Whether another process than the one that asks has not received yet what it was given. One thread of a process asks at a
/// time: who asks has received all.
pub(super) fn about_to_receive(controls: &BTreeMap<u64, Control>, asks: Pid, other: Pid) -> bool {
    let mut its = controls.values().filter(|control| control.pid == other);
    other != asks && its.any(|control| local::unreceived(control.socket.as_raw_fd()).unwrap_or(0) > 0)
}

impl Holder {
    /// What the supervisor says.
    pub(super) fn hear(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            self.changed_at = Instant::now();
            match command {
                Command::Inherit { from, answer } => {
                    self.puts_back_until = Some(Instant::now() + PUTS_BACK);
                    let count = from.iter().map(|known| self.listeners.inherit(known, self.table)).sum();
                    let _ = answer.send(count);
                }
                Command::Expect { supervisor, processes } => {
                    self.listeners.expect(supervisor, processes, self.table);
                }
                Command::Clear { patience, may_be_in_the_way, answer } => {
                    let _ = answer.send(self.clear(patience, may_be_in_the_way));
                }
                Command::Starting { ended, answer } => {
                    self.hear_of_end_of_main();
                    let let_go = self.free_port(ended);
                    (self.main, self.listens, self.serves_since) = (None, false, None);
                    self.table.note_listens(false);
                    let keeps = self.ending != Ending::Replaced && self.listeners.count() > 0;
                    self.settling = self.settling.next(keeps);
                    self.late_since = None;
                    self.listeners.begin();
                    self.connections.begin();
                    self.closed.keep_postponed();
                    if self.ending == Ending::ForGood {
                        self.ending = Ending::No;
                    }
                    self.table.note_untaken(self.listeners.count() > 0);
                    let _ = answer.send(let_go);
                }
                Command::Started { pid } => {
                    let last = self.main.replace(pid).filter(|_| self.serves_since.is_some());
                    let has_moved = last.is_some();
                    if let Some(last) = last {
                        self.board.note_moved(last, pid);
                        self.main_ended_at = None;
                    }
                    self.program = program_of(pid.cast_signed());
                    self.main_tells = !has_moved || untold::Untold::of(pid.cast_signed(), false).is_none();
                    self.untold.begin(Instant::now());
                    self.watch(pid.cast_signed(), false);
                    self.note_serving();
                }
                Command::MainEnded { answer } => {
                    self.hear_of_end_of_main();
                    let _ = answer.send(());
                }
                Command::MayBeHindered { answer } => {
                    self.hear_of_end_of_main();
                    let _ = answer.send(self.may_be_hindered());
                }
                Command::WhoGoesOn { ended, answer } => {
                    let _ = answer.send(self.successor(ended));
                }
                Command::Ready { answer } => {
                    // It may have said just before that it listens.
                    self.accept();
                    let numbers: Vec<u64> = self.controls.keys().copied().collect();
                    numbers.into_iter().for_each(|number| self.on_control(number));
                    self.settling.says_so(Instant::now());
                    self.note_settled(Instant::now());
                    let _ = answer.send(());
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

    pub(super) fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Strangers can connect as fast as they are looked at.
        for _ in 0..ACCEPTED {
            let socket = match accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                // Whoever asks is told by an end, and goes on without an answer.
                Err(Errno::MFILE | Errno::NFILE) => {
                    let refused = reserve::with(|| Ok(accept_with(&self.socket, flags).map(drop)?));
                    if refused.is_err() {
                        return;
                    }
                    continue;
                }
                Err(_) => return,
            };
            // Whoever has no process here is a stranger.
            let Some((pid, user)) = sys::peer_of(socket.as_fd()) else { continue };
            if !family::is_below_this(pid) {
                continue;
            }
            let number = self.next_control;
            let data = epoll::EventData::new_u64(CONTROL | number);
            if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
                self.next_control += 1;
                self.make_room_for(pid);
                self.controls.insert(number, Control { socket, pid, user });
                self.watch(pid, false);
            }
        }
    }

    /// A process has one connection, and a new one when it has given that up, as some do that close all descriptors. What one makes
    /// beyond that must not take this process's descriptors.
    fn make_room_for(&mut self, pid: Pid) {
        let its = self.controls.iter().filter(|(_, control)| control.pid == pid);
        let numbers: Vec<u64> = its.map(|(number, _)| *number).collect();
        if numbers.len() >= CONTROLS
            && let Some(oldest) = numbers.first()
        {
            // What it has said there is heard.
            self.on_control(*oldest);
            self.controls.remove(oldest);
        }
    }

    pub(super) fn on_control(&mut self, number: u64) {
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
                let left = address.as_ref().and_then(|it| self.listeners.take_left(pid, it, self.table));
                if let Some((supervisor, sockets)) = left {
                    self.puts_back_until = Some(Instant::now() + PUTS_BACK);
                    self.report(Report::TookOver { supervisor, sockets });
                }
                let ipv6_only = message.slot & IPV6_ONLY != 0;
                let address = address.filter(|address| self.admits(control, (address, ipv6_only)));
                let Some(control) = self.controls.get(&control) else { return };
                let processes = self.left_over.newer(family::below_this());
                let controls = &self.controls;
                let is_about_to_receive = |other: Pid| about_to_receive(controls, pid, other);
                let folder = descriptors.first().map(AsFd::as_fd);
                let place = address.as_ref().map(|address| Place {
                    address,
                    folder,
                    ipv6_only,
                    network: message.network(),
                });
                if let Some(socket) =
                    place.and_then(|at| self.listeners.adopt(pid, &at, &processes, is_about_to_receive))
                {
                    answer.verb = Verb::Yes;
                    let _ = packet::send(control.socket.as_fd(), &answer.encode(), Some(socket), false);
                    return;
                }
                if let Some(at) = place.filter(|_| message.slot & IN_USE != 0) {
                    let closed = self.listeners.let_go(pid, &at, &processes, is_about_to_receive);
                    answer.verb = if closed.is_empty() { Verb::No } else { Verb::Yes };
                    // Who waits there is served by what the program is about to listen with, if it is reached by them.
                    self.connections.pass_on_all(&closed);
                    if answer.verb == Verb::No && !self.left_over.is_older(pid) {
                        self.settling.cannot_bind(Instant::now());
                    }
                }
                let _ = packet::send(control.socket.as_fd(), &answer.encode(), None, false);
            }
            Verb::Probe => {
                let alone = address.is_some_and(|address| {
                    let folder = descriptors.first().map(AsFd::as_fd);
                    let at =
                        Place { address: &address, folder, ipv6_only: false, network: message.network() };
                    // Who is left from an earlier start may ask others that are, as long as they are there.
                    let is_older = self.left_over.is_older(pid);
                    let all = family::below_this;
                    let processes = || if is_older { all() } else { self.left_over.newer(all()) };
                    match &address {
                        Address::Unix(_) => self.listeners.is_alone(&at, processes),
                        Address::Internet { .. } => {
                            let controls = &self.controls;
                            self.listeners.is_reached_alone(
                                pid,
                                (&address, message.network()),
                                processes,
                                |other| about_to_receive(controls, pid, other),
                            )
                        }
                    }
                });
                answer.verb = if alone { Verb::Yes } else { Verb::No };
                self.answer(control, &answer, None);
            }
            // Somebody has said so meanwhile; or it is one that has clients still, and the next one has not said anything.
            Verb::Listen if message.slot & ACCEPTS != 0 && (self.listens || self.left_over.is_older(pid)) => {
            }
            Verb::Listen => {
                let mut descriptors = descriptors.into_iter();
                if let Some(socket) = descriptors.next().filter(|_| self.ending != Ending::ForGood) {
                    let (folder, by) = (descriptors.next(), (pid, Some(message.descriptor)));
                    let users: Vec<User> = self.user_of(control).into_iter().collect();
                    self.listeners.add(socket, message.address, folder, by, &users, self.table);
                }
                let is_inherited = message.slot & (INHERITED | ACCEPTS) != 0;
                self.listens = true;
                self.table.note_listens(true);
                let now = Instant::now();
                if is_inherited {
                    self.settling.inherits(now)
                } else {
                    self.settling.listens(now)
                }
                self.note_late();
                self.note_serving();
            }
            Verb::Swap => {
                let Some(control) = self.controls.get(&control) else { return };
                let process = self.parts.get(&pid).map(|part| part.process.as_fd());
                let given = address.zip(process.filter(|_| !self.left_over.is_killed(pid))).and_then(
                    |(peer, process)| {
                        let by = (pid, process);
                        self.connections.swap(&self.listeners, by, message.descriptor, &peer)
                    },
                );
                let socket = given.as_ref().map(|given| given.socket.as_fd());
                if let Some(given) = &given {
                    (answer.verb, answer.slot, answer.cookie) = (Verb::Yes, given.slot, given.cookie);
                }
                let sent = packet::send(control.socket.as_fd(), &answer.encode(), socket, false);
                if let Some(given) = given.filter(|_| sent.is_err()) {
                    // It did not wait so long.
                    self.connections.take_back(given);
                }
            }
            Verb::Release => {
                let is_alone = self.is_main_down() || self.left_over.is_older(pid);
                let keep = self.ending == Ending::Replaced || (self.ending == Ending::No && is_alone);
                let which = (message.slot, message.cookie);
                if keep {
                    self.released.push(Released { owner: pid, which });
                } else if self.follows_crash(Instant::now()) || self.precedes_end(pid, Instant::now()) {
                    self.postpone(pid, which, Instant::now());
                } else {
                    self.connections.release((pid, false), which, &self.epoll, |_| Vec::new());
                }
            }
            Verb::Look => {
                let looks_soon = self.listeners.is_in_doubt();
                if self.listeners.closes(pid, message.descriptor) && !looks_soon {
                    // Not at once: it is closed after it was said.
                    self.listeners_at = Instant::now();
                }
            }
            Verb::Yes | Verb::No => {}
        }
    }

    fn user_of(&self, control: u64) -> Option<User> {
        self.controls.get(&control).map(|control| User::of(control.pid, control.user))
    }

    /// Whether what is held at this address, if anything is, is for the user who asks.
    fn admits(&mut self, control: u64, address: (&Address, bool)) -> bool {
        let Some((user, pid)) = self.user_of(control).zip(self.controls.get(&control).map(|it| it.pid))
        else {
            return false;
        };
        let begins = !self.listens && !self.left_over.is_older(pid) && !self.is_main_down();
        self.listeners.admit(user, address, begins, |inodes| open_of(&family::below_this(), inodes))
    }

    fn answer(&self, control: u64, answer: &Message, descriptor: Option<BorrowedFd<'_>>) {
        if let Some(control) = self.controls.get(&control) {
            let _ = packet::send(control.socket.as_fd(), &answer.encode(), descriptor, false);
        }
    }

    /// The program listens, perhaps.
    fn note_serving(&mut self) {
        self.changed_at = Instant::now();
        let is_new = self.listens && self.serves_since.is_none();
        if self.main.filter(|_| is_new).is_none() || self.board.backend() != Backend::None {
            return;
        }
        self.serves_since = Some(self.changed_at);
        self.strays_stay_until =
            std::mem::take(&mut self.has_freed).then_some(self.changed_at + LISTENS_LATER);
        let starts = self.hindrance.listens(self.changed_at);
        if starts > 0 {
            self.report(Report::FailedForUs { starts });
        }
        if self.ending == Ending::Replaced {
            self.ending = Ending::No;
        }
        self.board.set_backend(Backend::Exec);
        // A start that has not served in between has not ended it.
        self.down_since = self.down_since.or(self.main_ended_at.take());
    }

    /// The processes that have connections which are new here. A process that was asked there serves.
    pub(super) fn look_at_clients(&mut self) -> Vec<Pid> {
        let owners = self.connections.owners();
        if owners.iter().any(|(pid, is_asked)| *is_asked && !self.left_over.is_older(*pid)) {
            self.settling.serves_client(Instant::now());
        }
        owners.into_iter().map(|(pid, _)| pid).collect()
    }

    /// When the program serves, unless it does more until then.
    pub(super) fn settles_at(&self) -> Option<Instant> {
        let at = self.settling.serves_at(self.listeners.awaits()).filter(|_| self.serves_since.is_some())?;
        // One that has ended may go on in the background: that is said soon. Asked of the system: where that gives no descriptors
        // of processes, no end is heard of here.
        let main = self.main.and_then(|main| Pid::try_from(main).ok());
        (self.ending == Ending::No && !main.is_none_or(sys::is_exiting)).then_some(at)
    }

    /// Another generation serves, perhaps.
    pub(super) fn note_settled(&mut self, now: Instant) {
        if self.settling.is_open() && self.serves_since.is_some() {
            self.settling.sees_queued(self.listeners.queued_count(), now);
        }
        if self.settles_at().is_some_and(|at| now >= at) {
            self.note_generation();
        }
    }

    fn note_generation(&mut self) {
        let Some(main) = self.main else { return };
        let has_all = self.listeners.awaits().is_none();
        let (serves, down_since) = (self.settling.serves(has_all), self.down_since.take());
        let (pause, sign) = match (serves, down_since) {
            (Some((at, sign)), Some(since)) => (at.saturating_duration_since(since), sign),
            // Not known, or nothing was served before.
            _ => (Duration::ZERO, Sign::Serves),
        };
        self.late_since = down_since.filter(|_| serves.is_none() && !has_all);
        self.board.note_begin_by(main, pause, sign);
    }

    /// It has come to listen where it did before its last crash, after it counted as serving: how long that took.
    fn note_late(&mut self) {
        if self.listeners.awaits().is_none()
            && let Some(since) = self.late_since.take()
        {
            let pause = since.elapsed();
            let number = self.board.note_pause(pause, Sign::Listens);
            self.report(Report::ListensAgain { number, pause });
        }
    }

    /// The main process has ended. Others may have seen before that it serves.
    pub(super) fn note_short_generation(&mut self, now: Instant) {
        self.look_at_clients();
        self.settling.sees_queued(self.listeners.queued_count(), now);
        let at = self.settling.serves_at(self.listeners.awaits()).filter(|_| self.serves_since.is_some());
        if self.ending == Ending::No && at.is_some_and(|at| now >= at) {
            self.note_generation();
        }
    }

    /// The main process has ended, as is known to who says this, and may not have been heard of here.
    fn hear_of_end_of_main(&mut self) {
        let main = self.main.and_then(|main| Pid::try_from(main).ok());
        if let Some(main) = main.filter(|main| sys::is_exiting(*main)) {
            // It may have ended because another one has: that one's end comes first, and nobody may listen after this one's.
            let has_ended = |part: &Part| descriptors::wait_readable(&part.process, Duration::ZERO);
            let ended = self.parts.iter().filter(|(pid, part)| **pid != main && has_ended(part));
            let ended: Vec<Pid> = ended.map(|(pid, _)| *pid).collect();
            for pid in ended.into_iter().chain([main]) {
                let pid = u64::from(pid.cast_unsigned());
                self.hear_of(pid);
                self.on_end(pid);
            }
        }
    }

    /// What the process has said that is not heard yet.
    pub(super) fn hear_of(&mut self, pid: u64) {
        let its = |control: &Control| u64::from(control.pid.cast_unsigned()) == pid;
        let numbers: Vec<u64> =
            self.controls.iter().filter(|(_, control)| its(control)).map(|(number, _)| *number).collect();
        self.accept();
        numbers.into_iter().for_each(|number| self.on_control(number));
    }
}
