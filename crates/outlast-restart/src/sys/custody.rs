//! Looking at sockets and processes from outside.

use super::credentials::Peer;
use super::process::Pid;
use super::reserve;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The kernel's `struct pidfd_info` (include/uapi/linux/pidfd.h).
#[repr(C)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_GET_INFO`, for 64 bytes.
const GET_INFO: u32 = 0xc040_ff0b;
/// `PIDFD_INFO_EXIT`.
const EXIT: u64 = 8;
const KCMP_FILE: libc::c_int = 0;
const SO_COOKIE: libc::c_int = 57;
/// As many wait at a listening socket at the most (`BACKLOG`).
const WAITING_MAX: usize = 4096;
const SO_NETNS_COOKIE: libc::c_int = 71;

/// How a process has ended, as `waitpid` has it: also if it is buried. None where the system does not say so.
pub(crate) fn exit_status(process: BorrowedFd<'_>, pid: Pid) -> Option<i32> {
    let buried = || {
        let mut info = Info { mask: EXIT, cgroup: 0, ids: [0; 11], exit_code: 0 };
        let request = libc::Ioctl::from(GET_INFO);
        // SAFETY: fills as much as the request's number says, which is that of `info`.
        let told = unsafe { libc::ioctl(process.as_raw_fd(), request, &raw mut info) } == 0;
        (told && info.mask & EXIT != 0).then_some(info.exit_code)
    };
    let unburied = || {
        let stat = reserve::read(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(' ').next()?.trim_end().parse().ok()
    };
    // It may be buried between two looks. Older kernels do not tell of those.
    buried().or_else(unburied).or_else(buried)
}

/// A copy of another process's descriptor.
pub(crate) fn copy_of(process: BorrowedFd<'_>, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: integers.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    match i32::try_from(copy) {
        // SAFETY: new, and nobody else's.
        Ok(copy) if copy >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a descriptor of another process stands for the same socket as this one's. None where that cannot be asked.
pub(crate) fn is_copy(own: BorrowedFd<'_>, pid: Pid, number: RawFd) -> Option<bool> {
    let (us, own) = (super::process::pid(), own.as_raw_fd());
    // SAFETY: integers.
    match unsafe { libc::syscall(libc::SYS_kcmp, us, pid, KCMP_FILE, own, number) } {
        0 => Some(true),
        -1 => match io::Error::last_os_error().raw_os_error() {
            // It is not open there any more.
            Some(libc::EBADF) => Some(false),
            _ => None,
        },
        _ => Some(false),
    }
}

/// Closes a socket that may be the last of its connection, without waiting for its client: some programs have a close wait
/// until all is acknowledged, or for some time (`SO_LINGER`). One that is to be reset is.
pub(crate) fn close_at_once(socket: OwnedFd) {
    use rustix::net::sockopt::{set_socket_linger, socket_linger};
    if socket_linger(&socket).is_ok_and(|time| time.is_some_and(|time| !time.is_zero())) {
        let _ = set_socket_linger(&socket, None);
    }
}

/// Whether a process is ending, or is gone: some of its descriptors may be closed.
pub(crate) fn is_exiting(pid: Pid) -> bool {
    const PF_EXITING: u64 = 4;
    let stat = reserve::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may have anything in it. Behind it: the state, parent, group, session, terminal and its group, and flags.
    let flags = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(6)?.parse::<u64>().ok());
    let is_first_exiting = flags.is_none_or(|flags| flags & PF_EXITING != 0);
    // The first thread may have ended long before the others.
    let has_others = || super::process::field::<u32>(&stat, 17).is_some_and(|threads| threads > 1);
    is_first_exiting && (!has_others() || super::process::is_killed(pid))
}

/// Whether all threads of a process stand still, or are gone.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let threads = match reserve::names(format!("/proc/{pid}/task")) {
        Ok(threads) => threads,
        // Without a descriptor to look with it is not known.
        Err(error) => return error.kind() == io::ErrorKind::NotFound,
    };
    let states = threads.iter().filter_map(|thread| {
        let stat = reserve::read(format!("/proc/{pid}/task/{}/stat", thread.to_str()?)).ok()?;
        // The name may have anything in it. The state is behind it.
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    });
    states.into_iter().all(|state| "TtZX".contains(state))
}

/// What no other socket has, or has had. 0: it is none.
pub(crate) fn cookie(socket: BorrowedFd<'_>) -> u64 {
    number(socket, SO_COOKIE)
}

/// A long option. 0: there is none.
fn number(socket: BorrowedFd<'_>, option: libc::c_int) -> u64 {
    let mut number = 0u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(0);
    let place = (&raw mut number).cast();
    // SAFETY: fills a local integer of the length that is told.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, place, &raw mut length) };
    if result < 0 { 0 } else { number }
}

/// As many descriptors as this process can allow itself, and how many it had allowed before.
pub(crate) fn raise_descriptors_limit() -> Option<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads a local.
    let raised = known && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
    raised.then_some((before, limit.rlim_max))
}

/// How many descriptors this process may have; as many as everywhere where that cannot be asked.
pub(crate) fn descriptors_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1024 }
}

/// A program that is started has the limit that this process had before, unless it was given another one.
pub(crate) fn restore_descriptors_limit(before: u64, raised: u64, command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let restore = move || {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills and reads a local.
        unsafe {
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur == raised {
                limit.rlim_cur = before.min(limit.rlim_max);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made, with copied numbers.
    unsafe { command.pre_exec(restore) };
}

/// Room for more that wait to be accepted.
pub(crate) fn listen_again(socket: BorrowedFd<'_>, backlog: i32) {
    // SAFETY: integers. A failure leaves it as it is.
    unsafe { libc::listen(socket.as_raw_fd(), backlog) };
}

/// The network interface that a socket is bound to (SO_BINDTODEVICE). 0: none.
pub(crate) fn device(socket: BorrowedFd<'_>) -> i32 {
    let mut value = 0;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    let (level, place) = (libc::SOL_SOCKET, (&raw mut value).cast());
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, libc::SO_BINDTOIFINDEX, place, &raw mut length)
    };
    if result < 0 { 0 } else { value }
}

/// A connection from a socket that is bound to an interface, to this machine itself, is to the kernel as if it had come there.
fn bind_to_device(socket: BorrowedFd<'_>, device: i32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    let (level, place) = (libc::SOL_SOCKET, (&raw const device).cast());
    // SAFETY: reads a local integer of the length that is told.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, libc::SO_BINDTOIFINDEX, place, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a stream socket connect to this address, from this [device], without waiting. Gives what it is called at this end.
pub(crate) fn connect(address: &[u8], device: i32) -> io::Result<OwnedFd> {
    let family = address.get(..2).and_then(|family| family.try_into().ok()).map_or(0, u16::from_ne_bytes);
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: integers.
    let number = unsafe { libc::socket(i32::from(family), kind, 0) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    if device != 0 {
        bind_to_device(socket.as_fd(), device)?;
    }
    let name_length = libc::socklen_t::try_from(size_of::<libc::sa_family_t>()).unwrap_or(0);
    let length = libc::socklen_t::try_from(address.len()).map_err(io::Error::other)?;
    // SAFETY: reads as much of `address` as is told. A UNIX socket first gets a name of its own, by which it is known.
    let result = unsafe {
        if i32::from(family) == libc::AF_UNIX {
            libc::bind(number, address.as_ptr().cast(), name_length);
        }
        libc::connect(number, address.as_ptr().cast(), length)
    };
    let error = io::Error::last_os_error();
    if result < 0 && error.raw_os_error() != Some(libc::EINPROGRESS) { Err(error) } else { Ok(socket) }
}

/// `getsockname` or `getpeername`.
type NameOf = unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn name(socket: BorrowedFd<'_>, of: NameOf) -> Vec<u8> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::sockaddr_storage>()).unwrap_or(0);
    // SAFETY: fills at most the length that is told.
    let result = unsafe { of(socket.as_raw_fd(), storage.as_mut_ptr().cast(), &raw mut length) };
    let length = if result < 0 { 0 } else { (length as usize).min(size_of::<libc::sockaddr_storage>()) };
    // SAFETY: zeroed before, and so long.
    unsafe { std::slice::from_raw_parts(storage.as_ptr().cast::<u8>(), length) }.to_vec()
}

/// The bytes of a socket's own address.
pub(crate) fn local_address(socket: BorrowedFd<'_>) -> Vec<u8> {
    name(socket, libc::getsockname)
}

/// And of the one that it is connected to. None: it is to none.
pub(crate) fn peer_address(socket: BorrowedFd<'_>) -> Vec<u8> {
    name(socket, libc::getpeername)
}

/// By what the network is known that a socket is in. None where the system does not say that.
pub(crate) fn network(socket: BorrowedFd<'_>) -> Option<u64> {
    Some(number(socket, SO_NETNS_COOKIE)).filter(|cookie| *cookie > 0)
}

/// An integer option of TCP.
pub(crate) fn tcp_option(socket: BorrowedFd<'_>, name: libc::c_int) -> i32 {
    let mut value = 0;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: fills a local integer of the length that is told.
    unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_TCP, name, (&raw mut value).cast(), &raw mut length)
    };
    value
}

/// The process at the other end of a UNIX socket, and its user. None: also if it is in another world of processes.
pub(crate) fn peer_of(socket: BorrowedFd<'_>) -> Option<(Pid, u32)> {
    let peer = Peer::of(socket).ok()?;
    Some((peer.pid?, peer.uid))
}

/// Whether other sockets may be bound to its port.
pub(crate) fn shares_port(socket: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_reuseport(socket).unwrap_or(false)
}

/// Whether it takes no IPv4.
pub(crate) fn ipv6_only(socket: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::ipv6_v6only(socket).unwrap_or(false)
}

/// All who wait at a listening socket that nobody else has any more.
pub(crate) fn accept_all(socket: &OwnedFd) -> Vec<OwnedFd> {
    let before = rustix::fs::fcntl_getfl(socket);
    let Some(before) = before.ok().filter(|_| rustix::io::ioctl_fionbio(socket, true).is_ok()) else {
        return Vec::new();
    };
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let all = std::iter::from_fn(|| rustix::net::accept_with(socket, flags).ok()).take(WAITING_MAX).collect();
    // It may be on its way to another process of the program after all.
    let _ = rustix::fs::fcntl_setfl(socket, before);
    all
}

/// Whether it is a socket of streams.
pub(crate) fn is_stream(socket: BorrowedFd<'_>) -> bool {
    let mut kind = 0;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            (&raw mut kind).cast(),
            &raw mut length,
        )
    };
    result == 0 && kind == libc::SOCK_STREAM
}
