//! Descriptors that a service manager has given this process at its start: `LISTEN_FDS` of sd_listen_fds(3).

use crate::sys::descriptors::{self, Kind};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first descriptor that is given.
const FIRST: RawFd = 3;
/// More than any process may have.
const COUNT_MAX: RawFd = 1 << 20;

/// One of them.
#[derive(Debug)]
pub struct Activated {
    /// As the service manager calls it: `FileDescriptorName=` of a socket, or the name it was stored under. Empty where it
    /// says nothing.
    pub name: String,
    /// It; programs that this process executes do not get it.
    pub descriptor: OwnedFd,
    /// Whether it is a socket that listens.
    pub is_listener: bool,
}

/// What was given to this process, the first time; nothing after that. The environment stays as it is: it names this
/// process, so that its children take nothing of it for theirs.
///
/// Numbers that are not open are left out.
#[must_use]
pub fn activated() -> Vec<Activated> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if IS_TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    let variable = |name| std::env::var(name).unwrap_or_default();
    let own = std::process::id();
    let names = names(&variable("LISTEN_PID"), &variable("LISTEN_FDS"), &variable("LISTEN_FDNAMES"), own);
    let adopted = (FIRST..).zip(names).filter_map(|(number, name)| {
        let (descriptor, kind, _) = descriptors::adopt(number)?;
        let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
        Some(Activated { name, descriptor, is_listener: kind == Kind::Listener })
    });
    adopted.collect()
}

/// The names of all that are given, if they are given to the process `own`.
fn names(pid: &str, count: &str, names: &str, own: u32) -> Vec<String> {
    if pid.parse() != Ok(own) {
        return Vec::new();
    }
    let count: RawFd = count.parse().ok().filter(|count| (0..=COUNT_MAX).contains(count)).unwrap_or(0);
    let mut names = names.split(':');
    (0..count).map(|_| names.next().unwrap_or_default().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn only_what_is_for_this_process_is_taken_and_names_may_be_missing() {
        assert_eq!(names("7", "3", "web:", 7), ["web", "", ""]);
        assert_eq!(names("7", "1", "a:b", 7), ["a"]);
        for (pid, count) in
            [("8", "1"), ("", "1"), ("7", "-1"), ("7", ""), ("7", "99999999999"), ("7", "9999999")]
        {
            assert!(names(pid, count, "a", 7).is_empty(), "{pid} {count}");
        }
    }
}
