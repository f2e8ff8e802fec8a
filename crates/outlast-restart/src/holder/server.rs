//! A holder: the shell around [`Store`] that has sockets and time.

use super::options::{Event, Options};
use super::packet::{self, Packet};
use super::protocol::{Answer, MESSAGE_BYTES_MAX, Malformed, Request};
use super::store::{Service, Store};
use super::{Refusal, socket};
use crate::sys::clock::monotonic_ms;
use crate::sys::credentials::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// So often connections are looked for that are over.
const SWEEP_MS: u64 = 5000;
/// When the system has no more descriptors, or too many are under way: so long until it is tried again.
const PAUSE_MS: u64 = 20;
/// Messages of a client that are dealt with before the others have their turn.
const MESSAGES_IN_A_ROW: usize = 64;

/// Holds descriptors for the clients of `listener` until `stop` can be read from, or has no writer any more. Then all are
/// dropped.
///
/// # Errors
/// The kernel cannot wait for anything.
pub fn serve(
    listener: impl AsFd,
    options: &Options,
    stop: impl AsFd,
    mut tell: impl FnMut(Event),
) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&listener, true)?;
    let mut holder = Holder {
        listener: listener.as_fd(),
        options,
        store: Store::new(options.limits),
        clients: BTreeMap::new(),
        arrivals: 0,
        now_ms: monotonic_ms(),
        pause_until_ms: 0,
        sweep_at_ms: monotonic_ms() + SWEEP_MS,
        tell: &mut tell,
    };
    loop {
        holder.now_ms = monotonic_ms();
        holder.tend();
        let Some(ready) = holder.wait(stop.as_fd())? else { return Ok(()) };
        holder.now_ms = monotonic_ms();
        for number in ready.clients {
            holder.flush(number);
            holder.hear(number, MESSAGES_IN_A_ROW);
            holder.flush(number);
        }
        if ready.is_called {
            holder.admit();
        }
    }
}

struct Holder<'a> {
    listener: BorrowedFd<'a>,
    options: &'a Options,
    store: Store<OwnedFd>,
    /// In the order of their arrival.
    clients: BTreeMap<u64, Client>,
    arrivals: u64,
    now_ms: u64,
    /// The system has no more of something: neither accepted nor given until then.
    pause_until_ms: u64,
    sweep_at_ms: u64,
    tell: &'a mut dyn FnMut(Event),
}

struct Client {
    socket: OwnedFd,
    pid: Option<u32>,
    uid: u32,
    arrived_ms: u64,
    service: Option<Service>,
    /// As long as something is to be sent, nothing is heard: a client that does not listen takes no more memory.
    unsent: VecDeque<Outgoing>,
    given: u32,
    /// Nothing can be sent to it. What it has sent before that became so counts.
    is_deaf: bool,
    /// To be closed when everything is sent.
    is_over: bool,
}

enum Outgoing {
    Answer(Vec<u8>),
    /// A descriptor of this name, if it is still there.
    Kept(String),
    End,
}

/// Who wants something.
struct Ready {
    is_called: bool,
    clients: Vec<u64>,
}

impl Holder<'_> {
    /// What time brings.
    fn tend(&mut self) {
        for (service, closed) in self.store.expire(self.now_ms) {
            (self.tell)(Event::Expired { service, closed });
        }
        if self.now_ms >= self.sweep_at_ms {
            self.store.retain(|descriptor| !socket::is_over(descriptor));
            self.sweep_at_ms = self.now_ms + SWEEP_MS;
        }
        let silent_since = self.now_ms.saturating_sub(millis(self.options.hello_timeout));
        let is_silent = |client: &Client| client.service.is_none() && client.arrived_ms <= silent_since;
        let silent = self.clients.iter().filter(|(_, client)| is_silent(client));
        for number in silent.map(|(number, _)| *number).collect::<Vec<_>>() {
            // It may have spoken in time, while others were listened to.
            self.hear(number, 1);
            if self.clients.get(&number).is_some_and(is_silent) {
                self.clients.remove(&number);
            }
        }
    }

    /// Sleeps until somebody wants something, or time brings something. None: it is over.
    fn wait(&self, stop: BorrowedFd<'_>) -> io::Result<Option<Ready>> {
        let is_paused = self.now_ms < self.pause_until_ms;
        let mut wanted = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        let calls = if is_paused { PollFlags::empty() } else { PollFlags::IN };
        wanted.push(PollFd::from_borrowed_fd(self.listener, calls));
        // What is to be sent in a pause is not looked at: that a client has gone would end every wait at once.
        let awaited = || self.clients.iter().filter(|(_, client)| !is_paused || client.unsent.is_empty());
        wanted.extend(awaited().map(|(_, client)| {
            let sends = !client.unsent.is_empty();
            PollFd::new(&client.socket, if sends { PollFlags::OUT } else { PollFlags::IN })
        }));
        let hello = self.clients.values().filter(|client| client.service.is_none());
        let hello = hello.map(|client| client.arrived_ms + millis(self.options.hello_timeout)).min();
        let sweep = (self.store.descriptors() > 0).then_some(self.sweep_at_ms);
        let pause = is_paused.then_some(self.pause_until_ms);
        let next = [self.store.next_expiry_ms(), hello, sweep, pause].into_iter().flatten().min();
        let time = next.map(|at_ms| Duration::from_millis(at_ms.saturating_sub(self.now_ms)));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut wanted, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = wanted.iter().map(|entry| !entry.revents().is_empty());
        if ready.next() == Some(true) {
            return Ok(None);
        }
        let is_called = ready.next() == Some(true);
        let clients = awaited().zip(ready).filter(|(_, ready)| *ready).map(|((number, _), _)| *number);
        Ok(Some(Ready { is_called, clients: clients.collect() }))
    }

    /// Accepts one client.
    fn admit(&mut self) {
        let socket = match accept_with(self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            // Who was there is gone again.
            Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => return,
            // There is nothing to accept it with: it waits.
            Err(_) => return self.pause_until_ms = self.now_ms + PAUSE_MS,
        };
        let Ok(Peer { pid, uid }) = Peer::of(&socket) else { return };
        let pid = pid.map(i32::cast_unsigned);
        let own = rustix::process::geteuid().as_raw();
        let is_allowed = uid == own || uid == 0 || self.options.allowed_uids.contains(&uid);
        let is_full = self.clients.len() >= self.options.clients_max;
        let client = Client {
            socket,
            pid,
            uid,
            arrived_ms: self.now_ms,
            service: None,
            unsent: VecDeque::new(),
            given: 0,
            is_deaf: false,
            is_over: false,
        };
        let number = self.arrivals;
        self.arrivals += 1;
        self.clients.insert(number, client);
        if !is_allowed {
            self.refuse(number, Refusal::NotAllowed, format!("user {uid} may not: see --allow-uid"));
        } else if is_full {
            self.refuse(number, Refusal::Clients, Refusal::Clients.text().to_owned());
        }
        self.flush(number);
    }

    /// Deals with what a client has sent, so many messages at most, or until an answer cannot be sent at once.
    fn hear(&mut self, number: u64, messages_max: usize) {
        let mut room = [0u8; MESSAGE_BYTES_MAX + 1];
        for _ in 0..messages_max {
            let Some(client) = self.clients.get(&number) else { return };
            if !client.unsent.is_empty() || client.is_over {
                return;
            }
            match packet::receive(client.socket.as_fd(), &mut room, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A packet without bytes cannot be told from the end.
                Err(_) | Ok(Packet { length: 0, .. }) => return self.part(number),
                Ok(packet) => self.deal_with(number, &room, packet),
            }
            self.flush(number);
        }
    }

    fn deal_with(&mut self, number: u64, room: &[u8], mut packet: Packet) {
        let bytes = room.get(..packet.length).unwrap_or_default();
        let request = if packet.is_cut { Err(Malformed::Length(room.len())) } else { Request::parse(bytes) };
        let descriptor = packet.descriptors.pop();
        let outcome = match request {
            Err(Malformed::Version(version)) => {
                Err((Refusal::Version, format!("version {version} is not spoken here, but 1")))
            }
            Err(error) => Err((Refusal::Malformed, error.to_string())),
            Ok(Request::Keep(..)) if descriptor.is_none() && packet.is_for_want_of_room() => Err((
                Refusal::Descriptors,
                "the holder may not open more: see its limit of open files".to_owned(),
            )),
            Ok(request) => {
                let has_others = packet.lacks_descriptors || !packet.descriptors.is_empty();
                if has_others || request.has_descriptor() != descriptor.is_some() {
                    let text = "keep comes with one descriptor, everything else with none";
                    Err((Refusal::Malformed, text.to_owned()))
                } else {
                    self.obey(number, request, descriptor)
                        .map_err(|refusal| (refusal, refusal.text().to_owned()))
                }
            }
        };
        if let Err((refusal, text)) = outcome {
            self.refuse(number, refusal, text);
        }
    }

    fn obey(
        &mut self,
        number: u64,
        request: Request<'_>,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        let client = self.clients.get_mut(&number).ok_or(Refusal::Order)?;
        let Some(service) = &client.service else {
            let Request::Hello(name) = request else { return Err(Refusal::Order) };
            self.welcome(number, name);
            return Ok(());
        };
        let held = match (request, descriptor) {
            (Request::Keep(name, state), Some(descriptor)) => {
                if socket::leads_to(&descriptor, &self.listener) {
                    return Err(Refusal::Itself);
                }
                self.store.keep(service, name, descriptor, state)?
            }
            (Request::Update(name, state), _) => self.store.update(service, name, state)?,
            (Request::Release(name), _) => self.store.release(service, name),
            (Request::Recover, _) => {
                self.store.retain(|descriptor| !socket::is_over(descriptor));
                client.given = 0;
                client.unsent.extend(self.store.names(service).into_iter().map(Outgoing::Kept));
                client.unsent.push_back(Outgoing::End);
                return Ok(());
            }
            (Request::Hello(_) | Request::Keep(..), _) => return Err(Refusal::Order),
        };
        client.unsent.push_back(Outgoing::Answer(Answer::Done(count(held)).encode()));
        Ok(())
    }

    /// A process of a service has come: whoever was there before is not it any more, alive or dead.
    fn welcome(&mut self, number: u64, name: &str) {
        let Some(uid) = self.clients.get(&number).map(|client| client.uid) else { return };
        let service = Service { uid, name: name.to_owned() };
        let before = self.clients.iter().find(|(_, client)| client.service.as_ref() == Some(&service));
        if let Some(before) = before.map(|(number, _)| *number) {
            self.supersede(before);
        }
        let held = self.store.join(&service);
        if let Some(client) = self.clients.get_mut(&number) {
            client.service = Some(service.clone());
            client.unsent.push_back(Outgoing::Answer(Answer::Welcome(count(held)).encode()));
            (self.tell)(Event::Joined { service, pid: client.pid, held });
        }
    }

    /// What it had sent before it died, or was followed, counts; what it sends from now on does not reach us.
    fn supersede(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let superseded = Answer::Refused(Refusal::Superseded, Refusal::Superseded.text()).encode();
        // One that is dead does not hear it.
        let _ = packet::send(client.socket.as_fd(), &superseded, None, false);
        client.is_deaf = true;
        let _ = shutdown(&client.socket, Shutdown::Read);
        self.flush(number);
        self.hear(number, usize::MAX);
        self.part(number);
    }

    /// A client has sent all that it ever will.
    fn part(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else { return };
        // Whatever is unread at the close would be an error for the client, in front of the reason that it was told.
        let _ = shutdown(&client.socket, Shutdown::Read);
        while packet::receive(client.socket.as_fd(), &mut [0], false).is_ok_and(|packet| packet.length > 0) {}
        if let Some(service) = client.service {
            let held = self.store.leave(&service, self.now_ms);
            (self.tell)(Event::Left { service, held });
        }
    }

    fn refuse(&mut self, number: u64, why: Refusal, text: String) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.unsent.push_back(Outgoing::Answer(Answer::Refused(why, &text).encode()));
        client.is_over |= why.is_final();
        (self.tell)(Event::Refused { pid: client.pid, why, text });
    }

    /// Sends what the client takes.
    fn flush(&mut self, number: u64) {
        while let Some(client) = self.clients.get_mut(&number) {
            if client.is_deaf {
                client.unsent.clear();
            }
            let Some(next) = client.unsent.front() else {
                if client.is_over {
                    self.part(number);
                }
                return;
            };
            let (bytes, descriptor) = match next {
                Outgoing::Answer(bytes) => (bytes.clone(), None),
                Outgoing::End => (Answer::End(client.given).encode(), None),
                Outgoing::Kept(name) => {
                    let service = client.service.as_ref();
                    match service.and_then(|service| self.store.get(service, name)) {
                        Some((descriptor, state)) => {
                            (Answer::Kept(name, state).encode(), Some(descriptor.as_fd()))
                        }
                        // It was over meanwhile.
                        None => {
                            client.unsent.pop_front();
                            continue;
                        }
                    }
                }
            };
            match packet::send(client.socket.as_fd(), &bytes, descriptor, false) {
                Ok(()) => client.given += u32::from(descriptor.is_some()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A user may have only so many descriptors under way: later, when some have been received.
                Err(error) if error.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error()) => {
                    return self.pause_until_ms = self.now_ms + PAUSE_MS;
                }
                Err(_) => client.is_deaf = true,
            }
            client.unsent.pop_front();
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn count(held: usize) -> u32 {
    u32::try_from(held).unwrap_or(u32::MAX)
}
