//! A server whose connections are kept by somebody else: by systemd, or by `outlast hold`, whichever the environment names.
//! Each line is answered with its number on this connection.
//!
//! Unlike servers that register, it is started again by somebody, and has its memory from what was kept. A line that was read
//! and not answered is lost; `examples/python/echo_held.py` shows how none is.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example")]

use outlast_restart::holder::systemd::Systemd;
use outlast_restart::holder::{Client, Error, Keeper, activated};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Shared = Arc<Mutex<Box<dyn Keeper + Send>>>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (keeper, mut listener) = find()?;
    let keeper = Arc::new(Mutex::new(keeper));
    let kept = lock(&keeper).recover()?;
    println!("process {} recovers {}", std::process::id(), kept.len());
    for one in kept {
        if one.name == "listener" {
            listener = Some(one.descriptor.into());
            continue;
        }
        let lines = u64::from_be_bytes(one.state.try_into().unwrap_or_default());
        serve(&keeper, one.name, one.descriptor.into(), lines);
    }
    let listener = match listener {
        Some(listener) => listener,
        None => {
            let new = TcpListener::bind("127.0.0.1:0")?;
            complain(lock(&keeper).keep("listener", new.as_fd(), b""));
            new
        }
    };
    println!("listening on {}", listener.local_addr()?);
    let tended = Arc::clone(&keeper);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let _ = lock(&tended).tend();
        }
    });
    for client in listener.incoming() {
        let client = client?;
        let name = client.peer_addr()?.to_string().replace(':', " ");
        complain(lock(&keeper).keep(&name, client.as_fd(), &0u64.to_be_bytes()));
        serve(&keeper, name, client, 0);
    }
    Ok(())
}

/// Who keeps, and a socket that was given to the process to listen.
fn find() -> Result<(Box<dyn Keeper + Send>, Option<TcpListener>), Error> {
    if let Some(mut systemd) = Systemd::from_environment()? {
        // What is left of connections that it has dropped is forgotten by then, and makes room.
        systemd.settle(Duration::from_secs(5))?;
        let listener = systemd.take_listeners().pop();
        return Ok((Box::new(systemd), listener.map(|one| one.descriptor.into())));
    }
    let given = activated().into_iter().find(|one| one.is_listener).map(|one| one.descriptor.into());
    let path = std::env::var_os("OUTLAST_HOLDER").unwrap_or_else(|| "/run/outlast/holder".into());
    Ok((Box::new(Client::new(path, "held")?), given))
}

fn serve(keeper: &Shared, name: String, client: TcpStream, mut lines: u64) {
    let keeper = Arc::clone(keeper);
    std::thread::spawn(move || {
        let mut output = &client;
        for line in BufReader::new(&client).lines().map_while(Result::ok) {
            lines += 1;
            complain(lock(&keeper).update(&name, &lines.to_be_bytes()));
            if writeln!(output, "{lines} {line}").is_err() {
                break;
            }
        }
        complain(lock(&keeper).release(&name));
    });
}

fn lock(keeper: &Shared) -> MutexGuard<'_, Box<dyn Keeper + Send>> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection is served even if nobody keeps it.
fn complain(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        eprintln!("{error}");
    }
}
