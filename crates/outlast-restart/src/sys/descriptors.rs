//! The open descriptors of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// What a descriptor is, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Listener,
    Connection,
    Other,
}

/// All of them, in order.
pub(crate) fn open() -> io::Result<Vec<RawFd>> {
    open_besides(&BTreeSet::new())
}

/// All of them, in order, but for `seen`, which are known to be open.
///
/// Without opening one, where the kernel says how many there are (from Linux 6.2 on): then numbers are tried until all are
/// found, which takes a tenth of the time of listing them.
pub(crate) fn open_besides(seen: &BTreeSet<RawFd>) -> io::Result<Vec<RawFd>> {
    let count = status_at(FOLDER).map_or(0, |status| usize::try_from(status.st_size).unwrap_or(0));
    let (missing, mut seen_next) = (count.saturating_sub(seen.len()), seen.iter().peekable());
    let unseen =
        (0..if count > 0 { numbers() } else { 0 }).filter(|number| seen_next.next_if_eq(&number).is_none());
    let found: Vec<RawFd> = unseen.filter(|&number| is_open(number)).take(missing).collect();
    // Where another thread has closed one meanwhile, the last number is not known.
    if count > 0 && found.len() == missing {
        return Ok(found);
    }
    let all = listed().or_else(|error| match error.raw_os_error() {
        // There is none left to find out with, which a server may crash of; or it must not.
        Some(libc::EMFILE | libc::ENFILE | libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            Ok((0..numbers()).filter(|&number| is_open(number)).collect())
        }
        _ => Err(error),
    })?;
    Ok(all.into_iter().filter(|number| !seen.contains(number)).collect())
}

/// Of this process, whichever it is.
const FOLDER: &std::ffi::CStr = c"/proc/self/fd";

/// No table is larger, unless somebody has raised the system's own limit (fs.nr_open).
const NUMBERS_MAX: RawFd = 1 << 20;

/// All of them, by listing them.
fn listed() -> io::Result<Vec<RawFd>> {
    let names = std::fs::read_dir("/proc/self/fd")?;
    let numbers = names.map(|name| Ok(name?.file_name().to_str().and_then(|name| name.parse().ok())));
    let mut open: Vec<RawFd> = numbers.filter_map(io::Result::transpose).collect::<io::Result<_>>()?;
    // That of the folder itself is closed by now.
    open.retain(|&descriptor| is_open(descriptor));
    open.sort_unstable();
    Ok(open)
}

fn status_at(path: &std::ffi::CStr) -> Option<libc::stat> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a path that ends, fills `status`.
    let known = unsafe { libc::stat(path.as_ptr(), status.as_mut_ptr()) } == 0;
    // SAFETY: integers, zeroed before.
    known.then(|| unsafe { status.assume_init() })
}

/// The kernel has made the folder that tells how many are open, for this process: that takes ten times as long as asking.
pub(crate) fn rehearse() {
    let _ = status_at(FOLDER);
}

/// As many as this process may have.
fn numbers() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    // Numbers beyond it stay open when it is lowered.
    RawFd::try_from(limit.rlim_max).unwrap_or(NUMBERS_MAX).min(NUMBERS_MAX)
}

/// Whether a number is that of an open descriptor.
pub(crate) fn is_open(descriptor: RawFd) -> bool {
    // SAFETY: asks for flags, of a number that need not be open.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
}

/// Takes an open descriptor that nothing in this process owns. None if it is not open after all.
///
/// Behind its kind: a number that it shares with its duplicates alone.
pub(crate) fn adopt(descriptor: RawFd) -> Option<(OwnedFd, Kind, u64)> {
    if !is_open(descriptor) {
        return None;
    }
    // SAFETY: it is open, and its owner was another process, which is dead: no value in this one stands for it.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let kind = match (option(&owned, libc::SO_TYPE), option(&owned, libc::SO_ACCEPTCONN)) {
        (Some(libc::SOCK_STREAM), Some(1)) => Kind::Listener,
        (Some(libc::SOCK_STREAM), _) => Kind::Connection,
        _ => Kind::Other,
    };
    let identity = inode(&owned).ok()?;
    Some((owned, kind, identity))
}

/// As [`adopt`], if it is open and `is_it` says of its inode that it is the one.
pub(crate) fn adopt_as(descriptor: RawFd, is_it: impl FnOnce(u64) -> bool) -> Option<OwnedFd> {
    inode_of(descriptor).filter(|inode| is_it(*inode))?;
    // SAFETY: as in `adopt`.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// As [`adopt`], without a look at what it is.
pub(crate) fn own(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: as in `adopt`.
    is_open(descriptor).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// By which it is seen whether a number still means what it did: what kind of file it is, and which one of sockets and pipes.
/// Others may change their inode while they are open, with the first write to them (overlayfs); or have all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    kind: u32,
    inode: u64,
}

/// What is open, and what it is.
pub(crate) type Known = BTreeMap<RawFd, Identity>;

impl Identity {
    pub(crate) fn is_socket(self) -> bool {
        self.kind == libc::S_IFSOCK
    }

    pub(crate) fn is_file(self) -> bool {
        self.kind == libc::S_IFREG
    }

    pub(crate) fn to_words(self) -> [u32; 3] {
        let [b0, b1, b2, b3, rest @ ..] = self.inode.to_le_bytes();
        [self.kind, u32::from_le_bytes([b0, b1, b2, b3]), u32::from_le_bytes(rest)]
    }

    pub(crate) fn from_words([kind, low, high]: [u32; 3]) -> Self {
        Self { kind, inode: u64::from(high) << 32 | u64::from(low) }
    }
}

/// Of a number that may not be open.
pub(crate) fn identity_of(number: RawFd) -> Option<Identity> {
    let status = status_of(number).ok()?;
    let kind = status.st_mode & libc::S_IFMT;
    let inode = if matches!(kind, libc::S_IFSOCK | libc::S_IFIFO) { status.st_ino } else { 0 };
    Some(Identity { kind, inode })
}

/// As [`open`].
pub(crate) fn open_with_identities() -> io::Result<Known> {
    Ok(open()?.into_iter().filter_map(|number| Some((number, identity_of(number)?))).collect())
}

/// What can be told of a descriptor by looking at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Tcp,
    UnixStream,
    Pipe,
    Other,
}

/// What it is.
pub(crate) fn shape(descriptor: &OwnedFd) -> io::Result<Shape> {
    if option(descriptor, libc::SO_TYPE) == Some(libc::SOCK_STREAM) {
        return Ok(match option(descriptor, libc::SO_DOMAIN) {
            // MPTCP counts each of its paths, and SCTP is none.
            Some(libc::AF_INET | libc::AF_INET6)
                if option(descriptor, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP) =>
            {
                Shape::Tcp
            }
            Some(libc::AF_UNIX) => Shape::UnixStream,
            _ => Shape::Other,
        });
    }
    let is_pipe = status(descriptor)?.st_mode & libc::S_IFMT == libc::S_IFIFO;
    Ok(if is_pipe { Shape::Pipe } else { Shape::Other })
}

/// Where a socket is, on this side.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalName {
    /// Of TCP.
    Port(u16),
    /// Of a UNIX socket.
    Path,
    None,
}

/// That of a socket; none of anything else.
#[cfg(feature = "tokio")]
pub(crate) fn local_name(socket: BorrowedFd<'_>) -> LocalName {
    let mut name = std::mem::MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of_val(&name)).unwrap_or(0);
    // SAFETY: fills at most the length that is told, which is that of `name`.
    if unsafe { libc::getsockname(socket.as_raw_fd(), name.as_mut_ptr().cast(), &raw mut length) } < 0 {
        return LocalName::None;
    }
    // SAFETY: integers, zeroed before. Both families of TCP have the port behind their number.
    let (family, port) = unsafe {
        let family = i32::from(name.assume_init_ref().ss_family);
        (family, u16::from_be((*name.as_ptr().cast::<libc::sockaddr_in>()).sin_port))
    };
    match family {
        libc::AF_INET | libc::AF_INET6 => LocalName::Port(port),
        // One without a name has nothing behind its family.
        libc::AF_UNIX if length as usize > size_of::<libc::sa_family_t>() => LocalName::Path,
        _ => LocalName::None,
    }
}

/// Whether it was opened to be read from, only.
pub(crate) fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    // SAFETY: asks for flags.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    flags & libc::O_ACCMODE == libc::O_RDONLY
}

/// The next connection, whatever interrupts the wait for it.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    loop {
        let nowhere = std::ptr::null_mut();
        // SAFETY: no address is asked for; gives a new descriptor.
        let number =
            unsafe { libc::accept4(listener.as_raw_fd(), nowhere, std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
        if number >= 0 {
            // SAFETY: new, and nobody else's.
            return Ok(unsafe { OwnedFd::from_raw_fd(number) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether it is a socket that listens.
pub(crate) fn does_listen(socket: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(false)
}

/// Where a stream socket listens, if it is one that does.
pub(crate) fn listens_at(number: RawFd) -> Option<std::net::SocketAddr> {
    // SAFETY: open, as is seen before, and borrowed for the moment only.
    let socket = is_open(number).then(|| unsafe { BorrowedFd::borrow_raw(number) })?;
    let listens = rustix::net::sockopt::socket_acceptconn(socket).ok()?;
    if !listens {
        return None;
    }
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

/// Another number for the same. None if it is not open.
pub(crate) fn duplicate(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: asks of a number that may not be open; gives a new one.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: new, and nobody else's.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

/// From here on numbers are high ones.
pub(crate) const HIGH: RawFd = 900;
/// Others than these are never looked through.
pub(crate) const LOW_MAX: RawFd = 255;

/// The same under a high number: low ones are for programs that count on theirs. Where fewer descriptors are allowed, under as
/// high a one as is looked through by the next supervisor.
pub(crate) fn move_up(descriptor: OwnedFd) -> OwnedFd {
    let most = RawFd::try_from(super::custody::descriptors_limit()).unwrap_or(RawFd::MAX);
    let number = if most > HIGH { HIGH } else { (most / 4 * 3).min(LOW_MAX) };
    rustix::io::fcntl_dupfd_cloexec(&descriptor, number).unwrap_or(descriptor)
}

/// Whether no program that is executed has it.
pub(crate) fn is_private(number: RawFd) -> bool {
    // SAFETY: asks for flags, of a number that may not be open.
    unsafe { libc::fcntl(number, libc::F_GETFD) & libc::FD_CLOEXEC != 0 }
}

/// No program that is executed has it.
pub(crate) fn set_private(number: RawFd) {
    // SAFETY: changes a flag of a number that may not be open.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// That of memory without a file (memfd_create(2)).
pub(crate) fn memory_name(number: RawFd) -> Option<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    let name = target.to_str()?.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Writes one byte to a descriptor that was left to this process, and closes it.
pub(crate) fn say(number: RawFd) {
    if is_open(number) {
        // SAFETY: open, and nothing of this process has it.
        let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(number) });
        let _ = io::Write::write_all(&mut file, &[1]);
    }
}

/// Whether a program that is executed has it.
pub(crate) fn set_inherited(number: RawFd) {
    // SAFETY: changes a flag of a number that may not be open.
    unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
}

/// Waits until there is something to read, or the other end is closed.
pub(crate) fn wait_readable(descriptor: &OwnedFd, limit: std::time::Duration) -> bool {
    let mut wanted = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one entry, which is a local.
    unsafe { libc::poll(&raw mut wanted, 1, limit_ms) > 0 }
}

/// As shutdown(2).
pub(crate) fn shut_down(socket: BorrowedFd<'_>, how: i32) -> io::Result<()> {
    // SAFETY: numbers.
    if unsafe { libc::shutdown(socket.as_raw_fd(), how) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Closes a number that no value of this process stands for, or one only that is never dropped.
pub(crate) fn close(number: RawFd) {
    // SAFETY: its last owner forgets it by this.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

/// What a descriptor shares with its duplicates alone.
pub(crate) fn inode(descriptor: &OwnedFd) -> io::Result<u64> {
    Ok(status(descriptor)?.st_ino)
}

/// As [`inode`], of a number that may not be open.
pub(crate) fn inode_of(number: RawFd) -> Option<u64> {
    status_of(number).ok().map(|status| status.st_ino)
}

fn status(descriptor: &OwnedFd) -> io::Result<libc::stat> {
    status_of(descriptor.as_raw_fd())
}

fn status_of(number: RawFd) -> io::Result<libc::stat> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fills `status`; a number that is not open is an error.
    if unsafe { libc::fstat(number, status.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers, zeroed before and filled by the kernel.
    Ok(unsafe { status.assume_init() })
}

fn option(socket: &OwnedFd, name: i32) -> Option<i32> {
    let mut value = 0i32;
    let mut length = libc::socklen_t::try_from(size_of::<i32>()).ok()?;
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    (result == 0).then_some(value)
}
