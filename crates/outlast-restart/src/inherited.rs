//! The descriptors that a dead generation had opened.

use crate::sys::descriptors::{self, Kind};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

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
    /// All that is open in this process and not in `known`.
    pub(crate) fn find(known: &BTreeSet<RawFd>) -> io::Result<Self> {
        let (mut inherited, mut sockets) = (Self::default(), BTreeSet::new());
        for descriptor in descriptors::open()? {
            if known.contains(&descriptor) {
                continue;
            }
            let Some((owned, kind, identity)) = descriptors::adopt(descriptor) else { continue };
            if kind != Kind::Other && !sockets.insert(identity) {
                // Another number of the same socket, such as a half of one that was split for two threads.
                continue;
            }
            match kind {
                Kind::Listener => inherited.listeners.push(owned),
                Kind::Connection => inherited.connections.push(owned),
                Kind::Other => inherited.others.push(owned),
            }
        }
        Ok(inherited)
    }
}
