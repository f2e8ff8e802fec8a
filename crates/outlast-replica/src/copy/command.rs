//! Copies by commands of the operator.

use super::Prepared;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

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

fn shell(server: SocketAddr, command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("OUTLAST_SERVER", server.to_string());
    shell
}

impl Prepared for Source {
    fn capture(self: Box<Self>) -> io::Result<Box<dyn Read + Send>> {
        let mut shell = shell(self.server, &self.command);
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("the command has no output"))?;
        let mut data = Data { child: Some(child), output, command: self.command, first: None };
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
            let _ = child.kill();
            let _ = child.wait();
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
    let copied = child.stdin.take().map_or(Ok(0), |mut input| {
        let copied = io::copy(data, &mut input);
        copied.and_then(|count| input.flush().map(|()| count))
    });
    match copied {
        // It has ended, and says why.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => {
            // It must not take a part of the data for all.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(_) => return succeeded(command, child.wait()?),
    }
    succeeded(command, child.wait()?)?;
    Err(io::Error::other(format!("the command {command:?} has not read all of the data")))
}
