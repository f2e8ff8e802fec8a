//! From one `outlast listen` to the next at the same address: sessions that are still open when a process stops are taken
//! out of it with the connections of their programs, kept by a small process of their own, and gone on with by the next.
//! Their clients see an outage.
//!
//! ```text
//! old process ── parcels ──> keeper ── parcels ──> new process
//!          SIGTERM              waits        listens at the same address
//! ```
//!
//! A listener that is stopping and waits for its sessions to end hands over at once when the next one asks.

mod counter;
mod door;
mod keeper;
mod owner;
mod parcel;
mod places;
mod turn;

pub use door::{Door, ask_to_hand_over};
pub use keeper::{KeepArgs, run as keep};
pub use parcel::Parcel;
pub use places::covers;
pub use turn::Turn;

use crate::admin_folder;
use crate::cli::values::with_usable_log_filter;
use crate::exit::Failure;
use crate::unix_socket::is_abandoned;
use anyhow::{Context, Result, ensure};
use keeper::{KEPT, READY, TAKEN};
use outlast_restart::credentials::Peer;
use outlast_restart::supervisor::{ENVIRONMENT as SUPERVISOR_ENVIRONMENT, OUTLIVES_ENVIRONMENT};
use outlast_session::relay::DetachedRelay;
use parcel::OtherVersion;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time that sessions wait for the next process. Default 5 min: for a restart it takes seconds, for an upgrade minutes.
pub const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(300);
/// A keeper that was about to go when it was asked: so often others are looked for.
const ATTEMPTS_MAX: usize = 10;
/// Before the next look: the process that has the sessions by now shows that it stops, or listens.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// A keeper says within this time that it is there, and that it has everything.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(30);

/// A keeper that is being filled.
#[derive(Debug)]
pub struct Keeper {
    stream: UnixStream,
    given: usize,
    /// Something could not be sent whole: what followed would be taken for the rest of that.
    broken: bool,
    /// Its process.
    pub pid: u32,
    /// Where the next process has to listen.
    pub address: SocketAddr,
}

/// Whether keepers can be started at all. What else may fail shows only when the port is closed.
///
/// # Errors
/// They would end with this process, or have no folder for their sockets.
pub fn check() -> Result<()> {
    // All other processes of a container end with its first one.
    ensure!(std::process::id() != 1, "as the first process here, this one ends all others with itself");
    admin_folder::check_new()
}

impl Keeper {
    /// Starts one.
    ///
    /// # Errors
    /// There is one for this address already, or it cannot be started.
    pub fn start(address: SocketAddr, time: Duration) -> Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_read_timeout(Some(KEEPER_TIMEOUT))?;
        stream.set_write_timeout(Some(KEEPER_TIMEOUT))?;
        let child = with_usable_log_filter(&mut Command::new(program()))
            .args(["keep-detached", &address.to_string(), "--time", &format!("{}ms", time.as_millis())])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            // Below `outlast run` it is nothing that the program has left behind by mistake.
            .env(OUTLIVES_ENVIRONMENT, "1")
            .env_remove(SUPERVISOR_ENVIRONMENT)
            .spawn()
            .context("cannot start a process to keep them")?;
        let mut keeper = Self { stream, given: 0, broken: false, pid: child.id(), address };
        keeper.expect(READY)?;
        Ok(keeper)
    }

    fn expect(&mut self, word: u8) -> Result<()> {
        let mut said = [0];
        self.stream.read_exact(&mut said).context("the process that keeps them has failed")?;
        ensure!(said == [word], "the process that keeps them has failed");
        Ok(())
    }

    /// Gives it one more.
    ///
    /// # Errors
    /// It does not take it, or has not taken one before.
    pub fn add(&mut self, relay: DetachedRelay) -> Result<()> {
        self.give(&Parcel::pack(relay)?)
    }

    fn give(&mut self, parcel: &Parcel) -> Result<()> {
        ensure!(!self.broken, "the process that keeps sessions has failed");
        if let Err(error) = parcel.send(&self.stream) {
            self.broken = true;
            self.stream.shutdown(Shutdown::Both).ok();
            return Err(error.context("the process that keeps sessions has failed"));
        }
        self.given += 1;
        Ok(())
    }

    /// That was all. How many it keeps, and how many more it was given.
    ///
    /// # Errors
    /// It is not known what it keeps.
    pub fn finish(mut self) -> Result<(usize, usize)> {
        ensure!(!self.broken, "the process that keeps them has failed");
        // It may have stopped to listen, and said so.
        parcel::send_end(&self.stream).ok();
        self.expect(KEPT)?;
        let mut count = [0; 4];
        let kept = match self.stream.read_exact(&mut count) {
            Ok(()) => usize::try_from(u32::from_be_bytes(count)).unwrap_or(usize::MAX),
            // It is of an earlier version.
            Err(_) => self.given,
        };
        Ok((kept, self.given.saturating_sub(kept)))
    }
}

/// This program, by its name if that still leads to it.
pub fn program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// What earlier processes have left at an address.
#[derive(Debug, Default)]
pub struct Legacy {
    pub parcels: Vec<Parcel>,
    keepers: Vec<UnixStream>,
}

impl Legacy {
    /// Asks the keepers of all addresses whose clients may come to a listener at `address`: one that does not know their
    /// sessions would tell them so, and end them. What another version has written is logged: the keeper goes on keeping.
    ///
    /// # Errors
    /// A keeper does not answer, or not in order: clients would be told that what it keeps is not there.
    pub fn ask(address: SocketAddr, only_v6: bool) -> Result<Self> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(legacy) = Self::ask_once(address, only_v6)? {
                return Ok(legacy);
            }
            // Somebody else has taken over what it had.
            std::thread::sleep(LOOK_AGAIN);
            ask_to_hand_over(address, only_v6)?;
        }
        Ok(Self::ask_once(address, only_v6)?.unwrap_or_default())
    }

    /// None if a keeper has gone meanwhile: all have to be asked again.
    fn ask_once(address: SocketAddr, only_v6: bool) -> Result<Option<Self>> {
        let mut legacy = Self::default();
        let mut asked = Vec::new();
        for (kept_for, socket) in places::all(places::Kind::Keeper) {
            let covered = covers(address, only_v6, kept_for);
            if !covered && !covers(kept_for, false, address) {
                continue;
            }
            let keeper = match UnixStream::connect(&socket) {
                Ok(keeper) => keeper,
                Err(error) => {
                    if error.kind() == std::io::ErrorKind::ConnectionRefused {
                        // Its process was killed, and has taken all with it.
                        admin_folder::remove_left(&socket);
                    }
                    continue;
                }
            };
            // One that can be found in several places.
            let process = pid(&keeper);
            if process.is_some() && asked.contains(&process) {
                continue;
            }
            asked.push(process);
            match receive_all(&keeper) {
                Ok(parcels) => {
                    if !covered {
                        tracing::warn!(
                            "{address} is only a part of {kept_for}, where the process before listened: clients that \
                             come by another address do not find their sessions; listen on {kept_for} for all of them"
                        );
                    }
                    legacy.parcels.extend(parcels);
                    legacy.keepers.push(keeper);
                }
                Err(_) if !socket.exists() || is_abandoned(&socket) => return Ok(None),
                Err(error) if is_timeout(&error) => {
                    return Err(Failure::system(format!(
                        "cannot take over the sessions of {kept_for}: {}, which keeps them, does not answer; \
                         start again, or end it",
                        called(process)
                    )));
                }
                // Nothing will change that: it keeps them until its time is over.
                Err(error) if error.is::<OtherVersion>() => {
                    tracing::error!("cannot take over the sessions of {kept_for}: {error:#}");
                }
                Err(error) => {
                    return Err(Failure::system(format!(
                        "cannot take over the sessions of {kept_for}: {error:#}; {} keeps them: start again, or \
                         end it",
                        called(process)
                    )));
                }
            }
        }
        Ok(Some(legacy))
    }

    /// The processes that keep them.
    pub fn keeper_pids(&self) -> Vec<i32> {
        self.keepers.iter().filter_map(pid).collect()
    }

    /// This process goes on with them: the keepers can go.
    pub fn taken(self) {
        for mut keeper in self.keepers {
            keeper.write_all(&[TAKEN]).ok();
        }
    }
}

fn is_timeout(error: &anyhow::Error) -> bool {
    let of_std = error.downcast_ref::<std::io::Error>().is_some_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    });
    of_std || error.downcast_ref::<rustix::io::Errno>() == Some(&rustix::io::Errno::AGAIN)
}

/// None: it has no number here, as it is in another PID namespace.
fn pid(keeper: &UnixStream) -> Option<i32> {
    Peer::of(keeper).ok()?.pid
}

/// A process, for people.
fn called(pid: Option<i32>) -> String {
    pid.map_or_else(|| String::from("a process in another PID namespace"), |pid| format!("process {pid}"))
}

fn receive_all(keeper: &UnixStream) -> Result<Vec<Parcel>> {
    keeper.set_read_timeout(Some(KEEPER_TIMEOUT))?;
    let mut parcels = Vec::new();
    while let Some(parcel) = Parcel::receive(keeper)? {
        parcels.push(parcel);
    }
    Ok(parcels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes after a session that stopped half-way is not taken for the rest of that one.
    #[test]
    fn a_keeper_that_is_held_up_gets_nothing_more() {
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        let address = "127.0.0.1:7".parse().unwrap();
        let mut keeper = Keeper { stream, given: 0, broken: false, pid: 1, address };
        let (large, _program) = parcel::tests::parcel(&vec![1; 8 << 20]);
        assert!(keeper.give(&large).is_err());
        let (small, _program) = parcel::tests::parcel(b"session");
        // It has time again.
        let reading = std::thread::spawn(move || receive_all(&theirs));
        assert!(keeper.give(&small).is_err());
        assert!(keeper.finish().is_err());
        assert!(reading.join().unwrap().is_err());
    }
}
