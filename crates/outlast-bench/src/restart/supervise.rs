//! Supervisors that start a server again when it has died, as others do it: with nothing kept, with the socket that listens
//! kept, or with all sockets kept.

use super::store::Store;
use crate::options::{Kept, RestartSuperviseArguments};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

/// Starts a server again and again. Says what that says, with the generations counted.
pub fn run(arguments: &RestartSuperviseArguments) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let this = std::env::current_exe().context("cannot find this program")?;
    let mut address = arguments.address;
    let listener: Option<TcpListener> = match arguments.kept {
        Kept::Nothing => None,
        Kept::Listener | Kept::Everything => Some(super::serve::listen(address)?),
    };
    if let Some(listener) = &listener {
        // The only one that the server is to have.
        rustix::io::fcntl_setfd(listener, rustix::io::FdFlags::empty())?;
    }
    let store = (arguments.kept == Kept::Everything).then(|| arguments.scratch.join("store"));
    if let Some(path) = &store {
        let listener: OwnedFd = Store::listen(path)?;
        std::thread::spawn(move || {
            let mut store = Store::default();
            while store.serve_one(&listener).is_ok() {}
        });
    }
    for generation in 1.. {
        let mut command = Command::new(&this);
        command.args(["restart-serve", "--address", &address.to_string()]);
        if let Some(listener) = &listener {
            command.args(["--listener", &listener.as_raw_fd().to_string()]);
        }
        if let Some(path) = &store {
            command.arg("--store").arg(path);
        }
        let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let said = server.stdout.take().context("a server without a voice")?;
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if let Some(at) = line.strip_prefix("listening on ") {
                // The next one has to listen where the clients are.
                address = at.parse()?;
                if generation == 1 {
                    println!("{line}");
                }
            } else {
                println!("generation {generation} {}", server.id());
            }
        }
        server.wait()?;
    }
    Ok(())
}
