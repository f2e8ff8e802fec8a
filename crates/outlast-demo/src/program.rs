//! Programs on the hosts of the demo: in a namespace of the lab, or on this machine as it is.

use anyhow::{Context, Result};
use outlast_lab::Process;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where programs run.
#[derive(Clone, Debug)]
pub enum Host {
    /// On a host of the lab.
    Lab(outlast_lab::Host),
    /// On this machine, without privileges.
    Here,
}

/// A running program with its group. Killed when the last handle is dropped.
#[derive(Clone, Debug)]
pub enum Running {
    Lab(Process),
    Here(Arc<Local>),
}

#[derive(Debug)]
pub struct Local {
    child: Mutex<Child>,
    group: u32,
}

impl Host {
    /// Starts a program. `set_up` gives it arguments and streams.
    pub fn start(&self, program: impl AsRef<OsStr>, set_up: impl FnOnce(&mut Command)) -> Result<Running> {
        let program = program.as_ref();
        let failed = || format!("cannot start {}", program.display());
        match self {
            Host::Lab(host) => {
                let mut command = host.command(program);
                set_up(command.as_std_mut());
                Ok(Running::Lab(command.spawn().with_context(failed)?))
            }
            Host::Here => {
                // Whatever becomes of this program, those that it started end with it.
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                set_up(&mut command);
                let child = command.process_group(0).spawn().with_context(failed)?;
                let group = child.id();
                Ok(Running::Here(Arc::new(Local { child: Mutex::new(child), group })))
            }
        }
    }

    /// The name by which other hosts find this one.
    pub fn name(&self) -> &str {
        match self {
            Host::Lab(host) => host.name(),
            Host::Here => "127.0.0.1",
        }
    }
}

impl Local {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, name: &str) -> Result<()> {
        // The shell's own `kill` is there on every system.
        let script = r#"kill -s "$1" -- "-$2""#;
        let status = Command::new("sh")
            .args(["-c", script, "sh", name, &self.group.to_string()])
            .stderr(Stdio::null())
            .status()?;
        anyhow::ensure!(status.success(), "cannot send SIG{name} to process {}", self.group);
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if matches!(self.child().try_wait(), Ok(None)) {
            let _ = self.signal("KILL");
        }
        let _ = self.child().wait();
    }
}

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;

impl Running {
    /// Stops it (SIGSTOP).
    pub fn freeze(&self) -> Result<()> {
        match self {
            Running::Lab(process) => Ok(process.freeze()?),
            Running::Here(local) => local.signal("STOP"),
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        match self {
            Running::Lab(process) => Ok(process.signal(SIGCONT)?),
            Running::Here(local) => local.signal("CONT"),
        }
    }

    /// Kills it.
    pub fn kill(&self) {
        // Dropping reaps it; here it only has to be gone.
        let killed = match self {
            Running::Lab(process) => process.signal(SIGKILL).map_err(Into::into),
            Running::Here(local) => local.signal("KILL"),
        };
        if killed.is_ok() {
            while matches!(self.ended(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        match self {
            Running::Lab(process) => Ok(process.try_wait()?),
            Running::Here(local) => Ok(local.child().try_wait()?),
        }
    }

    /// Its standard input, if that was piped.
    pub fn take_stdin(&self) -> Option<std::process::ChildStdin> {
        match self {
            Running::Lab(process) => process.take_stdin(),
            Running::Here(local) => local.child().stdin.take(),
        }
    }

    /// What it says on standard error, if that was piped.
    pub fn take_stderr(&self) -> Option<std::process::ChildStderr> {
        match self {
            Running::Lab(process) => process.take_stderr(),
            Running::Here(local) => local.child().stderr.take(),
        }
    }
}

/// A program that can be killed and started again.
pub struct Service {
    start: Box<dyn Fn() -> Result<Running> + Send + Sync>,
    running: Mutex<Running>,
}

impl Service {
    /// Starts it by `start`, which is called again for every restart.
    pub fn start(start: impl Fn() -> Result<Running> + Send + Sync + 'static) -> Result<Self> {
        let running = Mutex::new(start()?);
        Ok(Self { start: Box::new(start), running })
    }

    /// A program that runs once.
    pub fn once(running: Running) -> Self {
        let start = || anyhow::bail!("this program is not started again");
        Self { start: Box::new(start), running: Mutex::new(running) }
    }

    /// The program as it runs now.
    pub fn running(&self) -> Running {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts it again after it was killed.
    pub fn restart(&self) -> Result<()> {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = (self.start)()?;
        Ok(())
    }
}
