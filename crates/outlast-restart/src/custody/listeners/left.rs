//! Listening sockets of processes that an earlier supervisor has left.

use super::sockets::all_listening;
use super::{Listeners, link};
use crate::custody::address::Address;
use crate::custody::message::AddressBytes;
use crate::custody::owner_of_table;
use crate::custody::table::Table;
use crate::sys::process::{self, Pid};
use crate::sys::{custody as sys, descriptors};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Processes that an earlier supervisor has left.
#[derive(Debug)]
pub(super) struct Left {
    supervisor: Pid,
    processes: Vec<(OwnedFd, Pid)>,
    addresses: Vec<Address>,
    /// Other names of UNIX sockets' files: the next program may remove those before it binds.
    links: Vec<PathBuf>,
}

impl Drop for Left {
    fn drop(&mut self) {
        for link in &self.links {
            let _ = std::fs::remove_file(link);
        }
    }
}

/// Copies of the listening sockets that a process has, of those that this user has made: whatever its memory is called, it
/// may be a stranger's. All of them if that memory is this user's: the process has given its rights away since.
fn listening(process: BorrowedFd<'_>, pid: Pid) -> Vec<OwnedFd> {
    let user = rustix::process::geteuid().as_raw();
    let is_ours = owner_of_table(pid) == Some(user);
    let mut copies = all_listening(process, pid);
    copies.retain(|copy| is_ours || rustix::fs::fstat(copy).is_ok_and(|socket| socket.st_uid == user));
    copies
}

impl Listeners {
    /// Copies of those that a process has.
    pub(in crate::custody) fn inherit(&mut self, pid: Pid, table: &Table) -> usize {
        let Ok(process) = process::open(pid) else { return 0 };
        let mut count = 0;
        for socket in listening(process.as_fd(), pid) {
            let bytes = AddressBytes::new(&sys::local_address(socket.as_fd()));
            let by = (pid, None);
            count += usize::from(bytes.is_some_and(|bytes| self.add(socket, bytes, by, table)));
        }
        count
    }

    /// Those processes of another supervisor have listening sockets that the program may ask for.
    pub(in crate::custody) fn expect(&mut self, supervisor: Pid, processes: Vec<Pid>, table: &Table) {
        let open = |pid: Pid| process::open(pid).ok().map(|process| (process, pid));
        let processes: Vec<(OwnedFd, Pid)> = processes.into_iter().filter_map(open).collect();
        let sockets = processes.iter().flat_map(|(process, pid)| listening(process.as_fd(), *pid));
        let (mut addresses, mut links) = (Vec::new(), Vec::new());
        for socket in sockets {
            let Some(address) = Address::parse(&sys::local_address(socket.as_fd())) else { continue };
            links.extend(
                address
                    .path()
                    .zip(descriptors::inode(&socket).ok())
                    .and_then(|(path, inode)| link(Path::new(OsStr::from_bytes(path)), inode)),
            );
            table.note_address(&address);
            addresses.push(address);
        }
        if !addresses.is_empty() {
            self.left.push(Left { supervisor, processes, addresses, links });
        }
    }

    /// Copies of all that those processes have of which some are at this address, where there are some: whose, and how many.
    pub(in crate::custody) fn take_left(&mut self, address: &Address, table: &Table) -> Option<(Pid, usize)> {
        let at = self.left.iter().position(|left| left.addresses.contains(address))?;
        let mut left = self.left.swap_remove(at);
        let lives = |process: &OwnedFd| !descriptors::wait_readable(process, Duration::ZERO);
        let living = left.processes.iter().filter(|(process, _)| lives(process));
        let count = living.map(|(_, pid)| self.inherit(*pid, table)).sum();
        let taken: Vec<&PathBuf> = self.all.iter().filter_map(|listener| listener.link.as_ref()).collect();
        left.links.retain(|link| !taken.contains(&link));
        Some((left.supervisor, count))
    }
}
