//! Copies of the sockets that listen.

use super::address::Address;
use super::message::AddressBytes;
use super::table::Table;
use crate::sys::process::Pid;
use crate::sys::{custody as sys, descriptors, process};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// More than any server has; further ones are not kept.
const LISTENERS_MAX: usize = 1024;
/// While a program is down, so many clients may wait for it: the system's own limit (`somaxconn`) holds as well.
const BACKLOG: i32 = 4096;
/// A socket that nobody of the program has any more, while it has others, is closed after so long: it has given it up.
const UNUSED: Duration = Duration::from_secs(6);

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    inode: u64,
    address: Address,
    bytes: AddressBytes,
    unused_since: Option<Instant>,
    /// Another name of a UNIX socket's file, which the program removes.
    link: Option<PathBuf>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            let _ = std::fs::remove_file(link);
        }
    }
}

/// Processes that an earlier supervisor has left.
#[derive(Debug)]
struct Left {
    supervisor: Pid,
    processes: Vec<(OwnedFd, Pid)>,
    addresses: Vec<Address>,
}

/// All of a program.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: Vec<Listener>,
    left: Vec<Left>,
}

/// Copies of the listening sockets that a process has, of those that this user has made: whatever its memory is called, it
/// may be a stranger's.
fn listening(process: BorrowedFd<'_>, pid: Pid) -> Vec<OwnedFd> {
    let user = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let link = std::fs::read_link(entry.path()).ok()?;
        let is_socket = link.to_str()?.starts_with("socket:");
        is_socket.then(|| entry.file_name().to_str()?.parse().ok())?
    });
    let copies = numbers.filter_map(|number| sys::copy_of(process, number).ok());
    copies
        .filter(|copy| descriptors::does_listen(copy.as_fd()) && sys::is_stream(copy.as_fd()))
        .filter(|copy| rustix::fs::fstat(copy).is_ok_and(|socket| socket.st_uid == user))
        .collect()
}

/// Whether a process listens at sockets that this one has not given to it.
pub(super) fn does_listen(pid: Pid) -> bool {
    let Ok(process) = process::open(pid) else { return false };
    let inodes: Vec<u64> =
        listening(process.as_fd(), pid).iter().filter_map(|socket| descriptors::inode(socket).ok()).collect();
    // The copies are closed by now.
    inodes.len() > open_of(&[process::pid()], &inodes).len()
}

/// Which of these sockets some of the processes have open.
fn open_of(processes: &[Pid], inodes: &[u64]) -> Vec<u64> {
    let mut found = Vec::new();
    for pid in processes {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for link in entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok()) {
            let inode = link
                .to_str()
                .and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok());
            found.extend(inode.filter(|inode| inodes.contains(inode) && !found.contains(inode)));
        }
        if found.len() == inodes.len() {
            break;
        }
    }
    found
}

/// Another name for a UNIX socket's file, in the same folder.
fn link(path: &Path, inode: u64) -> Option<PathBuf> {
    if !path.is_absolute() {
        return None;
    }
    let mut name = OsStr::new(".").to_owned();
    name.push(path.file_name()?);
    name.push(format!(".outlast-{}-{inode}", process::pid()));
    let link = path.with_file_name(name);
    let _ = std::fs::remove_file(&link);
    std::fs::hard_link(path, &link).ok().map(|()| link)
}

impl Listener {
    /// The file is there under its name. False if somebody else's is.
    fn put_back(&self) -> bool {
        let (Some(path), Some(link)) = (self.address.path(), &self.link) else { return true };
        let path = Path::new(OsStr::from_bytes(path));
        let Ok(own) = std::fs::symlink_metadata(link) else { return false };
        match std::fs::symlink_metadata(path) {
            Ok(there) => there.ino() == own.ino() && there.dev() == own.dev(),
            Err(_) => std::fs::hard_link(link, path).is_ok(),
        }
    }
}

impl Listeners {
    /// One that a program listens on. Whether it was not known before.
    pub(super) fn add(&mut self, socket: OwnedFd, bytes: AddressBytes, table: &Table) -> bool {
        let (Some(address), Ok(inode)) =
            (Address::parse(&sys::local_address(socket.as_fd())), descriptors::inode(&socket))
        else {
            return false;
        };
        if let Some(known) = self.all.iter_mut().find(|known| known.inode == inode) {
            known.unused_since = None;
            return false;
        }
        if self.all.len() == LISTENERS_MAX || !descriptors::does_listen(socket.as_fd()) {
            return false;
        }
        let link = address.path().and_then(|path| link(Path::new(OsStr::from_bytes(path)), inode));
        table.note_address(&address);
        self.all.push(Listener { socket, inode, address, bytes, unused_since: None, link });
        true
    }

    /// Copies of those that a process has.
    pub(super) fn inherit(&mut self, pid: Pid, table: &Table) -> usize {
        let Ok(process) = process::open(pid) else { return 0 };
        let mut count = 0;
        for socket in listening(process.as_fd(), pid) {
            let bytes = AddressBytes::new(&sys::local_address(socket.as_fd()));
            count += usize::from(bytes.is_some_and(|bytes| self.add(socket, bytes, table)));
        }
        count
    }

    /// Those processes of another supervisor have listening sockets that the program may ask for.
    pub(super) fn expect(&mut self, supervisor: Pid, processes: Vec<Pid>, table: &Table) {
        let open = |pid: Pid| process::open(pid).ok().map(|process| (process, pid));
        let processes: Vec<(OwnedFd, Pid)> = processes.into_iter().filter_map(open).collect();
        let sockets = processes.iter().flat_map(|(process, pid)| listening(process.as_fd(), *pid));
        let addresses: Vec<Address> =
            sockets.filter_map(|socket| Address::parse(&sys::local_address(socket.as_fd()))).collect();
        if !addresses.is_empty() {
            addresses.iter().for_each(|address| table.note_address(address));
            self.left.push(Left { supervisor, processes, addresses });
        }
    }

    /// Copies of all that those processes have of which some are at this address, where there are some: whose, and how many.
    pub(super) fn take_left(&mut self, address: &Address, table: &Table) -> Option<(Pid, usize)> {
        let at = self.left.iter().position(|left| left.addresses.contains(address))?;
        let Left { supervisor, processes, .. } = self.left.swap_remove(at);
        let lives = |process: &OwnedFd| !descriptors::wait_readable(process, Duration::ZERO);
        let living = processes.into_iter().filter(|(process, _)| lives(process));
        Some((supervisor, living.map(|(_, pid)| self.inherit(pid, table)).sum()))
    }

    /// The one at this address that none of the processes has.
    fn unused(&self, address: &Address, processes: &[Pid]) -> Option<&Listener> {
        let there = self.all.iter().filter(|listener| &listener.address == address);
        let inodes: Vec<u64> = there.clone().map(|listener| listener.inode).collect();
        if inodes.is_empty() {
            return None;
        }
        let used = open_of(processes, &inodes);
        there.into_iter().find(|listener| !used.contains(&listener.inode))
    }

    /// For a program that binds to this address, of which these processes run.
    pub(super) fn adopt(&mut self, address: &Address, processes: &[Pid]) -> Option<BorrowedFd<'_>> {
        let inode = self.unused(address, processes)?.inode;
        let listener = self.all.iter_mut().find(|listener| listener.inode == inode)?;
        listener.unused_since = None;
        listener.put_back().then(|| listener.socket.as_fd())
    }

    /// Whether there is one at this address.
    pub(super) fn has(&self, address: &Address) -> bool {
        self.all.iter().any(|listener| &listener.address == address)
    }

    /// Whether the holder alone listens there.
    pub(super) fn is_alone(&self, address: &Address, processes: &[Pid]) -> bool {
        let mut there = self.all.iter().filter(|listener| &listener.address == address).peekable();
        there.peek().is_some() && there.all(|listener| open_of(processes, &[listener.inode]).is_empty())
    }

    /// The program is down: clients wait in the queue.
    pub(super) fn make_room(&self) {
        self.all.iter().for_each(|listener| sys::listen_again(listener.socket.as_fd(), BACKLOG));
    }

    /// Where a connection has come from, to connect there once more; and whether it waits for a first byte.
    pub(super) fn origin(&self, connection: &Address) -> Option<(Vec<u8>, bool)> {
        let listener = self.all.iter().find(|listener| connection.came_to(&listener.address))?;
        let mut bytes = listener.bytes.as_ref().to_vec();
        if let Address::Internet { ip, .. } = &listener.address
            && ip.iter().all(|&byte| byte == 0)
        {
            let loopback: &[u8] = if ip.len() == 4 {
                &[127, 0, 0, 1]
            } else {
                &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
            };
            let at = if ip.len() == 4 { 4 } else { 8 };
            bytes.get_mut(at..at + ip.len())?.copy_from_slice(loopback);
        }
        // Asked now: some set it after they listen.
        let deferred = sys::tcp_option(listener.socket.as_fd(), libc::TCP_DEFER_ACCEPT) > 0;
        Some((bytes, deferred))
    }

    /// Lets go of those that the program has given up: it has others, and is not about to begin.
    pub(super) fn sweep(&mut self, processes: &[Pid], now: Instant) {
        let inodes: Vec<u64> = self.all.iter().map(|listener| listener.inode).collect();
        let used = open_of(processes, &inodes);
        self.all.retain_mut(|listener| {
            if used.is_empty() || used.contains(&listener.inode) {
                listener.unused_since = None;
                return true;
            }
            now.duration_since(*listener.unused_since.get_or_insert(now)) < UNUSED
        });
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }
}
