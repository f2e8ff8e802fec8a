//! Processes of this machine, in a lab or not.

use std::io;
use std::time::{Duration, Instant};

/// How long a process takes to stand still at the most: a thread that the kernel cannot interrupt goes on to its end.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Stops a process (SIGSTOP) and waits until every thread of it stands still. The signal alone reaches one of them, and
/// until that one has run the others may still be woken and work.
///
/// # Errors
/// When there is no such process, or it is not ours.
pub fn freeze(pid: u32) -> io::Result<()> {
    crate::sys::kill(pid.cast_signed(), libc::SIGSTOP)?;
    wait_until_stopped(pid);
    Ok(())
}

/// For whoever has sent the signal by other means; at most a second.
pub(crate) fn wait_until_stopped(pid: u32) {
    let deadline = Instant::now() + STOP_TIMEOUT;
    while !is_stopped(pid) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn is_stopped(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, None | Some('T' | 't' | 'Z' | 'X'))
    })
}
