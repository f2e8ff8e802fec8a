//! Listening sockets that nobody of the program's present start has, and that would be noticed by it though they would be closed
//! without the holder: who binds to an overlapping address, or looks whether anybody listens.

use super::file::SocketFile;
use super::left::is_in;
use super::sockets::{is_unseen, open_of, sockets};
use super::{LISTENERS_MAX, Listener, Listeners, MAPPED, Place};
use crate::custody::address::Address;
use crate::custody::overlap;
use crate::custody::tcp_table::Entry;
use crate::sys::addresses;
use crate::sys::custody as sys;
use crate::sys::descriptors::does_listen;
use crate::sys::process::{self, Pid};
use std::os::fd::{AsFd, OwnedFd};

/// Of these listeners the inodes of those that nobody has, or is about to receive.
pub(super) fn of_nobody(
    some: &[&Listener],
    by: Pid,
    processes: &[Pid],
    is_about_to_receive: impl Fn(Pid) -> bool,
) -> Vec<u64> {
    if some.is_empty() {
        return Vec::new();
    }
    // What is received while descriptors are looked through may be missed there: so this comes first.
    let is_given = |listener: &&&Listener| listener.given.is_some_and(&is_about_to_receive);
    let given: Vec<u64> = some.iter().filter(is_given).map(|listener| listener.inode).collect();
    let inodes: Vec<u64> = some.iter().map(|listener| listener.inode).collect();
    let used = open_of(processes, &inodes);
    // It may have been missed while its process put it under another number, which that does once.
    let is_missed = |listener: &Listener| {
        let has_moved = |pid: Pid| pid != by && !open_of(&[pid], &[listener.inode]).is_empty();
        listener.given.is_some_and(|pid| processes.contains(&pid) && has_moved(pid))
    };
    let is_taken = |listener: &Listener| {
        given.contains(&listener.inode)
            || used.contains(&listener.inode)
            || is_missed(listener)
            || listener.may_be_in_place(by, processes)
    };
    let free = some.iter().filter(|listener| !is_taken(listener));
    free.map(|listener| listener.inode).collect()
}

/// Whether clients of the one address could come to a socket at the `other`, too: it is the same, or all of its family.
fn serves_too(other: &Address, one: &Address) -> bool {
    match (other, one) {
        (Address::Internet { ip: any, port: other_port, .. }, Address::Internet { ip, port, .. }) => {
            let is_any = any.len() == ip.len() && any.iter().all(|byte| *byte == 0);
            // That one may be for IPv6 alone.
            let is_mapped = ip.len() == 16 && ip.starts_with(&MAPPED);
            port == other_port && (is_any && !is_mapped || any == ip)
        }
        _ => false,
    }
}

impl Listeners {
    /// The program could not bind to this address: those that are in the way, and that none of its processes has.
    pub(in crate::custody) fn let_go(
        &mut self,
        by: Pid,
        at: &Place<'_>,
        processes: &[Pid],
        is_about_to_receive: impl Fn(Pid) -> bool,
    ) -> Vec<OwnedFd> {
        let is_in_the_way = |listener: &&Listener| {
            let held = (&listener.address, listener.ipv6_only);
            overlap::is_in_the_way(held, (at.address, at.ipv6_only))
                && listener.is_in_network(at.network)
                && is_in(by, listener.network.as_ref())
        };
        let there: Vec<&Listener> = self.all.iter().filter(is_in_the_way).collect();
        if there.is_empty() {
            return Vec::new();
        }
        let free = of_nobody(&there, by, processes, is_about_to_receive);
        let closed = self.all.extract_if(.., |listener| free.contains(&listener.inode));
        closed.map(|listener| listener.socket).collect()
    }

    /// Those that none of these processes has, and whose address can be bound to again while connections that have come there are
    /// open: their inodes. What was given to the program from outside it stays open there, and is kept.
    pub(in crate::custody) fn free(
        &self,
        processes: &[Pid],
        is_about_to_receive: impl Fn(Pid) -> bool,
    ) -> Vec<u64> {
        let can_go = |listener: &&Listener| {
            let is_unix = listener.address.internet().is_none();
            is_unix
                || sys::shares_port(listener.socket.as_fd())
                || rustix::net::sockopt::socket_reuseaddr(&listener.socket).unwrap_or(false)
        };
        let some: Vec<&Listener> = self.all.iter().filter(can_go).collect();
        let mut free = of_nobody(&some, 0, processes, is_about_to_receive);
        // One is the holder's.
        let ours: Vec<u64> = sockets(process::pid()).into_iter().flatten().map(|(_, inode)| inode).collect();
        free.retain(|inode| ours.iter().filter(|own| *own == inode).count() < 2);
        // What such a process has open cannot be seen. It would lose the file.
        if processes.iter().any(|pid| is_unseen(*pid)) {
            let has_file = |inode: u64| self.all.iter().any(|it| it.inode == inode && it.file.is_some());
            free.retain(|inode| !has_file(*inode));
        }
        free
    }

    /// Those with these inodes, which are not held any more. Files of UNIX sockets are removed: a program that leaves that to nobody could
    /// not bind there, and could as long as it was given the socket.
    pub(in crate::custody) fn remove(&mut self, inodes: &[u64]) -> Vec<OwnedFd> {
        let removed = self.all.extract_if(.., |listener| inodes.contains(&listener.inode));
        let socket = |listener: Listener| {
            listener.file.iter().for_each(SocketFile::remove);
            listener.socket
        };
        removed.map(socket).collect()
    }

    /// Whether others may listen where one of them does (SO_REUSEPORT).
    pub(in crate::custody) fn may_be_shared(&self) -> bool {
        self.all.iter().any(|listener| sys::shares_port(listener.socket.as_fd()))
    }

    /// Of the [free](Self::free) ones those at whose address another program listens, too: the kernel sends each of the sockets its share of
    /// the clients; or at all addresses of their port, where it would get all. `listening` gives all that listen in this network namespace, `network`.
    ///
    /// Only where both are sure to get the same clients: not where one may be for IPv6 alone, or for one interface.
    pub(in crate::custody) fn shared_with_others(
        &self,
        processes: &[Pid],
        network: Option<u64>,
        listening: impl Fn() -> Vec<Entry>,
        is_about_to_receive: impl Fn(Pid) -> bool,
    ) -> Vec<u64> {
        let Some(network) = network else { return Vec::new() };
        let can_be = |listener: &&Listener| {
            let socket = listener.socket.as_fd();
            sys::shares_port(socket)
                && sys::network(socket) == Some(network)
                && sys::device(socket) == 0
                && listener.address.scope() == 0
                && (listener.ipv6_only || !listener.address.is_any_ipv6())
        };
        let all: Vec<Entry> = listening();
        let is_held = |entry: &Entry| self.all.iter().any(|listener| listener.inode == entry.inode);
        let mut pairs = Vec::new();
        for listener in self.all.iter().filter(can_be) {
            let there =
                all.iter().filter(|entry| serves_too(&entry.local, &listener.address) && !is_held(entry));
            pairs.extend(there.map(|entry| (listener.inode, entry.inode)));
        }
        // What such a process has open cannot be seen: it may be that.
        if pairs.is_empty() || processes.iter().any(|pid| is_unseen(*pid)) {
            return Vec::new();
        }
        let others: Vec<u64> = pairs.iter().map(|(_, other)| *other).collect();
        let own = open_of(&[processes, &[process::pid()]].concat(), &others);
        pairs.retain(|(_, other)| !own.contains(other));
        // One of the program's own may have gone with its process before that was looked through.
        let still: Vec<u64> =
            if pairs.is_empty() { Vec::new() } else { listening().iter().map(|entry| entry.inode).collect() };
        pairs.retain(|(_, other)| still.contains(other));
        let mut shared = self.free(processes, is_about_to_receive);
        shared.retain(|inode| pairs.iter().any(|(held, _)| held == inode));
        shared
    }

    /// Whether a connection of that process to this address, in this [network namespace](Place::network), would come to the holder alone.
    pub(in crate::custody) fn is_reached_alone(
        &self,
        by: Pid,
        (to, network): (&Address, Option<u64>),
        processes: impl FnOnce() -> Vec<Pid>,
        is_about_to_receive: impl Fn(Pid) -> bool,
    ) -> bool {
        let is_reached = |listener: &&Listener| {
            overlap::reaches(to, (&listener.address, listener.ipv6_only), addresses::is_local)
                && listener.is_in_network(network)
                && is_in(by, listener.network.as_ref())
                // The port of one that was shut down may be another socket's by now.
                && does_listen(listener.socket.as_fd())
        };
        let there: Vec<&Listener> = self.all.iter().filter(is_reached).collect();
        // Of further ones that are there nothing is known then.
        let knows_all = self.all.len() < LISTENERS_MAX;
        knows_all
            && !there.is_empty()
            && of_nobody(&there, by, &processes(), is_about_to_receive).len() == there.len()
    }

    /// Whether some were last seen with that process.
    pub(in crate::custody) fn was_seen_with(&self, pid: Pid) -> bool {
        self.all
            .iter()
            .any(|listener| listener.maker == pid || listener.place.is_some_and(|(had, _)| had == pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_gets_the_clients_of_an_address_at_the_same_or_at_all_of_its_family() {
        let at = |ip: &[u8], port| Address::Internet { ip: ip.to_vec(), port, scope: 0 };
        let (here, other, any, any_ipv6) = ([127, 0, 0, 1], [127, 0, 0, 2], [0; 4], [0; 16]);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
        assert!(serves_too(&at(&here, 1), &at(&here, 1)) && serves_too(&at(&any, 1), &at(&here, 1)));
        for elsewhere in [at(&here, 2), at(&other, 1), at(&any_ipv6, 1), at(&any, 2)] {
            assert!(!serves_too(&elsewhere, &at(&here, 1)));
        }
        assert!(!serves_too(&at(&here, 1), &at(&any, 1)), "it gets some of them");
        assert!(!serves_too(&at(&any_ipv6, 1), &at(&mapped, 1)), "it may be for IPv6 alone");
        assert!(serves_too(&at(&any_ipv6, 1), &at(&[1; 16], 1)));
        assert!(!serves_too(&Address::Unix(b"a".to_vec()), &Address::Unix(b"a".to_vec())));
    }
}
