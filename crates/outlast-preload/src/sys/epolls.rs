//! Epolls of this process that know a descriptor: some programs have theirs watch a socket before it is bound. An epoll knows the
//! open file behind the number, and forgets it with its last descriptor (epoll(7)).

use super::{close, relatives};
use libc::{c_int, epoll_event};
use std::io::Write;
use std::os::fd::RawFd;

const SHOWN: &[u8] = b"anon_inode:[eventpoll]";
/// Of an entry of a folder, as getdents64(2) gives it: where its length is, and where its name begins.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

/// An epoll, and what it is to say of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    epoll: RawFd,
    events: u32,
    data: u64,
}

impl Watch {
    /// It does not know the descriptor from here on.
    pub fn end(self, descriptor: RawFd) {
        self.control(libc::EPOLL_CTL_DEL, descriptor);
    }

    /// It knows what stands behind the descriptor now.
    pub fn begin(self, descriptor: RawFd) {
        self.control(libc::EPOLL_CTL_ADD, descriptor);
    }

    fn control(self, operation: c_int, descriptor: RawFd) {
        let mut event = epoll_event { events: self.events, u64: self.data };
        // SAFETY: numbers, and a local value.
        unsafe { libc::syscall(libc::SYS_epoll_ctl, self.epoll, operation, descriptor, &raw mut event) };
    }
}

/// All that know it. None where there is no `/proc`.
pub fn of(descriptor: RawFd) -> Vec<Watch> {
    let Some(inode) = inode(descriptor) else { return Vec::new() };
    let mut found = Vec::new();
    any_own(|epoll| {
        let mut path = [0u8; 48];
        if write!(&mut path[..], "/proc/self/fdinfo/{epoll}\0").is_ok() {
            let told = whole(&path);
            let lines = told.split(|byte| *byte == b'\n');
            let watches =
                lines.filter_map(|line| watch(epoll, std::str::from_utf8(line).ok()?, descriptor, inode));
            found.extend(watches);
        }
        false
    });
    found
}

/// This epoll does not know the descriptor from here on, if it did.
pub fn end(epoll: RawFd, descriptor: RawFd) {
    Watch { epoll, events: 0, data: 0 }.end(descriptor);
}

/// None does. Takes no memory.
pub fn end_all(descriptor: RawFd) {
    any_own(|epoll| {
        end(epoll, descriptor);
        false
    });
}

/// Whether this process waits for events by epoll(7). Takes no memory.
pub fn has_any() -> bool {
    any_own(|_| true)
}

/// One line of what the kernel tells of an epoll (proc_pid_fdinfo(5)), if it is about this descriptor.
fn watch(epoll: RawFd, line: &str, descriptor: RawFd, inode: u64) -> Option<Watch> {
    let mut words = line.split_ascii_whitespace();
    let mut behind = |name| words.by_ref().find(|word| *word == name).and_then(|_| words.next());
    let is_it = behind("tfd:")?.parse() == Ok(descriptor);
    let events = u32::from_str_radix(behind("events:")?, 16).ok()?;
    let data = u64::from_str_radix(behind("data:")?, 16).ok()?;
    // The number may have been another file's.
    let its = words.find_map(|word| word.strip_prefix("ino:"));
    let is_file = its.is_none_or(|its| u64::from_str_radix(its, 16) == Ok(inode));
    (is_it && is_file).then_some(Watch { epoll, events, data })
}

fn inode(descriptor: RawFd) -> Option<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fills a local value, of which zeroes are one.
    unsafe { (libc::fstat(descriptor, stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_ino) }
}

fn is_epoll(number: RawFd) -> bool {
    let (mut path, mut shown) = ([0u8; 32], [0u8; SHOWN.len()]);
    let written = write!(&mut path[..], "/proc/self/fd/{number}\0");
    // SAFETY: a string that ends, and as much room as is told.
    let count = unsafe {
        let (from, to) = (path.as_ptr(), shown.as_mut_ptr());
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, from, to, shown.len())
    };
    written.is_ok() && count > 0 && shown == SHOWN
}

/// Whether this holds for an epoll of this process, which is asked for one after the other until it does. Without `/proc`, or
/// where no descriptor is left, of none or of those below the usual limit.
fn any_own(mut is_it: impl FnMut(RawFd) -> bool) -> bool {
    const USUAL: RawFd = 1024;
    let mut has_found = false;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a string that ends.
    let folder = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/fd".as_ptr(), flags) };
    let Some(folder) = RawFd::try_from(folder).ok().filter(|folder| *folder >= 0) else {
        return (0..USUAL).any(|number| is_epoll(number) && is_it(number));
    };
    let mut room = [0u8; 4096];
    while !has_found {
        // SAFETY: as much room as is told.
        let filled = unsafe { libc::syscall(libc::SYS_getdents64, folder, room.as_mut_ptr(), room.len()) };
        let Some(mut rest) = usize::try_from(filled).ok().and_then(|filled| room.get(..filled)) else {
            break;
        };
        if rest.is_empty() {
            break;
        }
        while let Some(&[low, high]) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let name = rest.get(NAME_AT..length).unwrap_or_default().split(|byte| *byte == 0).next();
            let number = name.and_then(|name| std::str::from_utf8(name).ok()?.parse::<RawFd>().ok());
            has_found = has_found || number.is_some_and(|number| is_epoll(number) && is_it(number));
            rest = rest.get(length.max(1)..).unwrap_or_default();
        }
    }
    close(folder);
    has_found
}

/// All of a file.
fn whole(path: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(path) else { return all };
    let Some(file) = relatives::open(path) else { return all };
    let mut room = [0u8; 4096];
    loop {
        // SAFETY: as much room as is told.
        let filled = unsafe { libc::syscall(libc::SYS_read, file, room.as_mut_ptr(), room.len()) };
        match usize::try_from(filled).ok().and_then(|filled| room.get(..filled)) {
            Some(some) if !some.is_empty() => all.extend_from_slice(some),
            _ => break,
        }
    }
    close(file);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    #[test]
    fn an_epoll_that_knows_a_socket_is_found_and_made_to_know_another_one() {
        // SAFETY: a number.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
        let watch = Watch { epoll, events, data: u64::MAX - 5 };
        watch.begin(one.as_raw_fd());
        // The kernel watches for errors always.
        let told = events | (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();
        assert_eq!(of(one.as_raw_fd()), [Watch { events: told, ..watch }]);
        assert_eq!(of(other.as_raw_fd()), []);
        of(one.as_raw_fd())[0].end(one.as_raw_fd());
        assert_eq!(of(one.as_raw_fd()), []);
        close(epoll);
    }

    #[test]
    fn a_line_of_another_file_that_had_the_number_is_not_taken() {
        let line = "tfd:        5 events:       19 data:                7  pos:0 ino:1f sdev:8";
        let known = Watch { epoll: 3, events: 0x19, data: 7 };
        assert_eq!(watch(3, line, 5, 0x1f), Some(known));
        assert_eq!(watch(3, line, 6, 0x1f), None);
        assert_eq!(watch(3, line, 5, 0x20), None);
        // Of old kernels.
        assert_eq!(watch(3, "tfd: 5 events: 19 data: 7", 5, 1), Some(known));
        assert_eq!(watch(3, "pos:\t0", 5, 1), None);
    }
}
