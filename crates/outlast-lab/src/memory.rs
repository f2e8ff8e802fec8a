//! Want of memory, for some processes and nobody else.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A group of processes with a limit of memory (cgroups(7), version 1 or 2): whoever needs more is killed by the kernel,
/// and nobody outside. Removed when dropped.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group that may use so much, in bytes. What a process had before it joined is not counted.
    ///
    /// # Errors
    /// Where none can be made: it takes root, and control groups that may be written.
    pub fn new(limit_bytes: u64) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("outlast-{}-{count}", std::process::id());
        let kinds = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let make = |(root, limit)| {
            // Where this is version 1, the folder of version 2 is one like any other.
            if !Path::new(root).join("cgroup.procs").exists() {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let group = Self(Path::new(root).join(&name));
            std::fs::create_dir(&group.0)?;
            std::fs::write(group.0.join(limit), limit_bytes.to_string())?;
            Ok(group)
        };
        let [first, second] = kinds;
        make(first).or_else(|error: io::Error| make(second).map_err(|_| error))
    }

    /// From now on the limit holds for this process, and for those that it will start.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn take(&self, pid: u32) -> io::Result<()> {
        std::fs::write(self.processes(), pid.to_string())
    }

    /// A program that is in the group from its first instruction.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.processes()).arg(program);
        shell
    }

    /// How many processes of the group the kernel has killed for their memory. None if it does not tell.
    #[must_use]
    pub fn killed(&self) -> Option<u64> {
        let told = ["memory.oom_control", "memory.events"];
        let text = told.into_iter().find_map(|name| std::fs::read_to_string(self.0.join(name)).ok())?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The last ones may still be on their way out.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
