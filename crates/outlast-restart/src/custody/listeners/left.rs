//! Listening sockets of processes that an earlier supervisor has left.

use super::file::{SocketFile, folder_of};
use super::sockets::all_listening;
use super::users::{may_link_file_of, of_left};
use super::{Listener, Listeners};
use crate::custody::address::Address;
use crate::custody::message::AddressBytes;
use crate::custody::owner_of_table;
use crate::custody::table::Table;
use crate::sys::process::{self, Known, Pid};
use crate::sys::{custody as sys, descriptors};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Processes that an earlier supervisor has left.
#[derive(Debug)]
pub(super) struct Left {
    supervisor: Pid,
    processes: Vec<Known>,
    /// And the network that each is in.
    addresses: Vec<(Address, Option<PathBuf>)>,
    /// Those of UNIX sockets: the next program may remove them before it binds.
    files: Vec<SocketFile>,
}

/// Copies of the listening sockets that a process has, of those that this user has made: whatever its memory is called, it
/// may be a stranger's. All of them if that memory is this user's: the process has given its rights away since.
fn listening(Known { pid, process }: &Known) -> Vec<OwnedFd> {
    let user = rustix::process::geteuid().as_raw();
    let is_ours = owner_of_table(*pid) == Some(user);
    let mut copies = all_listening(process.as_fd(), *pid);
    copies.retain(|copy| is_ours || rustix::fs::fstat(copy).is_ok_and(|socket| socket.st_uid == user));
    copies
}

/// The network in which a process listens at this address. None: that cannot be seen, or it is a file, for all networks.
fn network_of(pid: Pid, address: &Address) -> Option<PathBuf> {
    if address.path().is_some() { None } else { process::namespace(pid, "net") }
}

/// Whether a process is in this network, if there is one: it cannot listen in another.
pub(super) fn is_in(pid: Pid, network: Option<&PathBuf>) -> bool {
    network.is_none_or(|network| process::namespace(pid, "net").as_ref() == Some(network))
}

impl Listeners {
    /// Copies of those that a process has.
    pub(in crate::custody) fn inherit(&mut self, known: &Known, table: &Table) -> usize {
        let before = self.all.len();
        for socket in listening(known) {
            if let Some(bytes) = AddressBytes::new(&sys::local_address(socket.as_fd())) {
                self.add(socket, bytes, None, (known.pid, None), &of_left(known.pid), table);
            }
        }
        for new in self.all.iter_mut().skip(before) {
            new.network = network_of(known.pid, &new.address);
        }
        self.all.len() - before
    }

    /// Those processes of another supervisor have listening sockets that the program may ask for.
    pub(in crate::custody) fn expect(&mut self, supervisor: Pid, processes: Vec<Known>, table: &Table) {
        let of_one = |known: &Known| {
            listening(known).into_iter().map(|socket| (known.pid, socket)).collect::<Vec<_>>()
        };
        let sockets = processes.iter().flat_map(of_one);
        let (mut addresses, mut files) = (Vec::new(), Vec::new());
        for (pid, socket) in sockets {
            let Some(address) = Address::parse(&sys::local_address(socket.as_fd())) else { continue };
            let users = of_left(pid);
            let find = |path| {
                let may_link = may_link_file_of(&socket, &users);
                SocketFile::find(folder_of(path, pid)?, path, descriptors::inode(&socket).ok()?, may_link)
            };
            files.extend(address.path().and_then(find));
            table.note_address(&address);
            let network = network_of(pid, &address);
            addresses.push((address, network));
        }
        if !addresses.is_empty() {
            self.left.push(Left { supervisor, processes, addresses, files });
        }
    }

    /// Copies of all that those processes have of which some are at this address, in the network of the process that binds
    /// to it, where there are some: whose, and how many.
    pub(in crate::custody) fn take_left(
        &mut self,
        by: Pid,
        address: &Address,
        table: &Table,
    ) -> Option<(Pid, usize)> {
        let is_it =
            |(its, network): &(Address, Option<PathBuf>)| its == address && is_in(by, network.as_ref());
        let at = self.left.iter().position(|left| left.addresses.iter().any(is_it))?;
        let mut left = self.left.swap_remove(at);
        let lives = |known: &&Known| !descriptors::wait_readable(&known.process, Duration::ZERO);
        let living = left.processes.iter().filter(lives);
        let count = living.map(|known| self.inherit(known, table)).sum();
        let taken = |listener: &Listener, file: &mut SocketFile| {
            listener.file.iter().for_each(|taken| file.leave_link_to(taken));
        };
        for file in &mut left.files {
            self.all.iter().for_each(|listener| taken(listener, file));
        }
        Some((left.supervisor, count))
    }
}
