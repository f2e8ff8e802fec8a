//! In the holder: listening sockets that are in somebody's way, and are closed. Clients that wait there are kept for the next start.

use super::hears::about_to_receive;
use super::{Ending, Holder};
use crate::board::Backend;
use crate::custody::address::Address;
use crate::custody::listeners::open_of;
use crate::custody::{Report, StartEnded, tcp_table};
use crate::sys::process::Pid;
use crate::sys::{custody as sys, family};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Whether a process of the program has the other end of these connections.
fn own_of(accepted: &[OwnedFd], processes: &[Pid]) -> Vec<bool> {
    let ends = |socket: &OwnedFd| {
        let here = Address::parse(&sys::local_address(socket.as_fd()))?.internet()?;
        Some((Address::parse(&sys::peer_address(socket.as_fd()))?.internet()?, here))
    };
    let at: HashMap<_, _> =
        accepted.iter().enumerate().filter_map(|(at, socket)| Some((ends(socket)?, at))).collect();
    let mut inodes = vec![0; accepted.len()];
    if !at.is_empty() {
        for entry in tcp_table::connected() {
            let ends = entry.local.internet().zip(entry.remote.internet());
            if let Some(inode) = ends.and_then(|ends| inodes.get_mut(*at.get(&ends)?)) {
                *inode = entry.inode;
            }
        }
    }
    let own = open_of(processes, &inodes);
    // Of a UNIX socket the kernel tells who has connected.
    let is_own = |(socket, inode): (&OwnedFd, &u64)| {
        own.contains(inode) || sys::peer_of(socket.as_fd()).is_some_and(|(pid, _)| processes.contains(&pid))
    };
    accepted.iter().zip(&inodes).map(is_own).collect()
}

impl Holder {
    /// The program is about to be started; how its last start has `ended`. Closes what may be in its way. How many.
    pub(super) fn free_port(&mut self, ended: Option<StartEnded>) -> usize {
        let now = Instant::now();
        let ended = ended.map(|ended| (ended, self.is_silent()));
        if !self.hindrance.starts(ended, self.ending == Ending::Replaced, now) {
            return 0;
        }
        let closed = self.listeners.remove(&self.free_listeners(&family::below_this()));
        self.connections.pass_on_all(&closed);
        self.hindrance.lets_go(closed.len(), false, now);
        self.has_freed |= !closed.is_empty();
        closed.len()
    }

    /// The same, when a start has run for long and has not listened.
    pub(super) fn free_port_when_due(&mut self, now: Instant) {
        let is_due = self.hindrance.due_at().is_some_and(|at| now >= at);
        if !is_due || !self.is_silent() || self.ending == Ending::ForGood || self.is_main_down() {
            return;
        }
        let processes = family::below_this();
        let closed = self.listeners.remove(&self.free_listeners(&processes));
        self.hindrance.lets_go(closed.len(), true, now);
        if closed.is_empty() {
            return;
        }
        self.has_freed = true;
        let sockets = closed.len();
        let mut accepted = Vec::new();
        for socket in closed {
            accepted.extend(sys::accept_all(&socket));
        }
        // The start may wait for an answer itself.
        let is_own = own_of(&accepted, &processes);
        let others = accepted.into_iter().zip(is_own).filter(|(_, is_own)| !is_own);
        self.connections.pass_on_accepted(others.map(|(accepted, _)| accepted));
        self.report(Report::LetGo { sockets });
    }

    /// The program has crashed: where other programs listen at its addresses as well, new clients are theirs until it is back.
    pub(super) fn leave_to_others(&mut self, processes: &[Pid]) {
        self.leaves_to_others = false;
        if self.ending != Ending::No || !self.listeners.may_be_shared() {
            return;
        }
        let network = sys::network(self.socket.as_fd());
        let receives = |pid| about_to_receive(&self.controls, 0, pid);
        let shared = self.listeners.shared_with_others(processes, network, tcp_table::listening, receives);
        let closed = self.listeners.remove(&shared);
        if !closed.is_empty() {
            self.connections.pass_on_all(&closed);
            self.has_freed = true;
            self.report(Report::LeftToOthers { sockets: closed.len() });
        }
    }

    /// Whether the main process has ended, in order, because of what is held for it, perhaps.
    pub(super) fn may_be_hindered(&self) -> bool {
        self.is_silent()
            && self.ending != Ending::ForGood
            && self.hindrance.is_worth_another()
            && self.listeners.count() > 0
            && !self.free_listeners(&family::below_this()).is_empty()
    }

    fn free_listeners(&self, processes: &[Pid]) -> Vec<u64> {
        self.listeners.free(processes, |pid| about_to_receive(&self.controls, 0, pid))
    }

    /// Whether the program has been started, and has not listened since.
    fn is_silent(&self) -> bool {
        self.main.is_some()
            && !self.listens
            && self.serves_since.is_none()
            && self.board.backend() == Backend::None
    }
}
