//! Which sockets a process has open.

use super::{Listener, Listeners};
use crate::custody::address::Address;
use crate::sys::process::{self, Pid};
use crate::sys::reserve::{self, is_out_of_descriptors};
use crate::sys::tcp;
use crate::sys::{custody as sys, descriptors};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

/// What a process has of a program's sockets.
#[derive(Default)]
pub(in crate::custody) struct Sockets {
    /// Listening ones that another process has made.
    pub(in crate::custody) shares: bool,
    /// Listening ones that it has made itself.
    pub(in crate::custody) listens: bool,
    /// One of these can be reached from elsewhere.
    pub(in crate::custody) is_at_internet: bool,
    /// Connections with clients.
    pub(in crate::custody) clients: Vec<Client>,
    /// There may be more clients: this process had no descriptor left to look at them.
    pub(in crate::custody) is_cut: bool,
}

/// What is known of a connection. It is no copy: a process may have more of them than this one has descriptors left.
pub(in crate::custody) struct Client {
    /// Its number in the process that has it.
    number: RawFd,
    pub(in crate::custody) cookie: u64,
    /// It has come to a listening socket that the process has made.
    pub(in crate::custody) is_own: bool,
    /// Nothing was read from it, or written to it.
    pub(in crate::custody) is_untouched: bool,
    /// See [`tcp::is_under_way`].
    pub(in crate::custody) is_under_way: bool,
}

impl Client {
    /// A copy of it. None if the process has closed it, or has read or written since.
    pub(in crate::custody) fn copy(&self, process: BorrowedFd<'_>) -> Option<OwnedFd> {
        let copy = sys::copy_of(process, self.number).ok()?;
        (sys::cookie(copy.as_fd()) == self.cookie && tcp::is_untouched(copy.as_fd())).then_some(copy)
    }
}

/// The inode of a socket that a process has open under this name of a descriptor.
fn inode_of(pid: Pid, name: &OsStr) -> Option<u64> {
    let link = std::fs::read_link(Path::new(&format!("/proc/{pid}/fd")).join(name)).ok()?;
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The sockets that a process has open: their numbers there, and by what they are known.
pub(super) fn sockets(pid: Pid) -> io::Result<impl Iterator<Item = (RawFd, u64)>> {
    let names = reserve::names(format!("/proc/{pid}/fd"))?;
    Ok(names.into_iter().filter_map(move |name| Some((name.to_str()?.parse().ok()?, inode_of(pid, &name)?))))
}

/// Whether a process lives, and what it has open cannot be seen.
pub(super) fn is_unseen(pid: Pid) -> bool {
    reserve::names(format!("/proc/{pid}/fd")).is_err() && !sys::is_exiting(pid)
}

/// Where these sockets are: each in one process that has it. None: not all processes can be looked at.
pub(super) fn places(processes: &[Pid], mut inodes: Vec<u64>) -> Option<Vec<(u64, Pid, RawFd)>> {
    let mut found = Vec::new();
    for &pid in processes {
        if inodes.is_empty() {
            break;
        }
        let Ok(sockets) = sockets(pid) else {
            if sys::is_exiting(pid) {
                continue;
            }
            return None;
        };
        for (number, inode) in sockets {
            if let Some(at) = inodes.iter().position(|wanted| *wanted == inode) {
                found.push((inode, pid, number));
                inodes.swap_remove(at);
            }
        }
    }
    Some(found)
}

/// Copies of all listening sockets that a process has.
pub(super) fn all_listening(process: BorrowedFd<'_>, pid: Pid) -> Vec<OwnedFd> {
    let numbers = sockets(pid).into_iter().flatten().map(|(number, _)| number);
    let copies = numbers.filter_map(|number| sys::copy_of(process, number).ok());
    copies.filter(|copy| descriptors::does_listen(copy.as_fd()) && sys::is_stream(copy.as_fd())).collect()
}

/// Whether a process listens at sockets that this one has not given to it.
pub(crate) fn does_listen(pid: Pid) -> bool {
    let Ok(process) = process::open(pid) else { return false };
    let inodes: Vec<u64> = all_listening(process.as_fd(), pid)
        .iter()
        .filter_map(|socket| descriptors::inode(socket).ok())
        .collect();
    // The copies are closed by now.
    inodes.len() > open_of(&[process::pid()], &inodes).len()
}

/// Which of these sockets some of the processes have open.
pub(in crate::custody) fn open_of(processes: &[Pid], inodes: &[u64]) -> Vec<u64> {
    let mut found = Vec::new();
    for &pid in processes {
        let its = sockets(pid).into_iter().flatten().map(|(_, inode)| inode);
        its.for_each(|inode| {
            if inodes.contains(&inode) && !found.contains(&inode) {
                found.push(inode);
            }
        });
        if found.len() == inodes.len() {
            break;
        }
    }
    found
}

impl Listeners {
    /// Which of the program's listening sockets these processes have open: their inodes.
    pub(in crate::custody) fn used_by(&self, processes: &[Pid]) -> Vec<u64> {
        let inodes: Vec<u64> = self.all.iter().map(|listener| listener.inode).collect();
        open_of(processes, &inodes)
    }

    /// Whether a process other than `ended`, which has ended, had one of them and has died with it, since the program was
    /// started. `used` are in use.
    pub(in crate::custody) fn has_died_with(&self, ended: Pid, used: &[u64]) -> bool {
        self.all.iter().any(|listener| {
            let had = listener
                .place
                .is_some_and(|(pid, _)| pid != ended && crate::sys::family::parent_of_living(pid).is_none());
            had && !listener.is_awaited && !used.contains(&listener.inode)
        })
    }

    /// Whether a process has listening sockets of the program, whoever has made them, and connections with its clients.
    pub(in crate::custody) fn is_served_by(&self, process: BorrowedFd<'_>, pid: Pid) -> bool {
        let inodes: Vec<u64> = self.all.iter().map(|listener| listener.inode).collect();
        !open_of(&[pid], &inodes).is_empty()
            && self.sockets_of(process, pid).is_some_and(|its| !its.clients.is_empty())
    }

    /// Those of a process. None: that cannot be seen.
    pub(in crate::custody) fn sockets_of(&self, process: BorrowedFd<'_>, pid: Pid) -> Option<Sockets> {
        let all = match sockets(pid) {
            Ok(all) => all,
            Err(error) if is_out_of_descriptors(&error) => {
                return Some(Sockets { is_cut: true, ..Sockets::default() });
            }
            Err(_) => return None,
        };
        let (mut found, mut own, mut clients) = (Sockets::default(), Vec::new(), Vec::new());
        for (number, inode) in all {
            if let Some(listener) = self.all.iter().find(|listener| listener.inode == inode) {
                found.is_at_internet |= matches!(listener.address, Address::Internet { .. });
                if listener.maker == pid {
                    own.push(&listener.address);
                    found.listens = true;
                } else {
                    found.shares = true;
                }
                continue;
            }
            let copy = match sys::copy_of(process, number) {
                Ok(copy) => copy,
                Err(error) => {
                    found.is_cut |= is_out_of_descriptors(&error);
                    continue;
                }
            };
            let address = Address::parse(&sys::local_address(copy.as_fd()));
            let came = |address: &Address| {
                let comes = |listener: &Listener| address.came_to(&listener.address);
                self.all.iter().any(comes) && !descriptors::does_listen(copy.as_fd())
            };
            if let Some(address) = address.filter(came) {
                let client = Client {
                    number,
                    cookie: sys::cookie(copy.as_fd()),
                    is_own: false,
                    is_untouched: tcp::is_untouched(copy.as_fd()),
                    is_under_way: tcp::is_under_way(copy.as_fd()),
                };
                clients.push((client, address));
            }
        }
        let is_own = |address: &Address| own.iter().any(|listener| address.came_to(listener));
        let clients = clients.into_iter();
        found.clients =
            clients.map(|(client, address)| Client { is_own: is_own(&address), ..client }).collect();
        Some(found)
    }
}
