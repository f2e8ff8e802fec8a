//! Copies by commands of the operator.

use super::Prepared;
use crate::portal::copying::HOLD_MAX;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// Clients wait meanwhile.
const HOLD_S_MAX: i64 = HOLD_MAX.as_secs() as i64;

/// A command that copies.
#[derive(Debug)]
pub(super) struct Source {
    server: SocketAddr,
    command: String,
}

impl Source {
    pub(super) fn new(server: SocketAddr, command: &str) -> Self {
        Self { server, command: command.to_owned() }
    }
}

/// A process group of its own: all that it has started ends with it.
fn shell(server: SocketAddr, command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("OUTLAST_SERVER", server.to_string()).process_group(0);
    shell
}

fn kill(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

impl Prepared for Source {
    fn capture(self: Box<Self>) -> io::Result<Box<dyn Read + Send>> {
        let mut shell = shell(self.server, &self.command);
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("the command has no output"))?;
        let mut data = Data { child: Some(child), output, command: self.command, first: None };
        let ready = &mut [PollFd::new(&data.output, PollFlags::IN)];
        let timeout = Timespec { tv_sec: HOLD_S_MAX, tv_nsec: 0 };
        if rustix::event::poll(ready, Some(&timeout))? == 0 {
            let why = format!("the command {:?} has written nothing for {HOLD_S_MAX} s", data.command);
            return Err(io::Error::other(why));
        }
        let mut first = [0];
        if data.read(&mut first)? > 0 {
            let [byte] = first;
            data.first = Some(byte);
        }
        Ok(Box::new(data))
    }
}

/// What it writes.
#[derive(Debug)]
struct Data {
    child: Option<Child>,
    output: ChildStdout,
    command: String,
    first: Option<u8>,
}

impl Read for Data {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if let (Some(byte), Some(place)) = (self.first, room.first_mut()) {
            *place = byte;
            self.first = None;
            return Ok(1);
        }
        let count = self.output.read(room)?;
        if count == 0
            && !room.is_empty()
            && let Some(mut child) = self.child.take()
        {
            succeeded(&self.command, child.wait()?)?;
        }
        Ok(count)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill(&mut child);
        }
    }
}

fn succeeded(command: &str, status: ExitStatus) -> io::Result<()> {
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("the command {command:?} has failed ({status})")))
    }
}

/// Has a command take the data.
pub(super) fn restore(server: SocketAddr, command: &str, data: &mut dyn Read) -> io::Result<()> {
    let mut child = shell(server, command).stdin(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or_else(|| io::Error::other("the command has no input"))?;
    match io::copy(data, &mut input).and_then(|_| input.flush()) {
        // It has ended, and says why.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => {
            // Before it sees an end: it must not take a part of the data for all.
            kill(&mut child);
            return Err(error);
        }
        Ok(()) => {
            drop(input);
            return succeeded(command, child.wait()?);
        }
    }
    succeeded(command, child.wait()?)?;
    Err(io::Error::other(format!("the command {command:?} has not read all of the data")))
}
