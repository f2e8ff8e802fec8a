//! The descriptors that a dead generation had opened.

use crate::slots::{Slot, Slots};
use crate::sys::descriptors::{self, Kind, Known};
use crate::sys::tcp;
use crate::transport::{self, Transport};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};

/// Descriptors that were opened after [`register`](crate::register), by generations that are dead, and are still open.
/// Those that are dropped are closed, as if the generation that had opened them had closed them.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Sockets that listen. A socket with several numbers is given once.
    pub listeners: Vec<OwnedFd>,
    /// Stream sockets that are connected, or were: accepted ones above all, also one that `accept` had only just returned.
    pub connections: Vec<OwnedFd>,
    /// Everything else, such as files, pipes, and the descriptors of `epoll`.
    pub others: Vec<OwnedFd>,
}

impl Inherited {
    /// All that is open in this process and not `known` or one of its `channels`; what is private to connections belongs to
    /// those.
    pub(crate) fn find(known: &Known, channels: &BTreeSet<RawFd>, slots: &Slots) -> io::Result<Self> {
        // A number of what was known and closed may be that of a client.
        let is_known = |number: &RawFd| {
            known.get(number).is_some_and(|known| descriptors::identity_of(*number) == Some(*known))
        };
        let (mut inherited, mut private) = (Self::default(), BTreeSet::new());
        for (descriptor, slot) in slots.in_use() {
            let Some(socket) = left(descriptor, slot) else { continue };
            private.extend(transport::private(slot));
            if is_known(&descriptor) || channels.contains(&descriptor) {
                let _ = socket.into_raw_fd();
            } else {
                inherited.connections.push(socket);
            }
        }
        let seen: BTreeSet<RawFd> = inherited.connections.iter().map(AsRawFd::as_raw_fd).collect();
        // Few: what was just accepted, and what is no connection.
        let others = descriptors::open_besides(&seen)?.into_iter();
        let others = others
            .filter(|number| !is_known(number) && !channels.contains(number) && !private.contains(number))
            .filter_map(descriptors::adopt);
        let held = || seen.iter().filter_map(|number| slots.of(*number)?.inode()).collect();
        for (owned, kind, _) in once_each(others.collect(), held) {
            match kind {
                Kind::Listener => inherited.listeners.push(owned),
                Kind::Connection => inherited.connections.push(owned),
                Kind::Other => inherited.others.push(owned),
            }
        }
        Ok(inherited)
    }
}

/// What a slot is about, if that is open. What was closed without an end, or not quite, is about nothing from now on.
fn left(descriptor: RawFd, slot: &Slot) -> Option<OwnedFd> {
    let socket = descriptors::adopt_as(descriptor, |inode| slot.is_of(inode));
    if socket.is_none() || slot.has_ended() {
        end(slot, socket);
        return None;
    }
    socket
}

/// Whether an answer is not complete, as far as is known, which is not to look so. Of a connection that the program was closing
/// only that is known which it had not said itself.
fn has_half_said(slot: &Slot, socket: &OwnedFd) -> bool {
    let mark = slot.mark();
    let has_begun = || {
        let passed = Transport::Tcp.passed(socket.as_fd(), slot);
        passed.is_ok_and(|passed| passed.sent_bytes != mark.written_bytes)
    };
    if slot.has_ended() { mark.outbox != 0 } else { tcp::is_open_for_writing(socket.as_fd()) && has_begun() }
}

fn end(slot: &Slot, socket: Option<OwnedFd>) {
    let inode = slot.inode();
    if let Some(transport) = Transport::of_slot(slot) {
        if let Some(socket) = socket.as_ref().filter(|_| transport == Transport::Tcp)
            && has_half_said(slot, socket)
        {
            tcp::reset_on_close(socket.as_fd());
        }
        transport.end(slot);
    }
    drop(socket);
    slot.forget_ended(inode);
}

/// Slots that are in use are about open connections then.
pub(crate) fn tidy(slots: &Slots) {
    let open = slots.in_use().filter_map(|(descriptor, slot)| left(descriptor, slot));
    open.for_each(|socket| {
        let _ = socket.into_raw_fd();
    });
}

/// Closes connections that nobody is to hold any more.
pub(crate) fn discard(slots: &Slots, connections: impl IntoIterator<Item = OwnedFd>) {
    for connection in connections {
        let inode = descriptors::inode(&connection).ok();
        let slot = slots.of(connection.as_raw_fd());
        if let Some(slot) = slot.filter(|slot| inode.is_some_and(|inode| slot.is_of(inode))) {
            end(slot, Some(connection));
        }
    }
}

/// Without further numbers of a socket, or of one that is held, such as a half of one that was split for two threads, or a
/// copy that was there for a moment only: what is known of a connection is known by the number by which it is held.
fn once_each<T>(mut found: Vec<(T, Kind, u64)>, held: impl FnOnce() -> BTreeSet<u64>) -> Vec<(T, Kind, u64)> {
    if found.iter().any(|(_, kind, _)| *kind != Kind::Other) {
        let mut sockets = held();
        found.retain(|(_, kind, identity)| *kind == Kind::Other || sockets.insert(*identity));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// A held one in a slot, its peer, and what its private pipe is.
    fn held(slots: &Slots) -> (OwnedFd, UnixStream, Vec<(RawFd, descriptors::Identity)>) {
        let (socket, peer) = UnixStream::pair().unwrap();
        let socket = OwnedFd::from(socket);
        let slot = slots.to_use(socket.as_raw_fd()).unwrap();
        Transport::Unix.begin(&socket, descriptors::inode(&socket).unwrap(), slot).unwrap();
        let pipe =
            transport::private(slot).map(|end| (end, descriptors::identity_of(end).unwrap())).collect();
        (socket, peer, pipe)
    }

    fn has_ended(slots: &Slots, mut peer: UnixStream, pipe: &[(RawFd, descriptors::Identity)]) {
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        assert_eq!(slots.in_use().count(), 0);
        assert_eq!(pipe.len(), 2);
        assert!(pipe.iter().all(|(end, known)| descriptors::identity_of(*end) != Some(*known)));
    }

    #[test]
    fn what_the_server_was_closing_when_it_died_is_closed() {
        let slots = Slots::new().unwrap();
        let (socket, peer, pipe) = held(slots);
        let (number, slot) = slots.in_use().next().unwrap();
        // It is still there for others.
        let again = left(number, slot).unwrap();
        assert_eq!(again.into_raw_fd(), socket.as_raw_fd());
        Transport::Unix.end(slot);
        let _ = socket.into_raw_fd();
        assert!(left(number, slot).is_none());
        has_ended(slots, peer, &pipe);
    }

    #[test]
    fn what_was_closed_without_being_held_leaves_nothing() {
        let slots = Slots::new().unwrap();
        let (socket, peer, pipe) = held(slots);
        drop(socket);
        tidy(slots);
        has_ended(slots, peer, &pipe);
        let (socket, peer, pipe) = held(slots);
        discard(slots, [socket]);
        has_ended(slots, peer, &pipe);
    }

    #[test]
    fn half_an_answer_of_a_connection_that_is_given_up_is_no_whole_one() {
        use std::io::Write;
        use std::net::{TcpListener, TcpStream};
        let slots = Slots::new().unwrap();
        let ends_in_order = |said: &[u8], shuts: bool| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut server = listener.accept().unwrap().0;
            let slot = slots.to_use(server.as_raw_fd()).unwrap();
            let socket = OwnedFd::from(server.try_clone().unwrap());
            Transport::Tcp.begin(&socket, descriptors::inode(&socket).unwrap(), slot).unwrap();
            drop(socket);
            server.write_all(said).unwrap();
            if shuts {
                server.shutdown(std::net::Shutdown::Write).unwrap();
            }
            discard(slots, [OwnedFd::from(server)]);
            client.read_to_end(&mut Vec::new()).is_ok()
        };
        assert!(ends_in_order(b"", false) && ends_in_order(b"", true));
        assert!(!ends_in_order(b"half", false));
        // It has said itself that this was all.
        assert!(ends_in_order(b"whole", true));
    }

    #[test]
    fn of_several_numbers_of_a_connection_the_one_is_kept_by_which_it_is_held() {
        use Kind::{Connection, Listener, Other};
        let found = vec![
            (3, Other, 1),
            (4, Connection, 7),
            (5, Connection, 8),
            (6, Listener, 9),
            (7, Other, 1),
            (8, Listener, 9),
            (10, Connection, 8),
        ];
        let kept = once_each(found, || [7].into());
        assert_eq!(kept.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [3, 5, 6, 7]);
    }
}
