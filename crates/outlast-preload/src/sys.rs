//! The system calls that the rest needs: past the C library, whose functions this library stands before. None of them
//! changes `errno` behind the program's back: see [`Errno`].

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

pub mod children;
pub mod epolls;
pub mod execute;
pub mod given;
pub mod relatives;
pub mod room;
mod signals;
pub mod waiting;

pub use signals::BlockedSignals;

/// A process of the kernel.
pub type Pid = libc::pid_t;

/// Not in all versions of the `libc` crate.
const SO_COOKIE: c_int = 57;

/// Puts `errno` back when it is dropped.
pub struct Errno(c_int);

impl Errno {
    /// As it is now.
    pub fn keep() -> Self {
        // SAFETY: the calling thread's own integer.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

/// What the last call has said.
pub fn errno() -> c_int {
    // SAFETY: the calling thread's own integer.
    unsafe { *libc::__errno_location() }
}

/// What the program is told.
pub fn set_errno(value: c_int) {
    // SAFETY: the calling thread's own integer.
    unsafe { *libc::__errno_location() = value };
}

/// The C library's function that a hook stands before. Found once.
pub struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    /// By its name.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, at: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Where it is. None: this C library has no such function.
    pub fn get(&self) -> Option<NonNull<c_void>> {
        if let Some(known) = NonNull::new(self.at.load(Ordering::Relaxed)) {
            return Some(known);
        }
        // SAFETY: reads a string that ends.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Ordering::Relaxed);
        NonNull::new(found)
    }
}

/// What no other thread of this process has as long as the calling one lives.
pub fn thread() -> usize {
    // SAFETY: the address of the calling thread's own integer.
    unsafe { libc::__errno_location() }.addr()
}

/// The calling process.
pub fn pid() -> Pid {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getpid() }
}

fn length<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

/// An integer option of a socket. None if it is no socket.
pub fn option(descriptor: RawFd, name: c_int) -> Option<c_int> {
    let (mut value, mut length) = (0, length::<c_int>());
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    (result == 0).then_some(value)
}

/// Whether it is a socket of streams.
pub fn is_stream(descriptor: RawFd) -> bool {
    option(descriptor, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// Whether other sockets may be bound to its port.
pub fn shares_port(descriptor: RawFd) -> bool {
    option(descriptor, libc::SO_REUSEPORT) == Some(1)
}

/// Whether it takes no IPv4.
pub fn ipv6_only(descriptor: RawFd) -> bool {
    let (mut value, mut length) = (0, length::<c_int>());
    let place = (&raw mut value).cast();
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, place, &raw mut length)
    };
    result == 0 && value == 1
}

/// Whether it listens.
pub fn does_listen(descriptor: RawFd) -> bool {
    option(descriptor, libc::SO_ACCEPTCONN) == Some(1)
}

/// What no other socket has, or has had. 0: it is none.
pub fn cookie(descriptor: RawFd) -> u64 {
    long_option(descriptor, SO_COOKIE)
}

/// The kernel's number for the network namespace of a socket. 0: not known, as before Linux 5.14.
pub fn network_cookie(descriptor: RawFd) -> u64 {
    const SO_NETNS_COOKIE: c_int = 71;
    long_option(descriptor, SO_NETNS_COOKIE)
}

/// 0: there is none.
fn long_option(descriptor: RawFd, option: c_int) -> u64 {
    let (mut value, mut length) = (0u64, length::<u64>());
    let place = (&raw mut value).cast();
    // SAFETY: fills a local integer of the length that is told.
    let result = unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, option, place, &raw mut length) };
    if result == 0 { value } else { 0 }
}

/// The address of a socket, as the kernel has it.
pub struct Name {
    bytes: [u8; size_of::<libc::sockaddr_storage>()],
    length: usize,
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// A socket's own address, or its peer's. Empty: none.
pub fn name(descriptor: RawFd, of_peer: bool) -> Name {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = length::<libc::sockaddr_storage>();
    let place = storage.as_mut_ptr().cast();
    // SAFETY: fills at most the length that is told.
    let result = unsafe {
        if of_peer {
            libc::getpeername(descriptor, place, &raw mut length)
        } else {
            libc::getsockname(descriptor, place, &raw mut length)
        }
    };
    let length = if result < 0 { 0 } else { (length as usize).min(size_of::<libc::sockaddr_storage>()) };
    // SAFETY: zeroed before, and as long.
    Name { bytes: unsafe { storage.as_ptr().cast::<[u8; _]>().read() }, length }
}

/// Who is connected, as `accept` tells it, where the program has room for `room` bytes.
pub fn tell_peer(
    descriptor: RawFd,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
    room: libc::socklen_t,
) {
    if address.is_null() || length.is_null() {
        return;
    }
    // SAFETY: as much room as the program has given to `accept`, whose length it had there.
    unsafe {
        *length = room;
        libc::getpeername(descriptor, address, length);
    }
}

/// From where on a number is none that a program counts on, as it does on 0 to 2, or on the lowest free one. Which of them
/// are allowed depends on its limit of descriptors.
const HIGH_NUMBERS: [RawFd; 4] = [900, 200, 50, 10];

/// A socket to talk with the holder, which is tried for so long. Its number is high, and programs do not inherit it.
pub fn connect(address: &[u8], milliseconds: u32) -> io::Result<RawFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let time = libc::timeval {
        tv_sec: libc::time_t::from(milliseconds / 1000),
        tv_usec: libc::suseconds_t::from(milliseconds % 1000 * 1000),
    };
    // SAFETY: integers; reads locals of the lengths that are told.
    unsafe {
        let low = libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0);
        let low = RawFd::try_from(low).ok().filter(|low| *low >= 0).ok_or_else(io::Error::last_os_error)?;
        let high = HIGH_NUMBERS.iter().map(|from| libc::fcntl(low, libc::F_DUPFD_CLOEXEC, *from));
        let high = high.into_iter().find(|high| *high >= 0);
        let socket = high.unwrap_or(low);
        if high.is_some() {
            close(low);
        }
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let place = (&raw const time).cast();
            libc::setsockopt(socket, libc::SOL_SOCKET, name, place, length::<libc::timeval>());
        }
        if libc::syscall(libc::SYS_connect, socket, address.as_ptr(), address.len()) < 0 {
            let error = io::Error::last_os_error();
            close(socket);
            return Err(error);
        }
        Ok(socket)
    }
}

/// Who listens where a socket is connected to: the process, 0 in a PID namespace of its own, and its user.
pub fn peer(socket: RawFd) -> Option<(Pid, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = length::<libc::ucred>();
    let place = (&raw mut peer).cast();
    // SAFETY: fills a local of the length that is told.
    let result =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length) };
    (result == 0).then_some((peer.pid, peer.uid))
}

/// As whom the calling process was started, and acts.
pub fn users() -> [u32; 2] {
    // SAFETY: no arguments, cannot fail.
    unsafe { [libc::getuid(), libc::geteuid()] }
}

/// Whether users may have other numbers here than where the supervisor is.
pub fn is_in_user_namespace() -> bool {
    const ALL: &str = "0 0 4294967295";
    let mut bytes = [0u8; 64];
    let length = relatives::read(c"/proc/self/uid_map", &mut bytes);
    if length == 0 {
        return false;
    }
    let map = bytes.get(..length).unwrap_or_default();
    !std::str::from_utf8(map).unwrap_or_default().split_ascii_whitespace().eq(ALL.split(' '))
}

/// Room for two descriptors beside a message, which is as much as one takes.
#[repr(C, align(8))]
struct Beside([u8; 24]);
const BESIDE_MAX: usize = 2;

/// Sends a packet, with one or two descriptors perhaps; it is not waited for room unless that is asked for.
pub fn send(socket: RawFd, bytes: &[u8], descriptors: &[RawFd], waits: bool) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut beside = Beside([0; 24]);
    let flags = if waits { libc::MSG_NOSIGNAL } else { libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT };
    // SAFETY: a message of locals, whose lengths are those of what they point to.
    let sent = unsafe {
        let mut message = MaybeUninit::<libc::msghdr>::zeroed().assume_init();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        let length = match descriptors.len() {
            1 => 4,
            BESIDE_MAX => 8,
            _ => 0,
        };
        if length > 0 {
            message.msg_control = (&raw mut beside).cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(length) as _;
            let place = libc::CMSG_DATA(head).cast::<c_int>();
            descriptors.iter().enumerate().for_each(|(at, number)| place.add(at).write_unaligned(*number));
        }
        libc::syscall(libc::SYS_sendmsg, socket, &raw const message, flags)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Milliseconds of a clock that goes on steadily, and is behind by some.
pub fn now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1000 + time.tv_nsec.cast_unsigned() / 1_000_000
}

/// Waits for so long, or until a signal comes.
pub fn pause_us(microseconds: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(microseconds) * 1000 };
    // SAFETY: reads a local.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, std::ptr::null_mut::<libc::timespec>()) };
}

/// Receives a packet, and a descriptor with it perhaps. It waits as long as the socket is set to; with signals, not longer than
/// that and this.
pub fn receive(socket: RawFd, bytes: &mut [u8], milliseconds: u32) -> io::Result<(usize, Option<OwnedFd>)> {
    let began_ms = now_ms();
    let mut beside = Beside([0; 24]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    loop {
        // SAFETY: a message of locals, whose lengths are those of what they point to; a descriptor that comes is new.
        unsafe {
            let mut message = MaybeUninit::<libc::msghdr>::zeroed().assume_init();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = (&raw mut beside).cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as _;
            let flags = libc::MSG_CMSG_CLOEXEC;
            let received = libc::syscall(libc::SYS_recvmsg, socket, &raw mut message, flags);
            let Ok(length) = usize::try_from(received) else {
                let error = io::Error::last_os_error();
                let is_over = now_ms().saturating_sub(began_ms) >= u64::from(milliseconds);
                match error.kind() {
                    io::ErrorKind::Interrupted if is_over => return Err(io::ErrorKind::WouldBlock.into()),
                    io::ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                }
            };
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            let has_one = !head.is_null()
                && (*head).cmsg_level == libc::SOL_SOCKET
                && (*head).cmsg_type == libc::SCM_RIGHTS;
            let descriptor =
                has_one.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<c_int>().read_unaligned()));
            return Ok((length, descriptor));
        }
    }
}

/// Maps memory of this name, which others see in /proc/PID/maps, as long as the process lives.
pub fn map_called(name: &CStr) {
    const BYTES: usize = 4096;
    // SAFETY: reads a string that ends; a new mapping at an address of the kernel's choice touches no memory that is in use.
    unsafe {
        let memory = libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC);
        let Some(memory) = RawFd::try_from(memory).ok().filter(|memory| *memory >= 0) else { return };
        libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_NONE, libc::MAP_SHARED, memory, 0);
        close(memory);
    }
}

/// The folder of a UNIX socket's file, by its address. None: it has no file, or there is no such folder.
pub fn folder(address: &[u8]) -> Option<OwnedFd> {
    const SLASH: u8 = b'/';
    let path = address.get(2..)?;
    let path = path.get(..path.iter().position(|byte| *byte == 0).unwrap_or(path.len()))?;
    let last = path.iter().rposition(|byte| *byte == SLASH);
    let parent = match last {
        _ if path.is_empty() => return None,
        None => b".".as_slice(),
        // The root.
        Some(0) => b"/".as_slice(),
        Some(at) => path.get(..at)?,
    };
    let mut bytes = [0u8; 128];
    bytes.get_mut(..parent.len())?.copy_from_slice(parent);
    let parent = CStr::from_bytes_until_nul(&bytes).ok()?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: reads a string that ends; a number that comes is new, and nobody else's.
    unsafe {
        let number = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, parent.as_ptr(), flags);
        let number = RawFd::try_from(number).ok().filter(|number| *number >= 0)?;
        Some(OwnedFd::from_raw_fd(number))
    }
}

/// Closes a number that this library has made.
pub fn close(descriptor: RawFd) {
    // SAFETY: a number.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

/// Puts a socket under the number of another one, with that one's flags.
pub fn replace(descriptor: RawFd, by: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let by = by.as_raw_fd();
    // SAFETY: numbers alone.
    unsafe {
        let (status, inherited) =
            (libc::fcntl(descriptor, libc::F_GETFL), libc::fcntl(descriptor, libc::F_GETFD));
        libc::fcntl(by, libc::F_SETFL, status);
        let flags = if inherited & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        libc::syscall(libc::SYS_dup3, by, descriptor, flags) >= 0
    }
}

/// The same, where the program has had it watched by these already.
pub fn replace_watched(descriptor: RawFd, by: BorrowedFd<'_>, watches: &[epolls::Watch]) -> bool {
    watches.iter().for_each(|watch| watch.end(descriptor));
    let is_replaced = replace(descriptor, by);
    watches.iter().for_each(|watch| watch.begin(descriptor));
    is_replaced
}

/// Whether this number stands for something.
pub fn is_open(descriptor: RawFd) -> bool {
    let _errno = Errno::keep();
    // SAFETY: integers.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
}

/// Whether this process can have one more descriptor.
pub fn has_room_for_one_more(like: RawFd) -> bool {
    // SAFETY: integers.
    let copy = unsafe { libc::syscall(libc::SYS_fcntl, like, libc::F_DUPFD_CLOEXEC, 0) };
    RawFd::try_from(copy).is_ok_and(|copy| {
        copy >= 0 && {
            close(copy);
            true
        }
    })
}

/// Whether a call with these flags may take something before it waits, or without waiting.
pub fn may_read_now(descriptor: RawFd, flags: c_int) -> bool {
    let _errno = Errno::keep();
    if flags & (libc::MSG_DONTWAIT | libc::MSG_WAITALL) != 0 {
        return true;
    }
    let mut unread: c_int = 0;
    // SAFETY: integers; fills a local.
    unsafe {
        libc::fcntl(descriptor, libc::F_GETFL) & libc::O_NONBLOCK != 0
            || libc::ioctl(descriptor, libc::FIONREAD, &raw mut unread) < 0
            || unread > 0
    }
}

/// Whether it is a socket of IPv4 or IPv6.
pub fn is_internet(descriptor: RawFd) -> bool {
    matches!(option(descriptor, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6))
}

/// A socket of the same kind of addresses, which nobody has bound; none if those are not of TCP.
pub fn new_of_tcp(like: RawFd) -> Option<OwnedFd> {
    let family = option(like, libc::SO_DOMAIN).filter(|it| [libc::AF_INET, libc::AF_INET6].contains(it))?;
    is_stream(like).then_some(())?;
    // SAFETY: integers.
    let number =
        unsafe { libc::syscall(libc::SYS_socket, family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    let number = RawFd::try_from(number).ok().filter(|number| *number >= 0)?;
    // SAFETY: new, and nobody else's.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether the calling thread is the only one of its process. Takes no memory.
pub fn is_only_thread() -> bool {
    /// Of the fields behind the name, which begin with the state (proc(5): `num_threads`).
    const THREADS: usize = 20 - 3;
    let mut room = [0; 1024];
    // SAFETY: a string that ends, and as much room as is told; what was opened is closed.
    let count = unsafe {
        let file =
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/stat".as_ptr(), libc::O_CLOEXEC);
        let Some(file) = RawFd::try_from(file).ok().filter(|file| *file >= 0) else { return false };
        let count = libc::syscall(libc::SYS_read, file, room.as_mut_ptr(), room.len());
        close(file);
        count
    };
    let read = usize::try_from(count).ok().and_then(|count| room.get(..count)).unwrap_or_default();
    let behind = read.rsplit(|byte| *byte == b')').next().unwrap_or_default();
    let mut fields = behind.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    fields.nth(THREADS) == Some(&b"1"[..])
}

/// What a program has given as an address, whose length it tells. Empty where the kernel will say that it is none.
pub fn address<'a>(address: *const libc::sockaddr, length: libc::socklen_t) -> &'a [u8] {
    let _errno = Errno::keep();
    if length as usize > size_of::<libc::sockaddr_storage>()
        || !given::Given::new().has(address.cast(), length as usize)
    {
        return &[];
    }
    // SAFETY: there are as many bytes, which the program leaves as they are during the call that this is about.
    unsafe { std::slice::from_raw_parts(address.cast(), length as usize) }
}

/// The descriptors that came with a message, or were sent with it.
pub fn received(message: *const libc::msghdr) -> Vec<RawFd> {
    let mut found = Vec::new();
    // SAFETY: a message that the program has given to the C library, which has filled it, or read it.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*head).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(head).cast::<c_int>();
                found.extend((0..bytes / 4).map(|number| data.add(number).read_unaligned()));
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    found
}

/// Whether a message came with anything beside it.
pub fn has_more(message: *const libc::msghdr) -> bool {
    // SAFETY: null, or one that the program has given to the C library.
    unsafe { message.as_ref() }.is_some_and(|message| message.msg_controllen > 0)
}

/// The number behind a stream of the C library.
pub fn number_of(file: *mut libc::FILE) -> RawFd {
    // SAFETY: one that the program has given to the C library.
    if file.is_null() { -1 } else { unsafe { libc::fileno(file) } }
}

/// Writes what a stream of the C library has not written yet.
pub fn flush(file: *mut libc::FILE) {
    // SAFETY: one that the program has given to the C library.
    unsafe { libc::fflush(file) };
}
