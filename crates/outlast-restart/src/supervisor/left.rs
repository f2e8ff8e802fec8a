//! What goes on without its supervisor: who that was is told to the program by a variable, which all that it starts inherit.

use crate::sys::family;
use crate::sys::process::{self, Pid};
use std::os::unix::ffi::OsStrExt;

/// The variable with the supervisor's process and [name](super::Settings::name), and a space between them.
pub const ENVIRONMENT: &str = "OUTLAST_SUPERVISOR";

/// A process with this variable in its environment outlives its program on purpose, and for a limited time: it keeps what
/// the next one goes on with. It is not ended with what else a program leaves behind.
pub const OUTLIVES_ENVIRONMENT: &str = "OUTLAST_OUTLIVES";

/// A process that was started below a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// It.
    pub pid: u32,
    /// Who has started it, or what is above it.
    pub supervisor: u32,
}

/// Processes of the supervisors with this name that are gone. Of those below each other the topmost; what may not be looked
/// at, as it is somebody else's, is not among them.
#[must_use]
pub fn without_supervisor(name: &str) -> Vec<Left> {
    topmost(|supervisor, its_name| {
        its_name == name.as_bytes() && family::parent_of_living(supervisor).is_none()
    })
}

/// Whoever runs below this supervisor.
pub(super) fn below_this() -> Vec<Left> {
    topmost(|supervisor, _| supervisor == process::pid())
}

pub(super) fn value(name: &str) -> String {
    // No variable can hold what ends it.
    format!("{} {}", process::pid(), name.replace('\0', " "))
}

fn topmost(is_meant: impl Fn(Pid, &[u8]) -> bool) -> Vec<Left> {
    let mut found = Vec::new();
    for pid in family::all() {
        if let Some((supervisor, name)) = told(pid)
            && is_meant(supervisor, &name)
            && let Some(parent) = family::parent_of_living(pid)
        {
            found.push((Left { pid: pid.cast_unsigned(), supervisor: supervisor.cast_unsigned() }, parent));
        }
    }
    let pids: Vec<u32> = found.iter().map(|(left, _)| left.pid).collect();
    found.retain(|(_, parent)| !pids.contains(&parent.cast_unsigned()));
    found.into_iter().map(|(left, _)| left).collect()
}

/// Whether a process is to outlive its program.
pub(super) fn outlives(pid: Pid) -> bool {
    variable(pid, OUTLIVES_ENVIRONMENT).is_some()
}

/// What a process was told when it was started.
fn told(pid: Pid) -> Option<(Pid, Vec<u8>)> {
    understood(&variable(pid, ENVIRONMENT)?)
}

fn variable(pid: Pid, name: &str) -> Option<Vec<u8>> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(value.to_vec())
}

fn understood(value: &[u8]) -> Option<(Pid, Vec<u8>)> {
    let space = value.iter().position(|&byte| byte == b' ')?;
    let (pid, name) = value.split_at_checked(space)?;
    let pid = std::str::from_utf8(pid).ok()?.parse().ok().filter(|pid| *pid > 0)?;
    Some((pid, name.get(1..)?.to_vec()))
}

/// In a server that lives on by itself: whether its supervisor still does.
#[derive(Debug)]
pub(crate) struct Watch {
    supervisor: Pid,
    parent: Pid,
}

impl Watch {
    /// From here on the calling process does not end when its supervisor does, and can be asked whether that has.
    /// None where it has none.
    pub(crate) fn begin() -> Option<Self> {
        let watch = Self::of_this_process()?;
        // If not, it ends with its supervisor, as others do.
        let _ = process::outlive_parent();
        Some(watch)
    }

    /// As above, for a process that does not end with its supervisor anyway.
    pub(crate) fn of_this_process() -> Option<Self> {
        let value = std::env::var_os(ENVIRONMENT)?;
        let (supervisor, _) = understood(value.as_bytes())?;
        Some(Self { supervisor, parent: process::parent() })
    }

    /// Has the supervisor look around.
    pub(crate) fn alert(&self) {
        if self.gone().is_none() {
            let _ = process::kill(self.supervisor, libc::SIGCHLD);
        }
    }

    /// Says so once, if the supervisor is gone.
    pub(crate) fn tell_once(watch: &mut Option<Self>, say: impl FnOnce(&str)) {
        if let Some(gone) = watch.as_ref().and_then(Self::gone) {
            *watch = None;
            let pid = process::pid();
            say(&format!(
                "the supervisor (process {gone}) is gone: the server goes on without it, and survives crashes as before; \
                 kill {pid} ends it"
            ));
        }
    }

    /// The supervisor, if that is gone. It adopts orphans as long as it lives: so whoever has another parent than before is
    /// either its child, or has none. Opens nothing.
    fn gone(&self) -> Option<Pid> {
        let parent = process::parent();
        (parent != self.parent && parent != self.supervisor).then_some(self.supervisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood_and_garbage_is_not() {
        let told = value("a server");
        assert_eq!(understood(told.as_bytes()), Some((process::pid(), b"a server".to_vec())));
        for garbage in ["", " ", "7", "x y", "0 all", "-1 all", "99999999999 x"] {
            assert_eq!(understood(garbage.as_bytes()), None, "{garbage:?}");
        }
    }
}
