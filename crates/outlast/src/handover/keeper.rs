//! The process that keeps relays between a process that has stopped and the next one.
//!
//! It is this program, started by the one that stops: a process that is told to stop has to be gone before the next one
//! is started. It has one socket in the folder of the admin sockets, hands everything to the first process that asks, and
//! ends; or when nobody has asked for long enough. A session whose client has been away for as long as the listener kept
//! any (`--keep`) is given up here as it would have been there. At a second one it answers `outlast status` and `outlast kill`.

use super::counter::Counter;
use super::parcel::{Parcel, send_end};
use super::places;
use crate::admin_folder;
use crate::cli::values::duration;
use crate::exit::Code;
use crate::unix_socket::is_abandoned;
use anyhow::{Context, Result, ensure};
use clap::Args;
use outlast_restart::credentials::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `outlast keep-detached`.
#[derive(Debug, Args)]
pub struct KeepArgs {
    /// Where the sessions were served, and will be
    pub address: SocketAddr,
    /// How long
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    pub time: Duration,
}

/// Said by the keeper when it listens; when it has everything, with the number of sessions in four bytes (those of earlier
/// versions do without); by the next process when it has everything.
pub const READY: u8 = b'R';
pub const KEPT: u8 = b'K';
pub const TAKEN: u8 = b'T';

/// For one exchange with the next process, whose descriptors and memory may be slow to come by.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The keeper before this one goes when it has handed out everything: at once, as soon as it gets a processor.
const PREDECESSOR_GONE_WITHIN: Duration = Duration::from_secs(10);

/// A socket's file, as long as it is ours.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        admin_folder::remove(&self.0);
    }
}

/// Keeps what comes over standard input.
pub fn run(args: &KeepArgs) -> Result<Code> {
    // Whoever has started it may end with its terminal.
    rustix::process::setsid().ok();
    // A session that can be resumed has its keys with it.
    crate::keys::keep_memory_out_of_dumps("the keys of sessions");
    std::env::set_current_dir("/").ok();
    let giver = take_stdin()?;
    wait_for_predecessor(args.address);
    let bound = admin_folder::bind_to_stay(places::socket_name(places::Kind::Keeper, args.address))?;
    let (places, listeners): (Vec<Place>, Vec<UnixListener>) =
        bound.into_iter().map(|(path, listener)| (Place(path), listener)).unzip();
    (&giver).write_all(&[READY])?;
    let mut parcels = Vec::new();
    // What has come before the giver failed is kept all the same.
    while let Ok(Some(parcel)) = Parcel::receive(&giver) {
        parcels.push(parcel);
    }
    reset_when_dropped(&parcels);
    // Whoever is told that they are kept finds them. They are kept even if nobody can be told.
    let asked = admin_folder::bind_instance_to_stay().unwrap_or_default();
    let asked = asked.into_iter().next().map(|(path, listener)| (Place(path), listener));
    let (asked_place, asked) = asked.unzip();
    let mut kept = vec![KEPT];
    kept.extend(u32::try_from(parcels.len()).unwrap_or(u32::MAX).to_be_bytes());
    (&giver).write_all(&kept).ok();
    // Where not all could be received it should not go on sending.
    drop(giver);
    let started = Instant::now();
    let mut counter = Counter { address: args.address, parcels, started, deadline: started + args.time };
    while let Some(deadline) = counter.next_end() {
        match next_caller(&listeners, asked.as_ref(), deadline)? {
            None => {}
            Some(Caller::Asks(stream)) => counter.serve(&stream).unwrap_or_default(),
            Some(Caller::Takes(taker)) => {
                let taken = hand_out(&counter.parcels, &taker).is_ok();
                if taken {
                    break;
                }
                // A taker of an earlier version may have chosen otherwise.
                reset_when_dropped(&counter.parcels);
            }
        }
    }
    drop((places, asked_place));
    Ok(Code::Ok)
}

/// The connection to the process that gives. Nothing else keeps it open: what that process sends after this one has
/// stopped to listen has to fail.
fn take_stdin() -> Result<UnixStream> {
    let giver = std::io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(giver.into())
}

/// A listener may be told to stop as soon as it has taken over what a keeper had, which is then still there.
fn wait_for_predecessor(address: SocketAddr) {
    let until = Instant::now() + PREDECESSOR_GONE_WITHIN;
    let found = places::all(places::Kind::Keeper).into_iter().filter(|(kept_for, _)| *kept_for == address);
    for (_, path) in found.filter(|(_, path)| !is_abandoned(path)) {
        while path.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// However this process ends, the programs learn that this is not the end of their streams.
fn reset_when_dropped(parcels: &[Parcel]) {
    for parcel in parcels {
        parcel.reset_when_dropped();
    }
}

/// A process of this user at one of the two sockets.
enum Caller {
    /// It goes on with what is kept.
    Takes(UnixStream),
    /// It is `outlast status` or `outlast kill`.
    Asks(UnixStream),
}

/// The next one that comes before `deadline`.
fn next_caller(
    takers: &[UnixListener],
    askers: Option<&UnixListener>,
    deadline: Instant,
) -> Result<Option<Caller>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let timeout = Timespec::try_from(left).ok();
        let mut ready: Vec<PollFd<'_>> =
            takers.iter().chain(askers).map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        match poll(&mut ready, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error).context("cannot wait"),
        }
        // The sockets do not block: who is gone again is nobody.
        if let Some((taker, _)) = takers.iter().find_map(|takers| takers.accept().ok())
            && is_own(&taker)
        {
            taker.set_nonblocking(false)?;
            return Ok(Some(Caller::Takes(taker)));
        }
        if let Some(Ok((asker, _))) = askers.map(UnixListener::accept)
            && is_own(&asker)
        {
            asker.set_nonblocking(false)?;
            return Ok(Some(Caller::Asks(asker)));
        }
    }
}

/// The file's mode keeps others out; this holds even where a file system ignores it.
pub fn is_own(stream: impl AsFd) -> bool {
    Peer::of(stream).is_ok_and(|peer| peer.uid == admin_folder::own_uid() || peer.uid == 0)
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
