//! This node's server, where it was started together with the node.

use super::clock::Clock;
use crate::exit::Failure;
use anyhow::Result;
use outlast_restart::{end_with_us, inherit};
use outlast_session::relay::dial::plain;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tokio::process::Child;
use tokio::time::timeout;

/// After SIGTERM a server has so long to end, then it is killed: what `outlast run` gives it.
const STOP_TIMEOUT: Duration = Duration::from_secs(45);

/// One that runs.
#[derive(Debug)]
pub struct Server {
    pub name: String,
    child: Child,
}

impl Server {
    /// Starts it, with a clock if it is to have one. It gets SIGTERM when this process dies: nobody else would know of it.
    pub fn start(program: &[OsString], clock: Option<&Clock>) -> Result<Option<Self>> {
        let Some((program, arguments)) = program.split_first() else { return Ok(None) };
        let name = program.to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.args(arguments).stdin(std::process::Stdio::null());
        if let Some(clock) = clock {
            command.envs(clock.variables());
            inherit(clock.page.descriptor(), &mut command);
        }
        // Ctrl-C is for this process, which ends it when the others go on.
        command.process_group(0);
        end_with_us(libc::SIGTERM, &mut command);
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().map_err(|error| {
            let what = format!("cannot start {name}: {}", plain(&error));
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Failure::usage(what),
                _ => Failure::system(what),
            }
        })?;
        Ok(Some(Self { name, child }))
    }

    /// Waits until it has ended.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends it, and what it has started: a shell in front of the server hands no signal on.
    pub async fn stop(&mut self) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid
            && let Err(error) = kill_process_group(pid, Signal::TERM)
        {
            tracing::debug!(%error, "the server has ended already");
        }
        if timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            tracing::warn!(server = self.name, "the server did not end after SIGTERM: it is killed");
            let _ = self.child.kill().await;
        }
    }
}
