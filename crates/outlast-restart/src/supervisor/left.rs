//! What goes on without its supervisor: who that was is told to the program by a variable, which all that it starts inherit.

use super::traces;
use crate::custody;
use crate::sys::process::{self, Known, Pid};
use crate::sys::{descriptors, family, signals};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For those that an earlier supervisor has left, when another one takes over and clients are refused until they have ended.
const GRACE: Duration = Duration::from_secs(5);
/// After they were killed.
const KILL_GRACE: Duration = Duration::from_secs(1);
/// Between two looks at whether somebody is in a hurry.
const LOOK: Duration = Duration::from_millis(100);

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
/// at, as it is somebody else's, or is in another PID namespace, where the supervisor may live by that number, is not among
/// them.
#[must_use]
pub fn without_supervisor(name: &str) -> Vec<Left> {
    let own = process::namespace("self", "pid");
    topmost(|pid| {
        let (supervisor, _) = told(pid).filter(|(_, its_name)| its_name == name.as_bytes())?;
        let is_gone = family::parent_of_living(supervisor).is_none();
        (is_gone && process::namespace(pid, "pid") == own).then_some(supervisor)
    })
}

/// Processes whose sockets supervisors of this key have held that are gone, by those. Some write over their environment, but
/// not over the name of the memory that they share with it.
pub(super) fn held_by(key: &str) -> BTreeMap<Pid, Vec<Known>> {
    let mut found = BTreeMap::<Pid, Vec<Known>>::new();
    for pid in family::all().into_iter().filter(|pid| *pid != process::pid()) {
        let Ok(known) = Known::open(pid) else { continue };
        let is_told = |supervisor| traces::tells(pid, supervisor, key);
        if let Some(supervisor) = custody::supervisor_of(pid, key, is_told)
            && family::parent_of_living(supervisor).is_none()
        {
            found.entry(supervisor).or_default().push(known);
        }
    }
    found
}

/// Those of one of them that are about to end.
pub(super) struct Predecessors {
    pub(super) first: Pid,
    pub(super) count: usize,
    /// Ends when they have, or cannot be ended.
    pub(super) end: JoinHandle<()>,
}

/// Has those of one of them end, and who has started those: a master that leaves listening to its workers would start others.
/// The caller goes on.
pub(super) fn end_of(key: &str, supervisor: Pid, number: i32, grace: Duration) -> Option<Predecessors> {
    let held = held_by(key).remove(&supervisor)?;
    let is_ours = |pid: &Pid| *pid != process::pid() && traces::tells(*pid, supervisor, key);
    let mut all = Vec::<Known>::new();
    for known in &held {
        let above =
            std::iter::successors(Some(known.pid), |pid| family::parent_of_living(*pid).filter(is_ours));
        for pid in above.skip(1) {
            let is_known = all.iter().chain(&held).any(|known| known.pid == pid);
            all.extend((!is_known).then(|| Known::open(pid).ok()).flatten());
        }
    }
    // Masters hear of it first.
    all.extend(held);
    let (first, count) = (all.first()?.pid, all.len());
    let thread = std::thread::Builder::new().name("taken over".into());
    let end = thread.spawn(move || end(&all, number, grace)).ok()?;
    Some(Predecessors { first, count, end })
}

/// How long they have to end. While clients wait in queues that are held that is as long as they are promised: who is killed
/// earlier may leave a file behind that keeps the next one from starting.
pub(super) fn time_to_end(stop_timeout: Option<Duration>, clients_wait: bool) -> Duration {
    let time = stop_timeout.unwrap_or(Duration::MAX);
    if clients_wait { time } else { time.min(GRACE) }
}

/// Tells processes to end, and kills them if they do not in time, or if this process is to end meanwhile.
pub(super) fn end(processes: &[Known], number: i32, grace: Duration) {
    for (number, time) in [(number, grace), (libc::SIGKILL, KILL_GRACE)] {
        for known in processes {
            let _ = process::signal(known.process.as_fd(), number);
            // One that was stopped would not hear it.
            let _ = process::signal(known.process.as_fd(), libc::SIGCONT);
        }
        let began = Instant::now();
        let mut left = processes.iter().peekable();
        while let Some(known) = left.peek() {
            let pause = time.saturating_sub(began.elapsed()).min(LOOK);
            let is_hurried = crate::STOP_SIGNALS.into_iter().any(signals::is_pending);
            if descriptors::wait_readable(&known.process, pause) {
                left.next();
            } else if pause.is_zero() || (is_hurried && number != libc::SIGKILL) {
                break;
            }
        }
        if left.peek().is_none() {
            return;
        }
    }
}

/// Whoever runs below this supervisor.
pub(super) fn below_this() -> Vec<Left> {
    // A supervisor of another PID namespace may have the same number.
    let is_ours = |supervisor: &Pid, pid| *supervisor == process::pid() && family::is_below_this(pid);
    topmost(|pid| told(pid).map(|(supervisor, _)| supervisor).filter(|it| is_ours(it, pid)))
}

pub(super) fn value(name: &str) -> String {
    // No variable can hold what ends it.
    format!("{} {}", process::pid(), name.replace('\0', " "))
}

/// `supervisor_of` gives that of a process which is meant.
fn topmost(supervisor_of: impl Fn(Pid) -> Option<Pid>) -> Vec<Left> {
    let mut found = Vec::new();
    for pid in family::all() {
        if let Some(supervisor) = supervisor_of(pid)
            && let Some(parent) = family::parent_of_living(pid)
        {
            found.push((Left { pid: pid.cast_unsigned(), supervisor: supervisor.cast_unsigned() }, parent));
        }
    }
    let pids: Vec<u32> = found.iter().map(|(left, _)| left.pid).collect();
    found.retain(|(_, parent)| !pids.contains(&parent.cast_unsigned()));
    found.into_iter().map(|(left, _)| left).collect()
}

/// Whether a process is to outlive its program. None: it is being executed, and the kernel has not set its environment yet.
pub(super) fn outlives(pid: Pid) -> Option<bool> {
    let Some(environment) = environment(pid) else { return Some(false) };
    if environment.is_empty() && family::is_being_executed(pid) {
        return None;
    }
    Some(value_in(&environment, OUTLIVES_ENVIRONMENT).is_some())
}

/// What a process was told when it was started.
pub(super) fn told(pid: Pid) -> Option<(Pid, Vec<u8>)> {
    understood(&variable(pid, ENVIRONMENT)?)
}

pub(super) fn variable(pid: Pid, name: &str) -> Option<Vec<u8>> {
    Some(value_in(&environment(pid)?, name)?.to_vec())
}

fn environment(pid: Pid) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/environ")).ok()
}

fn value_in<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut variables = environment.split(|&byte| byte == 0);
    variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
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
