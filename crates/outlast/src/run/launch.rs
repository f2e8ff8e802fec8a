//! How a program is started.

use super::limits::{Limit, dumps_to_program};
use super::{pipe_signal, preload};
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where the kernel is told of it (proc_pid_oom_score_adj(5)).
const OOM_SCORE_ADJUST: &str = "/proc/self/oom_score_adj";
/// Of our service manager, and not for the program.
const NOT_FOR_IT: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Everything that a program is started with.
#[derive(Debug, Default)]
pub struct Launch {
    pub program: OsString,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(String, String)>,
    pub directory: Option<PathBuf>,
    pub limits: Vec<Limit>,
    pub nice: Option<i8>,
    pub oom_score_adjust: Option<i16>,
    pub preload: Option<PathBuf>,
    /// How often it has to say that it is alive.
    pub watchdog: Option<Duration>,
}

impl Launch {
    /// The command, with another program than at first if that is given, and the socket to say that it is ready.
    pub fn command(&self, program: Option<&Path>, notify: Option<&Path>) -> Command {
        let mut command = Command::new(program.map_or(self.program.as_os_str(), Path::as_os_str));
        command.args(&self.arguments);
        for name in NOT_FOR_IT {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        if let Some(library) = &self.preload {
            let (name, value) = preload::variable(library, self.variable("LD_PRELOAD"));
            command.env(name, value);
        }
        if let Some(path) = notify {
            command.env("NOTIFY_SOCKET", path);
        }
        if let Some(time) = self.watchdog {
            command.env("WATCHDOG_USEC", time.as_micros().to_string());
        }
        let dumps_to_program = dumps_to_program();
        let limits = self.limits.iter().map(|limit| limit.resolve(dumps_to_program)).collect();
        let own =
            Own { limits, nice: self.nice, oom_score_adjust: self.oom_score_adjust.map(|n| n.to_string()) };
        // SAFETY: between fork and exec it makes system calls only, and allocates nothing.
        unsafe { command.pre_exec(move || own.set()) };
        pipe_signal::keep(&mut command);
        command
    }

    /// A variable as the program sees it.
    pub fn variable(&self, name: &str) -> Option<OsString> {
        let given = self.environment.iter().rev().find(|(given, _)| given == name);
        given.map(|(_, value)| value.into()).or_else(|| std::env::var_os(name))
    }

    /// What is said of an error that a [command](Self::command) has met, if that was before the program itself.
    pub fn explain(&self, code: i32) -> Option<String> {
        let (step, code) = (code / STEP, code % STEP);
        let error = io::Error::from_raw_os_error(code);
        let limits = i32::try_from(self.limits.len()).ok()?;
        let what = match step {
            1 => "be nice as told (--nice)".to_owned(),
            2 => "set its score for when memory is short (--oom-score-adjust)".to_owned(),
            step if step > 2 && step < 3 + limits => {
                let name = usize::try_from(step - 3).ok().and_then(|place| self.limits.get(place))?.name;
                format!("set its limit of {name} (--limit)")
            }
            _ => return None,
        };
        Some(format!("cannot {what}: {error}"))
    }
}

/// The system's errors are smaller. One in a step is told with the number of that, as nothing else comes back from there.
const STEP: i32 = 1 << 16;

/// What the new process sets of its own before it is the program.
struct Own {
    limits: Vec<(Resource, Rlimit)>,
    nice: Option<i8>,
    oom_score_adjust: Option<String>,
}

impl Own {
    fn set(&self) -> io::Result<()> {
        let at = |step: i32, error: io::Error| {
            io::Error::from_raw_os_error(step * STEP + error.raw_os_error().unwrap_or(libc::EIO))
        };
        if let Some(nice) = self.nice {
            setpriority_process(None, nice.into()).map_err(|error| at(1, error.into()))?;
        }
        if let Some(score) = &self.oom_score_adjust {
            let set = || {
                let mut file = std::fs::OpenOptions::new().write(true).open(OOM_SCORE_ADJUST)?;
                io::Write::write_all(&mut file, score.as_bytes())
            };
            set().map_err(|error| at(2, error))?;
        }
        for (step, (resource, limit)) in (3..).zip(&self.limits) {
            setrlimit(*resource, *limit).map_err(|error| at(step, error.into()))?;
        }
        Ok(())
    }
}
