//! Whose child a process is, read without memory of its own.

use super::{Pid, close, peer};
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// As deep as processes of a program are below its supervisor.
const DEPTH_MAX: usize = 32;
/// Enough for the first fields of `/proc/PID/stat`: the name has at most 64 bytes.
const STAT_BYTES: usize = 192;

/// A file, to be read.
pub fn open(path: &CStr) -> Option<RawFd> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: reads a text that ends.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    RawFd::try_from(file).ok().filter(|file| *file >= 0)
}

/// The beginning of a file: so much of the room is filled.
pub fn read(path: &CStr, room: &mut [u8]) -> usize {
    let Some(file) = open(path) else { return 0 };
    // SAFETY: fills memory of the length that is told.
    unsafe {
        let length = libc::syscall(libc::SYS_read, file, room.as_mut_ptr(), room.len());
        close(file);
        usize::try_from(length).unwrap_or(0)
    }
}

/// Enough for `/proc/PID/status`.
const STATUS_BYTES: usize = 4096;

/// How many filters for system calls a process has. None: that cannot be read.
pub fn filters(pid: Pid) -> Option<u32> {
    const FIELD: &[u8] = b"\nSeccomp_filters:\t";
    let mut room = [0; STATUS_BYTES];
    let mut path = [0; 32];
    let length = read(path_of(pid, "status", &mut path)?, &mut room);
    let text = room.get(..length)?;
    let at = text.windows(FIELD.len()).position(|part| part == FIELD)?;
    let digits = text.get(at + FIELD.len()..)?.iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0u32, |sum, digit| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0'))))
}

/// Whether the process at the other end of an accepted connection is below this one, or has ended.
pub fn comes_from_below(connection: RawFd, above: Pid) -> bool {
    /// Whose it was last, as most come from a few processes.
    static LAST: AtomicI32 = AtomicI32::new(0);
    // Of TCP nobody knows: 0.
    let Some((pid, _)) = peer(connection).filter(|(pid, _)| *pid > 0) else { return false };
    if LAST.load(Ordering::Relaxed) == pid {
        return true;
    }
    let is_below = is_below(pid, above);
    if is_below {
        LAST.store(pid, Ordering::Relaxed);
    }
    is_below
}

fn is_below(pid: Pid, above: Pid) -> bool {
    let mut at = pid;
    for _ in 0..DEPTH_MAX {
        match parent(at) {
            Some(parent) if parent == above => return true,
            Some(parent) => at = parent,
            // Nobody is left who could lose anything.
            None => return at == pid,
        }
    }
    false
}

/// None: there is no such process, and that of process 1 is nobody's.
fn parent(pid: Pid) -> Option<Pid> {
    let (mut path, mut stat) = ([0; 32], [0; STAT_BYTES]);
    let path = path_of(pid, "stat", &mut path)?;
    let length = read(path, &mut stat);
    let stat = stat.get(..length)?;
    let behind = stat.get(stat.iter().rposition(|byte| *byte == b')')? + 1..)?;
    let parent = behind.split(|byte| *byte == b' ').nth(2)?;
    std::str::from_utf8(parent).ok()?.parse().ok()
}

fn path_of<'a>(pid: Pid, file: &str, room: &'a mut [u8; 32]) -> Option<&'a CStr> {
    use std::io::Write;
    let mut rest = &mut room[..];
    write!(rest, "/proc/{pid}/{file}\0").ok()?;
    CStr::from_bytes_until_nul(room).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn whose_child_a_process_is_is_known() {
        let own = super::super::pid();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        assert_eq!(parent(pid), Some(own));
        assert!(is_below(pid, own) && !is_below(own, pid) && !is_below(1, own));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((parent(pid), filters(pid)), (None, None));
        assert!(filters(own).is_some());
        let (_here, there) = UnixStream::pair().unwrap();
        assert!(comes_from_below(there.as_raw_fd(), parent(own).unwrap()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(!comes_from_below(accepted.as_raw_fd(), parent(own).unwrap()));
    }
}
