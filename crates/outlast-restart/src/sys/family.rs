//! Who is whose child.

use super::lineage::{self, Listed, Seen};
use super::process::{self, Pid};
use super::reserve;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Whoever loses their parent somewhere below this process becomes its child, and not that of the machine's first process.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    // SAFETY: takes integers, and changes an attribute of this process.
    let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The parent of a process that has not ended; none if it has, or there is none of this number.
pub(crate) fn parent_of_living(pid: Pid) -> Option<Pid> {
    look(pid).filter(|seen| seen.lives).map(|seen| seen.parent)
}

/// How many threads a process has, of the fields behind its name.
const THREADS: usize = 17;

fn look(pid: Pid) -> Option<Seen> {
    let stat = reserve::read(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // The first thread may be dead for long.
    let lives = !matches!(state, "Z" | "X")
        || process::field::<u32>(&stat, THREADS).is_some_and(|threads| threads > 1);
    Some(Seen { lives, parent })
}

/// Whether a process has begun to execute a program, and its new stack is not there yet: the kernel empties what it tells
/// of arguments and environment at once, and fills it a moment later (proc(5): `env_start` of `/proc/PID/stat`).
pub(crate) fn is_being_executed(pid: Pid) -> bool {
    /// Of the fields behind the name, which begin with the state.
    const ENV_START: usize = 50 - 3;
    let Ok(stat) = reserve::read(format!("/proc/{pid}/stat")) else { return false };
    let mut fields = stat.rsplit_once(')').map_or("", |(_, behind)| behind).split_ascii_whitespace();
    let state = fields.next();
    !matches!(state, None | Some("Z" | "X")) && fields.nth(ENV_START - 1) == Some("0")
}

/// Where what a process executes is in its memory: somewhere else in each (proc(5): `startcode` of `/proc/PID/stat`).
pub(crate) fn image(pid: Pid) -> Option<u64> {
    /// Of the fields behind the name, which begin with the state.
    const START_CODE: usize = 26 - 3;
    let stat = reserve::read(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(START_CODE)?.parse().ok()
}

/// Has this process told by a signal when its parent ends. Changes of its user or group end that.
pub(crate) fn tell_end_of_parent(signal: i32) -> io::Result<()> {
    // SAFETY: takes integers, and changes an attribute of this process.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The children of a process, also those that are not buried.
pub(crate) fn children(of: Pid) -> Vec<Pid> {
    if let Ok(listed) = reserve::read(format!("/proc/{of}/task/{of}/children")) {
        return listed.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    // A kernel without that list.
    all().into_iter().filter(|pid| parent_of_living(*pid) == Some(of)).collect()
}

/// All processes that can be seen.
pub(crate) fn all() -> Vec<Pid> {
    let names = reserve::names("/proc").unwrap_or_default();
    names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect()
}

/// The process group of a process; of the calling one for 0. None if there is no such process.
pub(crate) fn group(pid: Pid) -> Option<Pid> {
    // SAFETY: an integer.
    Some(unsafe { libc::getpgid(pid) }).filter(|group| *group >= 0)
}

/// The session of a process; of the calling one for 0. None if there is no such process.
pub(crate) fn session(pid: Pid) -> Option<Pid> {
    // SAFETY: an integer.
    Some(unsafe { libc::getsid(pid) }).filter(|session| *session >= 0)
}

/// All living processes below this one: children, and theirs. It, too, is among them.
pub(crate) fn and_below(root: Pid) -> Vec<Pid> {
    and_below_each(&[root])
}

/// The same, of several.
pub(crate) fn and_below_each(roots: &[Pid]) -> Vec<Pid> {
    if roots.is_empty() { Vec::new() } else { lineage::and_below(roots, all(), look) }
}

/// All living processes below the calling one, found by their parents' lists where the kernel has those.
pub(crate) fn below_this() -> Vec<Pid> {
    let us = process::pid();
    let lives = |pid| parent_of_living(pid).is_some();
    lineage::by_lists(us, listed_children, lives)
        .unwrap_or_else(|| and_below(us).into_iter().filter(|pid| *pid != us).collect())
}

/// The children of all threads of a process. When a thread ends, another one has its children: as long as threads end between,
/// they are looked for again.
fn listed_children(of: Pid) -> Listed {
    const TRIES: usize = 8;
    let list = || -> io::Result<Option<Vec<Pid>>> {
        let mut found = Vec::new();
        for thread in reserve::names(format!("/proc/{of}/task"))? {
            let Some(thread) = thread.to_str() else { continue };
            match reserve::read(format!("/proc/{of}/task/{thread}/children")) {
                Ok(listed) => {
                    found.extend(listed.split_ascii_whitespace().filter_map(|pid| pid.parse::<Pid>().ok()));
                }
                Err(error) if process::is_gone(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(found))
    };
    for _ in 0..TRIES {
        match list() {
            Ok(Some(found)) => return Listed::Children(found),
            // A kernel without such lists is no process that has ended.
            Ok(None) if parent_of_living(of).is_none() => return Listed::Ended,
            Ok(None) => {}
            Err(error) if process::is_gone(&error) => return Listed::Ended,
            Err(_) => return Listed::Unclear,
        }
    }
    Listed::Unclear
}

/// Whether a living process is below the calling one, however far.
pub(crate) fn is_below_this(pid: Pid) -> bool {
    lineage::is_below(pid, process::pid(), look)
}

/// Whether a process is below the calling one, or a child of it that is not buried: also where there is no `/proc`.
pub(crate) fn is_ours(pid: Pid) -> bool {
    is_below_this(pid) || is_child(pid)
}

/// Whether it is a child of this process that is not buried: also where there is no `/proc`.
fn is_child(pid: Pid) -> bool {
    use rustix::process::{Pid as Known, WaitId, WaitIdOptions, waitid};
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let known = Some(pid).filter(|pid| *pid > 0).and_then(Known::from_raw);
    known.is_some_and(|known| waitid(WaitId::Pid(known), look).is_ok())
}

/// Sends a signal to a process below this one, and to nobody else: not to whoever may have its number by now.
pub(crate) fn signal_below(pid: Pid, signal: i32) -> io::Result<()> {
    let gone = || Err(io::Error::from_raw_os_error(libc::ESRCH));
    match process::open(pid) {
        // It cannot become somebody else any more: what is looked at is what is signalled.
        Ok(known) if is_ours(pid) => match process::signal(known.as_fd(), signal) {
            // A sandbox may forbid that, too. It was looked for just now.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                process::kill(pid, signal)
            }
            sent => sent,
        },
        // A sandbox, or an old kernel.
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) && is_ours(pid) => process::kill(pid, signal),
        _ => gone(),
    }
}

/// The same, to a process that was [opened](process::open) and then found below this one: takes no descriptor.
pub(crate) fn signal_known(known: BorrowedFd<'_>, pid: Pid, signal: i32) -> io::Result<()> {
    match process::signal(known, signal) {
        // A sandbox.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            signal_below(pid, signal)
        }
        sent => sent,
    }
}

/// Kills a process below this one, and all that is below that.
pub(crate) fn kill_all(root: Pid) {
    for pid in and_below(root) {
        let _ = signal_below(pid, libc::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_first_thread_has_ended_lives() {
        let ends_alone = format!(
            "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); \
             ctypes.CDLL(None).syscall({}, 0)",
            libc::SYS_exit
        );
        let mut python = std::process::Command::new("python3").args(["-c", &ends_alone]).spawn().unwrap();
        let pid = Pid::try_from(python.id()).unwrap();
        let first_ended = || reserve::read(format!("/proc/{pid}/stat")).unwrap().contains(") Z ");
        while !first_ended() {
            assert!(python.try_wait().unwrap().is_none());
        }
        assert_eq!(parent_of_living(pid), Some(process::pid()));
        assert!(!crate::sys::custody::is_exiting(pid));
        python.kill().unwrap();
        while !crate::sys::custody::is_exiting(pid) {}
        python.wait().unwrap();
        assert_eq!(parent_of_living(pid), None);
    }

    #[test]
    fn children_and_theirs_are_found() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line)
            .unwrap();
        let sleep: Pid = line.trim().parse().unwrap();
        let root = Pid::try_from(shell.id()).unwrap();
        assert_eq!(parent_of_living(sleep), Some(root));
        assert_eq!(and_below(root), [root, sleep]);
        assert!(is_below_this(sleep) && is_below_this(root) && !is_below_this(process::pid()));
        for stranger in [process::pid(), process::parent(), 1, 0, -1, -root] {
            assert!(signal_below(stranger, 0).is_err(), "{stranger}");
        }
        signal_below(sleep, libc::SIGKILL).unwrap();
        shell.wait().unwrap();
        assert_eq!(parent_of_living(root), None);
    }
}
