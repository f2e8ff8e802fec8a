//! Copies of the sockets that listen.

mod file;
mod in_the_way;
mod left;
mod sockets;
mod users;

use super::address::Address;
use super::message::AddressBytes;
use super::table::Table;
use crate::sys::process::Pid;
use crate::sys::{custody as sys, descriptors, tcp};
pub(super) use file::use_folders;
use file::{SocketFile, folder_of};
use in_the_way::of_nobody;
use left::{Left, is_in};
use rustix::event::epoll;
pub(crate) use sockets::does_listen;
pub(super) use sockets::open_of;
pub(super) use sockets::{Client, Sockets};
use sockets::{is_unseen, places};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
pub(super) use users::User;
use users::Users;

/// More than any server has; further ones are not kept.
const LISTENERS_MAX: usize = 1024;
/// While a program is down, so many clients may wait for it: the system's own limit (`somaxconn`) holds as well.
const BACKLOG: i32 = 4096;
/// A socket that nobody of the program has any more, while it has others, is closed after so long: it has given it up.
const UNUSED: Duration = Duration::from_secs(6);
/// And so much later at the most, if the program has listened there some time after its start.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// How an IPv4 address begins that is written as an IPv6 one.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// Where the scope is in the address of an IPv6 socket.
const SCOPE_AT: usize = 24;

#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    inode: u64,
    address: Address,
    bytes: AddressBytes,
    /// It takes no IPv4.
    ipv6_only: bool,
    users: Users,
    unused_since: Option<Instant>,
    /// The program has had it, and has not listened with it since it was started again.
    is_awaited: bool,
    /// How long after a start the program has listened with it.
    delay: Duration,
    /// The process that had it has crashed, and others serve at the same address: another one has so long to take it.
    closes_at: Option<Instant>,
    /// The process that was given it last: it may not have received it yet.
    given: Option<Pid>,
    /// The process that has had it listen last.
    maker: Pid,
    /// A process that has it, and its number there.
    place: Option<(Pid, RawFd)>,
    /// Nobody had it when it was looked at last, though the process that had it before lives.
    looks_closed: bool,
    /// A UNIX socket's, if it was found where the socket is bound to.
    file: Option<SocketFile>,
    /// It is heard of when somebody shuts it down.
    is_watched: bool,
    /// Where an earlier supervisor's program listens with it, which may not be where this one's does.
    network: Option<PathBuf>,
}

/// How a listening socket is connected to.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// Its addresses, the best one first.
    pub(super) ways: Vec<Vec<u8>>,
    /// It waits for a first byte.
    pub(super) deferred: bool,
    /// The network interface where it listens alone. 0: it does at all.
    pub(super) device: i32,
}

/// Clients are queued here though others could serve them: whoever starts crashed workers again does so at once.
const ORPHANED: Duration = Duration::from_secs(1);

/// All of a program.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: Vec<Listener>,
    /// The program was started then.
    began_at: Option<Instant>,
    left: Vec<Left>,
}

impl Listener {
    /// Whether the process that was seen with it still has it. Where that cannot be asked it has, as long as it lives.
    fn is_in_place(&self) -> bool {
        self.place.is_some_and(|(pid, number)| {
            sys::is_copy(self.socket.as_fd(), pid, number).unwrap_or_else(|| !sys::is_exiting(pid))
        })
    }

    /// Whether another process than the one that asks has said that it has it, and may: what that has open cannot be seen.
    fn may_be_in_place(&self, asks: Pid, processes: &[Pid]) -> bool {
        let is_other = |pid: &Pid| *pid != asks && processes.contains(pid);
        self.place.is_some_and(|(pid, _)| is_other(&pid) && is_unseen(pid) && self.is_in_place())
    }

    /// Whether it is what a program means by this address: paths of UNIX sockets may be relative, to the folder that is given.
    fn is_at(&self, place: &Place<'_>) -> bool {
        if &self.address != place.address || place.address.is_any_ipv6() && self.ipv6_only != place.ipv6_only
        {
            return false;
        }
        match (place.address.path(), &self.file, place.folder) {
            (None, ..) => self.is_in_network(place.network),
            (_, None, _) => true,
            (_, Some(file), Some(folder)) => file.is_in(folder),
            (Some(path), Some(_), None) => path.first() == Some(&b'/'),
        }
    }

    /// The same address is another one in another network namespace.
    fn is_in_network(&self, network: Option<u64>) -> bool {
        sys::network(self.socket.as_fd()).zip(network).is_none_or(|(own, its)| own == its)
    }

    /// Whether a connection to this address may be served by whoever accepts here.
    pub(super) fn serves(&self, address: &Address, connection: BorrowedFd<'_>) -> bool {
        address.came_to(&self.address) && self.may_serve(connection)
    }

    /// Whether clients reach it at its address, as soon as it may be `put_back`.
    fn is_reached(&self) -> bool {
        self.address.path().is_none() || self.file.as_ref().is_some_and(SocketFile::put_back)
    }
}

/// An address as a program means it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) address: &'a Address,
    /// That of a UNIX socket's file, as far as it is known.
    pub(super) folder: Option<BorrowedFd<'a>>,
    /// For IPv6 alone.
    pub(super) ipv6_only: bool,
    /// The [network namespace](sys::network) of the program's socket.
    pub(super) network: Option<u64>,
}

impl Listeners {
    /// One that a process listens on, and its number there, if that is known, and whom it is for. Whether it was not known
    /// before.
    pub(super) fn add(
        &mut self,
        socket: OwnedFd,
        bytes: AddressBytes,
        folder: Option<OwnedFd>,
        (maker, number): (Pid, Option<RawFd>),
        of: &[User],
        table: &Table,
    ) -> bool {
        let place = number.map(|number| (maker, number));
        let delay = self.began_at.map_or(Duration::ZERO, |began| began.elapsed()).min(DELAY_MAX);
        let (Some(address), Ok(inode)) =
            (Address::parse(&sys::local_address(socket.as_fd())), descriptors::inode(&socket))
        else {
            return false;
        };
        let find = || {
            let path = address.path()?;
            let may_link = users::may_link_file_of(&socket, of);
            SocketFile::find(folder.or_else(|| folder_of(path, maker))?, path, inode, may_link)
        };
        if let Some(known) = self.all.iter_mut().find(|known| known.inode == inode) {
            (known.unused_since, known.looks_closed, known.closes_at) = (None, false, None);
            known.is_awaited = false;
            (known.maker, known.place, known.delay) = (maker, place, known.delay.max(delay));
            known.users.add(of);
            if known.file.is_none() {
                known.file = find();
            }
            return false;
        }
        if self.all.len() == LISTENERS_MAX || !descriptors::does_listen(socket.as_fd()) {
            return false;
        }
        let file = find();
        let ipv6_only = sys::ipv6_only(socket.as_fd());
        let mut users = Users::of(&socket);
        users.add(of);
        table.note_address(&address);
        let here = self.all.iter_mut().filter(|listener| listener.address == address);
        here.for_each(|listener| listener.is_awaited = false);
        let (unused_since, looks_closed, closes_at) = (None, false, None);
        let listener = Listener {
            socket,
            inode,
            address,
            bytes,
            ipv6_only,
            users,
            unused_since,
            is_awaited: false,
            delay,
            closes_at,
            given: None,
            maker,
            place,
            looks_closed,
            file,
            is_watched: false,
            network: None,
        };
        self.all.push(listener);
        true
    }

    /// The one at this address that none of the processes has, or is about to receive.
    fn unused(
        &self,
        by: Pid,
        at: &Place<'_>,
        processes: &[Pid],
        is_about_to_receive: impl Fn(Pid) -> bool,
    ) -> Option<&Listener> {
        let is_there = |listener: &&Listener| listener.is_at(at) && is_in(by, listener.network.as_ref());
        let there: Vec<&Listener> = self.all.iter().filter(is_there).collect();
        let free = of_nobody(&there, by, processes, is_about_to_receive);
        there.into_iter().find(|listener| free.contains(&listener.inode))
    }

    /// Files of UNIX sockets that a process which ends has removed: another one serves there, or will in a moment.
    pub(super) fn put_back(&self) {
        for file in self.all.iter().filter_map(|listener| listener.file.as_ref()) {
            file.put_back();
        }
    }

    /// Has the holder hear of it when one is shut down, which all copies of it are then.
    pub(super) fn watch(&mut self, epoll: &OwnedFd) {
        for listener in self.all.iter_mut().filter(|listener| !listener.is_watched) {
            // Nothing is asked for: of that end it is told anyway, once.
            let data = epoll::EventData::new_u64(super::holder::of_listener());
            listener.is_watched = epoll::add(epoll, &listener.socket, data, epoll::EventFlags::ET).is_ok();
        }
    }

    /// Those of TCP that were shut down listen again, at the address that they have kept.
    pub(super) fn open_again(&self) {
        for listener in &self.all {
            if !descriptors::does_listen(listener.socket.as_fd()) {
                sys::listen_again(listener.socket.as_fd(), BACKLOG);
            }
        }
    }

    /// For a program that binds to this address, of which these processes run. A UNIX socket that clients would not reach
    /// there is not for it, and is closed: the program's own takes its place, and clients that wait are told.
    pub(super) fn adopt(
        &mut self,
        by: Pid,
        at: &Place<'_>,
        processes: &[Pid],
        is_about_to_receive: impl Fn(Pid) -> bool,
    ) -> Option<BorrowedFd<'_>> {
        loop {
            let inode = self.unused(by, at, processes, &is_about_to_receive)?.inode;
            let number = self.all.iter().position(|listener| listener.inode == inode)?;
            if !self.all.get(number)?.is_reached() {
                self.all.remove(number);
                continue;
            }
            let listener = self.all.get_mut(number)?;
            (listener.unused_since, listener.looks_closed, listener.closes_at) = (None, false, None);
            listener.given = Some(by);
            return Some(listener.socket.as_fd());
        }
    }

    /// Whether clients who come to this address reach the holder alone.
    pub(super) fn is_alone(&self, at: &Place<'_>, processes: impl FnOnce() -> Vec<Pid>) -> bool {
        let leads = |listener: &&Listener| {
            listener.address.path().is_none() || listener.file.as_ref().is_some_and(SocketFile::is_there)
        };
        let there: Vec<&Listener> = self.all.iter().filter(|listener| listener.is_at(at)).collect();
        if !there.iter().any(leads) {
            return false;
        }
        let processes = processes();
        there.iter().all(|listener| open_of(&processes, &[listener.inode]).is_empty())
    }

    /// The program is started again: it has as much time to ask for each as at its first start.
    pub(super) fn begin(&mut self) {
        self.began_at = Some(Instant::now());
        for listener in &mut self.all {
            (listener.unused_since, listener.looks_closed, listener.closes_at) = (None, false, None);
            listener.is_awaited = true;
        }
    }

    /// Whether the program has not listened yet with all that it had before it was started again: how long it has taken before
    /// for the last one of these.
    pub(super) fn awaits(&self) -> Option<Duration> {
        self.all.iter().filter(|listener| listener.is_awaited).map(|listener| listener.delay).max()
    }

    /// How many clients wait where the program listens. Of UNIX sockets that is not known.
    pub(super) fn queued_count(&self) -> u32 {
        let there = self.all.iter().filter(|listener| !listener.is_awaited);
        there.filter_map(|listener| tcp::queued_count(listener.socket.as_fd())).sum()
    }

    /// The program is down: clients wait in the queue.
    pub(super) fn make_room(&self) {
        self.all.iter().for_each(|listener| sys::listen_again(listener.socket.as_fd(), BACKLOG));
    }

    /// Whether all who have come where a connection had come to are accepted.
    pub(super) fn is_queue_empty(&self, connection: &Address) -> bool {
        let mut there = self.all.iter().filter(|listener| connection.came_to(&listener.address));
        there.all(|listener| tcp::queued_count(listener.socket.as_fd()) == Some(0))
    }

    /// Whether others may listen where a connection had come to, and the kernel chooses by the client's port who gets one.
    pub(super) fn shares_port(&self, connection: &Address) -> bool {
        let mut there = self.all.iter().filter(|listener| connection.came_to(&listener.address));
        there.any(|listener| sys::shares_port(listener.socket.as_fd()))
    }

    /// Where a connection has come from, to connect there once more.
    pub(super) fn origin(&self, connection: &Address, socket: BorrowedFd<'_>) -> Origin {
        let came_to = |listener: &&Listener| connection.came_to(&listener.address);
        let mut there = self.all.iter().filter(came_to).filter(|listener| listener.may_serve(socket));
        if connection.path().is_some() {
            let at = there.find_map(|listener| listener.file.as_ref()?.reached_at());
            return Origin { ways: at.into_iter().collect(), ..Origin::default() };
        }
        let device = |listener: &Listener| sys::device(listener.socket.as_fd());
        // What was accepted where interfaces count is bound to the same one.
        let its = sys::device(socket);
        let same = there.clone().find(|listener| device(listener) == its);
        let Some(listener) = same.or_else(|| there.next()) else { return Origin::default() };
        let device = device(listener);
        // Asked now: some set it after they listen.
        let deferred = sys::tcp_option(listener.socket.as_fd(), libc::TCP_DEFER_ACCEPT) > 0;
        let bytes = listener.bytes.as_ref();
        let anywhere = |ip: &[u8]| ip.iter().all(|&byte| byte == 0);
        let (Address::Internet { ip: at, .. }, Address::Internet { ip: own, scope, .. }) =
            (&listener.address, connection)
        else {
            return Origin { ways: vec![bytes.to_vec()], deferred, device };
        };
        if !anywhere(at) {
            return Origin { ways: vec![bytes.to_vec()], deferred, device };
        }
        // Loopback may have no address of IPv6 where that is switched off: clients who come by IPv4 do not need it.
        let loopback: &[u8] = match own.len() {
            4 => &[127, 0, 0, 1],
            _ if own.starts_with(&MAPPED) => &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1],
            _ => &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        };
        let to = |ip: &[u8], scope: u32| {
            let (mut bytes, begin) = (bytes.to_vec(), if at.len() == 4 { 4 } else { 8 });
            bytes.get_mut(begin..begin + ip.len())?.copy_from_slice(ip);
            if let Some(place) = bytes.get_mut(SCOPE_AT..SCOPE_AT + 4).filter(|_| at.len() == 16) {
                place.copy_from_slice(&scope.to_ne_bytes());
            }
            Some(bytes)
        };
        // Loopback is none of an interface's addresses.
        let loopback = to(loopback, 0).filter(|_| device == 0);
        Origin { ways: loopback.into_iter().chain(to(own, *scope)).collect(), deferred, device }
    }

    /// Lets go of those that the program has given up: nobody has them, and the process that had them lives on, or the
    /// program has others and has had time enough to ask for these. It is not about to begin. Whether all of them are with
    /// somebody who is not left from an earlier start; and those of workers (SO_REUSEPORT) that nobody has taken in time, or that
    /// their worker has closed: others serve the clients that wait there.
    pub(super) fn sweep(
        &mut self,
        processes: &[Pid],
        is_older: impl Fn(Pid) -> bool,
        now: Instant,
    ) -> (bool, Vec<OwnedFd>) {
        let in_place: Vec<bool> = self.all.iter().map(Listener::is_in_place).collect();
        let others = self.all.iter().zip(&in_place).filter(|(_, in_place)| !**in_place);
        let inodes: Vec<u64> = others.map(|(listener, _)| listener.inode).collect();
        let is_taken = |place: Option<(Pid, RawFd)>| place.is_some_and(|(pid, _)| !is_older(pid));
        if inodes.is_empty() {
            return (self.all.iter().all(|listener| is_taken(listener.place)), Vec::new());
        }
        let Some(places) = places(processes, inodes) else { return (false, Vec::new()) };
        let is_orphaned = |listener: &Listener| listener.closes_at.is_some_and(|at| now >= at);
        let is_any_used = !places.is_empty() || in_place.contains(&true);
        let is_used = |listener: &Listener| places.iter().any(|(inode, ..)| *inode == listener.inode);
        let used =
            self.all.iter().zip(&in_place).filter(|(listener, in_place)| **in_place || is_used(listener));
        let served: Vec<Address> = used.map(|(listener, _)| listener.address.clone()).collect();
        let (mut in_place, mut all_taken) = (in_place.into_iter(), true);
        let given_up = self.all.extract_if(.., |listener| {
            let place = places.iter().find(|(inode, ..)| *inode == listener.inode);
            let found = place.map(|&(_, pid, number)| (pid, number));
            if in_place.next() == Some(true) || found.is_some() {
                listener.place = found.or(listener.place);
                all_taken &= is_taken(listener.place);
                (listener.unused_since, listener.looks_closed, listener.closes_at) = (None, false, None);
                return false;
            }
            all_taken = false;
            if is_orphaned(listener) {
                return true;
            }
            // Who has crashed has not given it up, and looks so when it is about to.
            let is_closed =
                listener.place.is_some_and(|(pid, _)| processes.contains(&pid) && !sys::is_exiting(pid));
            if std::mem::replace(&mut listener.looks_closed, is_closed) && is_closed {
                if sys::shares_port(listener.socket.as_fd()) && served.contains(&listener.address) {
                    listener.closes_at = Some(now);
                }
                return true;
            }
            let unused_since = *listener.unused_since.get_or_insert(now);
            let is_unused = is_any_used && now.duration_since(unused_since) >= UNUSED + listener.delay;
            if is_unused && sys::shares_port(listener.socket.as_fd()) {
                listener.closes_at = Some(now);
            }
            is_unused
        });
        let given_up: Vec<Listener> = given_up.collect();
        let orphaned = given_up.into_iter().filter(is_orphaned).map(|listener| listener.socket).collect();
        (all_taken, orphaned)
    }

    /// A process closes the socket that it has under this number, in a moment. Whether it is looked whether another one has it
    /// then, soon: clients whom others would serve wait there meanwhile.
    pub(super) fn closes(&mut self, pid: Pid, number: RawFd) -> bool {
        let is_it = |listener: &&mut Listener| {
            listener.place == Some((pid, number)) && sys::shares_port(listener.socket.as_fd())
        };
        let listener = self.all.iter_mut().find(is_it);
        listener.map(|listener| listener.looks_closed = true).is_some()
    }

    /// A process has ended while the program goes on. Where its workers listen at one port with a socket each (SO_REUSEPORT),
    /// the kernel sends each socket its share of the clients, also one that nobody has any more: it is closed, at once if the
    /// process has ended in order. Those that are to be closed now: others serve the clients that wait there.
    pub(super) fn on_end(
        &mut self,
        pid: Pid,
        in_order: bool,
        processes: impl FnOnce() -> Vec<Pid>,
        now: Instant,
    ) -> Vec<OwnedFd> {
        let is_its = |listener: &Listener| {
            listener.place.is_some_and(|(had, _)| had == pid) && sys::shares_port(listener.socket.as_fd())
        };
        if !self.all.iter().any(is_its) {
            return Vec::new();
        }
        let inodes: Vec<u64> = self.all.iter().map(|listener| listener.inode).collect();
        let used = open_of(&processes(), &inodes);
        let in_use = self.all.iter().filter(|listener| used.contains(&listener.inode));
        let served: Vec<Address> = in_use.map(|listener| listener.address.clone()).collect();
        let closed = self.all.extract_if(.., |listener| {
            if !is_its(listener) || used.contains(&listener.inode) || !served.contains(&listener.address) {
                return false;
            }
            listener.closes_at = Some(now + ORPHANED);
            in_order
        });
        closed.map(|listener| listener.socket).collect()
    }

    /// Where the program listens, or has time to begin, as far as clients reach it there.
    pub(super) fn reached(&self) -> Vec<&Listener> {
        let is_reached = |listener: &&Listener| {
            listener.address.path().is_none()
                || listener.file.as_ref().is_some_and(|file| file.reached_at().is_some())
        };
        self.all.iter().filter(is_reached).collect()
    }

    /// Whether some look as if the program had given them up just now.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.all.iter().any(|listener| listener.looks_closed || listener.closes_at.is_some())
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }
}
