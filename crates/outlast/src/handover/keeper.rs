//! The process that keeps relays between a process that has stopped and the next one.
//!
//! It is this program, started by the one that stops: a process that is told to stop has to be gone before the next one
//! is started. It has one socket in the folder of the admin sockets, hands everything to the first process that asks, and
//! ends; or when nobody has asked for long enough.

use super::parcel::{Parcel, send_end};
use crate::admin_folder;
use crate::cli::KeepArgs;
use crate::exit::Code;
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Said by the keeper when it listens, and when it has everything; by the next process when it has everything.
pub const READY: u8 = b'R';
pub const KEPT: u8 = b'K';
pub const TAKEN: u8 = b'T';

/// For one exchange with the next process, whose descriptors and memory may be slow to come by.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The socket's file, as long as it is ours.
struct Place<'a>(&'a Path);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        admin_folder::remove(self.0);
    }
}

/// Keeps what comes over standard input.
pub fn run(args: &KeepArgs) -> Result<Code> {
    // Whoever has started it may end with its terminal.
    rustix::process::setsid().ok();
    std::env::set_current_dir("/").ok();
    let giver = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let (Some(folder), Some(name)) = (args.socket.parent(), args.socket.file_name()) else {
        bail!("{} is no path of a socket", args.socket.display())
    };
    let (_, listener) = admin_folder::bind(folder, name)?;
    let place = Place(&args.socket);
    listener.set_nonblocking(false)?;
    (&giver).write_all(&[READY])?;
    let mut parcels = Vec::new();
    // What has come before the giver failed is kept all the same.
    while let Ok(Some(parcel)) = Parcel::receive(&giver) {
        parcels.push(parcel);
    }
    (&giver).write_all(&[KEPT]).ok();
    drop(giver);
    if parcels.is_empty() {
        return Ok(Code::Ok);
    }
    let deadline = Instant::now() + args.time;
    while let Some(taker) = next_taker(&listener, deadline)? {
        if hand_out(&parcels, &taker).is_ok() {
            drop(place);
            return Ok(Code::Ok);
        }
    }
    for parcel in parcels {
        // As when a session expires: the program learns that this is not the end of the stream.
        let socket = socket2::SockRef::from(&parcel.local);
        socket.set_linger(Some(Duration::ZERO)).ok();
    }
    Ok(Code::Ok)
}

/// The next process of this user that asks before `deadline`.
fn next_taker(listener: &UnixListener, deadline: Instant) -> Result<Option<UnixStream>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let timeout = Timespec::try_from(left).ok();
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error).context("cannot wait"),
        }
        let (taker, _) = listener.accept()?;
        // The file's mode keeps others out; this holds even where a file system ignores it.
        let user = socket_peercred(&taker)?.uid.as_raw();
        if user == admin_folder::own_uid() || user == 0 {
            return Ok(Some(taker));
        }
    }
}

fn hand_out(parcels: &[Parcel], mut taker: &UnixStream) -> Result<()> {
    taker.set_write_timeout(Some(EXCHANGE_TIMEOUT))?;
    taker.set_read_timeout(Some(EXCHANGE_TIMEOUT))?;
    for parcel in parcels {
        parcel.send(taker)?;
    }
    send_end(taker)?;
    let mut answer = [0];
    taker.read_exact(&mut answer)?;
    ensure!(answer == [TAKEN], "not taken");
    Ok(())
}
